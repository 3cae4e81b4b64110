//! The servers of the tests: a real etcd, a shard without a router, and a whole kindred.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use crate::{
    certs::Authority,
    client::Client,
    etcdctl::etcdutl,
    peers::peer,
    process::{CLUSTER_SECRET, Process, Spec, our_binary},
};

/// A server that listens here chooses its port itself.
pub const ANY_PORT: &str = "127.0.0.1:0";

/// A real etcd with one member, which does not fsync.
#[derive(Debug)]
pub struct Etcd {
    pub process: Process,
    pub address: String,
}

impl Etcd {
    /// Starts an etcd with its data in `dir/NAME`.
    ///
    /// # Errors
    /// If the etcd does not start.
    pub async fn start(dir: &Path, name: &str) -> anyhow::Result<Self> {
        Self::start_with(dir, name, &[]).await
    }

    /// Starts an etcd with additional flags.
    ///
    /// # Errors
    /// If the etcd does not start.
    pub async fn start_with(dir: &Path, name: &str, flags: &[&str]) -> anyhow::Result<Self> {
        Self::start_by(dir, name, "http", flags).await
    }

    /// Starts an etcd that serves clients of an authority over TLS only.
    ///
    /// # Errors
    /// If the etcd does not start.
    pub async fn start_tls(dir: &Path, name: &str, authority: &Authority) -> anyhow::Result<Self> {
        let own = authority.leaf(name)?;
        let flags = [
            format!("--cert-file={}", own.cert.display()),
            format!("--key-file={}", own.key.display()),
            format!("--trusted-ca-file={}", authority.cert.display()),
            "--client-cert-auth".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Self::start_by(dir, name, "https", &flags).await
    }

    async fn start_by(dir: &Path, name: &str, scheme: &str, flags: &[&str]) -> anyhow::Result<Self> {
        let (clients, any) = (format!("{scheme}://{ANY_PORT}"), format!("http://{ANY_PORT}"));
        let mut args = vec![
            format!("--name={name}"),
            format!("--data-dir={}", dir.join(name).display()),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={any}"),
            format!("--initial-advertise-peer-urls={any}"),
            format!("--initial-cluster={name}={any}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let spec = Spec {
            name: name.to_owned(),
            program: peer("etcd")?,
            args,
            env: Vec::new(),
            ready: if scheme == "http" {
                "serving client traffic insecurely"
            } else {
                "serving client traffic securely"
            }
            .to_owned(),
        };
        let process = Process::start(dir, spec).await?;
        let line: serde_json::Value = serde_json::from_str(process.ready_line())?;
        let address = line["address"].as_str().context("etcd's ready line has no address")?.to_owned();
        Ok(Self { process, address })
    }

    /// Starts an etcd that begins with a snapshot.
    ///
    /// # Errors
    /// If etcdutl does not take the snapshot, or the etcd does not start.
    pub async fn restored(dir: &Path, name: &str, snapshot: &Path) -> anyhow::Result<Self> {
        let any = format!("http://{ANY_PORT}");
        let data = dir.join(name);
        etcdutl(&[
            "snapshot",
            "restore",
            snapshot.to_str().context("a path")?,
            &format!("--data-dir={}", data.display()),
            &format!("--name={name}"),
            &format!("--initial-cluster={name}={any}"),
            &format!("--initial-advertise-peer-urls={any}"),
        ])
        .await?;
        Self::start(dir, name).await
    }

    /// Connects to the etcd.
    ///
    /// # Errors
    /// If the etcd does not answer.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.address).await
    }
}

/// A shard without a router.
#[derive(Debug)]
pub struct Shard {
    pub process: Process,
    pub address: String,
    pub admin: String,
}

impl Shard {
    /// Starts a shard with its identity in `dir/NAME` and further flags. All Kinds have mode `none` unless a flag says
    /// otherwise.
    ///
    /// # Errors
    /// If the shard does not start.
    pub async fn start(dir: &Path, name: &str, flags: &[String]) -> anyhow::Result<Self> {
        Self::start_at(dir, name, ANY_PORT, flags).await
    }

