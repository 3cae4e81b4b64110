//! `/api/v1/kinds`: where each Kind is, how large it is and what clients ask of it; its digest at a revision; and
//! what each client asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::future::join_all;
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::{ALL_ELSE, KindPrefix, KindScheme};
use kindred_proto::etcdserverpb as pb;
use kindred_proto::raw::kv::k_v_server::KV as _;
use kindred_proto::shard_v1::{KindLoad, LoadResponse};
use kindred_router_core::digest::Digest;
use kindred_router_core::plan::Placement as _;
use kindred_router_core::routes::Routes;
use kindred_router_core::store::StoreIx;
use kindred_transport::clock::process_cpu;
use kindred_transport::metrics::calls::CODES;
use prost::Message as _;
use serde::Deserialize;
use tonic::Request;

use super::answers::{
    AmountAsked, ClientList, ClientShown, KindAsked, KindAtStore, KindDigest, KindList, KindShown,
    SlowCallList, SlowCallShown, StoreHolds, VerbAsked,
};
use super::durability::word;
use super::sizes::load;
use super::status::ApiError;
use crate::endpoint::kv::Kv;
use crate::moves::mover::Mover;
use crate::traffic::Traffic;
use crate::traffic::kinds::{CALL_BOUNDS, KindTraffic};
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
    let digest = move |name: Path<String>, query: Result<Query<At>, QueryRejection>| {
        let (kv, naming) = (kv.clone(), naming.clone());
        async move {
            let query = query.map_err(ApiError::from)?;
            let scheme = naming.keeper.cluster.state().scheme();
            digest(&kv, &scheme, &name, query.revision).await.map(Json)
        }
    };
    let (of_clients, slow) = (traffic.clone(), traffic.clone());
    Router::new()
        .route("/api/v1/kinds", get(kinds))
        .route("/api/v1/kinds/{name}/digest", get(digest))
        .route("/api/v1/clients", get(move || std::future::ready(Json(clients(&of_clients)))))
        .route("/api/v1/slow", get(move || std::future::ready(Json(slow_calls(&slow)))))
}

