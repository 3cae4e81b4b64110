//! Runs a test body with a directory of its own and a deadline. When it fails, the directory stays, and the ends of the
//! logs in it are printed.

use std::{
    fmt::Write as _,
    fs,
    future::Future,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

/// How many lines of each log are printed when a scenario fails. The whole log stays in the directory.
const TAIL_LINES: usize = 25;

/// The interval at which [`wait_for`] polls.
const POLL: Duration = Duration::from_millis(5);

/// Limits are written for an idle machine. A machine that is this many times slower still passes.
const SLOWER: u32 = 10;

/// Runs `body` on a runtime of its own. On success its directory is removed. On failure it stays, and the ends of the
/// logs in it are printed.
///
/// # Panics
/// If the body fails or does not end within `SLOWER` times `limit`. The panic makes the test fail.
pub fn run<F, Fut>(name: &str, limit: Duration, body: F)
where
    F: FnOnce(PathBuf) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let outcome = try_run(name, limit, body);
    if let Err(error) = outcome {
        panic!("{name}: {error:#}");
    }
}

fn try_run<F, Fut>(name: &str, limit: Duration, body: F) -> anyhow::Result<()>
where
    F: FnOnce(PathBuf) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let dir = tempfile::Builder::new().prefix(&format!("kindred-{name}-")).tempdir()?;
    let kept = KeepOnFailure { path: Some(dir.keep()) };
    let path = kept.path.clone().context("a fresh directory")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let limit = limit * SLOWER;
    let outcome = runtime.block_on(async {
        match tokio::time::timeout(limit, body(path)).await {
            Ok(outcome) => outcome,
            Err(_) => bail!("not done after {limit:?}"),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(2));
    if outcome.is_ok() {
        kept.remove();
    }
    outcome
}

/// Prints the logs and leaves the directory, unless `remove` is called. So a panic inside a body is a failure too.
struct KeepOnFailure {
    path: Option<PathBuf>,
}

impl KeepOnFailure {
    fn remove(mut self) {
        if let Some(path) = self.path.take() {
            // A directory that cannot be removed does not make a passed test fail.
            let _ = fs::remove_dir_all(path);
        }
    }
}

impl Drop for KeepOnFailure {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            report(&tails(path));
        }
    }
}

/// The last lines of every `*.log` in `dir`.
fn tails(dir: &Path) -> String {
    let mut text = format!("logs are kept in {}\n", dir.display());
    let mut logs: Vec<PathBuf> = fs::read_dir(dir)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    logs.sort();
    for log in logs {
        let content = fs::read(&log).unwrap_or_default();
        let content = String::from_utf8_lossy(&content);
        let lines: Vec<&str> = content.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        if !tail.is_empty() {
            let _ = writeln!(text, "--- {} (last {} of {} lines)", log.display(), tail.len(), lines.len());
            let _ = writeln!(text, "{}", tail.join("\n"));
        }
    }
    text
}

/// Prints a line whether the test passes or not. The test runner captures `println!`, but not this.
pub fn report(line: &str) {
    let mut out = std::io::stdout().lock();
    // A closed output does not make a test fail.
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Polls until `condition` returns a value. Fails with `what` after `SLOWER` times `limit`.
pub async fn wait_for<T, F, Fut>(what: &str, limit: Duration, mut condition: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<Option<T>>>,
{
    let (start, limit) = (Instant::now(), limit * SLOWER);
    loop {
        if let Some(value) = condition().await? {
            return Ok(value);
        }
        if start.elapsed() > limit {
            bail!("waited {limit:?} for {what}");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Reads a number from the environment, such as the length of a run or a seed.
///
/// # Errors
/// If the variable is set and is not a number.
pub fn env_number(name: &str, default: u64) -> anyhow::Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.trim().parse().with_context(|| format!("{name}={text:?} is not a number")),
        Err(_) => Ok(default),
    }
}
