//! Detects that the machine stalled: no thread ran, or its disk did not answer. A server that was unavailable during a
//! stall has no bug, so a scenario that asserts availability runs again.

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use parking_lot::Mutex;

const EVERY: Duration = Duration::from_millis(50);
/// A router takes a store for down after 1.8 s of silence, so a shorter stall can be enough together with normal work.
const STALL: Duration = Duration::from_secs(1);

/// A thread that repeatedly sleeps and writes a file, and records each turn that took long.
#[derive(Debug)]
pub struct Stalls {
    turns: Arc<Mutex<Turns>>,
    /// Nothing is ever sent. The thread ends when the sender is dropped.
    _until: Sender<()>,
}

#[derive(Debug)]
struct Turns {
    began: Instant,
    /// The ends and lengths of the turns that took long.
    long: Vec<(Instant, Duration)>,
}

impl Turns {
    /// The longest of the stalls that ended after `since` and of the one under way.
    fn longest(&self, since: Instant, now: Instant) -> Option<Duration> {
        let ended = self.long.iter().filter(|(end, _)| *end >= since).map(|(_, length)| *length);
        let under_way = Some(now.saturating_duration_since(self.began)).filter(|length| *length >= STALL);
        ended.chain(under_way).max()
    }

    fn next(&mut self, now: Instant) {
        let length = now.saturating_duration_since(self.began);
        if length >= STALL {
            self.long.push((now, length));
        }
        self.began = now;
    }
}

impl Stalls {
    /// Watches the machine, and the disk of `dir`.
    ///
    /// # Errors
    /// If no file can be created in `dir`.
    pub fn watch(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("stalls");
        let mut file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        let turns = Arc::new(Mutex::new(Turns { began: Instant::now(), long: Vec::new() }));
        let noted = turns.clone();
        let (until, stopped) = mpsc::channel();
        thread::spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                // The tested servers notice a disk that refuses, so an error here does not matter.
                let _ = file.write_all(b"x").and_then(|()| file.sync_data());
                noted.lock().next(Instant::now());
            }
        });
        Ok(Self { turns, _until: until })
    }

    /// The longest stall since `since`, if there was one.
    #[must_use]
    pub fn longest(&self, since: Instant) -> Option<Duration> {
        self.turns.lock().longest(since, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_turn_is_a_stall_for_those_that_met_it() {
        let start = Instant::now();
        let mut turns = Turns { began: start, long: Vec::new() };
        turns.next(start + EVERY);
        assert_eq!(turns.longest(start, start + 2 * EVERY), None);
        assert_eq!(turns.longest(start, start + EVERY + STALL), Some(STALL), "under way");
        turns.next(start + EVERY + STALL);
        let end = start + EVERY + STALL;
        assert_eq!(turns.longest(end, end), Some(STALL));
        assert_eq!(turns.longest(end + EVERY, end + EVERY), None, "it was over before");
    }
}