    /// Starts a shard that listens at `listen`.
    ///
    /// # Errors
    /// If the shard does not start.
    pub async fn start_at(dir: &Path, name: &str, listen: &str, flags: &[String]) -> anyhow::Result<Self> {
        Self::start_program(&our_binary("kindred")?, dir, name, listen, flags).await
    }

    /// Starts a shard by this `kindred`, which may be of another version.
    ///
    /// # Errors
    /// If the shard does not start.
    pub async fn start_program(
        program: &Path,
        dir: &Path,
        name: &str,
        listen: &str,
        flags: &[String],
    ) -> anyhow::Result<Self> {
        let mut args = vec![
            format!("--listen={listen}"),
            format!("--admin-listen={ANY_PORT}"),
            format!("--data-dir={}", dir.join(name).display()),
        ];
        args.extend_from_slice(flags);
        if !flags.iter().any(|flag| flag.starts_with("--durability")) {
            args.push("--durability=none".to_owned());
        }
        let spec = Spec { program: program.to_owned(), ..Spec::shard(name, args)? };
        let mut process = Process::start(dir, spec).await?;
        let address = bare(&process.ready_field("listen")?);
        let admin = bare(&process.ready_field("admin")?);
        process.set_arg("--listen", &address);
        process.set_arg("--admin-listen", &admin);
        Ok(Self { process, address, admin })
    }

    /// Connects to the shard as a router, since a shard of a cluster serves nobody else.
    ///
    /// # Errors
    /// If the shard does not answer.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Client::as_router(&self.address, CLUSTER_SECRET.as_ref()).await
    }
}

/// A whole kindred as `kindred up` starts it: routers and shards.
#[derive(Debug)]
pub struct Up {
    pub process: Process,
    pub address: String,
    pub admin: String,
    pub data_dir: PathBuf,
}

impl Up {
    /// Starts a kindred with its data in `dir/NAME` and further flags, such as `--config` or those for TLS.
    ///
    /// # Errors
    /// If `kindred up` does not become ready.
    pub async fn start(dir: &Path, name: &str, flags: &[String]) -> anyhow::Result<Self> {
        Self::start_with_env(dir, name, flags, &[]).await
    }

    /// Starts a kindred with additional environment variables.
    ///
    /// # Errors
    /// If `kindred up` does not become ready.
    pub async fn start_with_env(
        dir: &Path,
        name: &str,
        flags: &[String],
        env: &[(String, String)],
    ) -> anyhow::Result<Self> {
        Self::start_as("up", dir, name, flags, env).await
    }

    /// Starts a kindred that adopts an etcd.
    ///
    /// # Errors
    /// If `kindred adopt` does not become ready.
    pub async fn adopt(dir: &Path, name: &str, from: &str, flags: &[String]) -> anyhow::Result<Self> {
        let mut all = vec![format!("--from={from}")];
        all.extend_from_slice(flags);
        Self::start_as("adopt", dir, name, &all, &[]).await
    }

    async fn start_as(
        verb: &str,
        dir: &Path,
        name: &str,
        flags: &[String],
        env: &[(String, String)],
    ) -> anyhow::Result<Self> {
        let data_dir = dir.join(name);
        let mut args = vec![
            verb.to_owned(),
            format!("--listen={ANY_PORT}"),
            format!("--admin={ANY_PORT}"),
            format!("--data-dir={}", data_dir.display()),
        ];
        args.extend_from_slice(flags);
        let spec = Spec {
            name: name.to_owned(),
            program: our_binary("kindred")?,
            args,
            env: env.to_vec(),
            ready: "kindred ready".to_owned(),
        };
        let mut process = Process::start(dir, spec).await?;
        let address = bare(&process.ready_field("listen")?);
        let admin = bare(&process.ready_field("admin")?);
        process.set_arg("--listen", &address);
        process.set_arg("--admin", &admin);
        Ok(Self { process, address, admin, data_dir })
    }

