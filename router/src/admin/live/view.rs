//! One look at the cluster: stores with what they hold, Kinds with their sizes and traffic, moves, decisions of `kindred
//! advise`, clients, slow requests and alerts, as one JSON object.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::{ALL_ELSE, KindPrefix};
use kindred_proto::shard_v1::{KindLoad, LoadResponse};
use kindred_router_core::plan::Placement as _;
use kindred_router_core::routes::Routes;
use kindred_router_core::store::StoreIx;
use kindred_transport::admin::Check;
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Status;

use super::alerts::{Alerts, FailingStep, SeenStore};
use crate::admin::advice;
use crate::admin::kinds::{clients, seconds, slow_calls};
use crate::admin::moves;
use crate::admin::sizes::load;
use crate::feeds::Feeds;
use crate::meta::Cluster;
use crate::moves::mover::Mover;
use crate::stores::Store;
use crate::stores::state::Phase;
use crate::traffic::Traffic;
use crate::traffic::kinds::KindTraffic;
use crate::traffic::samples::Amount;

/// How long a store may take to say its sizes. One that takes longer is shown with its last ones.
const WITHIN: Duration = Duration::from_millis(1500);
/// The clients, slow requests and decisions of a look.
const TOP: usize = 20;

/// A closure that says something of the router.
type Says<T> = Box<dyn Fn() -> T + Send + Sync>;

/// What is looked at.
pub struct Sources {
    pub mover: Arc<Mover>,
    pub feeds: Arc<Feeds>,
    pub traffic: Arc<Traffic>,
    /// The checks of readyz.
    pub checks: Says<Vec<Check>>,
    /// The answer of `/api/v1/stores`.
    pub stores: Says<Value>,
    /// The answer of `/api/v1/status`.
    pub status: Says<Value>,
}

/// What a store last said that it holds.
struct Held {
    load: LoadResponse,
    at: Instant,
}

/// The looks of one task.
pub struct View {
    sources: Arc<Sources>,
    held: BTreeMap<usize, Held>,
    alerts: Alerts,
    began: Instant,
}

impl View {
    pub fn new(sources: Arc<Sources>) -> Self {
        Self { sources, held: BTreeMap::new(), alerts: Alerts::default(), began: Instant::now() }
    }

    /// One look, as JSON.
    pub async fn look(&mut self) -> String {
        let problems = self.ask().await;
        let of = &self.sources;
        let routes = of.mover.routing.load_full();
        let moves = moves::all(&of.mover.keeper.cluster);
        let seen = self.seen();
        let (checks, waits) = ((of.checks)(), of.mover.routing.waiting_writes());
        let alerts = self.alerts.at(self.began.elapsed(), &checks, &seen, waits, &failing(&moves));
        let of = &self.sources;
        let mut shown = json!({
            "at": seconds(SystemTime::now()),
            "generation": routes.generation(),
            "partitions": routes.map().partitions().len(),
            "alerts": alerts,
            "stores": self.stores(&problems, &seen),
            "kinds": self.kinds(&routes),
            "moves": moves,
            "advice": newest_advice(&of.mover.keeper.cluster),
            "status": (of.status)(),
            "heldWrites": waits.requests,
        });
        let (mut clients, mut slow) = (clients(&of.traffic).clients, slow_calls(&of.traffic).calls);
        clients.truncate(TOP);
        slow.truncate(TOP);
        (shown["clients"], shown["slow"]) = (json!(clients), json!(slow));
        shown.to_string()
    }

