//! Loads by the client that kube-apiservers have: etcd's own, over grpc-go. It sends more than the calls: with the first
//! bytes of an answer a PING that measures the connection, unless one is under way.

use std::{
    io::{BufRead, BufReader, Lines, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::Context;

use crate::{
    load::Kind,
    measure::{Before, Sample},
    servers::Server,
    stats::Latency,
};

/// The program, which is among the peers.
const NAME: &str = "etcd-load";

/// The calls of each connection before those that count.
const WARM_UP: u64 = 10;

/// The number of operations that precede those that are measured.
pub fn warm_up(connections: usize) -> u64 {
    connections as u64 * WARM_UP
}

/// One run of it.
struct Run {
    child: Child,
    go: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Drop for Run {
    fn drop(&mut self) {
        // It has ended, or its server has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Run {
    fn expect(&mut self, wanted: &str) -> anyhow::Result<()> {
        let line = self.lines.next().with_context(|| format!("{NAME} ended before it said {wanted:?}"))??;
        anyhow::ensure!(line == wanted, "{NAME} said {line:?}, not {wanted:?}");
        Ok(())
    }
}

/// Measures operations of so many clients with a connection each, which have one call at a time under way.
pub async fn ops(
    program: &Path,
    server: &Server,
    kind: Kind,
    (connections, value_bytes): (usize, usize),
    ops: u64,
    rate: Option<u64>,
) -> anyhow::Result<Sample> {
    let kind = match kind {
        Kind::TxnPut => "update",
        Kind::Get => "get",
        other => anyhow::bail!("{NAME} has no {other:?}"),
    };
    let mut child = Command::new(program)
        .args(["--endpoint", &server.endpoint, "--kind", kind])
        .args(["--connections", &connections.to_string(), "--value-bytes", &value_bytes.to_string()])
        .args(["--calls", &ops.to_string(), "--rate", &rate.unwrap_or(0).to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| program.display().to_string())?;
    let go = child.stdin.take().context("no stdin")?;
    let lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
    let mut run = Run { child, go, lines };
    let pids = server.pids.clone();
    tokio::task::spawn_blocking(move || {
        run.expect("ready")?;
        let before = Before::now(&pids)?;
        run.go.write_all(b"go\n")?;
        run.expect("done")?;
        let after = before.end()?;
        let mut nanos = Vec::new();
        for line in run.lines.by_ref() {
            nanos.push(line?.parse::<u64>().context("a time")? * 1_000);
        }
        anyhow::ensure!(!nanos.is_empty(), "{NAME} made no calls");
        Ok(after.sample(nanos.len() as u64, Latency::of(nanos)))
    })
    .await?
}

/// The program, which `tests/peers/install etcd` builds.
pub fn pinned() -> anyhow::Result<PathBuf> {
    crate::pinned(NAME)
}
