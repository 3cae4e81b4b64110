//! `kindred up` and other commands as processes: their logs, their ports, and readers of their output that go away.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use kindred_tests::{
    process::our_binary,
    scenario::{self, report, wait_for},
    servers::Up,
};

const LIMIT: Duration = Duration::from_secs(120);
const LOG_WITHIN: Duration = Duration::from_secs(30);
const CONFIG: &str = "default: main\nstores:\n- {name: main, slot: 1}\n";

fn kindred(words: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(our_binary("kindred")?);
    command.args(words).stdin(Stdio::null());
    Ok(command)
}

/// Runs a command whose standard output nobody reads.
fn unread(words: &[&str]) -> anyhow::Result<Output> {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let child = kindred(words)?.stdout(writer).stderr(Stdio::piped()).spawn()?;
    Ok(child.wait_with_output()?)
}

fn config(dir: &Path) -> anyhow::Result<String> {
    let path = dir.join("one.yaml");
    fs::write(&path, CONFIG)?;
    Ok(format!("--config={}", path.display()))
}

#[test]
fn f43_the_log_of_an_up_names_the_process_of_each_line() {
    scenario::run("f43_the_log_of_an_up_names_the_process_of_each_line", LIMIT, |dir| async move {
        let mut up = Up::start(&dir, "up", &[config(&dir)?]).await?;
        let log = dir.join("up.err.log");
        let names = ["[meta store] ", "[shard main] ", "[router] "];
        wait_for("a line of each process", LOG_WITHIN, || async {
            let text = fs::read_to_string(&log)?;
            let said = |name: &&str| text.lines().any(|line| line.starts_with(*name));
            Ok(names.iter().all(said).then_some(()))
        })
        .await?;
        up.process.stop().await?;
        let text = fs::read_to_string(&log)?;
        for line in text.lines() {
            let of_a_child = names.iter().any(|name| line.starts_with(name));
            ensure!(of_a_child || line.contains(" kindred::up"), "whose is it: {line}");
        }
        report(&format!("e2e f43 lines={}", text.lines().count()));
        Ok(())
    });
}

#[test]
fn f43_a_second_up_on_the_same_ports_leaves_nothing_behind() {
    scenario::run("f43_a_second_up_on_the_same_ports_leaves_nothing_behind", LIMIT, |dir| async move {
        let up = Up::start(&dir, "up", &[config(&dir)?]).await?;
        let other = dir.join("other");
        let folder = format!("--data-dir={}", other.display());
        for (taken, free) in [("--listen", "--admin"), ("--admin", "--listen")] {
            let address = if taken == "--listen" { &up.address } else { &up.admin };
            let second = kindred(&["up", taken, address, free, "127.0.0.1:0", &folder])?.output()?;
            let said = String::from_utf8_lossy(&second.stderr).into_owned();
            ensure!(!second.status.success(), "{said}");
            ensure!(said.contains(&format!("{taken}: cannot listen on {address}")), "{said}");
            ensure!(!other.exists(), "{} was made", other.display());
        }
        // In the same folder the error names the running `kindred up`, not the ports.
        let folder = format!("--data-dir={}", up.data_dir.display());
        let again = kindred(&["up", "--listen", &up.address, "--admin", &up.admin, &folder])?.output()?;
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        ensure!(!again.status.success() && said.contains("another `kindred up` is running there"), "{said}");
        Ok(())
    });
}

#[test]
fn f43_a_reader_that_has_gone_ends_a_command_quietly() {
    scenario::run("f43_a_reader_that_has_gone_ends_a_command_quietly", LIMIT, |dir| async move {
        let up = Up::start(&dir, "up", &[config(&dir)?]).await?;
        let admin = format!("http://{}", up.admin);
        let commands: [&[&str]; 9] = [
            &["completion", "bash"],
            &["completion", "zsh"],
            &["--help"],
            &["up", "--help"],
            &["health", "--admin", &admin],
            &["status", "--admin", &admin],
            &["get", "datapartitionconfigs", "--admin", &admin],
            &["store", "list", "-o", "yaml", "--admin", &admin],
            &["reconcile", "--admin", &admin],
        ];
        for words in commands {
            let ended = unread(words).with_context(|| format!("kindred {words:?}"))?;
            let said = String::from_utf8_lossy(&ended.stderr);
            ensure!(ended.status.success() && said.is_empty(), "kindred {words:?}: {}, {said}", ended.status);
        }
        Ok(())
    });
}
