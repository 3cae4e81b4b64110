//! A shard as a process of its own, which can be killed.

use std::{
    io::{BufRead, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use super::{Client, channel};

/// The process is killed when this is dropped.
pub struct ShardProcess {
    child: Child,
    address: String,
    pub admin: String,
}

fn command(data_dir: &Path, flags: &[&str]) -> Command {
    let test = std::env::current_exe().unwrap();
    let kindred = test.parent().unwrap().parent().unwrap().join("kindred");
    assert!(kindred.exists(), "{} is not built: cargo build -p kindred", kindred.display());
    let mut command = Command::new(kindred);
    command.args(["shard", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"]);
    command.arg(format!("--data-dir={}", data_dir.display())).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

impl ShardProcess {
    /// Starts a process and waits until it serves.
    pub fn start(data_dir: &Path, flags: &[&str]) -> Self {
        Self::logging_to(Stdio::inherit(), data_dir, flags)
    }

    /// As [`ShardProcess::start`], with this standard error.
    pub fn logging_to(log: impl Into<Stdio>, data_dir: &Path, flags: &[&str]) -> Self {
        let mut child = command(data_dir, flags).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let field = |name: &str| {
            let found = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_else(|| panic!("no {name} in {line:?}")).to_owned()
        };
        let (address, admin) = (field("listen"), field("admin"));
        Self { child, address, admin }
    }

    /// What a process that does not start writes to its standard error.
    pub fn refused(data_dir: &Path, flags: &[&str]) -> String {
        let mut child = command(data_dir, flags).stderr(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        if !ready.is_empty() {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it starts: {ready}");
        }
        let mut text = String::new();
        child.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
        assert!(!child.wait().unwrap().success(), "it starts: {text}");
        text
    }

    pub async fn client(&self) -> Client {
        Client { channel: channel(&format!("http://{}", self.address)) }
    }

    /// Stops the process as SIGTERM does.
    pub fn stop(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }

    /// Kills the process, as a crash does.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for ShardProcess {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
