//! `/api/v1/kinds`: where each Kind is, how large it is and what clients ask of it; its digest at a revision; and the
//! traffic of this router over time and by client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{Path, Query};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::future::join_all;
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::{KindPrefix, KindScheme};
use kindred_proto::etcdserverpb as pb;
use kindred_proto::raw::kv::k_v_server::KV as _;
use kindred_proto::shard_v1::{KindLoad, LoadResponse};
use kindred_router_core::digest::Digest;
use kindred_router_core::plan::Placement as _;
use kindred_router_core::routes::Routes;
use kindred_transport::metrics::calls::CODES;
use prost::Message as _;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tonic::Request;

use super::durability::word;
use super::sizes::load;
use super::status::ApiError;
use crate::endpoint::kv::Kv;
use crate::moves::mover::Mover;
use crate::traffic::Traffic;
use crate::traffic::kinds::{CALL_BOUNDS, KindTraffic, REST};
use crate::traffic::samples::{self, Amount};

/// The keys of one page of a digest.
const PAGE: i64 = 5_000;
/// The time within which a Kind's digest must be made.
const DIGEST_LIMIT: Duration = Duration::from_secs(120);

pub fn routes(mover: &Arc<Mover>, traffic: &Arc<Traffic>, kv: &Kv) -> Router {
    let (of, counted) = (mover.clone(), traffic.clone());
    let kinds = move || {
        let (of, counted) = (of.clone(), counted.clone());
        async move { Json(shown(&of, &counted).await) }
    };
    let (kv, naming) = (kv.clone(), mover.clone());
    let digest = move |name: Path<String>, query: Query<At>| {
        let (kv, naming) = (kv.clone(), naming.clone());
        async move {
            let scheme = naming.keeper.cluster.state().scheme();
            digest(&kv, &scheme, &name, query.revision).await.map(Json)
        }
    };
    let (over_time, of_clients) = (traffic.clone(), traffic.clone());
    let slow = traffic.clone();
    Router::new()
        .route("/api/v1/kinds", get(kinds))
        .route("/api/v1/kinds/{name}/digest", get(digest))
        .route(
            "/api/v1/traffic",
            get(move |query: Query<Since>| std::future::ready(Json(steps(&over_time, query.since)))),
        )
        .route("/api/v1/clients", get(move || std::future::ready(Json(clients(&of_clients)))))
        .route("/api/v1/slow", get(move || std::future::ready(Json(slow_calls(&slow)))))
}

#[derive(Debug, Deserialize)]
struct At {
    /// The revision to read at; without it, the present one.
    #[serde(default)]
    revision: i64,
}

#[derive(Debug, Deserialize)]
struct Since {
    /// Only steps that ended after this time, in seconds since the Unix epoch.
    #[serde(default)]
    since: u64,
}

/// A Kind, with what is known of it from all sides.
#[derive(Default)]
struct Known {
    prefix: Option<KindPrefix>,
    /// What each store that was asked has of it.
    loads: Vec<(String, KindLoad)>,
    traffic: Option<Arc<KindTraffic>>,
}

/// All Kinds that have keys or traffic, by name.
pub async fn shown(mover: &Mover, traffic: &Traffic) -> Value {
    let shards: Vec<_> =
        mover.stores.iter().filter(|store| store.is_shard() && !store.is_removed()).collect();
    let everything = [KeyRange::everything()];
    let answers = join_all(shards.iter().map(|store| load(store, &everything))).await;
    let routes = mover.routing.load_full();
    let mut kinds: BTreeMap<String, Known> = BTreeMap::new();
    let mut stores = Vec::new();
    for (store, answer) in shards.iter().zip(answers) {
        match answer {
            Ok(Some(load)) => {
                stores.push(of_store(store.name(), &load));
                for kind in load.kinds {
                    let prefix = routes.scheme().kind_prefix(&kind.prefix);
                    let name = prefix.as_ref().map_or(REST.to_owned(), |kind| routes.scheme().name_of(kind));
                    let known = kinds.entry(name).or_default();
                    known.prefix = prefix;
                    known.loads.push((store.name().to_owned(), kind));
                }
            }
            Ok(None) => stores.push(problem(store.name(), "it runs an older version, which cannot say")),
            Err(status) => stores.push(problem(store.name(), status.message())),
        }
    }
    for kind in traffic.kinds.all() {
        let used = kind.verbs().next().is_some() || kind.watches() > 0;
        if used {
            let known = kinds.entry(kind.name.to_string()).or_default();
            known.prefix = known.prefix.take().or_else(|| kind.prefix.clone());
            known.traffic = Some(kind);
        }
    }
    let rates = traffic.samples.last();
    let listed = kinds.iter().filter_map(|(name, known)| {
        let has_keys = known.loads.iter().any(|(_, load)| load.keys > 0 || load.held_bytes > 0);
        (has_keys || known.traffic.is_some()).then(|| of_kind(name, known, &routes, rates.get(name.as_str())))
    });
    json!({
        "router": mover.identity.name, "at": seconds(SystemTime::now()), "stepSeconds": samples::STEP.as_secs(),
        "kinds": listed.collect::<Vec<_>>(), "stores": stores,
    })
}

