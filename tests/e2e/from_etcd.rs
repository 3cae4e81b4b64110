//! Pods move from a real etcd to a shard under clients at two routers. Writers use optimistic transactions and read
//! after each; others list and watch. No acknowledged write is lost, no request fails, no header goes back, and each
//! watch is canceled as compacted at most once.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use kindred_proto::{
    etcdserverpb::{
        Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
        TxnResponse, WatchCreateRequest, WatchRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
        response_op::Response,
        watch_request::RequestUnion,
    },
    mvccpb::event::EventType,
};
use kindred_tests::{
    admin::Admin,
    client::Client,
    process::{Process, Spec},
    proxy::{Cut, Link},
    scenario::{self, report, wait_for},
    servers::{Etcd, Shard},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;

const LIMIT: Duration = Duration::from_secs(240);
const STEP_LIMIT: Duration = Duration::from_secs(60);
const PODS: &str = "/registry/pods/";
const PODS_END: &str = "/registry/pods0";
pub const CLUSTER: &str = "--cluster-id=0x1ee7";
const WRITERS: usize = 3;
const KEYS_OF_EACH: usize = 8;
/// A number of pods that nobody changes. With them the copy takes more than one page.
const STILL: usize = 700;
/// The turns of each writer before the move, and after it.
const SOME: usize = 30;

/// The etcd `old` has the pods, which move to the shard `new`.
pub struct Cluster {
    dir: PathBuf,
    meta: Shard,
    pub old: Etcd,
    new: Shard,
}

pub struct Router {
    process: Process,
    pub address: String,
    pub admin: Admin,
    meta: Link,
}

impl Cluster {
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        Self::start_on(dir, Etcd::start(dir, "old").await?, "old").await
    }

    /// Starts it with this etcd, and pods at the store `pods_at`.
    pub async fn start_on(dir: &Path, old: Etcd, pods_at: &str) -> anyhow::Result<Self> {
        let config = format!(
            "etcdPrefix: /registry\ndefault: new\nstores:\n- {{name: new, slot: 1, type: shard}}\n\
             - {{name: old, type: etcd, endpoints: [\"http://{}\"]}}\n\
             partitions:\n- {{metadata: {{name: pods}}, resource: pods, serviceGroupId: {pods_at}}}\n",
            old.address
        );
        std::fs::write(dir.join("config.yaml"), config)?;
        let flags = |name: &str, slot: u8| {
            vec![format!("--name={name}"), format!("--slot={slot}"), "--durability=fsync".to_owned()]
        };
        let mut of_meta = flags("meta", 0);
        of_meta.push("--revisions=dense".to_owned());
        let meta = Shard::start(dir, "meta", &of_meta).await?;
        let mut of_new = flags("new", 1);
        of_new.push(CLUSTER.to_owned());
        let new = Shard::start(dir, "new", &of_new).await?;
        Ok(Self { dir: dir.to_owned(), meta, old, new })
    }

    pub async fn router(&self, name: &str, failpoints: &str) -> anyhow::Result<Router> {
        let own_dir = self.dir.join(name);
        std::fs::create_dir(&own_dir)?;
        let meta = Link::open(&own_dir.join("meta"), &self.meta.address)?;
        let args = vec![
            "--listen=127.0.0.1:0".to_owned(),
            "--admin=127.0.0.1:0".to_owned(),
            format!("--name={name}"),
            format!("--config={}", self.dir.join("config.yaml").display()),
            "--meta=unix:meta".to_owned(),
            format!("--store=new=http://{}", self.new.address),
            "--log-level=info,kindred_router::moves=debug".to_owned(),
            CLUSTER.to_owned(),
        ];
        let spec = Spec {
            env: vec![("KINDRED_FAILPOINTS".to_owned(), failpoints.to_owned())],
            ..Spec::router(&format!("router-{name}"), args)?
        };
        let process = Process::start_in(&self.dir, &own_dir, spec).await?;
        let field = |name| anyhow::Ok(process.ready_field(name)?.trim_start_matches("http://").to_owned());
        let (address, admin) = (field("listen")?, Admin::at(&field("admin")?));
        Ok(Router { process, address, admin, meta })
    }

    /// The pods that the etcd still has. The read bypasses the routers.
    async fn left_behind(&self) -> anyhow::Result<RangeResponse> {
        list(&self.old.client().await?).await
    }
}

