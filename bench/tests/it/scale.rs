//! Runs `scale`, `watchers` and `stalls` as a whole with tiny loads. Requires the binaries beside `kindred-bench`
//! (`cargo build --workspace --bins`).

use std::{path::PathBuf, process::Command};

fn bench(words: &str) -> String {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_kindred-bench"));
    let output = Command::new(&program)
        .args(words.split_whitespace())
        .env_remove("RUST_BACKTRACE")
        .env("KINDRED_BIN_DIR", program.parent().unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The cells of all rows with this first cell.
fn rows(text: &str, first: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter(|line| line.starts_with(&format!("| {first} |")));
    rows.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

fn number(cell: &str) -> f64 {
    cell.trim_end_matches(" %").parse().unwrap_or_else(|_| panic!("{cell:?} is not a number"))
}

#[test]
fn each_operation_has_its_cost_at_each_level() {
    let text = bench(
        "scale --keys 300,1000 --watches 1,5 --clients 1,2 --keys-else 400 --ops 200 --rounds 1 --in-flight 8",
    );
    for load in ["optimistic update", "get", "`limit=1`", "page of 500"] {
        let rows = rows(&text, load);
        // Keys, watches and clients for two processes each, then the six topologies of the Kind.
        assert_eq!(rows.len(), 3 * 2 + 6, "{text}");
        for row in &rows[..6] {
            assert!(row.len() == 6 && number(&row[2]) > 0.0 && number(&row[3]) > 0.0, "{row:?}");
        }
        let shards: Vec<usize> = rows[6..].iter().map(|row| row[3].split(", ").map(number).count()).collect();
        assert_eq!(shards, [1, 1, 2, 4, 2, 4]);
        assert_eq!(rows[6][5], "1.00", "one shard against itself");
    }
}

#[test]
fn events_have_their_cost_at_any_number_of_watchers() {
    let text = bench(
        "watchers --watchers 0,1,3 --rate 500 --rates 500,1000 --watched-by 2 --seconds 1 --rounds 1 --keys 50",
    );
    for watchers in ["0", "1", "3"] {
        let row = rows(&text, watchers).remove(0);
        assert!(number(&row[1]) > 0.0 && number(&row[2]) > 0.0, "{row:?}");
    }
    assert!(text.contains("One more watcher: "), "{text}");
    for rate in ["500", "1000"] {
        let row = rows(&text, rate).remove(0);
        assert!(number(&row[1]) > 0.0, "{row:?}");
    }
    let late = rows(&text, "events at the watchers").remove(0);
    assert!(number(&late[1]) > 0.0 && number(&late[1]) <= number(&late[4]) + 0.1, "{late:?}");
}

#[test]
fn writes_are_timed_while_a_shard_works() {
    let dir = tempfile::tempdir().unwrap();
    let text = bench(&format!(
        "stalls --keys 2000 --seconds 1 --rounds 1 --rate 200 --dir {}",
        dir.path().display()
    ));
    for work in [
        "nothing else",
        "a list of all keys in one answer",
        "the same by RangeStream",
        "a checkpoint",
        "a compaction of a version of each key",
    ] {
        let row = rows(&text, work).remove(0);
        assert_eq!(row.len(), 8, "{row:?}");
        assert!(number(&row[7]) > 0.0, "no turn was timed: {row:?}");
    }
    let quiet = rows(&text, "nothing else").remove(0);
    assert!(number(&quiet[2]) > 0.0 && number(&quiet[3]) > 0.0, "{quiet:?}");
}