fn problem(store: &str, problem: &str) -> Value {
    json!({ "store": store, "problem": problem })
}

fn of_store(name: &str, load: &LoadResponse) -> Value {
    json!({
        "store": name, "heldBytes": load.held_bytes, "quotaBytes": load.quota_bytes, "full": load.full,
        "fsyncP99Micros": load.fsync_p99_micros,
        "notDurableBytes": load.logs.iter().map(|log| log.not_durable_bytes).sum::<u64>(),
    })
}

fn of_kind(name: &str, known: &Known, routes: &Routes, rate: Option<&Amount>) -> Value {
    let sum = |of: fn(&KindLoad) -> u64| known.loads.iter().map(|(_, load)| of(load)).sum::<u64>();
    let stores: Vec<&str> = match &known.prefix {
        Some(prefix) => {
            let parts = routes.parts_of(&KeyRange::prefix(prefix.as_key().clone()));
            let mut stores: Vec<_> = parts.into_iter().flat_map(|part| part.stores).collect();
            stores.sort_unstable();
            stores.dedup();
            stores.into_iter().map(|store| routes.name(store)).collect()
        }
        None => Vec::new(),
    };
    // A stock etcd does not say what it has of a Kind.
    let is_known = !known.loads.is_empty();
    let size = |bytes: u64| is_known.then_some(bytes);
    let of_stores = known.loads.iter().filter(|(_, load)| load.held_bytes > 0).map(|(store, load)| {
        json!({
            "store": store, "keys": load.keys, "bytes": load.live_bytes,
            "historyBytes": load.bytes.saturating_sub(load.live_bytes), "heldBytes": load.held_bytes,
            "quotaBytes": load.quota_bytes, "writtenPerSecond": load.written_per_second, "durability": word(load.mode()),
        })
    });
    json!({
        "kind": name, "prefix": known.prefix.as_ref().map(ToString::to_string), "stores": stores,
        "keys": size(sum(|load| load.keys)), "bytes": size(sum(|load| load.live_bytes)),
        "historyBytes": size(sum(|load| load.bytes.saturating_sub(load.live_bytes))),
        "writtenPerSecond": size(sum(|load| load.written_per_second)),
        "byStore": of_stores.collect::<Vec<_>>(),
        "traffic": known.traffic.as_deref().map(of_traffic),
        "rate": rate.map(|rate| amount(*rate)),
    })
}

/// What clients have asked of a Kind since the start.
fn of_traffic(kind: &KindTraffic) -> Value {
    let mut verbs = Map::new();
    for (verb, of) in kind.verbs() {
        let (codes, (received, sent), seconds) = (of.codes(), of.bytes(), of.seconds.read());
        let failed: Map<String, Value> = CODES[1..]
            .iter()
            .zip(&codes[1..])
            .filter(|(_, count)| **count > 0)
            .map(|(code, count)| ((*code).to_owned(), json!(count)))
            .collect();
        let quantile = |part| seconds.quantile(part, &CALL_BOUNDS).filter(|bound| bound.is_finite());
        verbs.insert(
            verb.label().to_owned(),
            json!({
                "ok": codes[0], "failed": failed, "receivedBytes": received, "sentBytes": sent,
                "seconds": seconds.sum_seconds(), "p50Seconds": quantile(0.5), "p99Seconds": quantile(0.99),
            }),
        );
    }
    let (messages, bytes) = kind.delivered();
    json!({ "watches": kind.watches(), "messages": messages, "messageBytes": bytes, "verbs": verbs })
}

