//! One supervised child process: started, watched for its ready line, restarted with backoff, stopped with grace.

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

/// How long a child may take from its start to its ready line.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// What to run.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The name in messages: `shard pods`, `router`.
    pub name: String,
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// The word that its ready line begins with (`kindred-shard ready`).
    pub ready_prefix: &'static str,
}

/// The `key=value` words of a ready line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready(String);

impl Ready {
    /// The value of one word.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }
}

/// Why a child did not come up.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The operating system refused.
    #[error("{name}: cannot start {program}: {source}")]
    Spawn {
        /// Which child.
        name: String,
        /// What was run.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It ended before it was ready; its own messages stand on standard error.
    #[error("{name}: ended with {status} before it was ready; its message is above")]
    Ended {
        /// Which child.
        name: String,
        /// How.
        status: String,
    },
    /// No ready line in time.
    #[error("{name}: not ready within {} s", READY_WITHIN.as_secs())]
    NotReady {
        /// Which child.
        name: String,
    },
}

/// A running child. Dropping it kills the process.
pub struct Running {
    child: Child,
    /// Held open for as long as the child is to live; taken out of `child` because waiting for it would close it.
    _stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Spec {
    /// Starts the process and waits for its ready line.
    ///
    /// The child's standard input is a pipe that this process holds open: a child started with
    /// `--exit-with-parent` ends when the pipe closes, so even a `kill -9` of the supervisor leaves no orphan.
    pub async fn start(&self) -> Result<(Running, Ready), ChildError> {
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            // Of its own process group: Ctrl-C in the terminal goes to the supervisor, which stops in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| ChildError::Spawn {
                name: self.name.clone(),
                program: self.program.display().to_string(),
                source,
            })?;
        let stdout = child.stdout.take().expect("stdout was set to a pipe three lines above");
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(stdout).lines();
        let ready = tokio::time::timeout(READY_WITHIN, async {
            while let Ok(Some(line)) = stdout.next_line().await {
                if line.starts_with(self.ready_prefix) {
                    return Some(Ready(line));
                }
            }
            None
        })
        .await
        .map_err(|_| ChildError::NotReady { name: self.name.clone() })?;
        match ready {
            Some(ready) => Ok((Running { child, _stdin: stdin, stdout }, ready)),
            None => {
                let status = child.wait().await.map_or_else(|e| e.to_string(), |s| s.to_string());
                Err(ChildError::Ended { name: self.name.clone(), status })
            }
        }
    }
}

impl Running {
    /// The process id; `None` once it has ended and been reaped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the end, draining standard output so that the child never blocks on it.
    pub async fn ended(&mut self) -> String {
        loop {
            tokio::select! {
                line = self.stdout.next_line() => if !matches!(line, Ok(Some(_))) { break },
                status = self.child.wait() => return status.map_or_else(|e| e.to_string(), |s| s.to_string()),
            }
        }
        self.child.wait().await.map_or_else(|e| e.to_string(), |s| s.to_string())
    }

    /// Asks it to stop (SIGTERM), and kills it when it has not within `grace`.
    pub async fn stop(mut self, grace: Duration) {
        if let Some(pid) =
            self.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw)
        {
            // An error means that it is gone already, which `ended` then finds.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(grace, self.ended()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

/// Delays between restarts: 100 ms, doubled at each quick death up to 2 s, back to 100 ms after 10 s of life.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    started: Instant,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);
    const LAST: Duration = Duration::from_secs(2);
    const STABLE: Duration = Duration::from_secs(10);

    /// For a child that has just been started.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { next: Self::FIRST, started: now }
    }

    /// The child has ended: how long to wait before the next start.
    pub fn after_end(&mut self, now: Instant) -> Duration {
        if now.duration_since(self.started) >= Self::STABLE {
            self.next = Self::FIRST;
        }
        let wait = self.next;
        self.next = (self.next * 2).min(Self::LAST);
        wait
    }

    /// The child has been started again.
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
