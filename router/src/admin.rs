//! The admin port: probes, metrics, and the API over stores, partitions, moves and snapshots.

mod adoption;
pub mod advice;
pub mod answers;
mod api;
pub mod changes;
pub mod discovery;
mod durability;
mod heat;
mod kinds;
mod live;
mod moves;
pub mod objects;
pub mod openapi;
pub mod page;
mod reconcile;
pub mod replace;
mod schema;
mod sizes;
mod snapshots;
pub mod status;
mod trace;
pub mod verbs;
mod watch;

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, post};
use kindred_partition_config::key::{Key, KeyRange};
use kindred_partition_config::parse;
use kindred_router_core::clock_offset;
use kindred_router_core::plan::Placement as _;
use kindred_transport::Drain;
use kindred_transport::admin::{Admin, Check};
use kindred_transport::metrics::calls;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};

use crate::admission::Admission;
use crate::endpoint::kv::Kv;
use crate::endpoint::maintenance;
use crate::feeds::Feeds;
use crate::metrics::Observing;
use crate::moves::mover::Mover;
use crate::routing::Routing;
use crate::snapshots::Snapshots;
use crate::standbys::failover::FailoverBody;
use crate::standbys::word;
use crate::stores::clocks::words;
use crate::stores::modes::{Unmet, words as words_of_mode};
use crate::stores::state::Phase;
use crate::stores::{Store, Stores};
use crate::traffic::{self, Traffic};

/// What the admin port shows and changes.
pub struct Parts {
    pub mover: Arc<Mover>,
    pub feeds: Arc<Feeds>,
    pub snapshots: Arc<Snapshots>,
    pub traffic: Arc<Traffic>,
    pub admission: Arc<Admission>,
    /// Reads the digests of Kinds.
    pub kv: Kv,
    pub drain: Drain,
}

impl Parts {
    /// What probes and metrics say, on the admin port and, as with etcd, on the clients' port.
    #[must_use]
    pub fn probes(&self, recorder: Option<PrometheusHandle>) -> Admin {
        let (of, fed, stopping) = (self.mover.clone(), self.feeds.clone(), self.drain.clone());
        let (shown, feeds, observing) = (self.mover.clone(), self.feeds.clone(), Observing::default());
        let (traffic, admission) = (self.traffic.clone(), self.admission.clone());
        let alarmed = self.mover.stores.clone();
        let alarms = move || {
            let stores = alarmed.clone();
            async move { maintenance::alarms(&stores).await }
        };
        Admin::new().ready(move || checks(&of, &fed, &stopping)).alarms(alarms).metrics(move || {
            observing.observe(&shown.stores, &feeds);
            let cluster = &shown.keeper.cluster;
            observing.observe_state(cluster.unsound().len(), cluster.elsewhere().len());
            let mut text = recorder.as_ref().map(PrometheusHandle::render).unwrap_or_default();
            calls::render(&mut text);
            traffic::metrics::render(&traffic, &admission, &mut text);
            text
        })
    }
}

pub fn routes(parts: Parts, probes: Admin) -> Router {
    let Parts { mover, feeds, snapshots, traffic, admission: _, kv, drain } = parts;
    let live = live::routes(sources(&mover, feeds, &traffic, &drain), drain.stopping());
    let (stores, status, durable) = (mover.clone(), mover.clone(), mover.clone());
    let routing = mover.routing.clone();
    let adopting = mover.clone();
    let adoption = move || {
        let state = adopting.keeper.cluster.state();
        let is_adopting = |at: usize| state.stores.get(at).is_some_and(|known| known.adopting);
        std::future::ready(Json(adoption::shown(&adopting.identity.name, &adopting.stores, is_adopting)))
    };
    let list_stores = move || std::future::ready(Json(list_stores(&stores.stores, &stores.routing)));
    let shown_status = move || std::future::ready(Json(shown_status(&status)));
    let failing = mover.clone();
    let failover = move |body: Bytes| {
        let mover = failing.clone();
        async move {
            let body = api::text(&body).and_then(|text| api::read::<FailoverBody>(parse::parse_object(text)));
            match body {
                Ok(body) => body.run(&mover).await.map(Json),
                Err(error) => Err(error),
            }
        }
    };
    let list_partitions = move || std::future::ready(Json(list_partitions(&routing)));
    probes
        .routes()
        .route("/api/v1/stores", get(list_stores))
        .route("/api/v1/status", get(shown_status))
        .route("/api/v1/partitions", get(list_partitions))
        .route("/api/v1/adoption", get(adoption))
        .route(
            "/api/v1/durability",
            get(move || {
                let of = durable.clone();
                async move { Json(durability::shown(&of.stores, &of.routing).await) }
            }),
        )
        .route("/api/v1/failover", post(failover))
        .merge(discovery::routes(&mover))
        .merge(api::routes(&mover, &drain))
        .merge(verbs::routes(&mover))
        .merge(moves::routes(&mover.keeper))
        .merge(reconcile::routes(&mover))
        .merge(snapshots::routes(&snapshots, &mover))
        .merge(kinds::routes(&mover, &traffic, &kv))
        .merge(advice::routes(&mover.keeper))
        .merge(trace::routes(&traffic, &drain))
        .merge(heat::routes(&traffic))
        .merge(live)
        .merge(page::routes())
}

