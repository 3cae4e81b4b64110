//! Runs the tests of a package at a place. They run one after another over the same servers, which each empties first. What
//! fails so is tried again with servers of its own, as some count on revisions of a new server.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::{Duration, Instant},
};

use kindred_tests::{
    layouts::{Place, Servers},
    peers::Peer,
    scenario::report,
};

use crate::compatibility::clients::{
    go,
    run::{Event, Outcome, SILENCE, TRIES, process},
};

use super::{WANTED, differences};

/// The package whose tests keep their objects below `/pods`, where kindred knows no Kinds.
const BELOW_PODS: &str = "etcd3";

/// A case that is known to differ is given up after this silence. Many of them wait for 30 s before they fail.
const SILENCE_OF_KNOWN: Duration = Duration::from_secs(35);

/// How many lines of a case are kept, for one that fails.
const LINES_MAX: usize = 12;

/// What became of the cases of a package. A case is a test without parts, or a part without parts, as `TestGet/get_existing`.
/// A test with parts is a case only when it fails although none of them does.
#[derive(Debug, Default, Clone)]
pub struct Cases {
    pub outcomes: BTreeMap<String, Outcome>,
    /// The tests that asked a server.
    pub asked: BTreeSet<String>,
}

impl Cases {
    /// Takes in what became of a test, or of a part of one, in another run.
    fn replace(&mut self, of: &str, by: Self) {
        self.outcomes.retain(|case, _| case != of && !is_part(case, of));
        self.outcomes.extend(by.outcomes);
        self.asked.extend(by.asked);
    }

    /// Leaves what is a case out of what became of all tests and parts.
    fn of(all: BTreeMap<String, Outcome>, asked: BTreeSet<String>) -> Self {
        let says_nothing = |name: &String, outcome: &Outcome| {
            let failed = matches!(outcome, Outcome::Failed(_));
            let mut parts = all.iter().filter(|(part, _)| is_part(part, name));
            parts.any(|(_, part)| !failed || matches!(part, Outcome::Failed(_)))
        };
        let cases = all.iter().filter(|(name, outcome)| !says_nothing(name, outcome));
        Self { outcomes: cases.map(|(name, outcome)| (name.clone(), outcome.clone())).collect(), asked }
    }
}

/// Whether a name is that of a part of a test.
pub fn is_part(name: &str, of: &str) -> bool {
    name.strip_prefix(of).is_some_and(|rest| rest.starts_with('/'))
}

/// Runs all tests of a package. What fails and is not known to differ is tried `TRIES` times.
pub async fn run(program: &Peer, place: Place, dir: &Path) -> anyhow::Result<Cases> {
    let begun = Instant::now();
    let tests = go::list(&program.path)?.into_iter().collect();
    let mut cases = one_try(program, tests, place, dir).await?;
    report(&format!("kube_storage {} at {place}: {:.0?}", program.name, begun.elapsed()));
    for _ in 1..TRIES {
        let again = |(case, outcome): (&String, &Outcome)| {
            let failed = matches!(outcome, Outcome::Failed(_));
            // Parts of one test share what it has set up.
            let whole = case.rsplit_once('/').map_or(case.as_str(), |(whole, _)| whole);
            (failed && !differences::is_known(&program.name, case, place)).then(|| whole.to_owned())
        };
        for whole in cases.outcomes.iter().filter_map(again).collect::<BTreeSet<_>>() {
            let tried = one_try(program, BTreeSet::from([whole.clone()]), place, dir).await?;
            cases.replace(&whole, tried);
        }
    }
    Ok(cases)
}