pub fn all_pods() -> RangeRequest {
    RangeRequest { key: PODS.into(), range_end: PODS_END.into(), ..Default::default() }
}

pub async fn list(client: &Client) -> anyhow::Result<RangeResponse> {
    Ok(client.kv.clone().range(all_pods()).await.context("list")?.into_inner())
}

async fn put(client: &Client, key: &str, value: &str) -> anyhow::Result<i64> {
    let put = PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
    let answer = client.kv.clone().put(put).await.with_context(|| format!("put {key}"))?.into_inner();
    Ok(answer.header.context("header")?.revision)
}

/// Puts the key if it has this mod revision, and else reads it.
async fn put_if(client: &Client, key: &str, value: &str, mod_revision: i64) -> anyhow::Result<TxnResponse> {
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.to_owned().into(),
        target_union: Some(TargetUnion::ModRevision(mod_revision)),
        ..Default::default()
    };
    let op = |request| vec![RequestOp { request: Some(request) }];
    let put = PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
    let get = RangeRequest { key: key.to_owned().into(), ..Default::default() };
    let txn = TxnRequest {
        compare: vec![compare],
        success: op(Request::RequestPut(put)),
        failure: op(Request::RequestRange(get)),
    };
    Ok(client.kv.clone().txn(txn).await.with_context(|| format!("txn on {key}"))?.into_inner())
}

/// The state that all clients share.
#[derive(Default)]
pub struct Shared {
    stop: AtomicBool,
    /// The last acknowledged write of each key: its revision and its value.
    written: Mutex<BTreeMap<String, (i64, u64)>>,
    turns: AtomicUsize,
    pub cancelled: AtomicUsize,
    /// Whether keys get new revisions with the move, so that a compare with an older one fails.
    pub renumbers: AtomicBool,
    pub conflicts: AtomicUsize,
    /// The highest header of any list that has ended. Later lists may not have a lower one.
    header: AtomicI64,
}

pub struct Clients {
    pub shared: Arc<Shared>,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Clients {
    pub async fn start(routers: &[&str]) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut tasks = JoinSet::new();
        let mut clients = Vec::new();
        for address in routers {
            clients.push(Client::connect(address).await?);
        }
        for number in 0..WRITERS {
            tasks.spawn(writer(number, clients.clone(), shared.clone()));
        }
        tasks.spawn(lister(clients.clone(), shared.clone()));
        for client in clients {
            tasks.spawn(watcher(client.clone(), all_pods(), shared.clone()));
            let one = RangeRequest { key: key_of(0, 0).into(), ..Default::default() };
            tasks.spawn(watcher(client, one, shared.clone()));
        }
        Ok(Self { shared, tasks })
    }