/// What the page shows.
fn sources(mover: &Arc<Mover>, feeds: Arc<Feeds>, traffic: &Arc<Traffic>, drain: &Drain) -> live::Sources {
    let [checked, listed, stated] = [(); 3].map(|()| mover.clone());
    let (fed, drain) = (feeds.clone(), drain.clone());
    live::Sources {
        mover: mover.clone(),
        feeds,
        traffic: traffic.clone(),
        checks: Box::new(move || checks(&checked, &fed, &drain)),
        stores: Box::new(move || list_stores(&listed.stores, &listed.routing)),
        status: Box::new(move || shown_status(&stated)),
    }
}

/// The checks of readyz. The router is ready while any store can be reached, so that a dead store does not take the
/// others from the load balancer. Trouble of a single store, or of anything that traffic does not need, is a warning.
fn checks(of: &Mover, feeds: &Feeds, drain: &Drain) -> Vec<Check> {
    let (stores, cluster) = (&of.stores, &of.keeper.cluster);
    let any = stores.up().next().is_some();
    let mut checks = vec![
        Check::new("stores", if any { Ok(()) } else { Err("no store can be reached") }),
        Check::new("running", if drain.is_stopping() { Err("stopping") } else { Ok(()) }),
    ];
    if let Some(problem) = cluster.meta.as_ref().and_then(|meta| meta.problem()) {
        // Traffic goes on without the meta store.
        checks.push(Check::warning("meta", problem));
    }
    for problem in cluster.unsound().iter() {
        checks.push(Check::new(format!("cluster-state ({problem})"), Ok::<(), String>(())));
    }
    for problem in cluster.elsewhere().iter() {
        checks.push(Check::new(format!("owners ({problem}; see kindred reconcile)"), Ok::<(), String>(())));
    }
    for store in stores.iter() {
        let name = format!("store-{}", store.name());
        checks.push(match (&*store.state().phase(), store.trouble()) {
            (Phase::Up(_), None) => Check::new(name, Ok::<(), String>(())),
            (Phase::Up(_), Some(trouble)) => Check::warning(name, format!("up, and {trouble}")),
            (other, _) => Check::warning(name, format!("{}: {}", other.word(), store.state().reason())),
        });
    }
    for store in stores.iter() {
        if let Some(trouble) = &store.members().shown().trouble {
            checks.push(Check::warning(format!("standbys-{}", store.name()), trouble.clone()));
        }
    }
    if let Some(offset) = stores.clocks().own_offset().filter(|offset| clock_offset::is_skewed(*offset)) {
        checks.push(Check::warning(
            "clock",
            format!("this router's is {} its stores'; set the time here", words(offset)),
        ));
    }
    for (store, feeds, lag) in feeds.lags() {
        let store = stores.get(store).name();
        let what = format!("store {store} has held back {feeds} feed(s) for {} s", lag.as_secs());
        checks.push(Check::warning("watches", what));
    }
    checks
}

/// The cluster's state that this router uses, and what is wrong with it.
fn shown_status(of: &Mover) -> Value {
    let cluster = &of.keeper.cluster;
    let (state, unsound, elsewhere) = (cluster.state(), cluster.unsound(), cluster.elsewhere());
    let elsewhere = elsewhere.iter().map(|problem| format!("{problem}; see kindred reconcile"));
    let problems: Vec<String> = unsound.iter().cloned().chain(elsewhere).collect();
    json!({
        "router": of.identity.name, "generation": state.generation.0, "revision": state.revision,
        "meta": cluster.meta.as_ref().map(|meta| json!({ "problem": meta.problem() })),
        "problems": problems,
    })
}