/// Runs tests, or parts of them, once, with servers of their own. A process that ends early, or is silent, makes the test
/// fail that it was at, and another one goes on.
async fn one_try(
    program: &Peer,
    mut tests: BTreeSet<String>,
    place: Place,
    dir: &Path,
) -> anyhow::Result<Cases> {
    let folder = tempfile::tempdir_in(dir)?;
    let used = folder.path().join("used");
    let servers = place.start(dir, WANTED).await?;
    let mut all = BTreeMap::new();
    while let Some(first) = tests.first().cloned() {
        let silence = |case: &str| {
            if differences::is_known(&program.name, case, place) { SILENCE_OF_KNOWN } else { SILENCE }
        };
        let command = command(program, &tests, &servers, folder.path(), &used);
        let what = format!("{} at {place}", program.name);
        let mut said = Said::default();
        let heard = |line: &str| {
            said.hear(line);
            parse(line)
        };
        let (mut ended, at) = process(&what, heard, silence, command).await?;
        for (case, outcome) in &mut ended {
            if let (Outcome::Failed(why), Some(lines)) = (outcome, said.lines.remove(case)) {
                *why = lines.join("\n");
            }
        }
        if let Some((case, said)) = at {
            // The test that it is a part of does not end either.
            let test = tests.iter().find(|test| is_part(&case, test)).cloned();
            all.extend(test.map(|test| (test, Outcome::Failed(said.clone()))));
            all.insert(case, Outcome::Failed(said));
        } else if !tests.iter().any(|test| ended.contains_key(test)) {
            all.insert(first, Outcome::Failed("its process ended before it".to_owned()));
        }
        all.extend(ended);
        tests.retain(|test| !all.contains_key(test));
    }
    let asked = fs::read_to_string(&used).unwrap_or_default();
    Ok(Cases::of(all, asked.lines().map(str::to_owned).collect()))
}

/// What each test and each part says. Those that run beside each other are told apart by lines with their names.
#[derive(Default)]
struct Said {
    by: String,
    lines: BTreeMap<String, Vec<String>>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        if let Some(by) =
            ["=== RUN   ", "=== CONT  ", "=== NAME  "].iter().find_map(|begin| line.strip_prefix(begin))
        {
            by.clone_into(&mut self.by);
            return;
        }
        let lines = self.lines.entry(self.by.clone()).or_default();
        if lines.len() < LINES_MAX && !line.contains("feature_gate.go") {
            lines.push(line.chars().take(300).collect());
        }
    }
}

fn command(
    program: &Peer,
    tests: &BTreeSet<String>,
    servers: &Servers,
    folder: &Path,
    used: &Path,
) -> std::process::Command {
    // Go wants a pattern for each part of a name, and of a whole test any name may stand in the first.
    let pattern = match tests.first() {
        Some(part) if part.contains('/') => part.split('/').map(exactly).collect::<Vec<_>>().join("/"),
        _ => format!("^({})$", tests.iter().cloned().collect::<Vec<_>>().join("|")),
    };
    let mut command = std::process::Command::new(&program.path);
    command.args(["-test.v", "-test.timeout=0", "-test.run", &pattern]);
    // Parts that wait for their turn at the server count as running.
    command.arg("-test.parallel=64");
    command.env("KINDRED_ENDPOINTS", servers.addresses.join(","));
    command.env("KINDRED_USED", used).env("TMPDIR", folder).current_dir(folder);
    if program.name == BELOW_PODS {
        command.env("KINDRED_PREFIX", "/registry");
    }
    command
}

/// The pattern that only this matches.
fn exactly(part: &str) -> String {
    let special = |char: char| r".+*?()[]{}|^$\".contains(char);
    let escaped: String =
        part.chars().flat_map(|char| special(char).then_some('\\').into_iter().chain([char])).collect();
    format!("^{escaped}$")
}

/// A test and its parts begin with `=== RUN   TestName/part`, and end with `--- PASS: TestName/part (0.00s)`, each part further
/// to the right than what it is a part of.
fn parse(line: &str) -> Option<Event> {
    if let Some(case) = line.strip_prefix("=== RUN   ") {
        return Some(Event::Begins(case.to_owned()));
    }
    go::parse(line.trim_start_matches(' '))
}
