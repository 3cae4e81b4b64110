//! Makes a failing sequence smaller by leaving operations out. Each attempt runs on fresh servers.

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use crate::differential::{Comparison, operation::Operation, run::Mismatch};

const BUDGET: Duration = Duration::from_secs(45);
const LISTED_MAX: usize = 40;

pub struct Small {
    pub operations: Vec<Operation>,
    pub mismatch: Option<Mismatch>,
}

/// Removes smaller and smaller parts while some difference remains, for at most [`BUDGET`].
pub async fn shrink(comparison: Comparison, dir: &Path, failing: &[Operation]) -> anyhow::Result<Small> {
    let start = Instant::now();
    let mut small = Small { operations: failing.to_vec(), mismatch: None };
    let mut part = small.operations.len() / 2;
    while part > 0 {
        let mut from = 0;
        while from < small.operations.len() {
            if start.elapsed() > BUDGET {
                return Ok(small);
            }
            let end = (from + part).min(small.operations.len());
            let mut candidate = small.operations.clone();
            candidate.drain(from..end);
            match comparison.run(dir, &candidate).await? {
                Err(mismatch) => {
                    candidate.truncate(mismatch.index + 1);
                    small = Small { operations: candidate, mismatch: Some(mismatch) };
                }
                Ok(_) => from = end,
            }
        }
        part /= 2;
    }
    Ok(small)
}

pub fn listing(operations: &[Operation]) -> String {
    let mut text = String::new();
    for (index, operation) in operations.iter().enumerate().take(LISTED_MAX) {
        let line: String = format!("{:?}", operation.action).chars().take(400).collect();
        let _ = writeln!(text, "  {index:>3} {line}");
    }
    if operations.len() > LISTED_MAX {
        let _ = writeln!(text, "  … and {} more", operations.len() - LISTED_MAX);
    }
    text
}
