//! Patroni with real PostgreSQL over a router, where this machine has PostgreSQL. What Patroni's code for etcd does at each
//! kind of server is in `tests/peers/python/test_patroni.py`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use kindred_tests::{
    peers::{PeerSet, listed, peers_dir},
    scenario::{self, report},
    servers::Up,
};

/// How long two members may take to start, to change places and to end.
const LIMIT: Duration = Duration::from_secs(240);

/// Begins processes that end with their first one, and that see themselves as a user who is not root, whom PostgreSQL
/// refuses. User 1 is in every Debian.
const APART: [&str; 8] =
    ["unshare", "--user", "--map-user=1", "--map-group=1", "--pid", "--fork", "--kill-child", "--mount-proc"];

#[test]
fn patroni_hands_the_lead_from_one_postgresql_to_another() {
    scenario::run("patroni", Duration::from_secs(60), |dir| async move {
        let Some(postgresql) = postgresql() else {
            report("NOT RUN: Patroni with PostgreSQL, which is not in /usr/lib/postgresql");
            return Ok(());
        };
        let Some(patroni) = listed(PeerSet::Python)?.into_iter().find(|peer| peer.name == "patroni") else {
            report("NOT RUN: Patroni, as this machine lacks Python. See tests/peers/README.md");
            return Ok(());
        };
        if !apart("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            report("NOT RUN: Patroni with PostgreSQL, as `unshare` is not allowed here");
            return Ok(());
        }
        let folder = patroni.path.parent().and_then(Path::parent).context("the folder of Python's peers")?;
        let up = Up::start(&dir, "up", &[]).await?;
        let mut command = apart(folder.join("patroni-env/bin/python"));
        command
            .arg(peers_dir().join("python/switchover.py"))
            .current_dir(&dir)
            .stdin(Stdio::null())
            .env("KINDRED_ADDRESS", &up.address)
            .env("KINDRED_POSTGRESQL", postgresql);
        let mut command = tokio::process::Command::from(command);
        let output = tokio::time::timeout(LIMIT, command.kill_on_drop(true).output())
            .await
            .with_context(|| format!("not done in {LIMIT:?}"))??;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let roles: Vec<&str> = said.lines().filter(|line| line.contains(" is ")).collect();
        let expected = ["one is leader", "two is replica", "two is leader", "one is replica"];
        ensure!(roles == expected, "{said}");
        Ok(())
    });
}

/// A command that runs a program apart from the other processes of this machine. The first process there is a shell, as that
/// collects what others have left: Patroni would wait for a PostgreSQL that has ended and is not collected.
fn apart(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(APART[0]);
    command.args(&APART[1..]).args(["sh", "-c", "\"$@\" & wait $!", "sh"]).arg(program);
    command
}

/// The programs of the newest PostgreSQL that Debian has installed.
fn postgresql() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let number = |path: &PathBuf| -> Option<u32> { path.file_name()?.to_str()?.parse().ok() };
    let newest = versions.filter_map(|entry| Some(entry.ok()?.path())).max_by_key(number)?;
    let programs = newest.join("bin");
    ["initdb", "postgres", "pg_basebackup"]
        .iter()
        .all(|name| programs.join(name).is_file())
        .then_some(programs)
}
