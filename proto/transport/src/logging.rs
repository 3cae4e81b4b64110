//! The log of a process. A thread of its own writes the lines to standard error, from a bounded queue, so that a thread
//! that serves never waits for whoever reads them. Lines for which the queue has no room are dropped and counted.
//!
//! Each line names the process: in front of a line of text, or in fields of a line of JSON ([`Format`]).

use std::io::IsTerminal as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

mod lines;

pub use lines::line;

/// The maximum number of lines that wait to be written.
const LINES_MAX: usize = 4096;

static WRITER: Mutex<Option<WorkerGuard>> = Mutex::new(None);
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();
static BEGUN: OnceLock<(Format, Process)> = OnceLock::new();
static NAMED_BY_PARENT: AtomicBool = AtomicBool::new(false);

/// The form of the lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line, with `time`, `level`, `process`, `name`, `target`, `message` and the fields of the message.
    Json,
}

impl Format {
    /// The name on command lines.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// The process that a log is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// `shard`, `router` or `up`.
    pub kind: &'static str,
    /// The name of the shard's store, or of the router.
    pub name: Option<String>,
}

impl Process {
    /// The words in front of a line of text.
    fn front(&self) -> String {
        match &self.name {
            Some(name) => format!("[{} {name}] ", self.kind),
            None => String::new(),
        }
    }
}

/// Leaves out the name in front of lines of text, because the parent process, which reads them, writes it there.
pub fn named_by_parent() {
    NAMED_BY_PARENT.store(true, Ordering::Relaxed);
}

/// The format of this process's log, if it has begun one.
#[must_use]
pub fn format() -> Format {
    BEGUN.get().map_or(Format::Text, |(format, _)| *format)
}

/// A line for standard error in the format of this process's log. For errors with which a program ends, and for lines of
/// other processes.
#[must_use]
pub fn last_words(program: &str, message: &str) -> String {
    match BEGUN.get() {
        Some((Format::Json, process)) => line("ERROR", process.kind, process.name.as_deref(), message),
        _ => format!("{program}: {message}"),
    }
}

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

/// Reads a filter: levels, of all or of `TARGET=LEVEL`, with commas between. Without any, errors are left.
fn targets(filter: &str) -> Result<Targets, ParseError> {
    let parts: Vec<_> = filter.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    match parts[..] {
        [] => Ok(Targets::new().with_default(LevelFilter::ERROR)),
        _ => parts.join(",").parse(),
    }
}

/// Begins the log, unless the process has one already.
///
/// # Errors
/// When `filter` is neither a level nor a filter.
pub fn begin(filter: &str, format: Format, process: Process) -> Result<Logging, ParseError> {
    let filter = targets(filter)?;
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES_MAX).thread_name("log");
    let (lines, writer) = queue.finish(std::io::stderr());
    let dropped = lines.error_counter();
    // Its own level is INFO. What is above all levels of the filter costs a comparison.
    let level = Layer::<Registry>::max_level_hint(&filter).unwrap_or(LevelFilter::TRACE);
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(lines);
    let began = match format {
        Format::Text => {
            let named = NAMED_BY_PARENT.load(Ordering::Relaxed);
            let front = if named { String::new() } else { process.front() };
            let text = lines::Text::new(front);
            let log = log.with_ansi(std::io::stderr().is_terminal()).event_format(text).finish();
            log.with(filter).try_init().is_ok()
        }
        Format::Json => {
            let json = lines::Json(process.clone());
            log.with_ansi(false).event_format(json).finish().with(filter).try_init().is_ok()
        }
    };
    if began {
        let _ = BEGUN.set((format, process));
        *WRITER.lock() = Some(writer);
        DROPPED.get_or_init(|| dropped);
        if format == Format::Json {
            panics_in_json();
        }
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

/// Prints panics as lines of JSON, as all else.
fn panics_in_json() {
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        let captured = backtrace.status() == std::backtrace::BacktraceStatus::Captured;
        let backtrace = if captured { format!("\n{backtrace}") } else { String::new() };
        let text = last_words("", &format!("{panic}{backtrace}"));
        // Nobody is left to hear that standard error cannot be written.
        let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), format!("{text}\n").as_bytes());
    }));
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_filter_has_levels_of_all_and_of_targets() {
        let of = |filter: &str| {
            let targets = targets(filter).unwrap();
            let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
            let most = |target: &str| levels.iter().rfind(|level| targets.would_enable(target, level));
            (most("h2::frame").copied(), most("kindred_router::meta").copied())
        };
        assert_eq!(of("info"), (Some(Level::INFO), Some(Level::INFO)));
        assert_eq!(of("INFO, h2=warn,"), (Some(Level::WARN), Some(Level::INFO)));
        assert_eq!(of("kindred_router=debug"), (None, Some(Level::DEBUG)));
        assert_eq!(of("h2=off,trace"), (None, Some(Level::TRACE)));
        assert_eq!(of(""), (Some(Level::ERROR), Some(Level::ERROR)));
        assert!(targets("h2=loud").is_err());
        assert!(targets("h2=info=warn").is_err());
    }
}
