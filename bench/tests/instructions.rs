//! Instructions of the hot paths, as the tests' own build has them: a change that makes one much dearer fails here, on any
//! machine, however busy. `make instructions` compares a release build, and more closely.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests are tests")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What the paths take, and whose code that is, in the first line.
const LIMITS: &str = "instructions.debug";
/// Two runs on one machine differ by less than one percent.
const TOLERANCE: &str = "8";

/// The compiler and its target: another one makes other code.
fn compiler() -> String {
    let told = Command::new("rustc").arg("-vV").output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let host = told.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    format!("{} {host}", told.lines().next().unwrap())
}

#[test]
fn no_hot_path_takes_more_instructions_than_before() {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_kindred-bench"));
    let limits = Path::new(env!("CARGO_MANIFEST_DIR")).join(LIMITS);
    let same = fs::read_to_string(&limits).unwrap().lines().next().unwrap() == format!("# {}", compiler());
    let mut command = Command::new(&program);
    command.env("KINDRED_BIN_DIR", program.parent().unwrap()).env_remove("RUST_BACKTRACE");
    command.args(["instructions", "--ops", "500", "--tolerance", TOLERANCE]);
    if same {
        command.arg("--check").arg(&limits);
    } else {
        eprintln!("measured, but not compared: {LIMITS} is of another compiler");
    }
    let done = command.output().unwrap();
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{told}{}", String::from_utf8_lossy(&done.stderr));
    if told.starts_with("skipped") {
        // Not everybody can install valgrind; `make test` tries to.
        eprintln!("{told}");
        return;
    }
    let counts: Vec<u64> =
        told.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect();
    assert!(counts.len() == 8 && counts.iter().all(|count| *count > 10_000), "{told}");
}