#[derive(Debug, Deserialize)]
struct At {
    /// The revision to read at; without it, the present one.
    #[serde(default)]
    revision: i64,
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
async fn shown(mover: &Mover, traffic: &Traffic) -> KindList {
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
                    let name =
                        prefix.as_ref().map_or(ALL_ELSE.to_owned(), |kind| routes.scheme().name_of(kind));
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
    KindList {
        router: mover.identity.name.clone(),
        at: seconds(SystemTime::now()),
        step_seconds: samples::STEP.as_secs(),
        cpu_seconds: process_cpu().as_secs_f64(),
        kinds: listed.collect(),
        stores,
    }
}

fn problem(store: &str, problem: &str) -> StoreHolds {
    StoreHolds {
        store: store.to_owned(),
        problem: Some(problem.to_owned()),
        held_bytes: None,
        quota_bytes: None,
        full: None,
        fsync_p99_micros: None,
        not_durable_bytes: None,
        cpu_seconds: None,
    }
}

fn of_store(name: &str, load: &LoadResponse) -> StoreHolds {
    StoreHolds {
        store: name.to_owned(),
        problem: None,
        held_bytes: Some(load.held_bytes),
        quota_bytes: Some(load.quota_bytes),
        full: Some(load.full),
        fsync_p99_micros: Some(load.fsync_p99_micros),
        not_durable_bytes: Some(load.logs.iter().map(|log| log.not_durable_bytes).sum()),
        // An older shard does not say.
        cpu_seconds: (load.cpu_micros > 0).then_some(load.cpu_micros as f64 / 1e6),
    }
}

fn of_kind(name: &str, known: &Known, routes: &Routes, rate: Option<&Amount>) -> KindShown {
    let stores: BTreeSet<StoreIx> = match &known.prefix {
        Some(prefix) => {
            let parts = routes.parts_of(&KeyRange::prefix(prefix.as_key().clone()));
            parts.into_iter().flat_map(|part| part.stores).collect()
        }
        None => BTreeSet::new(),
    };
    // A stock etcd does not say what it has of a Kind.
    let is_known = !known.loads.is_empty();
    let sum = |of: fn(&KindLoad) -> u64| {
        is_known.then(|| known.loads.iter().map(|(_, load)| of(load)).sum::<u64>())
    };
    let of_stores = known.loads.iter().filter(|(_, load)| load.held_bytes > 0);
    KindShown {
        kind: name.to_owned(),
        prefix: known.prefix.as_ref().map(ToString::to_string),
        stores: stores.into_iter().map(|store| routes.name(store).to_owned()).collect(),
        keys: sum(|load| load.keys),
        bytes: sum(|load| load.live_bytes),
        history_bytes: sum(history_bytes),
        written_per_second: sum(|load| load.written_per_second),
        by_store: of_stores.map(|(store, load)| at_store(store, load)).collect(),
        traffic: known.traffic.as_deref().map(asked),
        rate: rate.map(|rate| amount(*rate)),
    }
}

fn history_bytes(load: &KindLoad) -> u64 {
    load.bytes.saturating_sub(load.live_bytes)
}

fn at_store(store: &str, load: &KindLoad) -> KindAtStore {
    KindAtStore {
        store: store.to_owned(),
        keys: load.keys,
        bytes: load.live_bytes,
        history_bytes: history_bytes(load),
        held_bytes: load.held_bytes,
        quota_bytes: load.quota_bytes,
        written_per_second: load.written_per_second,
        durability: word(load.mode()).to_owned(),
    }
}

/// What clients have asked of a Kind since the start.
fn asked(kind: &KindTraffic) -> KindAsked {
    let verbs = kind.verbs().map(|(verb, of)| {
        let (codes, (received_bytes, sent_bytes), seconds) = (of.codes(), of.bytes(), of.seconds.read());
        let counted = CODES.iter().zip(codes).skip(1).filter(|(_, count)| *count > 0);
        let quantile = |part| seconds.quantile(part, &CALL_BOUNDS).filter(|bound| bound.is_finite());
        let asked = VerbAsked {
            ok: codes[0],
            failed: counted.map(|(code, count)| ((*code).to_owned(), count)).collect(),
            received_bytes,
            sent_bytes,
            seconds: seconds.sum_seconds(),
            p50_seconds: quantile(0.5),
            p99_seconds: quantile(0.99),
        };
        (verb.label().to_owned(), asked)
    });
    let verbs = verbs.collect();
    let (messages, message_bytes) = kind.delivered();
    KindAsked { watches: kind.watches(), messages, message_bytes, verbs }
}

fn amount(amount: Amount) -> AmountAsked {
    let Amount { calls, failed, bytes, micros, messages } = amount;
    AmountAsked { calls, failed, bytes, micros, messages }
}

pub(super) fn seconds(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

pub(super) fn clients(traffic: &Traffic) -> ClientList {
    let clients = traffic.clients.all().into_iter().map(|(name, shown)| ClientShown {
        client: name.to_string(),
        connections: shown.connections,
        calls: shown.calls,
        failed: shown.failed,
        received_bytes: shown.received,
        sent_bytes: shown.sent,
        seconds: shown.micros as f64 / 1e6,
    });
    ClientList { clients: clients.collect() }
}

pub(super) fn slow_calls(traffic: &Traffic) -> SlowCallList {
    let calls = traffic.slow.all().into_iter().map(|call| SlowCallShown {
        at: seconds(call.at),
        client: call.client.to_string(),
        kind: call.kind.to_string(),
        verb: call.verb.label(),
        key: call.key.clone(),
        code: CODES[call.code as usize],
        seconds: call.took.as_secs_f64(),
        sent_bytes: call.sent,
    });
    SlowCallList { calls: calls.collect() }
}

/// The number of keys of a Kind and their digest, at one revision.
async fn digest(kv: &Kv, scheme: &KindScheme, name: &str, revision: i64) -> Result<KindDigest, ApiError> {
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
    let (kind, prefix) = (scheme.name_of(&kind), kind.to_string());
    Ok(KindDigest { kind, prefix, revision: at, keys, digest: digest.to_hex() })
}
