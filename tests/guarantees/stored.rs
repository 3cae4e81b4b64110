//! A failed history on disk, in three files: the history as JSON lines, the assumptions, and the violations.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use kindred_checker::history::History;

use crate::guarantees::system::Assumptions;

const HISTORY: &str = "history.jsonl";
const ASSUMPTIONS: &str = "assumptions.json";
const FOUND: &str = "found.txt";

/// Writes all three files and returns the path of the history.
///
/// # Errors
/// If a file cannot be written.
pub fn save(
    dir: &Path,
    history: &History,
    assumptions: &Assumptions,
    found: &str,
) -> anyhow::Result<PathBuf> {
    let path = dir.join(HISTORY);
    fs::write(&path, history.to_json_lines()?)?;
    fs::write(dir.join(ASSUMPTIONS), serde_json::to_string_pretty(assumptions)?)?;
    fs::write(dir.join(FOUND), found)?;
    Ok(path)
}

/// Reads a history, and the assumptions from the file beside it.
///
/// # Errors
/// If one of them does not exist or cannot be parsed.
pub fn load(path: &Path) -> anyhow::Result<(History, Assumptions)> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let assumptions = path.with_file_name(ASSUMPTIONS);
    let assumed =
        fs::read_to_string(&assumptions).with_context(|| format!("reading {}", assumptions.display()))?;
    Ok((History::from_json_lines(&text)?, serde_json::from_str(&assumed)?))
}
