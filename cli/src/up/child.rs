//! A supervised child process: started, watched for its ready line, restarted with backoff, stopped with a grace
//! period.

use std::{
    io,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::child_log::ChildLog;

/// A starting child is given up after this time without progress: it has neither reported any nor used the
/// processor. A start that progresses may take any time.
const STALLED_AFTER: Duration = Duration::from_secs(600);
/// The interval between checks of a starting child.
const LOOK: Duration = Duration::from_secs(5);
/// The interval between messages about a slow start.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// The command of a child.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The name in messages: `shard pods`, `router`.
    pub name: String,
    pub program: PathBuf,
    pub args: Vec<String>,
    /// The words with which its ready line begins (`kindred-shard ready`).
    pub ready_prefix: &'static str,
}

/// The `key=value` words of a ready line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready(String);

impl Ready {
    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }
}

/// Why a child did not become ready.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The operating system could not start it.
    #[error("{name}: cannot start {program}: {source}")]
    Spawn {
        name: String,
        /// The executable.
        program: String,
        source: io::Error,
    },
    /// It ended before it was ready. Its own messages are on standard error.
    #[error("{name}: ended with {status} before it was ready; its message is above")]
    Ended {
        name: String,
        /// Its exit status.
        status: String,
    },
    /// It made no progress for too long.
    #[error("{name}: not ready, and it has done nothing for {} s; it is ended", STALLED_AFTER.as_secs())]
    NotReady {
        /// Its name in messages.
        name: String,
    },
}

/// A running child. Dropping it kills the process.
pub struct Running {
    child: Child,
    /// Kept open while the child should live. Taken out of `child`, because waiting for the child would close it.
    _stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
    log: ChildLog,
}

impl Spec {
    /// Starts the process and waits for its ready line, as [`Spec::start_telling`] does.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start(&self) -> Result<(Running, Ready), ChildError> {
        self.start_telling(|_| {}).await
    }

    /// Starts the process and waits for its ready line while it makes progress. Earlier lines are passed to `told`
    /// as they come.
    ///
    /// The child's standard input is a pipe that this process holds open. A child started with `--exit-with-parent`
    /// ends when the pipe closes, so even a `kill -9` of the supervisor leaves no orphan.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_telling(&self, mut told: impl FnMut(&Ready)) -> Result<(Running, Ready), ChildError> {
        let failed = |source| ChildError::Spawn {
            name: self.name.clone(),
            program: self.program.display().to_string(),
            source,
        };
        let (log, stderr) = ChildLog::begin(&self.name).map_err(failed)?;
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // A process group of its own: Ctrl-C in the terminal reaches only the supervisor, which stops the
            // children in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take().expect("stdout was set to a pipe three lines above");
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(stdout).lines();
        let mut life = Life::new(Instant::now());
        loop {
            match tokio::time::timeout(LOOK, stdout.next_line()).await {
                Ok(Ok(Some(line))) if line.starts_with(self.ready_prefix) => {
                    return Ok((Running { child, _stdin: stdin, stdout, log }, Ready(line)));
                }
                Ok(Ok(Some(line))) => {
                    let line = Ready(line);
                    told(&line);
                    life.said(Instant::now(), line);
                }
                Ok(Ok(None) | Err(_)) => {
                    let status = child.wait().await.map_or_else(|e| e.to_string(), |s| s.to_string());
                    // Show the child's own messages before the error about it.
                    log.ended().await;
                    return Err(ChildError::Ended { name: self.name.clone(), status });
                }
                Err(_) => {}
            }
            let now = Instant::now();
            if life.stands_still(now, child.id().and_then(processor_time)) {
                return Err(ChildError::NotReady { name: self.name.clone() });
            }
            if let Some(how) = life.news(now) {
                tracing::info!("{} is still starting{how}", self.name);
            }
        }
    }
}

/// The evidence that a starting child makes progress.
#[derive(Debug)]
struct Life {
    said: Option<Ready>,
    processor_time: u64,
    advanced: Instant,
    told: Instant,
}

impl Life {
    fn new(now: Instant) -> Self {
        Self { said: None, processor_time: 0, advanced: now, told: now }
    }

    /// Notes a line that the child printed. A repeated line is no progress.
    fn said(&mut self, now: Instant, line: Ready) {
        if self.said.as_ref() != Some(&line) {
            (self.said, self.advanced) = (Some(line), now);
        }
    }

    /// Whether the child has made no progress for too long.
    fn stands_still(&mut self, now: Instant, processor_time: Option<u64>) -> bool {
        if processor_time.is_some_and(|time| time > self.processor_time) {
            (self.processor_time, self.advanced) = (processor_time.unwrap_or_default(), now);
        }
        now.duration_since(self.advanced) >= STALLED_AFTER
    }

    /// The next message about the start, when it is due.
    fn news(&mut self, now: Instant) -> Option<String> {
        if now.duration_since(self.told) < TELL_EVERY {
            return None;
        }
        self.told = now;
        let records = self.said.as_ref().and_then(|line| line.get("records"));
        Some(records.map_or_else(String::new, |records| format!(": {records} records read so far")))
    }
}

/// The processor time of a process in kernel ticks; `None` if the kernel does not report it.
fn processor_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name in parentheses may contain any characters.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let times: Vec<u64> = fields.take(2).filter_map(|ticks| ticks.parse().ok()).collect();
    (times.len() == 2).then(|| times.iter().sum())
}

