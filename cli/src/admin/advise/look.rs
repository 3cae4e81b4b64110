//! Two looks at a cluster give the load of its stores and Kinds.

use std::collections::{BTreeMap, BTreeSet};

use kindred_partition_config::kind::ALL_ELSE;
use serde_json::Value;

use crate::admin::output::text;

/// Bytes that cost a store about as much as one more call.
const BYTES_OF_A_CALL: f64 = 16_384.0;

/// One look, from the answers of `/api/v1/kinds`, `/stores`, `/partitions` and `/moves`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Look {
    at: f64,
    stores: BTreeMap<String, Store>,
    kinds: BTreeMap<String, Kind>,
    /// Numbers of moves under way.
    pub under_way: Vec<String>,
}

/// A store, as far as it says.
#[derive(Debug, Clone, Default, PartialEq)]
struct Store {
    shard: bool,
    up: bool,
    held: u64,
    quota: u64,
    /// Since its start.
    cpu_seconds: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Kind {
    stores: Vec<String>,
    ring: bool,
    ranges: usize,
    /// Of each store that says: bytes with history, bytes of history, bytes written in a second.
    by_store: BTreeMap<String, (u64, u64, u64)>,
    /// What was asked since the router's start, in calls.
    work: f64,
}

/// The load of a store.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoreLoad {
    pub name: String,
    /// A stock etcd says nothing of its load.
    pub shard: bool,
    pub up: bool,
    /// Bytes, and the most it may hold; 0 for no limit.
    pub held: u64,
    pub quota: u64,
    /// The part of a core that it used; `None` if it does not say.
    pub cores: Option<f64>,
}

/// The load of a Kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KindLoad {
    pub name: String,
    pub stores: Vec<String>,
    pub ring: bool,
    /// Ranges with stores of their own.
    pub ranges: usize,
    /// Of each store: bytes, bytes of history among them, and the part of a core that it costs there.
    pub at: BTreeMap<String, Share>,
}

/// What a Kind takes of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share {
    pub bytes: u64,
    pub history: u64,
    pub cores: f64,
}

