//! `/api/v1/durability`: how durable each Kind is on each store, and what a crash there would lose at this moment.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use kindred_partition_config::key::KeyRange;
use kindred_proto::shard_v1::{Durability, LoadResponse};
use serde_json::{Value, json};

use super::sizes::load;
use crate::routing::Routing;
use crate::stores::Stores;

/// The answers of all shards, asked at once: each Kind that the map names by itself, the others summed up by mode.
pub async fn shown(stores: &Stores, routing: &Routing) -> Value {
    let everything = [KeyRange::everything()];
    let shards: Vec<_> = stores.iter().filter(|store| store.is_shard() && !store.is_removed()).collect();
    let asked = shards.iter().map(|store| load(store, &everything));
    let named: BTreeMap<Vec<u8>, String> = {
        let routes = routing.load();
        let kinds = routes.map().partitions().iter().filter_map(|partition| partition.kind.as_ref());
        kinds.map(|kind| (kind.as_key().to_vec(), routes.scheme().name_of(kind))).collect()
    };
    let answers = shards.iter().zip(join_all(asked).await).map(|(store, answer)| match answer {
        Ok(Some(load)) => of_store(store.name(), &load, &named),
        Ok(None) => json!({ "store": store.name(), "problem": "it runs an older version, which cannot say" }),
        Err(status) => json!({ "store": store.name(), "problem": status.message() }),
    });
    json!({ "stores": answers.collect::<Vec<_>>() })
}

fn of_store(name: &str, load: &LoadResponse, named: &BTreeMap<Vec<u8>, String>) -> Value {
    // The keys per prefix and mode.
    let mut kinds: BTreeMap<(&[u8], i32), u64> = BTreeMap::new();
    for kind in load.kinds.iter().filter(|kind| kind.keys > 0) {
        let shown = named.get_key_value(&kind.prefix[..]).map_or(&[][..], |(prefix, _)| prefix);
        *kinds.entry((shown, kind.mode)).or_default() += kind.keys;
    }
    let kinds = kinds.into_iter().map(|((prefix, mode), keys)| {
        let mode = Durability::try_from(mode).unwrap_or(Durability::Unspecified);
        let log = load.logs.iter().find(|log| log.mode() == mode);
        // Only mode buffered has data at risk to report: mode fsync acknowledges nothing before it is on disk, and mode
        // none loses everything.
        let loss = log.filter(|_| mode == Durability::Buffered);
        json!({
            "kind": String::from_utf8_lossy(prefix), "resource": named.get(prefix), "mode": word(mode), "keys": keys,
            "notDurableBytes": loss.map(|log| log.not_durable_bytes),
            "notDurableMillis": loss.map(|log| log.not_durable_millis),
        })
    });
    let logs = load.logs.iter().map(|log| {
        let failing = Some(&log.failing).filter(|failing| !failing.is_empty());
        json!({ "mode": word(log.mode()), "walBytes": log.wal_bytes, "failing": failing })
    });
    let checkpoint = load.checkpoint.as_ref().map(
        |last| json!({ "finishedAt": last.finished_at, "tookMillis": last.took_millis, "bytes": last.bytes }),
    );
    json!({
        "store": name, "kinds": kinds.collect::<Vec<_>>(), "logs": logs.collect::<Vec<_>>(), "checkpoint": checkpoint,
    })
}

/// A mode, as the configuration names it.
pub(super) fn word(mode: Durability) -> &'static str {
    match mode {
        Durability::Unspecified => "unknown",
        Durability::None => "none",
        Durability::Buffered => "buffered",
        Durability::Fsync => "fsync",
    }
}

#[cfg(test)]
mod tests {
    use kindred_proto::shard_v1::{KindLoad, LogLoad};

    use super::*;

    #[test]
    fn each_named_kind_by_itself_and_the_others_by_their_modes() {
        let kind = |prefix: &'static str, mode: Durability, keys| KindLoad {
            prefix: prefix.into(),
            mode: mode.into(),
            keys,
            ..KindLoad::default()
        };
        let log = |mode: Durability, bytes| LogLoad {
            mode: mode.into(),
            not_durable_bytes: bytes,
            not_durable_millis: 3,
            wal_bytes: 4096,
            ..LogLoad::default()
        };
        let load = LoadResponse {
            kinds: vec![
                kind("/registry/pods/", Durability::Buffered, 5),
                kind("/registry/secrets/", Durability::Fsync, 2),
                kind("/registry/services/", Durability::Buffered, 1),
                kind("/registry/roles/", Durability::Buffered, 2),
                kind("/registry/nodes/", Durability::None, 0),
                kind("/registry/events/", Durability::None, 7),
            ],
            logs: vec![log(Durability::Fsync, 900), log(Durability::Buffered, 100)],
            ..LoadResponse::default()
        };
        let named =
            ["pods", "events"].map(|name| (format!("/registry/{name}/").into_bytes(), name.to_owned()));
        let shown = of_store("s", &load, &BTreeMap::from(named));
        let row = |kind: &str, mode: &str, keys: u64, bytes: Option<u64>| {
            json!({
                "kind": kind, "resource": kind.split('/').nth(2), "mode": mode, "keys": keys, "notDurableBytes": bytes,
                "notDurableMillis": bytes.map(|_| 3),
            })
        };
        let rows = [
            row("", "buffered", 3, Some(100)),
            row("", "fsync", 2, None),
            row("/registry/events/", "none", 7, None),
            row("/registry/pods/", "buffered", 5, Some(100)),
        ];
        assert_eq!(shown["kinds"], json!(rows));
        assert_eq!(shown["logs"][1], json!({ "mode": "buffered", "walBytes": 4096, "failing": null }));
        assert_eq!(shown["checkpoint"], Value::Null);
    }
}
