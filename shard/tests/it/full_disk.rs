//! A full disk: what needs the disk is refused as etcd refuses it, everything else continues, and the trouble ends
//! without help.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{process::ShardProcess, *};
use kindred_proto::etcdserverpb::{
    self as pb, alarm_request::AlarmAction, maintenance_client::MaintenanceClient,
};
use kindred_proto::shard_v1::{HelloRequest, shard_client::ShardClient};
use tonic::Code;

const SECRETS: &str = "/registry/secrets/";
const PODS: &str = "/registry/pods/";

/// A small file system of its own, which only root can make.
struct SmallDisk {
    at: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(size: &str) -> Option<Self> {
        let at = tempfile::tempdir().unwrap();
        let size = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at.path()).output();
        match mounted {
            Ok(done) if done.status.success() => Some(Self { at }),
            other => {
                #[allow(clippy::print_stdout, reason = "whoever runs the tests is to see it")]
                let () =
                    println!("SKIPPED: a small disk cannot be mounted here, which needs root: {other:?}");
                None
            }
        }
    }

    fn data(&self) -> PathBuf {
        self.at.path().join("data")
    }

    /// Fills all the space that is left.
    fn fill(&self) -> PathBuf {
        let path = self.at.path().join("filler");
        let mut file = std::fs::File::create(&path).unwrap();
        let block = vec![7; 64 << 10];
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.at.path()).output();
    }
}

async fn alarms(client: &Client) -> usize {
    let request = pb::AlarmRequest { action: AlarmAction::Get.into(), ..Default::default() };
    MaintenanceClient::new(client.channel.clone()).alarm(request).await.unwrap().into_inner().alarms.len()
}

/// What the shard's handshakes say that it cannot do.
async fn trouble(client: &Client) -> String {
    let mut shard = ShardClient::new(client.channel.clone());
    shard.hello(HelloRequest::default()).await.unwrap().into_inner().trouble
}

fn start(data: &Path) -> ShardProcess {
    ShardProcess::start(data, &["--durability=fsync", "--durability-of=pods=none"])
}

#[tokio::test]
async fn a_full_disk_refuses_what_needs_it_and_nothing_else() {
    let Some(disk) = SmallDisk::mount("48m") else { return };
    let process = start(&disk.data());
    let client = process.client().await;
    let mut acknowledged = vec![client.put(format!("{SECRETS}0"), "v").await];
    let filler = disk.fill();
    let big = || put_request(format!("{SECRETS}big"), vec![b'x'; 1 << 20]);
    let mut refused = None;
    for _ in 0..200 {
        // A put that waits for the disk is given up by its client, and may be executed later.
        match tokio::time::timeout(std::time::Duration::from_secs(2), client.put_request(big())).await {
            Ok(Ok(answer)) => acknowledged.push(answer.header.unwrap().revision),
            Ok(Err(status)) => {
                refused = Some(status);
                break;
            }
            Err(_) => {}
        }
    }
    let refused = refused.expect("a full disk is told");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("database space exceeded"), "{refused}");
    assert_eq!(alarms(&client).await, 1);
    assert_eq!(trouble(&client).await, "cannot write its log of mode fsync: see its disk", "f51");
    // Reads, watches, and the Kinds that need no disk continue.
    assert_eq!(client.range(range_request(&format!("{SECRETS}0"), "")).await.unwrap().kvs.len(), 1);
    let mut watcher = client.watch().await;
    watcher.create(watch_prefix(PODS, 0)).await;
    client.put(format!("{PODS}a"), "v").await;
    assert_eq!(watcher.events(1).await.len(), 1);

    std::fs::remove_file(filler).unwrap();
    eventually("room again", || async {
        client.put_request(put_request(format!("{SECRETS}after"), "v")).await.is_ok()
    })
    .await;
    assert_eq!(alarms(&client).await, 0);
    assert_eq!(trouble(&client).await, "");
    process.kill();
    // Nothing that was acknowledged is lost.
    let process = start(&disk.data());
    let client = process.client().await;
    for key in [format!("{SECRETS}0"), format!("{SECRETS}after")] {
        assert_eq!(client.range(range_request(&key, "")).await.unwrap().kvs.len(), 1, "{key}");
    }
    let big = client.range(range_request(&format!("{SECRETS}big"), "")).await.unwrap();
    let last = *acknowledged.last().unwrap();
    assert!(acknowledged.len() == 1 || big.kvs[0].mod_revision >= last);
    process.kill();
}

