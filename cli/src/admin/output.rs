//! Output: tables, JSON, YAML, and readable numbers.

use std::io::Write as _;
use std::time::Duration;

use kindred_partition_config::kind::ALL_ELSE;
use kindred_partition_config::parse;
use serde_json::Value;

use super::{args::Output, failure::Failure};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    #[must_use]
    pub fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(|name| name.to_uppercase()).collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Reads the API's answer to `as=Table`.
    #[must_use]
    pub fn of(value: &Value) -> Option<Self> {
        let columns = value["columnDefinitions"].as_array()?;
        let header = columns.iter().map(|column| text(&column["name"]).to_uppercase()).collect();
        let cells = |row: &Value| row["cells"].as_array().map(|cells| cells.iter().map(text).collect());
        let rows = value["rows"].as_array()?.iter().filter_map(cells).collect();
        Some(Self { header, rows })
    }

    /// Formats columns with three spaces between them, like `kubectl`.
    #[must_use]
    pub fn render(&self) -> String {
        let all = || std::iter::once(&self.header).chain(&self.rows);
        let columns = all().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = all().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            padded.collect::<Vec<_>>().join("   ").trim_end().to_owned()
        };
        all().map(|row| line(row) + "\n").collect()
    }
}

/// The text of a cell.
#[must_use]
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The name of the Kind of a partition or of a row about durability, which every command shows in the same way. Routers of
/// earlier versions tell only the prefix of its keys.
#[must_use]
pub fn kind(of: &Value) -> String {
    let named = of["resource"].as_str().or(of["kind"].as_str()).filter(|name| !name.is_empty());
    named.unwrap_or(ALL_ELSE).to_owned()
}

#[cfg(test)]
thread_local! {
    /// The output of commands under test.
    pub static CAPTURED: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// Prints to standard output. If the reader has gone, the program ends quietly.
///
/// # Errors
/// When writing fails otherwise.
pub fn print(text: &str) -> Result<(), Failure> {
    #[cfg(test)]
    CAPTURED.with_borrow_mut(|captured| captured.push_str(text));
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.map_err(|error| Failure::Refused(format!("standard output: {error}"))),
    }
}

/// Prints a line to standard error, and ignores errors, because they cannot be reported.
pub fn print_error(line: &str) {
    let _ = std::io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// Formats an object as JSON or YAML.
///
/// # Errors
/// When the object cannot be represented.
pub fn rendered(value: &Value, output: Output) -> Result<String, Failure> {
    let failed = |error: String| Failure::Refused(format!("cannot be printed: {error}"));
    match output {
        Output::Yaml => parse::to_yaml(value).map_err(failed),
        _ => Ok(serde_json::to_string_pretty(value).map_err(|error| failed(error.to_string()))? + "\n"),
    }
}

/// `1,234,567`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 key`, `1,234 keys`.
#[must_use]
pub fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(number), if number == 1 { "" } else { "s" })
}

/// `12.3 MiB`.
#[must_use]
pub fn bytes(number: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

/// `18.3 ms`, `12.4 s`, `3m20s`.
#[must_use]
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{:.1} ms", duration.as_secs_f64() * 1000.0),
        1..120 => format!("{:.1} s", duration.as_secs_f64()),
        120..7200 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_of_the_api() {
        let value = json!({
            "columnDefinitions": [{ "name": "Name" }, { "name": "Slot" }, { "name": "Endpoints" }],
            "rows": [{ "cells": ["pods", 4, "http://a"] }, { "cells": ["ünïcode-name", null, ""] }],
        });
        let table = Table::of(&value).unwrap().render();
        assert_eq!(table, "NAME           SLOT   ENDPOINTS\npods           4      http://a\nünïcode-name\n");
        assert_eq!(Table::of(&json!({ "kind": "Status" })), None);
    }

    #[test]
    fn figures() {
        assert_eq!([0, 999, 1000, 200_000, 1_234_567].map(count).join(" "), "0 999 1,000 200,000 1,234,567");
        assert_eq!([0, 1, 1001].map(|keys| counted(keys, "key")).join(", "), "0 keys, 1 key, 1,001 keys");
        assert_eq!([5, 2048, 221_500_000].map(bytes).join(" "), "5 B 2.0 KiB 211.2 MiB");
        let times = [18, 999, 12_400, 200_000, 7_500_000].map(|millis| time(Duration::from_millis(millis)));
        assert_eq!(times.join(" "), "18.0 ms 999.0 ms 12.4 s 3m20s 2h05m");
    }
}
