//! A router in the test process over processes of `kindred shard`, whose binary is built beside the test's.
#![allow(clippy::unwrap_used, reason = "tests")]

pub mod fake;
pub mod moving;
pub mod scripted;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clap::Parser;
use kindred_proto::etcdserverpb as pb;
use kindred_router::config::Args;
use kindred_router::run::{Bound, bind};
use kindred_transport::Drain;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

/// `target/<profile>/kindred`.
pub fn kindred() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let binary = test.parent().unwrap().parent().unwrap().join("kindred");
    assert!(binary.exists(), "{} is not built: cargo build -p kindred", binary.display());
    binary
}

pub struct Shard {
    child: Option<Child>,
    binary: PathBuf,
    slot: u16,
    flags: Vec<String>,
    dir: tempfile::TempDir,
    pub socket: PathBuf,
}

impl Shard {
    pub fn start(binary: &Path, slot: u16) -> Self {
        Self::start_with(binary, slot, &[])
    }

    pub fn start_with(binary: &Path, slot: u16, flags: &[&str]) -> Self {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s.sock");
        let mut shard = Self { child: None, binary: binary.to_owned(), slot, flags, dir, socket };
        shard.again();
        shard
    }

    pub fn again(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let child = Command::new(&self.binary)
            .args(["shard", "--slot", &self.slot.to_string(), "--admin-listen", "127.0.0.1:0", "--listen"])
            .arg(self.url())
            .arg("--data-dir")
            .arg(self.dir.path().join("data"))
            // Keeps its identity: after a restart it is the same store, but empty unless the flags say otherwise.
            .args(
                ["--durability", "none"]
                    .iter()
                    .filter(|_| !self.flags.iter().any(|flag| flag == "--durability")),
            )
            .args(&self.flags)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();
        self.child = Some(child.unwrap());
    }

    pub fn url(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// Empties its disk; only while it does not run.
    pub fn empty(&self) {
        std::fs::remove_dir_all(self.dir.path().join("data")).unwrap();
    }

    /// Exchanges the data folders of two shards, which must not run.
    pub fn exchange_folders(&self, other: &Self) {
        let [one, two, aside] =
            [self.dir.path().join("data"), other.dir.path().join("data"), self.dir.path().join("aside")];
        for (from, to) in [(&one, &aside), (&two, &one), (&aside, &two)] {
            std::fs::rename(from, to).unwrap();
        }
    }

    /// Waits for its process to end.
    pub async fn ended(&mut self) -> std::process::ExitStatus {
        self.child.as_mut().unwrap().wait().await.unwrap()
    }

    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.unwrap();
        }
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// A router with pods on a store of their own.
pub async fn router(default: &str, pods: &str) -> (Bound, Drain, Channel) {
    let text = format!(
        "default: default\nstores:\n- {{name: default, slot: 1, endpoints: ['{default}']}}\n\
         - {{name: pods, slot: 4, endpoints: ['{pods}']}}\npartitions:\n\
         - {{metadata: {{name: pods}}, resource: pods, serviceGroupId: pods}}\n"
    );
    router_with(&text, &[]).await
}

/// The map of this configuration, with a later generation, for a running router.
pub fn routes_of(config: &str, generation: u64) -> kindred_router_core::routes::Routes {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    std::fs::write(&file, config).unwrap();
    let args = Cli::parse_from(["x", "--config", file.to_str().unwrap()]).args;
    args.settings().unwrap().routes.of_generation(kindred_partition_config::ids::Epoch(generation))
}

/// A router with this configuration and these flags.
pub async fn router_with(config: &str, flags: &[&str]) -> (Bound, Drain, Channel) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    std::fs::write(&file, config).unwrap();
    let own = ["x", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config", file.to_str().unwrap()];
    let settings = Cli::parse_from(own.iter().chain(flags)).args.settings().unwrap();
    let drain = Drain::new(Duration::from_secs(2));
    let bound = bind(settings, &drain, None).await.unwrap();
    let url = format!("http://{}", bound.listen[0].trim_start_matches("http://"));
    let channel = Channel::from_shared(url).unwrap().connect_lazy();
    (bound, drain, channel)
}

/// A configuration of stores with slots 1, 2, 3 and so on; the first is the default. Pods are spread over all of them:
/// by names split at h, p and t, or as a ring.
pub fn spread_config(urls: &[String], ring: bool) -> String {
    let name = |at: usize| format!("s{}", at + 1);
    let mut text = "default: s1\nstores:\n".to_owned();
    for (at, url) in urls.iter().enumerate() {
        text += &format!("- {{name: {}, slot: {}, endpoints: ['{url}']}}\n", name(at), at + 1);
    }
    text += "partitions:\n";
    if ring {
        let names: Vec<_> = (0..urls.len()).map(name).collect();
        text += &format!(
            "- {{metadata: {{name: pods}}, resource: pods, ring: {{stores: [{}]}}}}\n",
            names.join(", ")
        );
        return text;
    }
    let cuts = ["h", "p", "t"];
    for at in 0..urls.len() {
        let start = if at == 0 {
            String::new()
        } else {
            format!("rangeStart: {}, isRangeStartValid: true, ", cuts[at - 1])
        };
        let last = at + 1 == urls.len();
        let end =
            if last { String::new() } else { format!("rangeEnd: {}, isRangeEndValid: true, ", cuts[at]) };
        let name = name(at);
        text +=
            &format!("- {{metadata: {{name: p{at}}}, resource: pods, {start}{end}serviceGroupId: {name}}}\n");
    }
    text
}

pub async fn all_up(bound: &Bound) {
    for store in bound.app.stores.iter() {
        tokio::time::timeout(Duration::from_secs(60), store.state().wait_up()).await.expect("store is up");
    }
}

pub async fn put(channel: &Channel, key: &str) -> i64 {
    let request = pb::PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() };
    let answer = pb::kv_client::KvClient::new(channel.clone()).put(request).await.unwrap();
    answer.into_inner().header.unwrap().revision
}

