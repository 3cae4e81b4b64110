//! A history as JSON lines. Each line is one operation or one watch. The order of lines does not matter, so the files
//! of several clients can be concatenated.

use serde::{Deserialize, Serialize};

use crate::history::{History, Operation, Watch};

/// One line of a stored history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    Operation(Operation),
    Watch(Watch),
}

/// A line that cannot be parsed or written.
#[derive(Debug, thiserror::Error)]
#[error("line {number} of the history: {source}")]
pub struct LineError {
    number: usize,
    source: serde_json::Error,
}

impl History {
    /// All operations, then all watches.
    pub fn to_json_lines(&self) -> Result<String, LineError> {
        let operations = self.operations.iter().cloned().map(Line::Operation);
        let watches = self.watches.iter().cloned().map(Line::Watch);
        let mut text = String::new();
        for (index, line) in operations.chain(watches).enumerate() {
            let line =
                serde_json::to_string(&line).map_err(|source| LineError { number: index + 1, source })?;
            text.push_str(&line);
            text.push('\n');
        }
        Ok(text)
    }

    /// Parses the output of `to_json_lines`. Skips empty lines.
    pub fn from_json_lines(text: &str) -> Result<Self, LineError> {
        let mut history = Self::default();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            match serde_json::from_str(line).map_err(|source| LineError { number: index + 1, source })? {
                Line::Operation(operation) => history.operations.push(operation),
                Line::Watch(watch) => history.watches.push(watch),
            }
        }
        Ok(history)
    }
}
