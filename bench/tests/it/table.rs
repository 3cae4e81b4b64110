//! Produces the whole table: each workload on a shard, behind a router and with mTLS, in both loops. As stand-ins
//! for mem_etcd it uses a shard, and a program that never answers. Requires the binaries beside `kindred-bench`
//! (`cargo build --workspace --bins`).

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// Few operations, so that the run is short.
const FEW: &str = "--ops 40 --rounds 2 --keys 50 --in-flight 8 --watchers 3 --curve 1,4";

fn bench(dir: &Path, words: &str, mem_etcd: Option<&Path>) -> Output {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_kindred-bench"));
    let mut command = Command::new(&program);
    command
        .args(words.split_whitespace())
        .arg("--out")
        .arg(dir)
        .env_remove("MEM_ETCD")
        .env_remove("RUST_BACKTRACE");
    command.env("KINDRED_BIN_DIR", program.parent().unwrap());
    if let Some(path) = mem_etcd {
        command.env("MEM_ETCD", path);
    }
    command.output().unwrap()
}

/// The cells of the first row with this title.
fn cells(text: &str, row: &str) -> Vec<String> {
    let line = text.lines().find(|line| line.starts_with(&format!("| {row} |")));
    let line = line.unwrap_or_else(|| panic!("no row {row} in\n{text}"));
    line.trim_matches('|').split('|').skip(1).map(|cell| cell.trim().to_owned()).collect()
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn every_workload_runs_plain_and_with_mtls() {
    let dir = tempfile::tempdir().unwrap();
    let done = bench(dir.path(), &format!("{FEW} --subjects shard,router,router-mtls"), None);
    assert!(done.status.success(), "{done:?}");
    let text = fs::read_to_string(dir.path().join("closed.md")).unwrap();
    for row in
        ["put", "txn put", "lease flood", "get", "probe limit=1", "list 500", "mixed", "watch, 3 watchers"]
    {
        let cells = cells(&text, row);
        assert_eq!(cells.len(), 3, "{row}");
        assert!(cells.iter().all(|cell| cell.starts_with(|c: char| c.is_ascii_digit())), "{cells:?}");
        assert!(!cells[0].contains("router"), "{cells:?}");
        assert!(
            cells[1..].iter().all(|cell| cell.contains("router ") && cell.contains("shard ")),
            "{cells:?}"
        );
    }
    for plot in ["closed-cpu.svg", "closed-latency.svg"] {
        assert!(text.contains(plot));
        let plot = fs::read_to_string(dir.path().join(plot)).unwrap();
        assert!(plot.starts_with("<svg ") && plot.ends_with("</svg>\n") && !plot.contains("NaN"));
        assert!(plot.contains("kindred router + shard, mTLS"));
    }
}

#[test]
fn an_open_loop_has_its_tail() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!("{FEW} --subjects router --workloads lease-flood,watch --rate 400 --name some");
    let done = bench(dir.path(), &words, None);
    assert!(done.status.success(), "{done:?}");
    let text = fs::read_to_string(dir.path().join("some.md")).unwrap();
    assert!(text.contains("400 operations a second") && text.contains("p99.9"));
    let tail = text.lines().rfind(|line| line.starts_with("| lease flood |")).unwrap();
    assert_eq!(tail.matches(',').count(), 3, "{tail}");
    assert!(fs::read_to_string(dir.path().join("some-latency.svg")).unwrap().contains("lease flood"));
}

#[test]
fn a_mem_etcd_is_a_column_and_its_failures_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let kindred = PathBuf::from(env!("CARGO_BIN_EXE_kindred-bench")).with_file_name("kindred");
    let stand_in = dir.path().join("mem_etcd");
    // Refuses requests larger than this load's puts, such as updates, so that it fails in the middle of a run.
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec echo 'mem_etcd 0.0.7'\n\
         port=${{1#--port=}}\nexec '{}' shard --listen 127.0.0.1:$port --admin-listen 127.0.0.1:0 --max-request-bytes 1024\n",
        kindred.display()
    );
    script(&stand_in, &text);
    let words = format!("{FEW} --subjects shard,mem-etcd --workloads put,txn-put --value-bytes 920");
    let done = bench(dir.path(), &words, Some(&stand_in));
    assert!(done.status.success(), "{done:?}");
    let text = fs::read_to_string(dir.path().join("closed.md")).unwrap();
    assert!(text.contains("| mem_etcd | 0.0.7; "), "{text}");
    assert!(cells(&text, "put")[1].contains("of mem_etcd"), "{text}");
    assert!(cells(&text, "txn put")[0].starts_with("failed: "), "{text}");

    script(&stand_in, "#!/bin/sh\nexit 3\n");
    let done = bench(dir.path(), &words, Some(&stand_in));
    assert!(String::from_utf8_lossy(&done.stderr).contains("mem_etcd ended before it listened"), "{done:?}");
    let done = bench(dir.path(), &words, None);
    assert!(String::from_utf8_lossy(&done.stderr).contains("MEM_ETCD"), "{done:?}");
}

#[test]
fn a_router_on_a_unix_socket_is_measured_when_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let words = format!("{FEW} --subjects router,router-unix --workloads put,watch");
    let done = bench(dir.path(), &words, None);
    assert!(done.status.success(), "{done:?}");
    let text = fs::read_to_string(dir.path().join("closed.md")).unwrap();
    for row in ["put", "watch, 3 watchers"] {
        let cells = cells(&text, row);
        assert!(cells.len() == 2 && cells[1].contains("router ") && cells[1].contains("shard "), "{cells:?}");
    }
    assert!(text.contains("by a Unix socket"));
}