pub struct WatchStream {
    pub requests: mpsc::Sender<pb::WatchRequest>,
    pub answers: Streaming<pb::WatchResponse>,
}

impl WatchStream {
    pub async fn open(channel: &Channel) -> Self {
        let (requests, queue) = mpsc::channel(16);
        let mut client = pb::watch_client::WatchClient::new(channel.clone());
        let answers = client.watch(ReceiverStream::new(queue)).await.unwrap().into_inner();
        Self { requests, answers }
    }

    pub async fn create(&mut self, prefix: &str, start_revision: i64, watch_id: i64) {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().unwrap() += 1;
        let create = pb::WatchCreateRequest {
            key: prefix.to_owned().into(),
            range_end: end.into(),
            start_revision,
            watch_id,
            ..Default::default()
        };
        self.send(pb::watch_request::RequestUnion::CreateRequest(create)).await;
    }

    pub async fn send(&mut self, union: pb::watch_request::RequestUnion) {
        self.requests.send(pb::WatchRequest { request_union: Some(union) }).await.unwrap();
    }

    pub async fn next(&mut self) -> pb::WatchResponse {
        let answer = tokio::time::timeout(Duration::from_secs(60), self.answers.message());
        answer.await.expect("an answer in time").expect("no error").expect("not the end")
    }

    pub async fn nothing(&mut self, millis: u64) {
        let answer = tokio::time::timeout(Duration::from_millis(millis), self.answers.message()).await;
        assert!(answer.is_err(), "{answer:?}");
    }
}

/// Passes connections on to a shard until they are cut.
pub struct Proxy {
    pub address: String,
    cut: tokio::sync::watch::Sender<bool>,
}

impl Proxy {
    pub async fn start(to: &Shard) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (cut, is_cut) = tokio::sync::watch::channel(false);
        let socket = to.socket.clone();
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let (mut is_cut, socket) = (is_cut.clone(), socket.clone());
                tokio::spawn(async move {
                    if *is_cut.borrow() {
                        return;
                    }
                    let mut server = tokio::net::UnixStream::connect(socket).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = is_cut.wait_for(|cut| *cut) => {}
                    }
                });
            }
        });
        Self { address, cut }
    }

    pub fn cut(&self, cut: bool) {
        self.cut.send_replace(cut);
    }
}

/// A channel to a shard, bypassing the router.
pub async fn direct(shard: &Shard) -> Channel {
    let endpoint: kindred_transport::Endpoint = shard.url().parse().unwrap();
    kindred_transport::Connector::default().channel(&endpoint).unwrap()
}