    /// Waits until each writer has made, on average, this many more turns.
    pub async fn some(&mut self, turns: usize) -> anyhow::Result<()> {
        let until = self.shared.turns.load(Ordering::SeqCst) + turns * WRITERS;
        let end = Instant::now() + STEP_LIMIT;
        while self.shared.turns.load(Ordering::SeqCst) < until {
            if let Some(ended) = self.tasks.try_join_next() {
                ended??;
                bail!("a client ended early");
            }
            ensure!(Instant::now() < end, "the writers have stopped");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    pub async fn finish(mut self) -> anyhow::Result<BTreeMap<String, (i64, u64)>> {
        self.shared.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(self.shared.written.lock().clone())
    }
}

fn key_of(writer: usize, key: usize) -> String {
    format!("{PODS}ns-{writer}/pod-{key}")
}

/// Writes its keys in turn, through the routers in turn. Each write compares with the key's last known revision, and a
/// read follows.
async fn writer(number: usize, clients: Vec<Client>, shared: Arc<Shared>) -> anyhow::Result<()> {
    let mut known = [0_i64; KEYS_OF_EACH];
    let mut values = [const { String::new() }; KEYS_OF_EACH];
    let mut turn = 0_usize;
    while !shared.stop.load(Ordering::SeqCst) {
        let (at, client) = (turn % KEYS_OF_EACH, &clients[turn % clients.len()]);
        let key = key_of(number, at);
        // Some turns delete the key and create it again.
        if turn % 11 == 10 && known[at] > 0 {
            // From here on a list may lack the key.
            shared.written.lock().remove(&key);
            let delete = DeleteRangeRequest { key: key.clone().into(), ..Default::default() };
            let answer = client.kv.clone().delete_range(delete).await.context("delete")?.into_inner();
            ensure!(answer.deleted == 1, "{key} was not there");
            known[at] = 0;
        }
        let answer = put_if(client, &key, &turn.to_string(), known[at]).await?;
        if !answer.succeeded && shared.renumbers.load(Ordering::SeqCst) {
            // What the key is must be what was written, at a higher revision.
            let Some(Response::ResponseRange(read)) = answer.responses[0].response.clone() else {
                bail!("{answer:?}")
            };
            let kv = read.kvs.first().with_context(|| format!("{key} is lost"))?;
            ensure!(
                kv.value == values[at] && kv.mod_revision > known[at],
                "{key} in turn {turn}: {kv:?}, not {} at {}",
                values[at],
                known[at]
            );
            known[at] = kv.mod_revision;
            shared.written.lock().insert(key.clone(), (kv.mod_revision, values[at].parse()?));
            shared.conflicts.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        ensure!(answer.succeeded, "{key} is not as its only writer left it at {}: {answer:?}", known[at]);
        values[at] = turn.to_string();
        let revision = answer.header.context("header")?.revision;
        ensure!(revision > known[at], "{key} was written at {revision}, below {}", known[at]);
        known[at] = revision;
        shared.written.lock().insert(key.clone(), (revision, turn as u64));
        let get = RangeRequest { key: key.clone().into(), ..Default::default() };
        let read =
            clients[(turn + 1) % clients.len()].kv.clone().range(get).await.context("read")?.into_inner();
        let kv = read.kvs.first().with_context(|| format!("{key} is not there"))?;
        let renumbered = shared.renumbers.load(Ordering::SeqCst) && kv.mod_revision > revision;
        ensure!(
            kv.value == turn.to_string() && (kv.mod_revision == revision || renumbered),
            "{key}: {kv:?}, not {turn}"
        );
        if renumbered {
            known[at] = kv.mod_revision;
            shared.written.lock().insert(key.clone(), (kv.mod_revision, turn as u64));
        }
        turn += 1;
        shared.turns.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

/// Lists through the routers in turn. Each list has every write that was acknowledged before it.
async fn lister(clients: Vec<Client>, shared: Arc<Shared>) -> anyhow::Result<()> {
    let mut turn = 0_usize;
    while !shared.stop.load(Ordering::SeqCst) {
        let before = shared.written.lock().clone();
        let least = shared.header.load(Ordering::SeqCst);
        let listed = match turn % 3 {
            2 => stream(&clients[turn % clients.len()]).await?,
            _ => list(&clients[turn % clients.len()]).await?,
        };
        let header = listed.header.context("header")?.revision;
        ensure!(header >= least, "a list at {header} after one at {least}");
        shared.header.fetch_max(header, Ordering::SeqCst);
        let found: BTreeMap<&[u8], i64> =
            listed.kvs.iter().map(|kv| (&kv.key[..], kv.mod_revision)).collect();
        let now = shared.written.lock().clone();
        for (key, (revision, _)) in before {
            match found.get(key.as_bytes()) {
                Some(there) => ensure!(*there >= revision, "{key} at {there}, not {revision}"),
                // The key was deleted during the list.
                None => ensure!(now.get(&key).is_none_or(|(now, _)| *now > revision), "{key} is not listed"),
            }
        }
        turn += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// A list by `RangeStream`.
async fn stream(client: &Client) -> anyhow::Result<RangeResponse> {
    let mut chunks = client.kv.clone().range_stream(all_pods()).await.context("stream")?.into_inner();
    let mut all = RangeResponse::default();
    while let Some(chunk) = chunks.message().await.context("chunk")? {
        let Some(range) = chunk.range_response else { continue };
        all.kvs.extend(range.kvs);
        all.header = range.header.or(all.header);
    }
    Ok(all)
}

/// Lists and watches as an informer does. Its state at the end is that of the store.
async fn watcher(client: Client, of: RangeRequest, shared: Arc<Shared>) -> anyhow::Result<()> {
    let mut least = 0;
    loop {
        let listed = client.kv.clone().range(of.clone()).await.context("relist")?.into_inner();
        let header = listed.header.context("header")?.revision;
        ensure!(header >= least, "a list at {header} behind what was seen at {least}");
        let mut state: BTreeMap<Bytes, i64> =
            listed.kvs.into_iter().map(|kv| (kv.key, kv.mod_revision)).collect();
        let (requests, queue) = mpsc::channel(2);
        let create = WatchCreateRequest {
            key: of.key.clone(),
            range_end: of.range_end.clone(),
            start_revision: header + 1,
            progress_notify: true,
            ..Default::default()
        };
        requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
        let mut watch =
            client.watch.clone().watch(ReceiverStream::new(queue)).await.context("watch")?.into_inner();
        least = header;
        loop {
            let said = match tokio::time::timeout(Duration::from_millis(200), watch.message()).await {
                Ok(said) => said.context("a watch broke")?.context("a watch ended")?,
                Err(_) if shared.stop.load(Ordering::SeqCst) => {
                    // The writers have ended, so the events must lead to the current state.
                    let now = client.kv.clone().range(of.clone()).await?.into_inner();
                    let now: BTreeMap<Bytes, i64> =
                        now.kvs.into_iter().map(|kv| (kv.key, kv.mod_revision)).collect();
                    if now == state {
                        return Ok(());
                    }
                    continue;
                }
                Err(_) => continue,
            };
            if said.canceled {
                ensure!(said.compact_revision > least, "cancelled otherwise than as compacted: {said:?}");
                shared.cancelled.fetch_add(1, Ordering::SeqCst);
                break;
            }
            let revision = said.header.map_or(0, |header| header.revision);
            ensure!(revision == 0 || revision >= least || said.created, "{said:?} behind {least}");
            for event in &said.events {
                let kv = event.kv.as_ref().context("kv")?;
                ensure!(
                    kv.mod_revision > header,
                    "an event at {} of a watch behind {header}",
                    kv.mod_revision
                );
                ensure!(kv.mod_revision >= least, "an event at {} behind one at {least}", kv.mod_revision);
                least = kv.mod_revision;
                match event.r#type() {
                    EventType::Put => state.insert(kv.key.clone(), kv.mod_revision),
                    EventType::Delete => state.remove(&kv.key),
                };
            }
        }
    }
}

pub async fn fill(client: &Client) -> anyhow::Result<()> {
    let value = "x".repeat(2_000);
    for at in 0..STILL {
        put(client, &format!("{PODS}still/pod-{at:04}"), &value).await?;
    }
    Ok(())
}

pub async fn begin(admin: &Admin) -> anyhow::Result<u64> {
    let ids = admin.change("move", &json!({ "kind": "pods", "to": "new" })).await?;
    ids.first().copied().context("a move")
}

/// Asserts that every acknowledged write is at the shard, and that the etcd takes no further writes of pods.
async fn moved(
    cluster: &Cluster,
    client: &Client,
    written: &BTreeMap<String, (i64, u64)>,
    behind: &RangeResponse,
) -> anyhow::Result<()> {
    let listed = list(client).await?;
    ensure!(
        listed.kvs.len() == written.len() + STILL,
        "{} pods, not {}",
        listed.kvs.len(),
        written.len() + STILL
    );
    for kv in &listed.kvs {
        let key = std::str::from_utf8(&kv.key)?;
        if let Some((revision, number)) = written.get(key) {
            ensure!(kv.mod_revision == *revision && kv.value == number.to_string(), "{kv:?}, not {number}");
        }
    }
    let own = list(&cluster.new.client().await?).await?;
    ensure!(own.kvs == listed.kvs, "the shard has something else");
    let left = cluster.left_behind().await?;
    ensure!(left.kvs == behind.kvs, "the etcd was written to after the switch");
    ensure!(listed.header.context("header")?.revision > left.header.context("header")?.revision);
    Ok(())
}

#[test]
fn r13_pods_leave_an_etcd_under_clients_and_nothing_is_lost() {
    scenario::run("from-etcd", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir).await?;
        let one = cluster.router("one", "").await?;
        let two = cluster.router("two", "").await?;
        let client = Client::connect(&one.address).await?;
        fill(&client).await?;
        // This pod is read at the etcd before the move. A write at the shard then compares with that revision.
        let still = format!("{PODS}still/pod-0000");
        let read_before =
            list(&client).await?.kvs.iter().find(|kv| kv.key == still).context("still")?.mod_revision;
        let mut clients = Clients::start(&[&one.address, &two.address]).await?;
        clients.some(SOME).await?;
        let id = begin(&one.admin).await?;
        let done = two.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
        ensure!(done["goal"] == "there" && done["legs"][0]["oneWay"] == true, "{done}");
        let behind = cluster.left_behind().await?;
        clients.some(SOME).await?;
        let cancelled = clients.shared.cancelled.load(Ordering::SeqCst);
        let written = clients.finish().await?;
        ensure!(cancelled == 4, "{cancelled} of 4 watches were told that they are compacted, once each");
        moved(&cluster, &client, &written, &behind).await?;
        let answer = put_if(&client, &still, "0", read_before).await?;
        ensure!(answer.succeeded, "what was read at the etcd does not compare at the shard: {answer:?}");
        report(&format!(
            "{STILL} pods and {} that were written moved from an etcd, after {} attempts; 4 of 4 watches relisted once",
            written.len(),
            done["attempts"]
        ));
        drop((one.process, two.process));
        Ok(())
    });
}

/// A router without a connection to the meta store uses its last map, and the fence in the etcd refuses its requests.
#[test]
fn r13_a_router_that_does_not_hear_of_the_move_can_neither_write_nor_read_at_the_etcd() {
    scenario::run("from-etcd-cut-off", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir).await?;
        let one = cluster.router("one", "").await?;
        let two = cluster.router("two", "").await?;
        let (client, deaf) = (Client::connect(&one.address).await?, Client::connect(&two.address).await?);
        let key = format!("{PODS}a/b");
        let before = put(&deaf, &key, "1").await?;
        two.meta.cut(Cut::Refused);
        let id = begin(&one.admin).await?;
        // Router one coordinates, unless two had claimed the move before its link was cut.
        one.admin.until(id, STEP_LIMIT, |shown| shown["legs"][0]["moved"] == true).await?;
        wait_for("the switch", STEP_LIMIT, || async {
            Ok((put(&client, &key, "2").await? > before).then_some(()))
        })
        .await?;
        let behind = cluster.left_behind().await?;
        ensure!(behind.kvs[0].value == "1", "{behind:?}");
        let refused = put(&deaf, &key, "lost").await.err().context("it wrote at the etcd")?;
        ensure!(format!("{refused:#}").contains("being moved"), "{refused:#}");
        ensure!(
            list(&deaf).await.is_err() && stream(&deaf).await.is_err(),
            "it reads what is not so any more"
        );
        let answer = put_if(&deaf, &key, "lost", behind.kvs[0].mod_revision).await;
        ensure!(answer.is_err(), "{answer:?}");
        ensure!(cluster.left_behind().await?.kvs == behind.kvs);
        two.meta.heal();
        wait_for("the map", STEP_LIMIT, || async {
            let listed = list(&deaf).await.ok();
            Ok(listed.filter(|listed| listed.kvs[0].value == "2").map(drop))
        })
        .await?;
        put(&deaf, &key, "3").await?;
        ensure!(list(&client).await?.kvs[0].value == "3");
        report("a router cut off from meta was refused by the etcd, and served when it heard of the move");
        Ok(())
    });
}

/// A client that still writes to the etcd what has moved away is found and named, also if no router ran then.
#[test]
fn who_bypasses_the_routers_is_found() {
    scenario::run("bypass", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir).await?;
        let mut one = cluster.router("one", "").await?;
        let (client, direct) = (Client::connect(&one.address).await?, cluster.old.client().await?);
        put(&client, &format!("{PODS}a/b"), "1").await?;
        let id = begin(&one.admin).await?;
        one.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
        let told = |count: u64, key: &'static str| {
            let admin = one.admin.clone();
            async move {
                wait_for("a warning", STEP_LIMIT, || async {
                    let (_, said) = admin.ask("GET", "/readyz?verbose", "").await?;
                    let wanted = format!("{count} writes of others to keys that have moved away");
                    Ok((said.contains(&wanted) && said.contains(key)).then_some(()))
                })
                .await
            }
        };
        put(&client, &format!("{PODS}a/b"), "2").await?;
        put(&direct, "/registry/secrets/a/other", "not moved").await?;
        put(&direct, &format!("{PODS}a/stray"), "lost").await?;
        told(1, "pods/a/stray").await?;
        one.process.stop().await?;
        put(&direct, &format!("{PODS}a/later"), "lost").await?;
        one.process.restart().await?;
        let one =
            Router { admin: Admin::at(&one.process.ready_field("admin")?.replace("http://", "")), ..one };
        wait_for("a warning", STEP_LIMIT, || async {
            let (_, said) = one.admin.ask("GET", "/readyz?verbose", "").await?;
            Ok((said.contains("2 writes of others") && said.contains("pods/a/later")).then_some(()))
        })
        .await?;
        let metrics = one.admin.ask("GET", "/metrics", "").await?.1;
        ensure!(metrics.contains("kindred_router_bypassed_writes_total{store=\"old\"} 2"), "{metrics}");
        Ok(())
    });
}

