//! The operator's table of failures names what the programs really say.

use std::{fs, path::Path};

use super::deploy;

/// The text of all files below a folder.
fn text_below(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text_below(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// The quoted words in the first column of a row.
fn quoted(row: &str) -> Vec<&str> {
    let first = row.trim_start_matches('|').split('|').next().unwrap();
    first.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_failure_is_one_that_the_programs_tell_of() {
    let page = deploy("../docs/operations.md");
    let section = page.split("## When something is wrong").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut said = deploy("prometheus/kindred.rules.yaml");
    for folder in ["router/src", "shard/src", "shard/wal/src", "proto/transport/src", "proto/wire/src"] {
        text_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder), &mut said);
    }
    // A string that goes on in the next line of its file.
    let said = said.split("\\\n").map(str::trim_start).collect::<String>();
    let mut count = 0;
    for row in section.lines().filter(|line| line.starts_with("| ")).skip(2) {
        for words in quoted(row) {
            // A check has the name of its store in it, and the states are words.
            let words = words.replace("store-NAME", "store-{}").replace("standbys-NAME", "standbys-{}");
            assert!(said.contains(&words), "no program says {words:?}: {row}");
            count += 1;
        }
        assert_eq!(row.matches(" | ").count(), 2, "{row}");
    }
    assert!(count > 25, "{count}");
}

#[test]
fn every_alert_is_in_the_table_of_failures() {
    let page = deploy("../docs/operations.md");
    for line in deploy("prometheus/kindred.rules.yaml").lines() {
        if let Some((_, alert)) = line.split_once("alert: ") {
            assert!(page.contains(&format!("`{alert}`")), "docs/operations.md does not name {alert}");
        }
    }
}
