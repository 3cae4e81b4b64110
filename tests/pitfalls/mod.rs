//! Checks `tests/PITFALLS.md`: every test that it names exists, and it names every `pitfall_` test.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Reads every `.rs` file of the workspace outside `target`.
fn sources(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let hidden = name.to_string_lossy().starts_with('.') || name == "target";
        if path.is_dir() && !hidden {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(&path).expect("a source"));
        }
    }
}

/// The names of the functions after a test attribute. Comments and further attributes may be in between.
fn functions(source: &str) -> Vec<&str> {
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in source.lines().map(str::trim_start) {
        if line == "#[test]" || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if is_test && !line.starts_with("#[") && !line.starts_with("//") {
            let name =
                line.trim_start_matches("async ").strip_prefix("fn ").and_then(|rest| rest.split_once('('));
            names.extend(name.map(|(name, _)| name));
            is_test = false;
        }
    }
    names
}

/// The four cells of each row: id, description, tests, and what a missing test waits for.
fn rows(table: &str) -> Vec<[&str; 4]> {
    let lines = table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| id") && !line.contains("---"));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            cells.try_into().unwrap_or_else(|_| panic!("not four cells: {line}"))
        })
        .collect()
}

fn tests_of(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_row_names_tests_that_exist_and_every_pitfall_test_has_a_row() {
    let table = fs::read_to_string(root().join("tests/PITFALLS.md")).expect("the table");
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let functions: BTreeSet<&str> = files.iter().flat_map(|file| functions(file)).collect();
    let mut named = BTreeSet::new();
    let rows = rows(&table);
    for [id, _, tests, waits] in &rows {
        let tests = tests_of(tests);
        assert!(!tests.is_empty() || *waits != "-", "{id} has no test and waits for nothing");
        for test in tests {
            assert!(functions.contains(test), "{id}: there is no test {test}");
            named.insert(test);
        }
    }
    let missing: Vec<_> =
        functions.iter().filter(|name| name.starts_with("pitfall_") && !named.contains(*name)).collect();
    assert!(missing.is_empty(), "not in tests/PITFALLS.md: {missing:?}");
    // A1-A13, B1-B13, C1-C9, D1-D5, E1-E8, each once.
    let ids: Vec<&str> = rows.iter().map(|[id, ..]| *id).collect();
    let expected: Vec<String> = [('A', 13), ('B', 13), ('C', 9), ('D', 5), ('E', 8)]
        .into_iter()
        .flat_map(|(letter, last)| (1..=last).map(move |number| format!("{letter}{number}")))
        .collect();
    assert_eq!(ids, expected);
}