/// A start writes nothing that needs space: what is there is served, and writes are refused until there is space.
#[tokio::test]
async fn f47_a_start_on_a_full_disk_serves_what_is_there() {
    let Some(disk) = SmallDisk::mount("96m") else { return };
    let process = start(&disk.data());
    process.client().await.put(format!("{SECRETS}0"), "v").await;
    process.kill();
    let filler = disk.fill();
    for _ in 0..2 {
        let process = start(&disk.data());
        let client = process.client().await;
        assert_eq!(client.range(range_request(&format!("{SECRETS}0"), "")).await.unwrap().kvs.len(), 1);
        let refused = client.put_request(put_request(format!("{SECRETS}1"), "v")).await.unwrap_err();
        assert!(refused.message().contains("database space exceeded"), "{refused}");
        assert_eq!(alarms(&client).await, 1);
        process.kill();
    }
    std::fs::remove_file(filler).unwrap();
    let process = start(&disk.data());
    let client = process.client().await;
    eventually("room again", || async {
        client.put_request(put_request(format!("{SECRETS}1"), "v")).await.is_ok()
    })
    .await;
    process.kill();
}

/// A checkpoint, for which there is space even on a full disk, removes old logs; then writes are accepted again.
#[tokio::test]
async fn f31_a_full_disk_frees_itself_by_a_checkpoint() {
    let Some(disk) = SmallDisk::mount("160m") else { return };
    let small = ["--durability=fsync", "--segment-bytes=4194304"];
    let process = ShardProcess::start(&disk.data(), &small);
    let client = process.client().await;
    let big = || put_request(format!("{SECRETS}big"), vec![b'x'; 1 << 20]);
    let mut acknowledged = client.put(format!("{SECRETS}0"), "v").await;
    // The same megabyte is written again and again: about 60 MB of log for one of data. Then other files fill the disk.
    for _ in 0..60 {
        acknowledged = client.put_request(big()).await.unwrap().header.unwrap().revision;
        compact(&client, acknowledged).await;
    }
    let filler = disk.fill();
    // The checkpoint begins without help whenever a log finds no space.
    for _ in 0..3 {
        let mut refused = 0;
        for _ in 0..40 {
            let put = tokio::time::timeout(std::time::Duration::from_secs(20), client.put_request(big()));
            match put.await {
                Ok(Ok(answer)) => {
                    acknowledged = answer.header.unwrap().revision;
                    compact(&client, acknowledged).await;
                }
                _ => refused += 1,
            }
        }
        eventually("room again, though others' files take all the rest", || async {
            client.put_request(put_request(format!("{SECRETS}after"), "v")).await.is_ok()
        })
        .await;
        assert!(refused < 40, "something was taken");
    }
    let mut maintenance = MaintenanceClient::new(client.channel.clone());
    maintenance.defragment(pb::DefragmentRequest {}).await.expect("there is room for it");
    eventually("no alarm", || async { alarms(&client).await == 0 }).await;
    process.kill();
    let process = ShardProcess::start(&disk.data(), &small);
    let client = process.client().await;
    let found = client.range(range_request(&format!("{SECRETS}big"), "")).await.unwrap();
    assert!(found.kvs[0].mod_revision >= acknowledged);
    process.kill();
    std::fs::remove_file(filler).unwrap();
}

async fn compact(client: &Client, revision: i64) {
    let request = pb::CompactionRequest { revision, ..Default::default() };
    // It may be refused while the disk is full.
    let _ = pb::kv_client::KvClient::new(client.channel.clone()).compact(request).await;
}
