//! The servers under test: started on free loopback ports, stopped by pid.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

/// A server and the processes whose CPU counts as its own, by role.
pub struct Server {
    /// The name in tables.
    pub name: &'static str,
    /// Where clients connect.
    pub endpoint: String,
    /// (role, pid) of every process of it.
    pub pids: Vec<(String, u32)>,
    children: Vec<Child>,
    _dir: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Already gone is fine.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Where our binaries are: `KINDRED_BIN_DIR`, else beside this one.
pub fn bin_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("KINDRED_BIN_DIR") {
        return Ok(dir.into());
    }
    Ok(std::env::current_exe()?.parent().context("the executable has no folder")?.to_owned())
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// The `key=value` word of a ready line; an address without its scheme.
fn word(line: &str, key: &str) -> Option<String> {
    let value = line.split_whitespace().find_map(|w| w.strip_prefix(key)?.strip_prefix('='))?;
    Some(value.trim_start_matches("http://").to_owned())
}

fn ready_line(child: &mut Child, prefix: &str) -> anyhow::Result<String> {
    let stdout = child.stdout.take().context("stdout is a pipe")?;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        if line.starts_with(prefix) {
            return Ok(line);
        }
    }
    bail!("the server ended before it printed `{prefix} …`")
}

fn spawn(program: &Path, args: &[String]) -> anyhow::Result<Child> {
    spawn_under(&[], program, args)
}

/// Starts a program by a tool that becomes it, and so has its pid; no words = no tool.
fn spawn_under(tool: &[String], program: &Path, args: &[String]) -> anyhow::Result<Child> {
    let mut command = match tool {
        [] => Command::new(program),
        [tool, words @ ..] => {
            let mut command = Command::new(tool);
            command.args(words).arg(program);
            command
        }
    };
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {}", program.display()))
}

/// A stock etcd that never syncs, on a folder in memory when there is one: its best case.
pub fn etcd(program: &Path) -> anyhow::Result<Server> {
    let dir =
        if Path::new("/dev/shm").is_dir() { tempfile::tempdir_in("/dev/shm")? } else { tempfile::tempdir()? };
    etcd_in(program, dir, &["--unsafe-no-fsync"])
}

/// A stock etcd with its data in this folder.
pub fn etcd_in(program: &Path, dir: tempfile::TempDir, flags: &[&str]) -> anyhow::Result<Server> {
    let (client, peer) = (free_port()?, free_port()?);
    let url = format!("http://127.0.0.1:{client}");
    let peer = format!("http://127.0.0.1:{peer}");
    let mut args: Vec<String> =
        flags.iter().chain(&["--log-level=error"]).map(|flag| (*flag).into()).collect();
    for (flag, value) in [
        ("data-dir", dir.path().join("data").display().to_string()),
        ("listen-client-urls", url.clone()),
        ("advertise-client-urls", url),
        ("listen-peer-urls", peer.clone()),
        ("initial-advertise-peer-urls", peer.clone()),
        ("initial-cluster", format!("default={peer}")),
        ("quota-backend-bytes", "8589934592".to_owned()),
    ] {
        args.push(format!("--{flag}={value}"));
    }
    let mut child = spawn(program, &args)?;
    child.stdout = None;
    let endpoint = format!("127.0.0.1:{client}");
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::net::TcpStream::connect(&endpoint).is_err() {
        anyhow::ensure!(Instant::now() < deadline, "etcd did not listen within 30 s");
        std::thread::yield_now();
    }
    let pids = vec![("etcd".to_owned(), child.id())];
    Ok(Server { name: "etcd", endpoint, pids, children: vec![child], _dir: dir })
}

/// A shard alone.
pub fn shard() -> anyhow::Result<Server> {
    shard_under(&[])
}

/// A shard alone, run by a tool.
pub fn shard_under(tool: &[String]) -> anyhow::Result<Server> {
    let dir = tempfile::tempdir()?;
    let (child, endpoint) = start_shard_under(tool, &[])?;
    let pids = vec![("shard".to_owned(), child.id())];
    Ok(Server { name: "kindred shard", endpoint, pids, children: vec![child], _dir: dir })
}

/// A shard alone with its data in this folder.
pub fn shard_in(dir: tempfile::TempDir, flags: &[&str]) -> anyhow::Result<Server> {
    let mut args = vec!["--data-dir".to_owned(), dir.path().join("data").display().to_string()];
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let (child, endpoint) = start_shard(&args)?;
    let pids = vec![("shard".to_owned(), child.id())];
    Ok(Server { name: "kindred shard", endpoint, pids, children: vec![child], _dir: dir })
}

/// A shard with these flags, once it serves, and where.
pub fn start_shard(flags: &[String]) -> anyhow::Result<(Child, String)> {
    start_shard_under(&[], flags)
}

fn start_shard_under(tool: &[String], flags: &[String]) -> anyhow::Result<(Child, String)> {
    let mut args = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"].map(str::to_owned).to_vec();
    args.extend_from_slice(flags);
    let mut child = spawn_under(tool, &bin_dir()?.join("kindred-shard"), &args)?;
    let line = ready_line(&mut child, "kindred-shard ready")?;
    let endpoint = word(&line, "listen").context("the ready line names no listen address")?;
    Ok((child, endpoint))
}

/// A router in front of one shard that holds the load's Kind.
pub fn routed() -> anyhow::Result<Server> {
    routed_under(&[])
}

/// The same, the router run by a tool.
pub fn routed_under(tool: &[String]) -> anyhow::Result<Server> {
    let partition = "  - { metadata: { name: leases }, resource: leases, serviceGroupId: leases }\n";
    let mut server = behind_router_under(tool, "kindred router + shard", &["default", "leases"], partition)?;
    server.pids.retain(|(role, _)| role != "default");
    for (role, _) in server.pids.iter_mut().filter(|(role, _)| role == "leases") {
        *role = "shard".to_owned();
    }
    Ok(server)
}

/// A router in front of these shards, the first of them the default. Roles are `router` and the shards' names.
pub fn behind_router(name: &'static str, shards: &[&str], partitions: &str) -> anyhow::Result<Server> {
    behind_router_under(&[], name, shards, partitions)
}

fn behind_router_under(
    tool: &[String],
    name: &'static str,
    shards: &[&str],
    partitions: &str,
) -> anyhow::Result<Server> {
    let dir = tempfile::tempdir()?;
    let mut children = Vec::new();
    let mut stores = String::new();
    let mut pids = Vec::new();
    for (slot, shard) in (1..).zip(shards) {
        let slot: u16 = slot;
        let flags = ["--name".to_owned(), (*shard).to_owned(), "--slot".to_owned(), slot.to_string()];
        let (child, listen) = start_shard(&flags)?;
        stores += &format!(
            "  - {{ name: {shard}, slot: {slot}, type: shard, endpoints: [\"http://{listen}\"] }}\n"
        );
        pids.push(((*shard).to_owned(), child.id()));
        children.push(child);
    }
    let config = format!("default: {}\nstores:\n{stores}partitions:\n{partitions}", shards[0]);
    let file = dir.path().join("kindred.yaml");
    std::fs::write(&file, config)?;
    let args = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", &file.display().to_string()]
        .map(str::to_owned);
    let mut child = spawn_under(tool, &bin_dir()?.join("kindred-router"), &args)?;
    let line = ready_line(&mut child, "kindred-router ready")?;
    let endpoint = word(&line, "listen").context("the ready line names no listen address")?;
    pids.insert(0, ("router".to_owned(), child.id()));
    children.push(child);
    Ok(Server { name, endpoint, pids, children, _dir: dir })
}
