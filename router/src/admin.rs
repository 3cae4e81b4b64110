//! The admin port: probes, metrics, and the API over stores, partitions, moves and snapshots.

mod api;
pub mod changes;
mod durability;
mod moves;
pub mod objects;
mod reconcile;
mod replace;
mod schema;
mod sizes;
mod snapshots;
pub mod status;
pub mod verbs;
mod watch;

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::routing::get;
use kindred_partition_config::key::{Key, KeyRange};
use kindred_router_core::clock_offset;
use kindred_router_core::plan::Placement as _;
use kindred_transport::admin::{Admin, Check};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};

use crate::app::App;
use crate::metrics::Observing;
use crate::stores::Store;
use crate::stores::clocks::words;
use crate::stores::modes::{Unmet, words as words_of_mode};
use crate::stores::state::Phase;

pub fn routes(app: &Arc<App>, recorder: Option<PrometheusHandle>) -> Router {
    let ready = app.clone();
    let (shown, observing) = (app.clone(), Observing::default());
    let admin = Admin::new().ready(move || checks(&ready)).metrics(move || {
        observing.observe(&shown.stores, &shown.feeds);
        observing.observe_state(shown.cluster.unsound().len(), shown.cluster.elsewhere().len());
        recorder.as_ref().map(PrometheusHandle::render).unwrap_or_default()
    });
    let (stores, partitions, durable) = (app.clone(), app.clone(), app.clone());
    let status = app.clone();
    admin
        .routes()
        .route("/api/v1/stores", get(move || std::future::ready(Json(list_stores(&stores)))))
        .route("/api/v1/status", get(move || std::future::ready(Json(shown_status(&status)))))
        .route("/api/v1/partitions", get(move || std::future::ready(Json(list_partitions(&partitions)))))
        .route(
            "/api/v1/durability",
            get(move || {
                let app = durable.clone();
                async move { Json(durability::shown(&app).await) }
            }),
        )
        .merge(api::routes(app))
        .merge(verbs::routes(app))
        .merge(moves::routes(app))
        .merge(reconcile::routes(app))
        .merge(snapshots::routes(app))
}

/// The checks of readyz. The router is ready while any store can be reached, so that a dead store does not take the
/// others from the load balancer. Trouble of a single store, or of anything that traffic does not need, is a warning.
fn checks(app: &App) -> Vec<Check> {
    let any = app.stores.up().next().is_some();
    let mut checks = vec![
        Check::new("stores", if any { Ok(()) } else { Err("no store can be reached") }),
        Check::new("running", if app.drain.is_stopping() { Err("stopping") } else { Ok(()) }),
    ];
    if let Some(problem) = app.cluster.meta.as_ref().and_then(|meta| meta.problem()) {
        // Traffic goes on without the meta store.
        checks.push(Check::warning("meta", problem));
    }
    for problem in app.cluster.unsound().iter() {
        checks.push(Check::new(format!("cluster-state ({problem})"), Ok::<(), String>(())));
    }
    for problem in app.cluster.elsewhere().iter() {
        checks.push(Check::new(format!("owners ({problem}; see kindred reconcile)"), Ok::<(), String>(())));
    }
    for store in app.stores.iter() {
        let name = format!("store-{}", store.name());
        checks.push(match (&*store.state().phase(), store.trouble()) {
            (Phase::Up(_), None) => Check::new(name, Ok::<(), String>(())),
            (Phase::Up(_), Some(trouble)) => Check::warning(name, format!("up, and {trouble}")),
            (other, _) => Check::warning(name, format!("{}: {}", other.word(), store.state().reason())),
        });
    }
    if let Some(offset) = app.stores.clocks().own_offset().filter(|offset| clock_offset::is_skewed(*offset)) {
        checks.push(Check::warning(
            "clock",
            format!("this router's is {} its stores'; set the time here", words(offset)),
        ));
    }
    for (store, feeds, lag) in app.feeds.lags() {
        let store = app.stores.get(store).name();
        let what = format!("store {store} has held back {feeds} feed(s) for {} s", lag.as_secs());
        checks.push(Check::warning("watches", what));
    }
    checks
}

/// The cluster's state that this router uses, and what is wrong with it.
fn shown_status(app: &App) -> Value {
    let (state, unsound, elsewhere) = (app.cluster.state(), app.cluster.unsound(), app.cluster.elsewhere());
    let elsewhere = elsewhere.iter().map(|problem| format!("{problem}; see kindred reconcile"));
    let problems: Vec<String> = unsound.iter().cloned().chain(elsewhere).collect();
    json!({
        "router": app.identity.name, "generation": state.generation.0, "revision": state.revision,
        "meta": app.cluster.meta.as_ref().map(|meta| json!({ "problem": meta.problem() })),
        "problems": problems,
    })
}

fn list_stores(app: &App) -> Value {
    let stores = app.stores.iter().map(|store| {
        let phase = store.state().phase();
        let mut shown = json!({
            "name": store.name(),
            "type": if store.is_shard() { "shard" } else { "etcd" },
            "slot": store.slot().map(|slot| slot.get()),
            "endpoints": store.spec().endpoints.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "default": store.index == app.stores.default_store(),
            "state": phase.word(),
            "uuid": store.spec().uuid.clone().or_else(|| store.met()),
            "trouble": store.trouble(),
            "lastError": store.state().last_error(),
            "clockOffsetSeconds": app.stores.clocks().offset(store.index).map(|micros| micros as f64 / 1e6),
        });
        if let (Phase::Up(identity), Some(fields)) = (&*phase, shown.as_object_mut()) {
            fields.insert("version".to_owned(), json!(identity.version));
            fields.insert("incarnation".to_owned(), json!(identity.incarnation));
            if store.is_shard() {
                fields.insert("durability".to_owned(), durability(app, store));
            }
        }
        shown
    });
    json!({ "stores": stores.collect::<Vec<_>>() })
}

/// A shard's answer to the durability modes, without the Kinds that it does not serve.
fn durability(app: &App, store: &Store) -> Value {
    let (told, routes) = (store.told().get(), app.routing.load());
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
            "wanted": words_of_mode(unmet.wanted), "has": words_of_mode(unmet.has), "reason": unmet.reason,
        })
    });
    json!({ "generation": told.in_force, "unmet": unmet.collect::<Vec<_>>(), "problem": told.problem })
}

fn list_partitions(app: &App) -> Value {
    let routes = app.routing.load();
    let partitions = routes.map().partitions().iter().map(|partition| {
        json!({
            "start": partition.start().to_string(),
            "end": partition.end().map(ToString::to_string),
            "kind": partition.kind.as_ref().map(|kind| kind.as_key().to_string()),
            "stores": partition.placement.stores().into_iter().map(|store| routes.store_name(store)).collect::<Vec<_>>(),
            "ring": partition.placement.single().is_none(),
            "epoch": partition.epoch.0,
        })
    });
    json!({ "generation": routes.generation(), "partitions": partitions.collect::<Vec<_>>() })
}
