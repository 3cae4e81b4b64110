//! The three servers that a client is run against, as programs with flags: a suite may start its own.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use kindred_tests::{
    peers::peer,
    ports::Port,
    process::our_binary,
    servers::{Etcd, Shard, Up},
};
use serde_json::json;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Etcd,
    Shard,
    Router,
}

/// A server of a side that is running. Its data goes with it: the log of one etcd takes 128 MiB, and a suite has dozens of
/// servers.
#[derive(Debug)]
pub struct Server {
    running: Running,
    #[expect(dead_code, reason = "it is removed behind the process")]
    data: Data,
}

/// A folder that is removed with this.
#[derive(Debug)]
struct Data(PathBuf);

impl Drop for Data {
    fn drop(&mut self) {
        // A server that never started has none.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug)]
enum Running {
    Etcd(Etcd, #[expect(dead_code, reason = "it is kept as long as the server")] Port),
    Shard(Shard),
    Router(Up),
}

impl Server {
    pub fn address(&self) -> &str {
        match &self.running {
            Running::Etcd(etcd, _) => &etcd.address,
            Running::Shard(shard) => &shard.address,
            Running::Router(up) => &up.address,
        }
    }
}

/// A configuration with few processes, as each case of some suites has a router of its own.
fn two_stores(dir: &Path) -> anyhow::Result<PathBuf> {
    const CONFIG: &str = "\
etcdPrefix: /registry
default: default
stores:
- {name: default, slot: 1, type: shard}
- {name: leases, slot: 2, type: shard}
partitions:
- {metadata: {name: leases}, resource: leases.coordination.k8s.io, serviceGroupId: leases}
up:
  # What etcd's tests that set it expect of their servers.
  router: {watch-progress-notify-interval: 200ms}
";
    let path = dir.join("two-stores.yaml");
    if !path.exists() {
        let fresh = tempfile::NamedTempFile::new_in(dir)?;
        fs::write(&fresh, CONFIG)?;
        fresh.persist(&path)?;
    }
    Ok(path)
}

impl Side {
    pub const ALL: [Self; 3] = [Self::Etcd, Self::Shard, Self::Router];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Shard => "shard alone",
            Self::Router => "router",
        }
    }

    /// Starts a server of this side with its data and its log in `dir`; only the log stays.
    pub async fn start(self, dir: &Path) -> anyhow::Result<Server> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let name = format!("server{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let data = Data(dir.join(&name));
        let running = match self {
            Self::Etcd => {
                // etcd's gateway calls itself at the address that it was told to listen at, and some clients go to
                // the address that its member has in the list.
                let port = Port::free()?;
                let url = format!("http://127.0.0.1:{}", port.number());
                let listen = format!("--listen-client-urls={url}");
                let advertise = format!("--advertise-client-urls={url}");
                Running::Etcd(Etcd::start_with(dir, &name, &[&listen, &advertise]).await?, port)
            }
            Self::Shard => {
                let flags = ["--revisions=dense".to_owned()];
                Running::Shard(Shard::start(dir, &name, &flags).await?)
            }
            Self::Router => Running::Router(Up::start(dir, &name, &[]).await?),
        };
        Ok(Server { running, data })
    }

    /// The variables by which `tests/peers/etcd-tests/external.go` starts servers of this side, with data in `dir`.
    pub fn environment(self, dir: &Path) -> anyhow::Result<Vec<(String, String)>> {
        const TLS: &str = "cert-file,key-file,trusted-ca-file,client-cert-auth";
        const LIMITS: &str =
            "quota-backend-bytes,max-txn-ops,max-request-bytes,watch-progress-notify-interval";
        let (args, options) = match self {
            Self::Etcd => {
                let (client, other) = ("http://127.0.0.1:{port}", "http://127.0.0.1:{other}");
                let args = json!([
                    peer("etcd")?,
                    "--name=a",
                    "--data-dir={dir}",
                    format!("--listen-client-urls={client}"),
                    format!("--advertise-client-urls={client}"),
                    format!("--listen-peer-urls={other}"),
                    format!("--initial-advertise-peer-urls={other}"),
                    format!("--initial-cluster=a={other}"),
                    "--unsafe-no-fsync",
                ]);
                (args, format!("{LIMITS},{TLS},grpc-keepalive-min-time"))
            }
            Self::Shard => {
                let args = json!([
                    our_binary("kindred")?,
                    "shard",
                    "--listen=127.0.0.1:{port}",
                    "--admin-listen=127.0.0.1:{other}",
                    "--data-dir={dir}",
                    "--durability=fsync",
                    "--revisions=dense",
                ]);
                (args, format!("{LIMITS},{TLS}"))
            }
            Self::Router => {
                let args = json!([
                    our_binary("kindred")?,
                    "up",
                    "--listen=127.0.0.1:{port}",
                    "--admin=127.0.0.1:{other}",
                    "--data-dir={dir}",
                    format!("--config={}", two_stores(dir)?.display()),
                ]);
                (args, format!("{TLS},!watch-progress-notify-interval"))
            }
        };
        Ok(vec![
            ("KINDRED_SERVER".to_owned(), args.to_string()),
            ("KINDRED_SERVER_OPTIONS".to_owned(), options),
            ("KINDRED_SERVER_DIR".to_owned(), dir.display().to_string()),
        ])
    }
}
