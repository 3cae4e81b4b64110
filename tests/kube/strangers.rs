//! Clients of a cluster's etcd that are not apiservers: an election and a lock by etcd's own package, and agents that write as
//! those of Calico and Cilium do. They are the program `etcd-strangers` of `tests/peers/etcd`, which checks all that it reads.

use std::{fs::File, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{peers::peer, scenario::report};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// The program itself gives up before.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);

/// The running program.
pub struct Strangers {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// Who waits for the election, the leader first.
    order: Vec<String>,
}

impl Strangers {
    /// Begins at a server.
    pub async fn start(dir: &Path, address: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(peer("etcd-strangers")?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(dir.join("strangers.err.log"))?)
            .kill_on_drop(true)
            .spawn()?;
        let commands = child.stdin.take().context("its input")?;
        let answers = BufReader::new(child.stdout.take().context("its output")?).lines();
        let order = ["m0", "m1", "m2", "m3"].map(str::to_owned).to_vec();
        let mut strangers = Self { child, commands, answers, order };
        strangers.go(address).await?;
        Ok(strangers)
    }

    /// All of them go to another server.
    pub async fn go(&mut self, address: &str) -> anyhow::Result<()> {
        self.ask(&format!("at {address}")).await?;
        self.same(&format!("at {address}")).await
    }

    /// Asserts that everybody has what they had, that all leases live, and that all writes are there.
    pub async fn same(&mut self, what: &str) -> anyhow::Result<()> {
        let said = self.ask("check").await?;
        self.stand(what, &said)
    }

    /// The leader resigns and the lock is released: who has waited longest has them then. A lease is revoked, too.
    pub async fn pass(&mut self, what: &str) -> anyhow::Result<()> {
        self.order.rotate_left(1);
        let said = self.ask("pass").await?;
        self.stand(what, &said)?;
        self.ask("drop").await.map(drop)
    }

    /// Ends them; what they have found until then counts.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        drop(self.commands);
        let ended = tokio::time::timeout(ANSWER_LIMIT, self.child.wait()).await??;
        ensure!(ended.success(), "the strangers found something, see strangers.err.log");
        Ok(())
    }

    fn stand(&self, what: &str, said: &str) -> anyhow::Result<()> {
        report(&format!("strangers, {what}: {said}"));
        let order = self.order.join(" ");
        // The program has checked the lock: those that wait for it may have taken new places.
        ensure!(said.contains(&format!("leader: {order};")), "{what}: {said}, and not {order}");
        Ok(())
    }

    async fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        self.commands.write_all(format!("{command}\n").as_bytes()).await?;
        let answer = tokio::time::timeout(ANSWER_LIMIT, self.answers.next_line());
        let answer = answer.await.with_context(|| format!("no answer to {command}"))??;
        answer.with_context(|| format!("the strangers ended at {command}, see strangers.err.log"))
    }
}
