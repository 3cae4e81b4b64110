//! Scripts that drive a browser.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use kindred_tests::{
    peers::{PeerSet, listed},
    scenario::report,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

/// How long a script may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);

/// The program that runs scripts; `None` where the machine lacks what they need.
pub fn driver() -> Option<PathBuf> {
    let peers = listed(PeerSet::Page).unwrap_or_else(|error| panic!("{error:#}"));
    let found = peers.into_iter().next().map(|peer| peer.path);
    if found.is_none() {
        crate::page::not_run();
    }
    found
}

/// A script that is to be run.
pub struct Script {
    command: Command,
    name: &'static str,
}

/// A script that runs.
pub struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    name: &'static str,
    said: String,
}

impl Script {
    pub fn new(driver: &Path, name: &'static str, settings: &Value) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page/browser");
        let mut command = Command::new(driver);
        command.arg(folder.join(name)).env("KINDRED_PAGE", settings.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        Self { command, name }
    }

    pub fn begin(mut self) -> anyhow::Result<Running> {
        let mut child = self.command.spawn().context("starting Node")?;
        let lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        Ok(Running { child, lines, name: self.name, said: String::new() })
    }

    /// Runs it to its end, which must be a good one.
    pub async fn run(self) -> anyhow::Result<()> {
        self.begin()?.ended().await
    }
}

impl Running {
    async fn line(&mut self) -> anyhow::Result<Option<String>> {
        let line = self.lines.next_line().await?;
        if let Some(line) = &line {
            self.said += line;
            self.said.push('\n');
        }
        Ok(line)
    }

    /// Waits until it prints a line.
    pub async fn said(&mut self, wanted: &str) -> anyhow::Result<()> {
        let found = async {
            while let Some(line) = self.line().await? {
                if line.contains(wanted) {
                    return Ok(());
                }
            }
            bail!("it ended without {wanted:?}")
        };
        let outcome =
            tokio::time::timeout(LIMIT, found).await.unwrap_or_else(|_| bail!("not within {LIMIT:?}"));
        outcome.with_context(|| format!("{}:\n{}", self.name, self.said))
    }

    pub async fn ended(mut self) -> anyhow::Result<()> {
        let end = async {
            while self.line().await?.is_some() {}
            let mut errors = String::new();
            if let Some(stderr) = &mut self.child.stderr {
                stderr.read_to_string(&mut errors).await?;
            }
            let status = self.child.wait().await?;
            ensure!(status.success(), "{status}\n{}\n{errors}", self.said);
            report(&format!("{}: {}", self.name, self.said.lines().last().unwrap_or_default()));
            Ok(())
        };
        let outcome = tokio::time::timeout(LIMIT, end).await;
        let outcome = outcome.unwrap_or_else(|_| bail!("not done within {LIMIT:?}:\n{}", self.said));
        outcome.with_context(|| self.name)
    }
}
