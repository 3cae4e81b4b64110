//! The servers of the tests: real etcd, a shard alone, and a whole kindred.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::{
    client::Client,
    peers::peer,
    process::{Process, Spec, our_binary},
};

/// Where a server listens on this machine; the server chooses the port.
const ANY_PORT: &str = "127.0.0.1:0";

/// A real etcd, one member, without fsync.
#[derive(Debug)]
pub struct Etcd {
    pub process: Process,
    pub address: String,
}

impl Etcd {
    /// Starts one with its data in `dir/NAME`.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(dir: &Path, name: &str) -> anyhow::Result<Self> {
        let any = format!("http://{ANY_PORT}");
        let args = [
            format!("--name={name}"),
            format!("--data-dir={}", dir.join(name).display()),
            format!("--listen-client-urls={any}"),
            format!("--advertise-client-urls={any}"),
            format!("--listen-peer-urls={any}"),
            format!("--initial-advertise-peer-urls={any}"),
            format!("--initial-cluster={name}={any}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        let spec = Spec {
            name: name.to_owned(),
            program: peer("etcd")?,
            args: args.to_vec(),
            env: Vec::new(),
            ready: "serving client traffic insecurely".to_owned(),
        };
        let process = Process::start(dir, spec).await?;
        let line: serde_json::Value = serde_json::from_str(process.ready_line())?;
        let address = line["address"].as_str().context("etcd's ready line has no address")?.to_owned();
        Ok(Self { process, address })
    }

    /// A connection to it.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.address).await
    }
}

/// A shard alone, without a router.
#[derive(Debug)]
pub struct Shard {
    pub process: Process,
    pub address: String,
    pub admin: String,
}

impl Shard {
    /// Starts one with its data in `dir/NAME` and further flags.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(dir: &Path, name: &str, flags: &[String]) -> anyhow::Result<Self> {
        let mut args = vec![
            format!("--listen={ANY_PORT}"),
            format!("--admin-listen={ANY_PORT}"),
            format!("--data-dir={}", dir.join(name).display()),
        ];
        args.extend_from_slice(flags);
        let spec = Spec {
            name: name.to_owned(),
            program: our_binary("kindred-shard")?,
            args,
            env: Vec::new(),
            ready: "kindred-shard ready ".to_owned(),
        };
        let mut process = Process::start(dir, spec).await?;
        let address = bare(&process.ready_field("listen")?);
        let admin = bare(&process.ready_field("admin")?);
        process.set_arg("--listen", &address);
        process.set_arg("--admin-listen", &admin);
        Ok(Self { process, address, admin })
    }

    /// A connection to it.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.address).await
    }
}

/// A whole kindred as `kindred up` starts it: router, meta shard and default shards.
#[derive(Debug)]
pub struct Up {
    pub process: Process,
    pub address: String,
    pub admin: String,
    pub data_dir: PathBuf,
}

impl Up {
    /// Starts one with its data in `dir/NAME` and further flags (`--config`, TLS).
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(dir: &Path, name: &str, flags: &[String]) -> anyhow::Result<Self> {
        let data_dir = dir.join(name);
        let mut args = vec![
            "up".to_owned(),
            format!("--listen={ANY_PORT}"),
            format!("--admin={ANY_PORT}"),
            format!("--data-dir={}", data_dir.display()),
        ];
        args.extend_from_slice(flags);
        let spec = Spec {
            name: name.to_owned(),
            program: our_binary("kindred")?,
            args,
            env: Vec::new(),
            ready: "kindred ready".to_owned(),
        };
        let mut process = Process::start(dir, spec).await?;
        let address = bare(&process.ready_field("listen")?);
        let admin = bare(&process.ready_field("admin")?);
        process.set_arg("--listen", &address);
        process.set_arg("--admin", &admin);
        Ok(Self { process, address, admin, data_dir })
    }

    /// A connection to its router.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.address).await
    }
}

/// `host:port` of an address that may be written as a URL or a list of them.
fn bare(address: &str) -> String {
    let first = address.split(',').next().unwrap_or(address);
    first.trim_start_matches("http://").trim_start_matches("https://").trim_end_matches('/').to_owned()
}