    /// Asks all shards at once what they hold. Returns why some did not say.
    async fn ask(&mut self) -> BTreeMap<usize, String> {
        let stores = self.sources.mover.stores.iter().filter(|store| !store.is_removed());
        let stores: Vec<Arc<Store>> = stores.cloned().collect();
        self.held.retain(|at, _| stores.iter().any(|store| store.index.0 == *at));
        let everything = [KeyRange::everything()];
        let asked = stores.iter().map(|store| async {
            let answer = tokio::time::timeout(WITHIN, load(store, &everything)).await;
            answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("it does not say what it holds in time")))
        });
        let mut problems = BTreeMap::new();
        for (store, answer) in stores.iter().zip(join_all(asked).await) {
            let at = store.index.0;
            match answer {
                Ok(Some(load)) => {
                    self.held.insert(at, Held { load, at: Instant::now() });
                }
                Ok(None) if store.is_shard() => {
                    problems.insert(at, "it runs an older version, which cannot say".to_owned());
                }
                // A stock etcd does not say what it has of a Kind.
                Ok(None) => {}
                Err(status) => {
                    problems.insert(at, status.message().to_owned());
                }
            }
        }
        problems
    }

    /// What alerts want to know of the stores.
    fn seen(&self) -> Vec<SeenStore> {
        let lags = self.sources.feeds.lags();
        let stores = self.sources.mover.stores.iter().filter(|store| !store.is_removed());
        let seen = stores.map(|store| {
            let load = self.held.get(&store.index.0).map(|held| &held.load);
            let logs = || load.into_iter().flat_map(|load| &load.logs);
            let not_durable = logs().map(|log| log.not_durable_millis).max().unwrap_or(0);
            let failing = logs().filter(|log| !log.failing.is_empty()).map(|log| log.failing.clone());
            SeenStore {
                name: store.name().to_owned(),
                up: matches!(&*store.state().phase(), Phase::Up(_)),
                has_standbys: !store.members().shown().members.is_empty(),
                lag: lags.iter().find(|(index, ..)| *index == store.index).map(|(_, _, lag)| *lag),
                full: load.is_some_and(|load| load.full),
                held_bytes: load.map_or(0, |load| load.held_bytes),
                quota_bytes: load.map_or(0, |load| load.quota_bytes),
                not_durable: Duration::from_millis(not_durable),
                failing: failing.collect(),
            }
        });
        seen.collect()
    }

    /// The answer of `/api/v1/stores`, with what each store holds.
    fn stores(&self, problems: &BTreeMap<usize, String>, seen: &[SeenStore]) -> Value {
        let mut answer = (self.sources.stores)();
        let Some(listed) = answer["stores"].as_array_mut() else { return Value::Null };
        for shown in listed.iter_mut() {
            let name = shown["name"].as_str().unwrap_or_default().to_owned();
            let Some(store) = self.sources.mover.stores.iter().find(|store| store.name() == name) else {
                continue;
            };
            let lag = seen.iter().find(|seen| seen.name == name).and_then(|seen| seen.lag);
            shown["lagSeconds"] = json!(lag.map(|lag| lag.as_secs_f64()));
            shown["problem"] = json!(problems.get(&store.index.0));
            shown["load"] = self.held.get(&store.index.0).map_or(Value::Null, of_load);
        }
        Value::Array(std::mem::take(listed))
    }

    /// Every Kind that has keys or traffic.
    fn kinds(&self, routes: &Routes) -> Value {
        let traffic = self.sources.traffic.kinds.all();
        let used = |kind: &&Arc<KindTraffic>| kind.verbs().next().is_some() || kind.watches() > 0;
        let mut kinds: BTreeMap<String, Kind<'_>> = BTreeMap::new();
        for kind in traffic.iter().filter(used) {
            let known = kinds.entry(kind.name.to_string()).or_default();
            (known.prefix, known.traffic) = (kind.prefix.clone(), Some(kind));
        }
        for (at, held) in &self.held {
            let store = self.sources.mover.stores.get(StoreIx(*at)).name().to_owned();
            for load in held.load.kinds.iter().filter(|load| load.keys > 0 || load.held_bytes > 0) {
                let prefix = routes.scheme().kind_prefix(&load.prefix);
                let name = prefix.as_ref().map_or(ALL_ELSE.to_owned(), |kind| routes.scheme().name_of(kind));
                let known = kinds.entry(name).or_default();
                known.prefix = known.prefix.take().or(prefix);
                known.loads.push((store.clone(), load));
            }
        }
        Value::Array(kinds.iter().map(|(name, kind)| kind.shown(name, routes)).collect())
    }
}

/// A Kind, with what is known of it from all sides.
#[derive(Default)]
struct Kind<'a> {
    prefix: Option<KindPrefix>,
    loads: Vec<(String, &'a KindLoad)>,
    traffic: Option<&'a Arc<KindTraffic>>,
}