/// The coordinator dies directly before or after the freeze, or after the decision. The other router ends the move: it
/// gives up an undecided attempt and makes the next.
#[test]
fn r15_a_coordinator_that_dies_at_the_freeze_of_an_etcd_is_followed() {
    for (name, failpoint) in [
        ("freeze-before", "freeze.before=exit"),
        ("freeze-after", "freeze.after=exit"),
        ("decide-after", "decide.after=exit"),
    ] {
        scenario::run(&format!("from-etcd-{name}"), LIMIT, |dir| async move {
            let cluster = Cluster::start(&dir).await?;
            let victim = cluster.router("victim", failpoint).await?;
            let client = Client::connect(&victim.address).await?;
            fill(&client).await?;
            let id = begin(&victim.admin).await?;
            let survivor = cluster.router("survivor", "").await?;
            let mut clients = Clients::start(&[&survivor.address]).await?;
            let done = survivor.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
            ensure!(done["goal"] == "there", "{done}");
            let behind = cluster.left_behind().await?;
            clients.some(SOME).await?;
            let client = Client::connect(&survivor.address).await?;
            let cancelled = clients.shared.cancelled.load(Ordering::SeqCst);
            let written = clients.finish().await?;
            ensure!(cancelled <= 2, "{cancelled} cancellations of 2 watches");
            moved(&cluster, &client, &written, &behind).await?;
            report(&format!(
                "{failpoint}: another router moved the pods, after {} attempts",
                done["attempts"]
            ));
            drop(victim.process);
            Ok(())
        });
    }
}