    /// Connects to the first router.
    ///
    /// # Errors
    /// If the router does not answer.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.address).await
    }
}

impl Up {
    /// The file with the secret that its routers and shards share.
    #[must_use]
    pub fn secret(&self) -> PathBuf {
        self.data_dir.join("cluster-secret")
    }

    /// The shards that this kindred runs, as (store, `host:port`).
    ///
    /// # Errors
    /// If the ready line does not list them.
    pub fn stores(&self) -> anyhow::Result<Vec<(String, String)>> {
        let listed = self.process.ready_field("stores")?;
        let stores = listed.split(';').filter_map(|store| store.split_once('='));
        Ok(stores.map(|(name, address)| (name.to_owned(), bare(address))).collect())
    }

    /// The addresses in a field of the ready line, such as `listen` or `admin`: one for each router, as `host:port`.
    ///
    /// # Errors
    /// If the ready line does not have the field.
    pub fn addresses(&self, field: &str) -> anyhow::Result<Vec<String>> {
        Ok(self.process.ready_field(field)?.split(',').map(bare).collect())
    }

    /// The process id of a shard. It is the child of `kindred up` that has the store's name as a flag.
    ///
    /// # Errors
    /// If there is none.
    pub fn shard_pid(&self, store: &str) -> anyhow::Result<u32> {
        self.child_with("shard", "--name", store)
    }

    /// The process id of the shard with this data directory. With standbys a store has several processes.
    ///
    /// # Errors
    /// If there is none.
    pub fn pid_in(&self, folder: &Path) -> anyhow::Result<u32> {
        self.child_with("shard", "--data-dir", &folder.display().to_string())
    }

    /// A child of `kindred up` by its verb, such as `shard`, and the value of a flag.
    fn child_with(&self, verb: &str, flag: &str, value: &str) -> anyhow::Result<u32> {
        let parent = self.process.pid().context("kindred up is not running")?;
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // A process may end during this loop.
            let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
            let Ok(words) = fs::read(entry.path().join("cmdline")) else { continue };
            let ours = status.lines().any(|line| {
                line.strip_prefix("PPid:").is_some_and(|value| value.trim() == parent.to_string())
            });
            let words: Vec<&[u8]> = words.split(|&byte| byte == 0).collect();
            let named = words.windows(2).any(|pair| pair == [flag.as_bytes(), value.as_bytes()]);
            if ours && named && words.contains(&verb.as_bytes()) {
                return Ok(pid);
            }
        }
        bail!("kindred up ({parent}) has no {verb} with {flag} {value}")
    }

    /// Kills a shard with `kill -9`. `kindred up` starts it again.
    ///
    /// # Errors
    /// If there is no such shard.
    pub fn kill_shard(&self, store: &str) -> anyhow::Result<()> {
        kill(self.shard_pid(store)?)
    }

    /// Kills a router with `kill -9`: `router`, `router-2` and so on. `kindred up` starts it again.
    ///
    /// # Errors
    /// If there is no such router.
    pub fn kill_router(&self, name: &str) -> anyhow::Result<()> {
        kill(self.child_with("router", "--name", name)?)
    }
}

fn kill(pid: u32) -> anyhow::Result<()> {
    let sent = Command::new("kill").args(["-KILL", &pid.to_string()]).status()?;
    if !sent.success() {
        bail!("kill -9 {pid} failed");
    }
    Ok(())
}

/// `host:port` of an address that may be a URL, or of the first in a list of URLs.
fn bare(address: &str) -> String {
    let first = address.split(',').next().unwrap_or(address);
    first.trim_start_matches("http://").trim_start_matches("https://").trim_end_matches('/').to_owned()
}