fn list_stores(stores: &Stores, routing: &Routing) -> Value {
    let listed = stores.iter().map(|store| {
        let phase = store.state().phase();
        let mut shown = json!({
            "name": store.name(),
            "type": if store.is_shard() { "shard" } else { "etcd" },
            "slot": store.slot().map(|slot| slot.get()),
            "endpoints": store.spec().endpoints.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "default": store.index == stores.default_store(),
            "state": phase.word(),
            "uuid": store.spec().uuid.clone().or_else(|| store.met()),
            "trouble": store.trouble(),
            "lastError": store.state().last_error(),
            "clockOffsetSeconds": stores.clocks().offset(store.index).map(|micros| micros as f64 / 1e6),
        });
        if let Some(fields) = shown.as_object_mut().filter(|_| !store.members().shown().members.is_empty()) {
            fields.insert("members".to_owned(), members(store));
            fields.insert("standbyTrouble".to_owned(), json!(store.members().shown().trouble));
        }
        if let (Phase::Up(identity), Some(fields)) = (&*phase, shown.as_object_mut()) {
            fields.insert("version".to_owned(), json!(identity.version));
            fields.insert("incarnation".to_owned(), json!(identity.incarnation));
            if store.is_shard() {
                fields.insert("durability".to_owned(), durability(routing, store));
            }
        }
        shown
    });
    json!({ "stores": listed.collect::<Vec<_>>() })
}

/// The members of a store, the primary first, as they said at the last look.
fn members(store: &Store) -> Value {
    let shown = store.members().shown();
    let primary = shown
        .members
        .iter()
        .find_map(|(_, said)| said.as_ref().ok().filter(|said| !said.followers.is_empty()));
    let listed = shown.members.iter().map(|(url, said)| match said {
        Err(why) => json!({ "endpoint": url, "role": "unknown", "problem": why }),
        Ok(said) => {
            let follower = primary.and_then(|primary| {
                primary
                    .followers
                    .iter()
                    .find(|follower| follower.id == said.id)
                    .map(|follower| (primary, follower))
            });
            let counts = follower.is_some_and(|(primary, follower)| primary.counted.contains(&follower.id));
            json!({
                "endpoint": url, "role": word(said.role), "member": said.id, "term": said.term,
                "incarnation": said.incarnation, "inDoubt": said.in_doubt, "whole": said.whole,
                "counts": counts, "connected": said.connected,
                "batchesBehind": follower.map(|(_, follower)| follower.behind),
                "silentMillis": follower.map(|(_, follower)| follower.silent.as_millis()),
            })
        }
    });
    json!(listed.collect::<Vec<_>>())
}

/// A shard's answer to the durability modes, without the Kinds that it does not serve.
fn durability(routing: &Routing, store: &Store) -> Value {
    let (told, routes) = (store.told().get(), routing.load());
    let serves = |unmet: &&Unmet| {
        unmet.prefix.is_empty()
            || routes
                .parts_of(&KeyRange::prefix(Key(unmet.prefix.clone())))
                .iter()
                .any(|part| part.stores.contains(&store.index))
    };
    let unmet = told.unmet.iter().filter(serves).map(|unmet| {
        json!({
            "kind": String::from_utf8_lossy(&unmet.prefix),
            "resource": routes.scheme().kind_prefix(&unmet.prefix).map(|kind| routes.scheme().name_of(&kind)),
            "wanted": words_of_mode(unmet.wanted), "has": words_of_mode(unmet.has), "reason": unmet.reason,
        })
    });
    json!({ "generation": told.in_force, "unmet": unmet.collect::<Vec<_>>(), "problem": told.problem })
}

fn list_partitions(routing: &Routing) -> Value {
    let routes = routing.load();
    let partitions = routes.map().partitions().iter().map(|partition| {
        json!({
            "start": partition.start().to_string(),
            "end": partition.end().map(ToString::to_string),
            "kind": partition.kind.as_ref().map(|kind| kind.as_key().to_string()),
            "resource": partition.kind.as_ref().map(|kind| routes.scheme().name_of(kind)),
            "stores": partition.placement.stores().into_iter().map(|store| routes.store_name(store)).collect::<Vec<_>>(),
            "ring": partition.placement.single().is_none(),
            "epoch": partition.epoch.0,
        })
    });
    json!({ "generation": routes.generation(), "partitions": partitions.collect::<Vec<_>>() })
}