impl Kind<'_> {
    fn shown(&self, name: &str, routes: &Routes) -> Value {
        let parts =
            self.prefix.as_ref().map(|prefix| routes.parts_of(&KeyRange::prefix(prefix.as_key().clone())));
        let parts = parts.unwrap_or_default();
        let stores: BTreeSet<&str> =
            parts.iter().flat_map(|part| &part.stores).map(|store| routes.name(*store)).collect();
        let known = !self.loads.is_empty();
        let sum = |of: fn(&KindLoad) -> u64| {
            known.then(|| self.loads.iter().map(|(_, load)| of(load)).sum::<u64>())
        };
        let by = self.loads.iter().map(|(store, load)| {
            json!([store, load.keys, load.live_bytes, load.bytes, load.written_per_second])
        });
        let amount = self.traffic.map_or_else(Amount::default, |kind| Amount::of(kind));
        json!({
            "kind": name, "prefix": self.prefix.as_ref().map(ToString::to_string), "stores": stores,
            "ranges": parts.len(), "keys": sum(|load| load.keys), "bytes": sum(|load| load.live_bytes),
            "historyBytes": sum(|load| load.bytes.saturating_sub(load.live_bytes)),
            "writtenPerSecond": sum(|load| load.written_per_second), "by": by.collect::<Vec<_>>(),
            "watches": self.traffic.map_or(0, |kind| kind.watches()),
            "calls": amount.calls, "failed": amount.failed, "trafficBytes": amount.bytes,
            "micros": amount.micros, "messages": amount.messages,
        })
    }
}

/// What a store holds, and how its disk does.
fn of_load(held: &Held) -> Value {
    let load = &held.load;
    let sum = |of: fn(&kindred_proto::shard_v1::LogLoad) -> u64| load.logs.iter().map(of).sum::<u64>();
    json!({
        "heldBytes": load.held_bytes, "quotaBytes": load.quota_bytes, "full": load.full,
        "keys": load.kinds.iter().map(|kind| kind.keys).sum::<u64>(),
        "fsyncP99Micros": load.fsync_p99_micros, "walBytes": sum(|log| log.wal_bytes),
        "notDurableBytes": sum(|log| log.not_durable_bytes),
        "notDurableMillis": load.logs.iter().map(|log| log.not_durable_millis).max(),
        "failing": load.logs.iter().map(|log| &log.failing).find(|failing| !failing.is_empty()),
        "checkpointAt": load.checkpoint.as_ref().map(|last| last.finished_at),
        "ageSeconds": held.at.elapsed().as_secs(),
    })
}

/// The last decisions of `kindred advise`.
fn newest_advice(cluster: &Cluster) -> Value {
    let mut kept = advice::all(cluster);
    kept.truncate(TOP);
    json!(kept)
}

/// The steps that fail of moves under way.
fn failing(moves: &[Value]) -> Vec<FailingStep> {
    let under_way = moves.iter().filter(|one| one["over"] != true);
    let steps = under_way.flat_map(|one| {
        let id = one["metadata"]["name"].as_str().and_then(|id| id.parse().ok()).unwrap_or(0);
        let resource = one["resource"].as_str().unwrap_or_default();
        one["progress"]["failing"].as_array().into_iter().flatten().filter_map(move |step| {
            Some(FailingStep {
                id,
                resource: resource.to_owned(),
                step: step["step"].as_str()?.to_owned(),
                times: step["times"].as_u64()?,
                reason: step["reason"].as_str()?.to_owned(),
            })
        })
    });
    steps.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_fail_are_found_in_the_answers_of_moves_under_way() {
        let step = json!({ "step": "Copy", "times": 3, "reason": "no room" });
        let one = |over: bool| json!({ "metadata": { "name": "7" }, "resource": "pods", "over": over, "progress": { "failing": [step] } });
        let found = failing(&[one(false), one(true), json!({ "over": false, "progress": null })]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].id, found[0].step.as_str(), found[0].times), (7, "Copy", 3));
    }
}
