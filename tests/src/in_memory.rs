//! The script `tests/in-memory`, which gives each test run a directory and removes those of earlier runs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The script with directories of runs in `base`, ready to run `command` in a shell.
fn script(base: &Path, command: &str) -> Command {
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/in-memory"));
    script.args(["sh", "-c", command]).env("TMPDIR", base).stdin(Stdio::null());
    script
}

/// Runs a command; returns its exit code and the directory that it had.
fn run(base: &Path, command: &str) -> (Option<i32>, PathBuf) {
    let output = script(base, &format!("echo $TMPDIR; touch $TMPDIR/left; {command}")).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap().trim().into())
}

#[test]
fn what_a_failed_run_left_stays_until_the_next_run() {
    let base = tempfile::tempdir().unwrap();
    let (code, passed) = run(base.path(), "true");
    assert!(code == Some(0) && passed.starts_with(base.path()) && !passed.exists());
    let (code, failed) = run(base.path(), "exit 3");
    assert!(code == Some(3) && failed.join("left").exists());
    assert_eq!(run(base.path(), "true").0, Some(0));
    assert!(!failed.exists());
}

#[test]
fn a_run_under_way_keeps_its_directory_and_others_keep_theirs() {
    let base = tempfile::tempdir().unwrap();
    let foreign = base.path().join("kindred.others");
    fs::create_dir(&foreign).unwrap();
    let mut first = script(base.path(), "read end; ls $TMPDIR/.lock");
    let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let of_runs = || {
        let entries = fs::read_dir(base.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.join(".lock").exists()).collect::<Vec<_>>()
    };
    while of_runs().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(run(base.path(), "true").0, Some(0));
    assert_eq!(of_runs().len(), 1);
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());
    assert!(of_runs().is_empty() && foreign.exists());
}
