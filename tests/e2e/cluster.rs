//! Shards and a router as separate processes, and readers of the router's admin port.

use std::path::Path;

use anyhow::{Context, ensure};
use kindred_tests::{
    client::Client,
    process::{Process, Spec},
    servers::Shard,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

const CLUSTER: &str = "--cluster-id=0x1ee7";

/// A router and the shards of its configuration, all of one cluster.
pub struct Cluster {
    /// In the order of the configuration.
    pub shards: Vec<Shard>,
    pub address: String,
    admin: String,
    _router: Process,
}

impl Cluster {
    /// `flags` returns the additional flags of the shard with a name. The slots in the configuration must count from 1.
    pub async fn start(
        dir: &Path,
        config: &str,
        names: &[&str],
        flags: impl Fn(&str) -> Vec<String>,
    ) -> anyhow::Result<Self> {
        Self::start_at(dir, config, names, |_| "127.0.0.1:0".to_owned(), flags).await
    }

    /// Like `start`. `listen` returns the address of the shard with a name.
    pub async fn start_at(
        dir: &Path,
        config: &str,
        names: &[&str],
        listen: impl Fn(&str) -> String,
        flags: impl Fn(&str) -> Vec<String>,
    ) -> anyhow::Result<Self> {
        let file = dir.join("config.yaml");
        std::fs::write(&file, config)?;
        let mut args = vec![
            "--listen=127.0.0.1:0".to_owned(),
            "--admin=127.0.0.1:0".to_owned(),
            format!("--config={}", file.display()),
            CLUSTER.to_owned(),
        ];
        let mut shards = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let mut own = vec![format!("--name={name}"), format!("--slot={}", index + 1)];
            own.extend(flags(name));
            if !own.iter().any(|flag| flag.starts_with("--cluster-id=")) {
                own.push(CLUSTER.to_owned());
            }
            let shard = Shard::start_at(dir, name, &listen(name), &own).await?;
            args.push(format!("--store={name}={}", shard.address));
            shards.push(shard);
        }
        let spec = Spec::router("router", args)?;
        let router = Process::start(dir, spec).await?;
        let field = |name| anyhow::Ok(router.ready_field(name)?.trim_start_matches("http://").to_owned());
        Ok(Self { shards, address: field("listen")?, admin: field("admin")?, _router: router })
    }

    pub async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.address).await
    }

    /// The answer of the admin port, with status line and headers.
    pub async fn admin(&self, path: &str) -> anyhow::Result<String> {
        let mut connection = TcpStream::connect(&self.admin).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: kindred\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        Ok(answer)
    }

    /// The line of `/readyz?verbose` with these words, if there is one.
    pub async fn ready_line(&self, words: &[&str]) -> anyhow::Result<Option<String>> {
        let shown = self.admin("/readyz?verbose").await?;
        Ok(shown.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned))
    }

    /// The value of a metric of one store.
    pub async fn metric(&self, name: &str, store: &str) -> anyhow::Result<f64> {
        let shown = self.admin("/metrics").await?;
        let start = format!("{name}{{store=\"{store}\"}} ");
        let value = shown.lines().find_map(|line| line.strip_prefix(&start));
        Ok(value.with_context(|| format!("no {name} of {store}"))?.parse()?)
    }
}