fn amount(amount: Amount) -> Value {
    let Amount { calls, failed, bytes, micros, messages } = amount;
    json!({ "calls": calls, "failed": failed, "bytes": bytes, "micros": micros, "messages": messages })
}

pub(super) fn seconds(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn steps(traffic: &Traffic, since: u64) -> Value {
    let after = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since));
    let steps = after.map_or_else(Vec::new, |after| traffic.samples.since(after));
    let steps = steps.into_iter().map(|step| {
        let kinds: Map<String, Value> =
            step.kinds.iter().map(|(name, of)| (name.to_string(), amount(*of))).collect();
        json!({ "at": seconds(step.at), "kinds": kinds })
    });
    json!({ "stepSeconds": samples::STEP.as_secs(), "steps": steps.collect::<Vec<_>>() })
}

pub(super) fn clients(traffic: &Traffic) -> Value {
    let clients = traffic.clients.all().into_iter().map(|(name, shown)| {
        json!({
            "client": &*name, "connections": shown.connections, "calls": shown.calls, "failed": shown.failed,
            "receivedBytes": shown.received, "sentBytes": shown.sent, "seconds": shown.micros as f64 / 1e6,
        })
    });
    json!({ "clients": clients.collect::<Vec<_>>() })
}

pub(super) fn slow_calls(traffic: &Traffic) -> Value {
    let calls = traffic.slow.all().into_iter().map(|call| {
        json!({
            "at": seconds(call.at), "client": &*call.client, "kind": &*call.kind, "verb": call.verb.label(),
            "key": call.key, "code": CODES[call.code as usize], "seconds": call.took.as_secs_f64(), "sentBytes": call.sent,
        })
    });
    json!({ "calls": calls.collect::<Vec<_>>() })
}

/// The number of keys of a Kind and their digest, at one revision.
async fn digest(kv: &Kv, scheme: &KindScheme, name: &str, revision: i64) -> Result<Value, ApiError> {
    if revision < 0 {
        return Err(ApiError::BadRequest(format!(
            "revision: {revision} is below zero; leave it out for the present"
        )));
    }
    let kind = scheme.resolve(name).map_err(|error| ApiError::NotFound(error.to_string()))?;
    let (start, range_end) = KeyRange::prefix(kind.as_key().clone()).to_wire();
    let (mut from, mut at, mut digest, mut keys) = (start.clone(), revision, Digest::default(), 0_u64);
    let whole = async {
        loop {
            let request = pb::RangeRequest {
                key: from.clone(),
                range_end: range_end.clone(),
                limit: PAGE,
                revision: at,
                keys_only: true,
                ..Default::default()
            };
            let answer = kv.range(Request::new(Bytes::from(request.encode_to_vec()))).await?;
            let page = pb::RangeResponse::decode(answer.into_inner())
                .map_err(|error| tonic::Status::internal(error.to_string()))?;
            if at == 0 {
                at = page.header.as_ref().map_or(0, |header| header.revision);
            }
            for kv in &page.kvs {
                digest.add(&kv.key[start.len()..], kv.mod_revision);
            }
            keys += page.kvs.len() as u64;
            match page.kvs.last() {
                Some(last) if page.more => {
                    let mut next = last.key.to_vec();
                    next.push(0);
                    from = next.into();
                }
                _ => return Ok::<_, tonic::Status>(()),
            }
        }
    };
    let why = |what: String| ApiError::Unavailable(format!("{name} cannot be read: {what}"));
    tokio::time::timeout(DIGEST_LIMIT, whole)
        .await
        .map_err(|_| why(format!("it took more than {} s", DIGEST_LIMIT.as_secs())))?
        .map_err(|status| why(status.message().to_owned()))?;
    Ok(json!({
        "kind": scheme.name_of(&kind), "prefix": kind.to_string(), "revision": at, "keys": keys,
        "digest": digest.to_hex(),
    }))
}