/// The load between two looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    pub stores: Vec<StoreLoad>,
    pub kinds: Vec<KindLoad>,
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl Look {
    #[must_use]
    pub fn of(kinds: &Value, stores: &Value, partitions: &Value, moves: &Value) -> Self {
        let mut look = Self { at: kinds["at"].as_f64().unwrap_or_default(), ..Self::default() };
        for store in items(&stores["stores"]) {
            let seen =
                Store { shard: store["type"] == "shard", up: store["state"] == "up", ..Store::default() };
            look.stores.insert(text(&store["name"]), seen);
        }
        for said in items(&kinds["stores"]) {
            let Some(store) = look.stores.get_mut(&text(&said["store"])) else { continue };
            store.held = said["heldBytes"].as_u64().unwrap_or_default();
            store.quota = said["quotaBytes"].as_u64().unwrap_or_default();
            store.cpu_seconds = said["cpuSeconds"].as_f64();
        }
        for kind in items(&kinds["kinds"]) {
            look.kinds.insert(text(&kind["kind"]), Kind::of(kind));
        }
        let mut ranges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for partition in items(&partitions["partitions"]) {
            let Some(kind) = look.kinds.get_mut(&text(&partition["resource"])) else { continue };
            kind.ring |= partition["ring"] == true;
            // A pseudo-key stands before its Kind and is no range of names.
            if partition["start"].as_str() >= partition["kind"].as_str() {
                let of = ranges.entry(text(&partition["resource"])).or_default();
                of.insert(text(&partition["start"]));
                kind.ranges = of.len();
            }
        }
        let going = items(&moves["items"]).filter(|one| one["over"] != true);
        look.under_way = going.map(|one| text(&one["metadata"]["name"])).collect();
        look
    }

    /// The shards that are down or do not say what they use: nothing is known of them.
    #[must_use]
    pub fn silent(&self) -> Vec<&str> {
        let silent = |store: &Store| store.shard && (!store.up || store.cpu_seconds.is_none());
        self.stores.iter().filter(|(_, store)| silent(store)).map(|(name, _)| name.as_str()).collect()
    }

    /// What happened between an earlier look and this one.
    #[must_use]
    pub fn since(&self, before: &Self) -> Load {
        let seconds = (self.at - before.at).max(0.001);
        let stores: Vec<StoreLoad> = self
            .stores
            .iter()
            .map(|(name, now)| {
                let old = before.stores.get(name).and_then(|old| old.cpu_seconds);
                // A process that was restarted counts from zero.
                let used = now.cpu_seconds.zip(old).map(|(now, old)| if now < old { now } else { now - old });
                StoreLoad {
                    name: name.clone(),
                    shard: now.shard,
                    up: now.up,
                    held: now.held,
                    quota: now.quota,
                    cores: used.map(|used| used / seconds),
                }
            })
            .collect();
        let work_of = |name: &str, now: &Kind| {
            let old = before.kinds.get(name).map_or(0.0, |old| old.work);
            if now.work < old { now.work } else { now.work - old }
        };
        let named = self.kinds.iter().filter(|(name, _)| !name.starts_with('<') || *name == ALL_ELSE);
        let shares: Vec<(&String, &Kind, BTreeMap<&str, f64>)> =
            named.map(|(name, kind)| (name, kind, kind.spread(work_of(name, kind)))).collect();
        let mut totals: BTreeMap<&str, f64> = BTreeMap::new();
        for (store, work) in shares.iter().flat_map(|(.., work)| work) {
            *totals.entry(store).or_default() += work;
        }
        let cores_of = |store: &str, work: f64| {
            let of = stores.iter().find(|load| load.name == store).and_then(|load| load.cores);
            let total = totals.get(store).copied().unwrap_or_default();
            if total > 0.0 { of.unwrap_or_default() * work / total } else { 0.0 }
        };
        let kinds = shares.iter().map(|(name, kind, work)| {
            let at = kind.stores.iter().map(|store| {
                let (bytes, history, _) = kind.by_store.get(store).copied().unwrap_or_default();
                let cores = cores_of(store, work.get(store.as_str()).copied().unwrap_or_default());
                (store.clone(), Share { bytes, history, cores })
            });
            KindLoad {
                name: (*name).clone(),
                stores: kind.stores.clone(),
                ring: kind.ring,
                ranges: kind.ranges,
                at: at.collect(),
            }
        });
        let kinds = kinds.collect();
        Load { stores, kinds }
    }
}

impl Kind {
    fn of(value: &Value) -> Self {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let by_store = items(&value["byStore"]).map(|at| {
            let (live, history) = (number(&at["bytes"]), number(&at["historyBytes"]));
            (text(&at["store"]), (live + history, history, number(&at["writtenPerSecond"])))
        });
        let traffic = &value["traffic"];
        let mut calls = number(&traffic["messages"]);
        let mut bytes = number(&traffic["messageBytes"]);
        for (_, of) in traffic["verbs"].as_object().into_iter().flatten() {
            let failed = of["failed"].as_object().into_iter().flatten().map(|(_, count)| number(count));
            calls += number(&of["ok"]) + failed.sum::<u64>();
            bytes += number(&of["receivedBytes"]) + number(&of["sentBytes"]);
        }
        Self {
            stores: items(&value["stores"]).map(text).collect(),
            ring: false,
            ranges: 0,
            by_store: by_store.collect(),
            work: calls as f64 + bytes as f64 / BYTES_OF_A_CALL,
        }
    }

