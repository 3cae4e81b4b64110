//! Runs the cases of a client as processes, and learns from their output what became of each.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Child,
};

use super::{differences, side::Side};

/// A case that says nothing for so long has failed. Some make ten thousand objects without a word, on a machine that is busy
/// with other tests.
pub const SILENCE: Duration = Duration::from_secs(240);

/// A case that is known to differ is given up after this silence.
const SILENCE_OF_KNOWN: Duration = Duration::from_secs(5);

/// How often a case may fail before it counts as failed: many of them set short deadlines, and this machine is shared.
pub const TRIES: usize = 3;

/// How many lines of a case's output are kept, for a case that fails.
const LINES_MAX: usize = 12;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// The case skips itself, and says why.
    Skipped(String),
    Failed(String),
}

/// A line of a client's output that says something about a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Begins(String),
    Ends(String, Outcome),
}

/// Makes a command from cases and the address of a server.
type CommandOf = dyn Fn(&[String], &str) -> Command + Send + Sync;

/// Cases of a client that one process runs.
#[derive(Clone)]
pub struct Suite {
    pub client: String,
    pub version: String,
    pub part: usize,
    pub cases: Vec<String>,
    /// The command that runs some of the cases with the server at an address.
    pub command: Arc<CommandOf>,
    /// Whether the process starts servers itself.
    pub starts_servers: bool,
    pub parse: fn(&str) -> Option<Event>,
}

impl Outcome {
    /// Whether the case wants a flag that the server does not have.
    pub fn lacks_flag(&self) -> bool {
        matches!(self, Self::Skipped(why) if why.contains("the server has no --"))
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.client, self.part)
    }
}

/// Divides cases into parts of at most `size`. Cases beside each other take alike, so each part has some of every kind.
pub fn parts(cases: &[String], size: usize) -> Vec<Vec<String>> {
    let parts = cases.len().div_ceil(size);
    (0..parts).map(|part| cases.iter().skip(part).step_by(parts).cloned().collect()).collect()
}

/// Runs the cases of a suite at a side, those that fail up to `TRIES` times. A case that is known to differ has one try.
pub async fn run(suite: &Suite, side: Side, dir: &Path) -> anyhow::Result<BTreeMap<String, Outcome>> {
    let mut outcomes: BTreeMap<String, Outcome> = BTreeMap::new();
    for _ in 0..TRIES {
        let again = |case: &String| match outcomes.get(case) {
            None => true,
            Some(Outcome::Failed(_)) => !differences::is_known(&suite.client, case, side),
            Some(skipped @ Outcome::Skipped(_)) => side != Side::Etcd && !skipped.lacks_flag(),
            Some(Outcome::Passed) => false,
        };
        let cases: Vec<String> = suite.cases.iter().filter(|case| again(case)).cloned().collect();
        if cases.is_empty() {
            break;
        }
        let tried = one_try(suite, side, dir, cases).await?;
        outcomes.extend(tried);
    }
    Ok(outcomes)
}

/// Runs cases once. A process that ends early, or is silent, makes the case fail that it was at, and another one goes on.
async fn one_try(
    suite: &Suite,
    side: Side,
    dir: &Path,
    mut cases: Vec<String>,
) -> anyhow::Result<BTreeMap<String, Outcome>> {
    let mut outcomes = BTreeMap::new();
    while !cases.is_empty() {
        let server = if suite.starts_servers { None } else { Some(side.start(dir).await?) };
        let address = server.as_ref().map_or("", |server| server.address());
        let mut command = (suite.command)(&cases, address);
        command.env("TMPDIR", dir).envs(side.environment(dir)?);
        let silence = |case: &str| {
            if differences::is_known(&suite.client, case, side) { SILENCE_OF_KNOWN } else { SILENCE }
        };
        let (ended, mut at) = process(&format!("{suite:?}"), suite.parse, silence, command).await?;
        if ended.is_empty() && at.is_none() {
            at = Some((cases[0].clone(), "the process did not begin it".to_owned()));
        }
        if let Some((case, said)) = at {
            outcomes.insert(case, Outcome::Failed(said));
        }
        outcomes.extend(ended);
        cases.retain(|case| !outcomes.contains_key(case));
    }
    Ok(outcomes)
}

pub type Ended = BTreeMap<String, Outcome>;
pub type At = Option<(String, String)>;

/// Runs a process to its end, or until it is silent for longer than the case that it is at may be. Returns the cases that
/// ended, and the one that did not with what it said.
pub async fn process(
    what: &str,
    mut parse: impl FnMut(&str) -> Option<Event>,
    silence: impl Fn(&str) -> Duration,
    mut command: Command,
) -> anyhow::Result<(Ended, At)> {
    use std::os::unix::process::CommandExt as _;
    // Servers that the process starts are in its group, and end with it.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut command = tokio::process::Command::from(command);
    let mut child = command.stderr(Stdio::null()).spawn().with_context(|| what.to_owned())?;
    let lines = child.stdout.take().context("its output")?;
    let mut group = Group(child);
    let mut lines = BufReader::new(lines).split(b'\n');
    let (mut ended, mut at, mut said) = (Ended::new(), None::<String>, Vec::new());
    loop {
        let limit = at.as_deref().map_or(SILENCE, &silence);
        let line = match tokio::time::timeout(limit, lines.next_segment()).await {
            Ok(line) => line?,
            Err(_) => {
                said.push(format!("nothing for {limit:?}"));
                break;
            }
        };
        let Some(line) = line else { break };
        let line = String::from_utf8_lossy(&line).into_owned();
        match parse(&line) {
            Some(Event::Begins(case)) => {
                at = Some(case);
                said.clear();
            }
            Some(Event::Ends(case, Outcome::Failed(why))) => {
                said.push(why);
                ended.insert(case, Outcome::Failed(said.join("\n")));
                at = None;
            }
            Some(Event::Ends(case, Outcome::Skipped(why))) => {
                said.push(why);
                ended.insert(case, Outcome::Skipped(said.join("\n")));
                at = None;
            }
            Some(Event::Ends(case, outcome)) => {
                // What has failed for one input has failed.
                if !matches!(ended.get(&case), Some(Outcome::Failed(_))) {
                    ended.insert(case, outcome);
                }
                at = None;
            }
            None if said.len() < LINES_MAX && !line.contains(" logger.go:") => {
                said.push(line.chars().take(300).collect())
            }
            None => {}
        }
    }
    group.end().await;
    Ok((ended, at.map(|case| (case, said.join("\n")))))
}

/// A process and those that it started.
struct Group(Child);

impl Group {
    fn kill(&self) {
        if let Some(pid) = self.0.id() {
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{pid}")]).status();
        }
    }

    async fn end(&mut self) {
        self.kill();
        let _ = self.0.wait().await;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
