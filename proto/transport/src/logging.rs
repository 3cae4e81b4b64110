//! The log of a process. A thread of its own writes the lines to standard error, from a bounded queue, so that a thread
//! that serves never waits for whoever reads them. Lines for which the queue has no room are dropped and counted.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use parking_lot::Mutex;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// The maximum number of lines that wait to be written.
const LINES_MAX: usize = 4096;

static WRITER: Mutex<Option<WorkerGuard>> = Mutex::new(None);
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// The log. When it is dropped, the lines that wait are written, for a second at most.
#[derive(Debug)]
#[must_use]
pub struct Logging {
    /// `false` in a process that had a log already.
    began: bool,
}

impl Drop for Logging {
    fn drop(&mut self) {
        if self.began {
            finish();
        }
    }
}

/// Begins the log, unless the process has one already.
///
/// # Errors
/// When `filter` is neither a level nor a filter.
pub fn begin(filter: &str) -> Result<Logging, ParseError> {
    let filter = EnvFilter::try_new(filter)?;
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_MAX).thread_name("log");
    let (lines, writer) = queue.finish(std::io::stderr());
    let dropped = lines.error_counter();
    let began = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(lines)
        .try_init()
        .is_ok();
    if began {
        *WRITER.lock() = Some(writer);
        DROPPED.get_or_init(|| dropped);
        if cfg!(panic = "abort") {
            finish_before_panics();
        }
    }
    Ok(Logging { began })
}

/// The number of lines that were dropped since the start.
#[must_use]
pub fn dropped_lines() -> u64 {
    DROPPED.get().map_or(0, |dropped| dropped.dropped_lines() as u64)
}

fn finish() {
    // Taken first, so that nothing waits while the lock is held.
    let writer = WRITER.lock().take();
    drop(writer);
}

/// A panic that aborts drops nothing. What led to it must not stay in the queue.
fn finish_before_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        finish();
        print(panic);
    }));
}
