//! Stops a process gracefully.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Controls the stop of a process: first tasks are asked to end (streams end with Unavailable), and after the grace
/// period they are forced to.
///
/// Clones share one state.
#[derive(Debug, Clone)]
pub struct Drain {
    stop: CancellationToken,
    kill: CancellationToken,
    tasks: TaskTracker,
    grace: Duration,
}

/// The outcome of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// All tasks ended by themselves.
    Cleanly,
    /// The grace period passed, or a second signal came, with this many tasks left.
    Forced(usize),
}

impl Drain {
    /// A running process with this grace period for its stop.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        Self {
            stop: CancellationToken::new(),
            kill: CancellationToken::new(),
            tasks: TaskTracker::new(),
            grace,
        }
    }

    /// Cancelled when the process should stop: accept nothing new, and end streams with Unavailable.
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Cancelled when the grace period ends: connections are then closed, whatever they carry.
    #[must_use]
    pub fn killed(&self) -> CancellationToken {
        self.kill.clone()
    }

    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    pub fn begin(&self) {
        self.stop.cancel();
    }

    pub fn kill(&self) {
        self.stop.cancel();
        self.kill.cancel();
    }

    /// Spawns a task that a stop waits for.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tasks.spawn(task)
    }

    /// As [`Drain::spawn`], on this runtime.
    pub fn spawn_on<F>(&self, task: F, runtime: &Handle) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tasks.spawn_on(task, runtime)
    }

    /// Begins a stop at SIGINT or SIGTERM. A second signal ends the grace period.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn on_signals(&self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let drain = self.clone();
        tokio::spawn(async move {
            for round in 0..2 {
                let name = tokio::select! {
                    _ = interrupt.recv() => "SIGINT",
                    _ = terminate.recv() => "SIGTERM",
                    () = drain.kill.cancelled() => return,
                };
                if round == 0 {
                    tracing::info!(signal = name, grace = ?drain.grace, "stopping");
                    drain.begin();
                } else {
                    tracing::warn!(signal = name, "second signal: closing all connections now");
                    drain.kill();
                }
            }
        });
        Ok(())
    }

    /// Waits for a stop to begin, and then for the tasks, for the grace period at most.
    pub async fn finish(&self) -> Drained {
        self.stop.cancelled().await;
        self.tasks.close();
        let forced = tokio::select! {
            biased;
            () = self.tasks.wait() => false,
            () = self.kill.cancelled() => true,
            () = tokio::time::sleep(self.grace) => true,
        };
        self.kill.cancel();
        if !forced {
            return Drained::Cleanly;
        }
        let left = self.tasks.len();
        // Tasks end when their connections close. A task that ignores both tokens is left behind.
        let _ = tokio::time::timeout(Duration::from_millis(500), self.tasks.wait()).await;
        Drained::Forced(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_for_tasks_and_no_longer_than_the_grace_period() {
        let drain = Drain::new(Duration::from_secs(5));
        let stopping = drain.stopping();
        drain.spawn(async move { stopping.cancelled().await });
        drain.begin();
        assert_eq!(drain.finish().await, Drained::Cleanly);

        let drain = Drain::new(Duration::from_secs(5));
        let killed = drain.killed();
        drain.spawn(async move { killed.cancelled().await });
        drain.begin();
        let start = tokio::time::Instant::now();
        assert_eq!(drain.finish().await, Drained::Forced(1));
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }
}