/// A move that is impossible is refused or given up with its reason, and the keys stay where they are.
#[test]
fn what_cannot_leave_an_etcd_or_go_to_one_is_told() {
    scenario::run("from-etcd-refused", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir).await?;
        let one = cluster.router("one", "").await?;
        let client = Client::connect(&one.address).await?;
        put(&client, &format!("{PODS}a/b"), "1").await?;
        let refused = |verb: &'static str, body: Value| {
            let admin = one.admin.clone();
            async move {
                let (code, answer) = admin.ask("POST", &format!("/api/v1/{verb}"), &body.to_string()).await?;
                ensure!(code == 422, "{verb} {body}: {code} {answer}");
                anyhow::Ok(answer)
            }
        };
        let part = refused("split", json!({ "kind": "pods", "at": "m", "to": "new" })).await?;
        ensure!(part.contains("cannot share pods with another store"), "{part}");
        // `\0` is the key of kindred's fence in an etcd. Here it belongs to the default store, which is a shard.
        let own =
            client.kv.clone().put(PutRequest { key: Bytes::from_static(b"\0"), ..Default::default() }).await;
        ensure!(own.is_ok(), "the default store is a shard: {own:?}");

        let id = begin(&one.admin).await?;
        let (code, answer) = one.admin.ask("POST", &format!("/api/v1/moves/{id}/reverse"), "").await?;
        ensure!(code != 200, "{answer}");
        one.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
        report("3 refusals");
        Ok(())
    });
}

