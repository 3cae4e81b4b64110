//! Keys are frozen in the middle of a move, while operations of other Kinds share the same stream. Writes to the
//! frozen keys wait and are executed once, at the new owner. A write whose client gave up meanwhile is never executed.
//! No other Kind waits.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use kindred_proto::{
    etcdserverpb::RangeRequest,
    shard_v1::{UnitState, UnitsListRequest},
};
use kindred_tests::{
    admin::Admin,
    client::Client,
    scenario::{self, report, wait_for},
    servers::Up,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;
use tonic::{Code, Request};

use crate::e2e::{
    ops::{self, below, put_of, value_of},
    stalled::signal,
};

const LIMIT: Duration = Duration::from_secs(90);
const STEP_LIMIT: Duration = Duration::from_secs(30);
const PODS: &str = "/registry/pods/";
const OTHERS: &str = "/registry/configmaps/";
const WRITERS: usize = 4;
const COUNTERS: usize = 2;
/// The number of additions to wait for before the move, during the freeze, and after the move.
const SOME: u64 = 60;
/// The deadline of a client that gives up.
const PATIENCE: Duration = Duration::from_millis(200);
const CONFIG: &str = "etcdPrefix: /registry\ndefault: main\nstores:\n- {name: main, slot: 1, type: shard}\n\
    - {name: other, slot: 2, type: shard}\npartitions:\n\
    - {metadata: {name: pods}, resource: pods, serviceGroupId: main}\n";

#[derive(Default)]
struct Shared {
    done: AtomicBool,
    pods: AtomicU64,
    others: AtomicU64,
    conflicts: AtomicU64,
    /// The acknowledged numbers of each counter.
    numbers: Mutex<BTreeMap<String, Vec<u64>>>,
}

impl Shared {
    async fn add(&self, client: &Client, key: String) -> anyhow::Result<()> {
        let (number, conflicts) = ops::add_one(client, &key).await?;
        let turns = if key.starts_with(PODS) { &self.pods } else { &self.others };
        self.numbers.lock().entry(key).or_default().push(number);
        self.conflicts.fetch_add(conflicts as u64, Ordering::SeqCst);
        turns.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Adds to the counters of a Kind in turn, and creates and deletes keys of its own.
async fn writer(client: Client, prefix: &str, number: usize, shared: Arc<Shared>) -> anyhow::Result<()> {
    let mut turn = number;
    while !shared.done.load(Ordering::SeqCst) {
        shared.add(&client, format!("{prefix}ns/counter-{}", turn % COUNTERS)).await?;
        let key = format!("{prefix}ns/own-{number}-{turn}");
        let written = ops::put(&client, &key, "v").await.with_context(|| format!("put {key}"))?;
        let found = ops::get(&client, &key).await.with_context(|| format!("get {key}"))?;
        ensure!(found.kvs.len() == 1 && found.kvs[0].version == 1, "{key}: {found:?}");
        ensure!(value_of(&found)? == ("v".into(), written), "{key}: {found:?}");
        let (deleted, _) = ops::delete(&client, &key).await.with_context(|| format!("delete {key}"))?;
        ensure!(deleted == 1, "{key}: {deleted} deleted");
        turn += 1;
    }
    Ok(())
}

struct Crowd {
    shared: Arc<Shared>,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Crowd {
    /// Waits for some more additions.
    async fn some(&mut self, turns: fn(&Shared) -> &AtomicU64) -> anyhow::Result<()> {
        let shared = self.shared.clone();
        let until = turns(&shared).load(Ordering::SeqCst) + SOME;
        let some = wait_for("additions", STEP_LIMIT, || async {
            Ok((turns(&shared).load(Ordering::SeqCst) >= until).then_some(()))
        });
        tokio::select! {
            ended = self.tasks.join_next() => match ended.context("no writer runs")?? {
                Ok(()) => bail!("a writer has ended"),
                Err(error) => Err(error),
            },
            some = some => some,
        }
    }

    async fn finish(mut self) -> anyhow::Result<()> {
        self.shared.done.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

#[test]
fn r13_writes_that_wait_for_a_move_are_made_once_and_hold_up_no_other_kind() {
    scenario::run("frozen", LIMIT, |dir| async move {
        let (config, held) = (dir.join("config.yaml"), dir.join("held"));
        std::fs::write(&config, CONFIG)?;
        let env = [
            ("KINDRED_FAILPOINTS".to_owned(), "freeze.before=wait".to_owned()),
            ("KINDRED_FAILPOINT_FILE".to_owned(), held.display().to_string()),
        ];
        let up = Up::start_with_env(&dir, "up", &[format!("--config={}", config.display())], &env).await?;
        let (client, admin) = (up.client().await?, Admin::at(&up.admin));
        let shared = Arc::<Shared>::default();
        let mut tasks = JoinSet::new();
        for number in 0..WRITERS {
            for prefix in [PODS, OTHERS] {
                tasks.spawn(writer(client.clone(), prefix, number, shared.clone()));
            }
        }
        let mut crowd = Crowd { shared: shared.clone(), tasks };
        crowd.some(|shared| &shared.pods).await?;
        let kept = format!("{PODS}ns/kept");
        let before = ops::put(&client, &kept, "before").await?;

        let moves = admin.change("move", &json!({ "kind": "pods", "to": "other" })).await?;
        let [id] = moves.as_slice() else { bail!("one move is expected: {moves:?}") };
        wait_for("the switch", STEP_LIMIT, || async { Ok(held.exists().then_some(())) }).await?;
        // Without the meta store the switch is neither decided nor given up.
        let meta = up.shard_pid("meta")?;
        signal(meta, "-STOP")?;
        std::fs::remove_file(&held)?;
        let stores = up.stores()?;
        let at = |store: &str| stores.iter().find(|(name, _)| name == store).context("a store");
        let owner = Client::as_router(&at("main")?.1, &up.secret()).await?.units;
        wait_for("the freeze", STEP_LIMIT, || {
            let mut owner = owner.clone();
            async move {
                let records = owner.list(UnitsListRequest {}).await?.into_inner().records;
                Ok(records.iter().any(|record| record.state() == UnitState::Frozen).then_some(()))
            }
        })
        .await?;
        let turns = shared.pods.load(Ordering::SeqCst);
        let late = tokio::spawn({
            let (shared, client) = (shared.clone(), client.clone());
            async move { shared.add(&client, format!("{PODS}ns/counter-0")).await }
        });
        let mut hasty = Request::new(put_of(&kept, "given up"));
        hasty.set_timeout(PATIENCE);
        let hasty = client.kv.clone().put(hasty).await.err().context("it is held up")?;
        ensure!(matches!(hasty.code(), Code::DeadlineExceeded | Code::Cancelled), "{hasty:?}");
        crowd.some(|shared| &shared.others).await?;
        ensure!(!late.is_finished(), "the keys were held up");
        // Only answers that were on their way at the freeze may have come.
        let answered = shared.pods.load(Ordering::SeqCst) - turns;
        ensure!(answered <= WRITERS as u64, "{answered} additions while pods were held up");

        signal(meta, "-CONT")?;
        late.await??;
        crowd.some(|shared| &shared.pods).await?;
        crowd.some(|shared| &shared.others).await?;
        let there = |shown: &serde_json::Value| shown["phase"] == "Switched" && shown["goal"] == "there";
        admin.until(*id, STEP_LIMIT, there).await?;
        crowd.finish().await?;
        let found = ops::get(&client, &kept).await?;
        ensure!(value_of(&found)? == ("before".into(), before), "{found:?}");
        let numbers = std::mem::take(&mut *shared.numbers.lock());
        for (key, mut numbers) in numbers {
            numbers.sort_unstable();
            let last = u64::try_from(numbers.len())?;
            ensure!(numbers.iter().copied().eq(1..=last), "{key}: {numbers:?}");
            let found = ops::get(&client, &key).await?;
            ensure!(value_of(&found)?.0 == last.to_string(), "{key}: {last} additions, {found:?}");
            ensure!(found.kvs[0].version == i64::try_from(last)?, "{found:?}");
        }
        // The pods are the counters and the key that the abandoned write did not change.
        let count = RangeRequest { count_only: true, ..below(PODS) };
        let pods = ops::range(&Client::as_router(&at("other")?.1, &up.secret()).await?, count).await?.count;
        ensure!(pods == i64::try_from(COUNTERS)? + 1, "{pods} pods at the new owner");
        report(&format!(
            "e2e frozen pods={} others={} conflicts={}",
            shared.pods.load(Ordering::SeqCst),
            shared.others.load(Ordering::SeqCst),
            shared.conflicts.load(Ordering::SeqCst),
        ));
        Ok(())
    });
}
