//! The log of a run, in order: faults, the servers' log lines, and at the end the history of the clients.

use std::io::{self, Write};
use std::sync::Arc;

use kindred_checker::history::History;
use parking_lot::Mutex;
use tracing_subscriber::fmt::{MakeWriter, format, time::FormatTime};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::cluster::SimClock;

/// The simulation and its servers share one log.
#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Adds the servers' log lines on this thread from now on, at this level or filter.
    ///
    /// # Errors
    /// If the filter cannot be parsed.
    pub fn listen(&self, filter: &str) -> anyhow::Result<tracing::subscriber::DefaultGuard> {
        let filter: tracing_subscriber::filter::Targets = filter.parse()?;
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_timer(Simulated)
            .with_writer(self.clone())
            .finish()
            .with(filter);
        Ok(tracing::subscriber::set_default(subscriber))
    }

    /// Adds a line of the simulation itself.
    pub fn line(&self, text: &str) {
        let text = format!("{}ms {text}\n", SimClock::get().millis());
        self.0.lock().extend_from_slice(text.as_bytes());
    }

    /// Adds the history of the clients.
    ///
    /// # Errors
    /// If the history cannot be written as JSON.
    pub fn history(&self, history: &History) -> anyhow::Result<()> {
        self.0.lock().extend_from_slice(history.to_json_lines()?.as_bytes());
        Ok(())
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().clone()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

struct Simulated;

impl FormatTime for Simulated {
    fn format_time(&self, w: &mut format::Writer<'_>) -> std::fmt::Result {
        write!(w, "{}ms", SimClock::get().millis())
    }
}
