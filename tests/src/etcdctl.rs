//! Runs the real `etcdctl`, and any other command, with a deadline.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, bail};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, Command},
};

use crate::peers::peer;

const COMMAND_LIMIT: Duration = Duration::from_secs(300);

/// The result of a command.
#[derive(Debug, Clone)]
pub struct Output {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// stdout of a command that must have succeeded.
    ///
    /// # Errors
    /// If the command failed. The error has its output.
    pub fn ok(self) -> anyhow::Result<String> {
        if !self.success {
            bail!("command failed\nstdout: {}\nstderr: {}", self.stdout, self.stderr);
        }
        Ok(self.stdout)
    }

    /// stderr of a command that must have failed.
    ///
    /// # Errors
    /// If the command succeeded.
    pub fn failed(self) -> anyhow::Result<String> {
        if self.success {
            bail!("command was expected to fail, but said: {}", self.stdout);
        }
        Ok(self.stderr)
    }
}

/// Runs a program to its end, with `input` on stdin.
///
/// # Errors
/// If the program cannot be run, or does not end within `COMMAND_LIMIT`.
pub async fn run(program: &Path, args: &[&str], input: &str) -> anyhow::Result<Output> {
    let shown = format!("{} {}", program.display(), args.join(" "));
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {shown}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading its input closes the pipe. Its exit status says why.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = tokio::time::timeout(COMMAND_LIMIT, child.wait_with_output())
        .await
        .with_context(|| format!("{shown} is not done after {COMMAND_LIMIT:?}"))??;
    Ok(Output {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// stdout of `etcdutl ARGS`, which must succeed.
///
/// # Errors
/// If it fails.
pub async fn etcdutl(args: &[&str]) -> anyhow::Result<String> {
    let output = run(&peer("etcdutl")?, args, "").await?;
    output.ok().with_context(|| format!("etcdutl {}", args.join(" ")))
}

/// `etcdctl` for one endpoint. Every call gets its flags, such as those for TLS.
#[derive(Debug, Clone)]
pub struct Etcdctl {
    flags: Vec<String>,
}

impl Etcdctl {
    /// For `host:port` or `https://host:port`.
    #[must_use]
    pub fn new(endpoint: &str) -> Self {
        Self { flags: vec![format!("--endpoints={endpoint}")] }
    }

    /// Adds flags.
    #[must_use]
    pub fn with(mut self, flags: &[String]) -> Self {
        self.flags.extend_from_slice(flags);
        self
    }

    /// Runs `etcdctl ARGS` to its end.
    ///
    /// # Errors
    /// If the command cannot be run. A refusal is no error, but part of the output.
    pub async fn output(&self, args: &[&str], input: &str) -> anyhow::Result<Output> {
        let mut all: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        all.extend_from_slice(args);
        run(&peer("etcdctl")?, &all, input).await
    }

    /// stdout of a call that must succeed.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.output(args, "").await?;
        output.ok().with_context(|| format!("etcdctl {}", args.join(" ")))
    }

    /// The output of a call with `-w json`.
    ///
    /// # Errors
    /// If the call fails, or its output is not JSON.
    pub async fn json(&self, args: &[&str]) -> anyhow::Result<serde_json::Value> {
        let mut all = args.to_vec();
        all.extend_from_slice(&["-w", "json"]);
        let text = self.ok(&all).await?;
        serde_json::from_str(&text).with_context(|| format!("etcdctl {}: {text}", all.join(" ")))
    }

    /// Starts a call that does not end by itself, such as `watch` or `lease keep-alive`. It is killed when dropped.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn start(&self, args: &[&str]) -> anyhow::Result<Child> {
        Command::new(peer("etcdctl")?)
            .args(&self.flags)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting etcdctl")
    }
}
