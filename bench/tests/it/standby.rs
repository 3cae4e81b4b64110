//! Runs `standby` as a whole with a tiny load. Requires the binaries beside `kindred-bench` (`cargo build --workspace --bins`).

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Runs `standby` from the root of the repository, where the peers are, with the members' data in this folder.
fn standby(words: &str, dir: &Path) -> Output {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_kindred-bench"));
    Command::new(&program)
        .arg("standby")
        .args(words.split_whitespace())
        .arg("--dir")
        .arg(dir)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap())
        .env_remove("RUST_BACKTRACE")
        .env("KINDRED_BIN_DIR", program.parent().unwrap())
        .output()
        .unwrap()
}

/// The cells of the rows with so many cells and this title.
fn rows<'a>(text: &'a str, cells: usize, title: &str) -> Vec<Vec<&'a str>> {
    let all = text.lines().map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
    all.filter(|row: &Vec<&str>| row.len() == cells && row[0] == title).collect()
}

#[test]
fn a_write_has_its_cost_with_each_number_of_standbys() {
    let dir = tempfile::tempdir().unwrap();
    let words =
        "--rows alone,async,sync,two-sync --ops 200 --single-ops 20 --rounds 1 --keys 50 --failover-rounds 0";
    let output = standby(words, dir.path());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for (row, standbys) in [
        ("one shard alone", 0.0),
        ("primary + standby that does not count", 1.0),
        ("primary + standby that counts", 1.0),
        ("primary + two standbys that count", 2.0),
    ] {
        let rows = rows(&text, 9, row);
        // Two modes, and many writes in flight or one.
        assert_eq!(rows.len(), 4, "{text}");
        for row in rows {
            let sent: f64 = row[7].parse().unwrap();
            assert!(sent >= standbys * 512.0 && sent < standbys * 700.0 + 1.0, "{row:?}");
            assert_eq!(row[3], "-", "there is no etcd: {row:?}");
        }
    }
    assert!(text.contains("| CPU of one shard | 1.50 | "), "{text}");
}

#[test]
fn each_fault_has_the_time_for_which_no_write_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("plot.svg");
    let words = format!("--rounds 0 --failover-rounds 1 --failover-plot {}", plot.display());
    let output = standby(&words, dir.path());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("CPU"), "the cost is left out: {text}");
    for fault in ["primary killed", "primary paused", "handover", "standby killed"] {
        let rows = rows(&text, 6, fault);
        assert_eq!((rows.len(), rows[0][1]), (1, "1"), "{text}");
        // One time is the median, the 99th percentile and the longest.
        let millis: f64 = rows[0][2].parse().unwrap();
        assert!(millis > 0.0 && rows[0][3..5] == [rows[0][2]; 2], "{text}");
    }
    assert!(text.contains(" writes were acknowledged, and none of them is lost."), "{text}");
    let svg = fs::read_to_string(&plot).unwrap();
    for line in ["primary killed, 1 times", "handover, 1 times", "aim, primary lost"] {
        assert!(svg.contains(line), "{line}: {svg}");
    }
}
