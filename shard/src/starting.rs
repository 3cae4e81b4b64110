//! Reports the progress of a start on standard output, so that `kindred up` knows where the shard will listen, and that
//! a long start makes progress.

use std::{
    fmt::Display,
    io::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// The interval of the reports.
const EVERY: Duration = Duration::from_secs(1);

/// The progress of a start, shared with the reporting thread.
#[derive(Debug, Clone, Default)]
pub struct Starting(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Where clients will be served; empty until that is known.
    listen: Mutex<String>,
    records: AtomicU64,
    is_over: AtomicBool,
}

impl Starting {
    /// Notes that the addresses are bound: clients can connect, but get no answers yet.
    pub(crate) fn bound(&self, listen: &[impl Display]) {
        let listen: Vec<String> = listen.iter().map(ToString::to_string).collect();
        *self.0.listen.lock().unwrap_or_else(PoisonError::into_inner) = listen.join(",");
    }

    /// Counts a record read from logs or checkpoints.
    pub(crate) fn read_one(&self) {
        self.0.records.fetch_add(1, Ordering::Relaxed);
    }

    /// The report; `None` before the addresses are known and after the end of the start.
    fn line(&self) -> Option<String> {
        let listen = self.0.listen.lock().unwrap_or_else(PoisonError::into_inner);
        let records = self.0.records.load(Ordering::Relaxed);
        let tells = !listen.is_empty() && !self.0.is_over.load(Ordering::Acquire);
        tells.then(|| format!("kindred-shard starting listen={listen} records={records}"))
    }

    /// Reports from a thread of its own until the returned guard is dropped.
    pub(crate) fn tell(&self) -> std::io::Result<Telling> {
        let (shared, over) = (self.clone(), self.clone());
        let thread = std::thread::Builder::new().name("starting".to_owned()).spawn(move || {
            while !shared.0.is_over.load(Ordering::Acquire) {
                std::thread::park_timeout(EVERY);
                let Some(line) = shared.line() else { continue };
                let mut out = std::io::stdout().lock();
                // There may be no reader.
                let _ = writeln!(out, "{line}").and_then(|()| out.flush());
            }
        })?;
        Ok(Telling { starting: over, thread: thread.thread().clone() })
    }
}

/// Dropped at the end of the start, successful or not; ends the reports.
#[derive(Debug)]
pub(crate) struct Telling {
    starting: Starting,
    thread: std::thread::Thread,
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.starting.0.is_over.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_says_where_it_listens_and_how_far_it_is() {
        let starting = Starting::default();
        starting.read_one();
        assert_eq!(starting.line(), None, "nobody could connect");
        starting.bound(&["unix:///s", "127.0.0.1:7"]);
        starting.read_one();
        let line = "kindred-shard starting listen=unix:///s,127.0.0.1:7 records=2";
        assert_eq!(starting.line().as_deref(), Some(line));
        drop(starting.tell().unwrap());
        assert_eq!(starting.line(), None, "it is over");
    }
}
