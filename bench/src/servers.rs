//! Starts the servers under test on free loopback ports, and stops them.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use kindred_transport::{
    auto_tls::{self, AutoTls},
    tls::ClientTls,
};

/// Lets a server choose its port.
const ANY_PORT: &str = "127.0.0.1:0";

/// A server, and the processes whose CPU counts as its own.
pub struct Server {
    pub name: &'static str,
    pub endpoint: String,
    /// The TLS settings for clients; `None` for plain connections.
    pub tls: Option<ClientTls>,
    /// The admin address of a shard without a router, for its metrics.
    pub admin: Option<String>,
    /// The role and pid of each process.
    pub pids: Vec<(String, u32)>,
    children: Vec<Child>,
    dirs: Vec<tempfile::TempDir>,
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The folder of kindred's binaries: `KINDRED_BIN_DIR`, or the folder of this program.
pub fn bin_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("KINDRED_BIN_DIR") {
        return Ok(dir.into());
    }
    Ok(std::env::current_exe()?.parent().context("the executable has no folder")?.to_owned())
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// A free port for a server that is started again at the same address. The system gives none of these to connections
/// that begin here, so nothing else takes the port while the server is down. Tests have theirs above these.
pub fn lasting_port() -> anyhow::Result<u16> {
    const FIRST: u16 = 10_000;
    const PORTS: u16 = 5_000;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    for _ in 0..PORTS {
        // Each process begins at another one.
        let nth = std::process::id().wrapping_mul(101).wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + u16::try_from(nth % u32::from(PORTS))?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port among {PORTS} from {FIRST} on")
}

/// The value of a key in a ready line; an address loses its scheme.
fn word(line: &str, key: &str) -> Option<String> {
    let value = line.split_whitespace().find_map(|w| w.strip_prefix(key)?.strip_prefix('='))?;
    let value = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://")).unwrap_or(value);
    Some(value.to_owned())
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

/// Starts a program through a tool that replaces itself with the program and so keeps the pid. An empty `tool`
/// starts it directly.
fn spawn_under(tool: &[String], program: &Path, args: &[String]) -> anyhow::Result<Child> {
    command(tool, program, args).spawn().with_context(|| format!("starting {}", program.display()))
}

fn command(tool: &[String], program: &Path, args: &[String]) -> Command {
    let mut command = match tool {
        [] => Command::new(program),
        [tool, words @ ..] => {
            let mut command = Command::new(tool);
            command.args(words).arg(program);
            command
        }
    };
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// A stock etcd that never syncs, with its data in memory if possible, which is its best case.
pub fn etcd(program: &Path) -> anyhow::Result<Server> {
    etcd_in(program, dir_in_memory()?, &["--unsafe-no-fsync"])
}

/// A folder in memory if possible.
pub fn dir_in_memory() -> anyhow::Result<tempfile::TempDir> {
    let dir =
        if Path::new("/dev/shm").is_dir() { tempfile::tempdir_in("/dev/shm")? } else { tempfile::tempdir()? };
    Ok(dir)
}

pub fn etcd_in(program: &Path, dir: tempfile::TempDir, flags: &[&str]) -> anyhow::Result<Server> {
    let (client, peer) = (free_port()?, free_port()?);
    let cluster = format!("default=http://127.0.0.1:{peer}");
    let args = etcd_args("default", (client, peer), &cluster, &dir, flags);
    start_peer("etcd", program, &args, client, dir)
}

/// The members of one etcd cluster, each with its data in one of these folders.
pub fn etcd_cluster(
    program: &Path,
    dirs: Vec<tempfile::TempDir>,
    flags: &[&str],
) -> anyhow::Result<Vec<Server>> {
    let mut members = Vec::new();
    for (at, dir) in dirs.into_iter().enumerate() {
        members.push((format!("member{at}"), (free_port()?, free_port()?), dir));
    }
    let peer = |(name, (_, peer), _): &(String, (u16, u16), _)| format!("{name}=http://127.0.0.1:{peer}");
    let cluster = members.iter().map(peer).collect::<Vec<_>>().join(",");
    let start = |(name, ports, dir): (String, (u16, u16), tempfile::TempDir)| {
        let args = etcd_args(&name, ports, &cluster, &dir, flags);
        start_peer("etcd", program, &args, ports.0, dir)
    };
    members.into_iter().map(start).collect()
}

/// The flags of a member of an etcd cluster, whose ports are for clients and for peers.
fn etcd_args(
    name: &str,
    (client, peer): (u16, u16),
    cluster: &str,
    dir: &tempfile::TempDir,
    flags: &[&str],
) -> Vec<String> {
    let url = format!("http://127.0.0.1:{client}");
    let peer = format!("http://127.0.0.1:{peer}");
    let mut args: Vec<String> =
        flags.iter().chain(&["--log-level=error"]).map(|flag| (*flag).into()).collect();
    for (flag, value) in [
        ("name", name.to_owned()),
        ("data-dir", dir.path().join("data").display().to_string()),
        ("listen-client-urls", url.clone()),
        ("advertise-client-urls", url),
        ("listen-peer-urls", peer.clone()),
        ("initial-advertise-peer-urls", peer),
        ("initial-cluster", cluster.to_owned()),
        ("quota-backend-bytes", "8589934592".to_owned()),
    ] {
        args.push(format!("--{flag}={value}"));
    }
    args
}

/// A mem_etcd that persists nothing, which is its best case. It has no TLS, and requires a folder for its log
/// nevertheless.
pub fn mem_etcd(program: &Path) -> anyhow::Result<Server> {
    let dir = tempfile::tempdir()?;
    let (client, metrics) = (free_port()?, free_port()?);
    let args = [
        ("port", client.to_string()),
        ("metrics-port", metrics.to_string()),
        ("wal-default", "none".to_owned()),
        ("wal-dir", dir.path().join("wal").display().to_string()),
    ];
    let args: Vec<String> = args.iter().map(|(flag, value)| format!("--{flag}={value}")).collect();
    start_peer("mem_etcd", program, &args, client, dir)
}

/// Starts another project's server, and waits until it listens on the port.
fn start_peer(
    name: &'static str,
    program: &Path,
    args: &[String],
    port: u16,
    dir: tempfile::TempDir,
) -> anyhow::Result<Server> {
    let child = command(&[], program, args).stdout(Stdio::null()).spawn();
    let child = child.with_context(|| format!("starting {}", program.display()))?;
    let pids = vec![(name.to_owned(), child.id())];
    let endpoint = format!("127.0.0.1:{port}");
    let mut server =
        Server { name, endpoint, tls: None, admin: None, pids, children: vec![child], dirs: vec![dir] };
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::net::TcpStream::connect(&server.endpoint).is_err() {
        anyhow::ensure!(Instant::now() < deadline, "{name} did not listen within 30 s");
        if let Some(status) = server.children[0].try_wait()? {
            bail!("{name} ended before it listened: {status}");
        }
        std::thread::yield_now();
    }
    Ok(server)
}

/// A server that answers with a fixed page of values of this length.
pub fn echo(value_bytes: usize) -> anyhow::Result<Server> {
    let args = ["echo".to_owned(), "--value-bytes".to_owned(), value_bytes.to_string()];
    let mut child = spawn_under(&[], &std::env::current_exe()?, &args)?;
    let line = ready_line(&mut child, "kindred-bench echo ready");
    let pids = vec![("echo".to_owned(), child.id())];
    let mut server = Server {
        name: "echo",
        endpoint: String::new(),
        tls: None,
        admin: None,
        pids,
        children: vec![child],
        dirs: Vec::new(),
    };
    server.endpoint = word(&line?, "listen").context("the ready line names no listen address")?;
    Ok(server)
}

pub fn shard() -> anyhow::Result<Server> {
    shard_under(&[])
}

/// A shard without a router, started through a tool.
pub fn shard_under(tool: &[String]) -> anyhow::Result<Server> {
    let dir = tempfile::tempdir()?;
    Ok(start_shard_under(tool, ANY_PORT, &[])?.server("kindred shard", "shard", vec![dir]))
}

/// A shard without a router, with its data in this folder.
pub fn shard_in(dir: tempfile::TempDir, flags: &[&str]) -> anyhow::Result<Server> {
    let mut args = vec!["--data-dir".to_owned(), dir.path().join("data").display().to_string()];
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    Ok(start_shard_under(&[], ANY_PORT, &args)?.server("kindred shard", "shard", vec![dir]))
}

/// Starts a shard with these flags, and waits until it serves; returns its address.
pub fn start_shard(flags: &[String]) -> anyhow::Result<(Child, String)> {
    let Started { child, endpoint, .. } = start_shard_under(&[], ANY_PORT, flags)?;
    Ok((child, endpoint))
}

/// Starts a shard at an address, and waits until it serves or, as a standby, has a copy.
pub fn start_shard_at(listen: &str, flags: &[String]) -> anyhow::Result<Child> {
    Ok(start_shard_under(&[], listen, flags)?.child)
}

/// The same without waiting.
pub fn launch_shard_at(listen: &str, flags: &[String]) -> anyhow::Result<Child> {
    let program = bin_dir()?.join("kindred");
    let args = [vec!["shard".to_owned()], shard_args(listen, flags)].concat();
    let child = command(&[], &program, &args).stdout(Stdio::null()).spawn();
    child.with_context(|| format!("starting {}", program.display()))
}

/// A router alone.
pub fn router(flags: &[String]) -> anyhow::Result<Server> {
    let mut args = ["--listen", ANY_PORT, "--admin", ANY_PORT].map(str::to_owned).to_vec();
    args.extend_from_slice(flags);
    Ok(start_under(&[], "router", &args)?.server("kindred router", "router", Vec::new()))
}

/// A process that has printed its ready line.
struct Started {
    child: Child,
    endpoint: String,
    admin: Option<String>,
}

impl Started {
    /// The program as a server without others; keeps `dirs` alive.
    fn server(self, name: &'static str, role: &str, dirs: Vec<tempfile::TempDir>) -> Server {
        let Self { child, endpoint, admin } = self;
        Server {
            name,
            endpoint,
            tls: None,
            admin,
            pids: vec![(role.to_owned(), child.id())],
            children: vec![child],
            dirs,
        }
    }
}

fn shard_args(listen: &str, flags: &[String]) -> Vec<String> {
    let mut args = ["--listen", listen, "--admin-listen", ANY_PORT].map(str::to_owned).to_vec();
    args.extend_from_slice(flags);
    args
}

fn start_shard_under(tool: &[String], listen: &str, flags: &[String]) -> anyhow::Result<Started> {
    start_under(tool, "shard", &shard_args(listen, flags))
}

/// Starts `kindred shard` or `kindred router`, and waits until it is ready.
fn start_under(tool: &[String], command: &str, args: &[String]) -> anyhow::Result<Started> {
    let args = [&[command.to_owned()], args].concat();
    let mut child = spawn_under(tool, &bin_dir()?.join("kindred"), &args)?;
    let line = match ready_line(&mut child, &format!("kindred-{command} ready")) {
        Ok(line) => line,
        Err(error) => {
            let _ = child.kill();
            return Err(error);
        }
    };
    let endpoint = word(&line, "listen").context("the ready line names no listen address")?;
    Ok(Started { child, endpoint, admin: word(&line, "admin") })
}

/// A router with one shard for the load's Kind.
pub fn routed() -> anyhow::Result<Server> {
    routed_by("kindred router + shard", Setup::default())
}

/// The same in one process.
pub fn together() -> anyhow::Result<Server> {
    routed_by("kindred router with its shard", Setup { together: true, ..Setup::default() })
}

/// The same, with the router started through a tool.
pub fn routed_under(tool: &[String]) -> anyhow::Result<Server> {
    routed_by("kindred router + shard", Setup { tool, ..Setup::default() })
}

/// The same, with Unix sockets between the router and its shards.
pub fn routed_by_unix() -> anyhow::Result<Server> {
    let dir = tempfile::tempdir()?;
    let setup = Setup { unix: Some(dir.path()), ..Setup::default() };
    let mut server = routed_by("kindred router + shard, Unix", setup)?;
    server.dirs.push(dir);
    Ok(server)
}

/// The same, with certificates on both sides of every connection: between clients and router, and between router
/// and shards, as `kindred up` does with TLS.
pub fn routed_by_mtls() -> anyhow::Result<Server> {
    let dir = tempfile::tempdir()?;
    let made = auto_tls::create(dir.path(), &[]).context("making certificates")?;
    let mut server =
        routed_by("kindred router + shard, mTLS", Setup { tls: Some(&made), ..Setup::default() })?;
    server.tls = Some(ClientTls::load(made.client_settings())?);
    server.dirs.push(dir);
    Ok(server)
}

fn routed_by(name: &'static str, setup: Setup<'_>) -> anyhow::Result<Server> {
    let partition = "  - { metadata: { name: leases }, resource: leases, serviceGroupId: leases }\n";
    let mut server = behind_router_by(setup, name, &["default", "leases"], partition)?;
    server.pids.retain(|(role, _)| role != "default");
    for (role, _) in server.pids.iter_mut().filter(|(role, _)| role == "leases") {
        *role = "shard".to_owned();
    }
    Ok(server)
}

/// A router with these shards, the first of which is the default. The roles are `router` and the shards' names.
pub fn behind_router(name: &'static str, shards: &[&str], partitions: &str) -> anyhow::Result<Server> {
    behind_router_by(Setup::default(), name, shards, partitions)
}

/// The same, with further flags of the router.
pub fn behind_router_with(
    name: &'static str,
    shards: &[&str],
    partitions: &str,
    flags: &[String],
) -> anyhow::Result<Server> {
    behind_router_by(Setup { flags, ..Setup::default() }, name, shards, partitions)
}

/// How a router and its shards are started.
#[derive(Default, Clone, Copy)]
struct Setup<'a> {
    /// Further flags of the router.
    flags: &'a [String],
    /// The tool that starts the router; empty for none.
    tool: &'a [String],
    tls: Option<&'a AutoTls>,
    /// The folder of the shards' Unix sockets; `None` for TCP.
    unix: Option<&'a Path>,
    /// The shards run in the router's process if this is set.
    together: bool,
}

impl Setup<'_> {
    /// The flags with which a server shows a certificate and demands one.
    fn server_flags(&self) -> Vec<String> {
        let Some(tls) = self.tls else { return Vec::new() };
        let files = [
            ("cert-file", &tls.server_cert),
            ("key-file", &tls.server_key),
            ("trusted-ca-file", &tls.ca_cert),
        ];
        let mut flags: Vec<String> =
            files.iter().map(|(flag, file)| format!("--{flag}={}", file.display())).collect();
        flags.push("--client-cert-auth".to_owned());
        flags
    }

    /// The flags with which a router shows a certificate to its stores.
    fn store_flags(&self) -> Vec<String> {
        let Some(tls) = self.tls else { return Vec::new() };
        let files = [
            ("store-cert-file", &tls.client_cert),
            ("store-key-file", &tls.client_key),
            ("store-trusted-ca-file", &tls.ca_cert),
        ];
        files.iter().map(|(flag, file)| format!("--{flag}={}", file.display())).collect()
    }
}

fn behind_router_by(
    setup: Setup<'_>,
    name: &'static str,
    shards: &[&str],
    partitions: &str,
) -> anyhow::Result<Server> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("kindred.yaml");
    // Dropping this stops the started processes, even if a later step fails.
    let mut server = Server {
        name,
        endpoint: String::new(),
        tls: None,
        admin: None,
        pids: Vec::new(),
        children: Vec::new(),
        dirs: vec![dir],
    };
    let scheme = if setup.tls.is_some() { "https" } else { "http" };
    let (mut stores, mut inside) = (String::new(), Vec::new());
    for (slot, shard) in (1..).zip(shards) {
        let slot: u16 = slot;
        let flags = ["--name".to_owned(), (*shard).to_owned(), "--slot".to_owned(), slot.to_string()];
        let socket = setup.unix.map(|dir| format!("unix://{}", dir.join(shard).display()));
        let listen = socket.as_deref().unwrap_or(ANY_PORT);
        let flags = [&flags[..], &setup.server_flags()].concat();
        if setup.together {
            let at = format!("127.0.0.1:{}", free_port()?);
            inside.extend(["--with-shard".to_owned(), shard_args(&at, &flags).join(" ")]);
            stores += &store_line(shard, slot, &format!("{scheme}://{at}"));
            continue;
        }
        let Started { child, endpoint, .. } = start_shard_under(&[], listen, &flags)?;
        let url = socket.unwrap_or_else(|| format!("{scheme}://{endpoint}"));
        stores += &store_line(shard, slot, &url);
        server.pids.push(((*shard).to_owned(), child.id()));
        server.children.push(child);
    }
    let config = format!("default: {}\nstores:\n{stores}partitions:\n{partitions}", shards[0]);
    std::fs::write(&file, config)?;
    let args = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", &file.display().to_string()]
        .map(str::to_owned);
    let args = [&args[..], &setup.server_flags(), &setup.store_flags(), setup.flags, &inside].concat();
    let Started { child, endpoint, .. } = start_under(setup.tool, "router", &args)?;
    server.pids.insert(0, ("router".to_owned(), child.id()));
    server.children.push(child);
    server.endpoint = endpoint;
    Ok(server)
}

/// A store of a configuration.
fn store_line(name: &str, slot: u16, url: &str) -> String {
    format!("  - {{ name: {name}, slot: {slot}, type: shard, endpoints: [\"{url}\"] }}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_from_a_ready_line() {
        let line = "kindred-router ready listen=https://127.0.0.1:2379 admin=http://127.0.0.1:2381";
        assert_eq!(word(line, "listen").unwrap(), "127.0.0.1:2379");
        assert_eq!(word(line, "admin").unwrap(), "127.0.0.1:2381");
        assert_eq!(word("x ready listen=127.0.0.1:1 pid=7", "listen").unwrap(), "127.0.0.1:1");
        assert_eq!(word(line, "pid"), None);
    }
}