impl Running {
    /// The process id; `None` after it has ended and been reaped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the child's end. Drains its standard output, so that it never blocks on it.
    pub async fn ended(&mut self) -> String {
        loop {
            tokio::select! {
                line = self.stdout.next_line() => if !matches!(line, Ok(Some(_))) { break },
                status = self.child.wait() => return status.map_or_else(|e| e.to_string(), |s| s.to_string()),
            }
        }
        self.child.wait().await.map_or_else(|e| e.to_string(), |s| s.to_string())
    }

    /// Asks the child to stop (SIGTERM), and kills it after `grace`.
    pub async fn stop(mut self, grace: Duration) {
        if let Some(pid) =
            self.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw)
        {
            // An error means that the child is gone, which `ended` then finds.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(grace, self.ended()).await.is_err() {
            let _ = self.child.kill().await;
        }
        self.log.ended().await;
    }
}

/// The delay before a restart: 100 ms, doubled up to 2 s while the child dies quickly, and 100 ms again after it
/// has lived 10 s.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    started: Instant,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LAST: Duration = Duration::from_secs(2);
    const STABLE: Duration = Duration::from_secs(10);

    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { next: Self::FIRST, started: now }
    }

    /// The delay before the next start, after the child has ended.
    pub fn after_end(&mut self, now: Instant) -> Duration {
        if now.duration_since(self.started) >= Self::STABLE {
            self.next = Self::FIRST;
        }
        let wait = self.next;
        self.next = (self.next * 2).min(Self::LAST);
        wait
    }

    /// Records that the child was started again.
    pub fn started(&mut self, now: Instant) {
        self.started = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_line_words() {
        let ready = Ready("kindred-shard ready listen=127.0.0.1:1234 admin=127.0.0.1:9 pid=7".to_owned());
        assert_eq!(ready.get("listen"), Some("127.0.0.1:1234"));
        assert_eq!(ready.get("pid"), Some("7"));
        assert_eq!(ready.get("lis"), None);
    }

    #[test]
    fn backoff_doubles_and_resets() {
        let start = Instant::now();
        let mut backoff = Backoff::new(start);
        let waits: Vec<_> = (0..7).map(|_| backoff.after_end(start).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(backoff.after_end(start + Backoff::STABLE).as_millis(), 100);
        backoff.started(start + Backoff::STABLE);
        assert_eq!(backoff.after_end(start + Backoff::STABLE).as_millis(), 200);
    }

    #[test]
    fn f46_a_start_that_goes_on_is_waited_for() {
        let line =
            |records: u64| Ready(format!("kindred-shard starting listen=127.0.0.1:7 records={records}"));
        let began = Instant::now();
        let at = |minutes: u64| began + Duration::from_secs(60 * minutes);
        // A start of many hours is accepted while the child reports progress, or uses its processor without a
        // report.
        let mut life = Life::new(began);
        for minute in (0..600).step_by(9) {
            life.said(at(minute), line(minute));
            assert!(!life.stands_still(at(minute), Some(1)), "after {minute} minutes");
        }
        assert_eq!(life.news(at(600)).unwrap(), ": 594 records read so far");
        assert_eq!(life.news(at(600)), None, "not all the time");
        for minute in (600..1200).step_by(9) {
            life.said(at(minute), line(594));
            assert!(!life.stands_still(at(minute), Some(minute)), "after {minute} minutes");
        }
        // With neither, the child is given up.
        life.said(at(1205), line(594));
        assert!(!life.stands_still(at(1203), Some(1194)));
        assert!(life.stands_still(at(1205), Some(1194)));
        assert!(processor_time(std::process::id()).is_some() && processor_time(u32::MAX).is_none());
    }

    #[tokio::test]
    async fn f46_what_a_child_says_before_it_is_ready_is_told() {
        let spec = Spec {
            name: "shard x".to_owned(),
            program: "/bin/sh".into(),
            args: vec![
                "-c".to_owned(),
                "echo kindred-shard starting listen=h:1; echo kindred-shard ready; read line".to_owned(),
            ],
            ready_prefix: "kindred-shard ready",
        };
        let mut told = Vec::new();
        let (running, _) =
            spec.start_telling(|line| told.push(line.get("listen").map(str::to_owned))).await.unwrap();
        assert_eq!(told, [Some("h:1".to_owned())]);
        drop(running);
    }

    #[tokio::test]
    async fn a_child_that_ends_early_is_an_error_with_its_status() {
        let spec = Spec {
            name: "shard x".to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), "exit 3".to_owned()],
            ready_prefix: "kindred-shard ready",
        };
        let error = spec.start().await.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    #[tokio::test]
    async fn waiting_for_a_child_keeps_its_standard_input_open() {
        let spec = Spec {
            name: "shard x".to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), "echo kindred-shard ready; read line; exit 7".to_owned()],
            ready_prefix: "kindred-shard ready",
        };
        let (mut running, _) = spec.start().await.unwrap();
        let waited = tokio::time::timeout(Duration::from_millis(300), running.ended()).await;
        assert!(waited.is_err(), "the child saw the end of its input: {waited:?}");
        drop(running);
    }

    #[tokio::test]
    async fn a_child_is_stopped_by_term() {
        let spec = Spec {
            name: "shard x".to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), "echo kindred-shard ready listen=1; exec sleep 1000".to_owned()],
            ready_prefix: "kindred-shard ready",
        };
        let (running, ready) = spec.start().await.unwrap();
        assert_eq!(ready.get("listen"), Some("1"));
        running.stop(Duration::from_secs(20)).await;
    }
}
