//! Runs `standby` as a whole with a tiny load. Requires the binaries beside `kindred-bench` (`make build`).
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{path::PathBuf, process::Command};

#[test]
fn a_write_has_its_cost_with_each_number_of_standbys() {
    let (program, dir) = (PathBuf::from(env!("CARGO_BIN_EXE_kindred-bench")), tempfile::tempdir().unwrap());
    let words =
        "standby --rows alone,async,sync,two-sync --ops 200 --single-ops 20 --rounds 1 --keys 50 --dir";
    let output = Command::new(&program)
        .args(words.split_whitespace())
        .arg(dir.path())
        .env_remove("RUST_BACKTRACE")
        .env("KINDRED_BIN_DIR", program.parent().unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for (row, standbys) in [
        ("one shard alone", 0.0),
        ("primary + standby that does not count", 1.0),
        ("primary + standby that counts", 1.0),
        ("primary + two standbys that count", 2.0),
    ] {
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split('|').map(str::trim).collect())
            .filter(|cells: &Vec<&str>| cells.len() == 11 && cells[1] == row)
            .collect();
        // Two modes, and many writes in flight or one.
        assert_eq!(rows.len(), 4, "{text}");
        for row in rows {
            let sent: f64 = row[8].parse().unwrap();
            assert!(sent >= standbys * 512.0 && sent < standbys * 700.0 + 1.0, "{row:?}");
            assert_eq!(row[4], "-", "there is no etcd: {row:?}");
        }
    }
    assert!(text.contains("| CPU of one shard | 1.50 | "), "{text}");
}