/// A router answers every request for pods on a fenced etcd as the etcd itself does. Clients do not notice the fence.
#[test]
fn an_etcd_behind_its_fence_answers_as_it_does_alone() {
    scenario::run("fenced", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir).await?;
        let one = cluster.router("one", "").await?;
        let (client, direct) = (Client::connect(&one.address).await?, cluster.old.client().await?);
        let key = format!("{PODS}a/b");
        let first = put(&client, &key, "1").await?;
        let answer = put_if(&client, &key, "2", first).await?;
        let header = answer.header.context("header")?.revision;
        ensure!(answer.succeeded && header == first + 1, "{answer:?}");
        let Some(Response::ResponsePut(inner)) = answer.responses[0].response.clone() else {
            bail!("{answer:?}")
        };
        ensure!(inner.header.context("inner header")?.revision == header);
        let answer = put_if(&client, &key, "3", first).await?;
        ensure!(!answer.succeeded && answer.header.context("header")?.revision == header, "{answer:?}");
        for request in [
            all_pods(),
            RangeRequest { limit: 1, ..all_pods() },
            RangeRequest { count_only: true, ..all_pods() },
            RangeRequest { revision: first, serializable: true, ..all_pods() },
            RangeRequest { key: key.clone().into(), keys_only: true, ..Default::default() },
        ] {
            let mut ours = client.kv.clone().range(request.clone()).await?.into_inner();
            let mut theirs = direct.kv.clone().range(request).await?.into_inner();
            let revisions =
                [&mut ours, &mut theirs].map(|answer| answer.header.take().map(|header| header.revision));
            ensure!(revisions[0] == revisions[1] && ours == theirs, "{ours:?} {theirs:?}");
        }
        let errors = [
            RangeRequest { revision: 1_000_000, ..all_pods() },
            RangeRequest { sort_order: 7, ..all_pods() },
        ];
        for request in errors {
            let ours = client.kv.clone().range(request.clone()).await.err().context("refused")?;
            let theirs = direct.kv.clone().range(request).await.err().context("refused")?;
            ensure!(
                (ours.code(), ours.message()) == (theirs.code(), theirs.message()),
                "{ours:?} {theirs:?}"
            );
        }
        let unchanged =
            PutRequest { key: format!("{PODS}none").into(), ignore_value: true, ..Default::default() };
        let ours = client.kv.clone().put(unchanged.clone()).await.err().context("refused")?;
        let theirs = direct.kv.clone().put(unchanged).await.err().context("refused")?;
        ensure!((ours.code(), ours.message()) == (theirs.code(), theirs.message()), "{ours:?} {theirs:?}");
        let gone = DeleteRangeRequest { key: PODS.into(), range_end: PODS_END.into(), prev_kv: true };
        let answer = client.kv.clone().delete_range(gone).await?.into_inner();
        ensure!(answer.deleted == 1 && answer.prev_kvs[0].value == "2", "{answer:?}");
        ensure!(answer.header.context("header")?.revision == header + 1);
        report("14 answers of an etcd behind its fence are the etcd's own");
        Ok(())
    });
}
