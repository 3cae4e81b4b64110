//! Tables that tests write into the documentation.

use std::{fs::File, path::Path};

use anyhow::{Context, ensure};

/// Compares the table that follows `mark` in a page with `table`, or with `KINDRED_DOCS=write` writes it there.
pub fn documented(page: &str, mark: &str, table: &str) -> anyhow::Result<()> {
    let mark = format!("<!-- {mark} -->\n\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    // Several tests write into one page, each in a process of its own.
    let locked = File::open(&path)?;
    locked.lock()?;
    let text = std::fs::read_to_string(&path)?;
    let (before, behind) = text.split_once(&mark).context("the mark of the table")?;
    let there: String = behind.split_inclusive('\n').take_while(|line| line.starts_with('|')).collect();
    if there == table {
        return Ok(());
    }
    ensure!(
        std::env::var("KINDRED_DOCS").is_ok_and(|to| to == "write"),
        "{page} has another table: run this test with KINDRED_DOCS=write\n{table}"
    );
    let rest = behind[there.len()..].trim_start_matches('\n');
    Ok(std::fs::write(&path, format!("{before}{mark}{table}\n{rest}"))?)
}