    /// The work at each store: by what is written there, else by what is there, else in equal parts.
    fn spread(&self, work: f64) -> BTreeMap<&str, f64> {
        let of = |store: &String| self.by_store.get(store).copied().unwrap_or_default();
        let written = self.stores.iter().any(|store| of(store).2 > 0);
        let held = self.stores.iter().any(|store| of(store).0 > 0);
        let weight = |store: &String| match of(store) {
            (.., per_second) if written => per_second as f64,
            (bytes, ..) if held => bytes as f64,
            _ => 1.0,
        };
        let total: f64 = self.stores.iter().map(weight).sum();
        self.stores.iter().map(|store| (store.as_str(), work * weight(store) / total)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two stores; pods are at `a` and `b`, leases at `a`.
    fn look(at: f64, cpu: f64, pods: u64, leases: u64) -> Look {
        let kind = |name: &str, stores: &[&str], ok: u64, by: Value| {
            json!({ "kind": name, "stores": stores, "byStore": by,
                "traffic": { "messages": 0, "messageBytes": 0, "verbs": { "update": { "ok": ok, "failed": { "Unknown": 1 } } } } })
        };
        let of = |store: &str, written: u64| json!({ "store": store, "bytes": 100, "historyBytes": 50, "writtenPerSecond": written });
        let kinds = json!({ "at": at,
            "kinds": [kind("pods", &["a", "b"], pods, json!([of("a", 30), of("b", 10)])), kind("leases", &["a"], leases, json!([]))],
            "stores": [{ "store": "a", "heldBytes": 7, "quotaBytes": 9, "cpuSeconds": cpu }, { "store": "b", "problem": "old" }] });
        let stores = json!({ "stores": [{ "name": "a", "type": "shard", "state": "up" }, { "name": "b", "type": "etcd", "state": "down" }] });
        let partitions = json!({ "partitions": [
            { "resource": "pods", "kind": "/registry/pods/", "start": "/registry/pods", "ring": false },
            { "resource": "pods", "kind": "/registry/pods/", "start": "/registry/pods/", "ring": false },
            { "resource": "pods", "kind": "/registry/pods/", "start": "/registry/pods/m", "ring": false }] });
        let moves = json!({ "items": [{ "metadata": { "name": "3" }, "over": true }, { "metadata": { "name": "4" }, "over": false }] });
        Look::of(&kinds, &stores, &partitions, &moves)
    }

    #[test]
    fn the_cores_of_a_store_are_shared_by_what_was_asked_of_its_kinds() {
        let (before, now) = (look(100.0, 50.0, 1000, 10), look(110.0, 55.0, 1400, 310));
        assert_eq!(now.under_way, ["4"]);
        let mut mute = now.clone();
        mute.stores.get_mut("a").unwrap().cpu_seconds = None;
        assert_eq!((now.silent(), mute.silent()), (vec![], vec!["a"]), "a stock etcd never says");
        let load = now.since(&before);
        let [a, b] = &load.stores[..] else { panic!("{load:?}") };
        assert_eq!((a.cores, a.held, a.quota, a.shard, a.up), (Some(0.5), 7, 9, true, true));
        assert_eq!((b.cores, b.shard, b.up), (None, false, false));
        let kind = |name: &str| load.kinds.iter().find(|kind| kind.name == name).unwrap();
        // Three quarters of 400 calls of pods, and 300 of leases, were at `a`.
        assert_eq!((kind("pods").at["a"].cores, kind("leases").at["a"].cores), (0.25, 0.25));
        assert_eq!(kind("pods").at["a"], Share { bytes: 150, history: 50, cores: 0.25 });
        assert_eq!((kind("pods").ranges, kind("leases").ranges, kind("pods").ring), (2, 0, false));
    }

    #[test]
    fn a_restart_counts_from_zero_and_silence_costs_nothing() {
        let (before, now) = (look(100.0, 50.0, 1000, 10), look(110.0, 2.0, 1000, 4));
        let load = now.since(&before);
        assert_eq!(load.stores[0].cores, Some(0.2));
        let same = now.since(&now);
        assert!(same.kinds.iter().all(|kind| kind.at.values().all(|share| share.cores == 0.0)), "{same:?}");
    }
}
