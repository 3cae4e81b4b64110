//! Operators: they move, split, merge and drain, edit configurations, abort, reverse and complete moves, and reconcile,
//! through any router. What a router does then is the product's.

use std::rc::Rc;

use kindred_partition_config::ids::MoveId;
use kindred_partition_config::state::ClusterState;
use kindred_router::admin::replace::ReplaceBody;
use kindred_router::admin::status::ApiError;
use kindred_router::admin::verbs::{self, Verb};
use kindred_router::meta::store::MetaStore as _;
use kindred_router::meta::{ChangeError, MetaError, STATE};
use kindred_router::moves::begin::used_numbers;
use kindred_router::moves::units::UnitStores as _;
use kindred_router::moves::{desk, reconcile, records};
use kindred_router_core::parts::store_ix;
use serde_json::{Value, json};

use super::Clients;
use crate::router::moves::{Meta, Stores};
use crate::router::{Fail, Router};
use crate::world::{MS, Micros, SECOND, World};

/// Where ranges are split; keys lie between these.
const SPLITS: [&str; 3] = ["h", "l", "s"];

/// A change that an operator asks for: the name of the verb, and the request's body.
#[derive(Debug, Clone)]
pub struct Change(&'static str, Value);

impl Change {
    /// Any change of a Kind or of a store.
    fn any(world: &World, state: &ClusterState, kind: &str) -> Self {
        let store = || format!("s{}", world.index(state.stores.len()));
        match world.below(20) {
            0..=8 => Self("move", json!({ "kind": kind, "to": store() })),
            9..=13 => Self("split", json!({ "kind": kind, "at": world.pick(&SPLITS), "to": store() })),
            14 | 15 => Self("merge", json!({ "kind": kind, "to": store() })),
            16 => Self("drain", json!({ "store": store() })),
            _ => Self("apply", json!({ "items": [edited(world, state, store())] })),
        }
    }
}

/// One of the configurations with another store, or with one store more or less on its ring.
fn edited(world: &World, state: &ClusterState, store: String) -> Value {
    let mut config = world.pick(&state.configs).clone();
    let store = kindred_partition_config::ids::StoreName(store);
    match &mut config.ring {
        Some(ring) if ring.stores.contains(&store) => ring.stores.retain(|of| *of != store),
        Some(ring) => ring.stores.push(store),
        None => config.service_group_id = Some(store),
    }
    let mut item = serde_json::to_value(config).expect("a configuration has string keys only");
    item["kind"] = json!("DataPartitionConfig");
    item
}

impl Router {
    /// Makes a change.
    ///
    /// # Errors
    /// When it is refused, or meta cannot be written.
    pub async fn change(self: &Rc<Self>, change: &Change) -> Result<Vec<MoveId>, String> {
        let meta = Meta::of(self);
        let refused = |error: ApiError| format!("{error:?}");
        let verb = Verb::of(change.0, change.1.to_string().as_bytes()).map_err(refused)?;
        let planned = verb.beside(&meta.state(), &records(&meta.entries()));
        let used = match planned {
            Ok(change) => used_numbers(&Stores(self.clone()), &change).await,
            Err(_) => 0,
        };
        match verbs::write(&meta, &verb, used, |_| Ok(())).await {
            Ok(made) => Ok(made.moves),
            Err(ChangeError::Refused(error)) => Err(refused(error)),
            Err(ChangeError::Meta(error)) => Err(error.to_string()),
        }
    }

    /// Puts another store in the place of a lost one.
    ///
    /// # Errors
    /// When that is refused, or meta cannot be written.
    async fn replace(self: &Rc<Self>, store: usize) -> Result<(), String> {
        let (meta, stores) = (Meta::of(self), Stores(self.clone()));
        if meta.state().stores.len() == self.net.shards().len() {
            // Done already; the meta store may have lost it.
            return Ok(());
        }
        let body = json!({ "store": format!("s{store}"), "force": true });
        let body: ReplaceBody = serde_json::from_value(body).expect("a body");
        let lives = |at| self.net.is_up(self.at, store_ix(at)).then_some("is up");
        let now = Micros::try_from(stores.since_1970().as_micros()).unwrap_or(0);
        let moves = records(&meta.entries());
        let checked = body.checked_by(&meta.state(), &moves, lives, Some(now));
        let verb = Verb::Replace(checked.map_err(|error| format!("{error:?}"))?);
        let made = verbs::write(&meta, &verb, 0, |_| Ok(())).await;
        made.map(drop).map_err(|error| format!("{error:?}"))
    }

    /// Makes the stores and the meta store agree about who owns what. Returns what it found.
    ///
    /// # Errors
    /// When a store cannot be asked, or something of it cannot be done.
    pub async fn reconcile(self: &Rc<Self>) -> Result<Vec<String>, String> {
        let (meta, stores) = (Meta::of(self), Stores(self.clone()));
        let heard = reconcile::ask(&stores, &meta.state()).await;
        match reconcile::apply::<ApiError>(&stores, &meta, &heard).await {
            Ok((plan, None)) => Ok(plan.found),
            Ok((_, Some(failed))) => Err(format!("{failed:?}")),
            Err(refused) => Err(format!("{refused:?}")),
        }
    }

    /// Asks something of the coordinator of a move.
    ///
    /// # Errors
    /// When meta cannot be written.
    pub async fn ask_move(self: &Rc<Self>, id: MoveId, request: &str) -> Result<bool, MetaError> {
        Ok(desk::ask(&Meta::of(self), id, request).await?.is_some())
    }
}

/// An operator who repairs a cluster whose meta store has lost data: he reconciles, and aborts the moves that do not
/// end.
pub async fn repair(clients: Rc<Clients>) {
    let world = clients.world.clone();
    loop {
        world.sleep(4 * SECOND).await;
        let (found, _) =
            clients.ask(0, |router| async move { Ok::<_, Fail>(router.reconcile().await) }).await;
        world.note(format_args!("reconcile: {found:?}"));
        for id in open(&clients) {
            let asks =
                move |router: Rc<Router>| async move { Ok::<_, Fail>(router.ask_move(id, "abort").await) };
            let (asked, _) = clients.ask(0, asks).await;
            world.note(format_args!("abort move {}: {asked:?}", id.0));
        }
    }
}

/// An operator who replaces a lost store, and starts the process in its place when it may open.
pub async fn replace(clients: Rc<Clients>, store: usize) {
    let world = clients.world.clone();
    let shards = clients.net.shards();
    let place = shards.len() - 1;
    let opens_at = loop {
        world.sleep(world.between(10 * MS, SECOND)).await;
        let asked = move |router: Rc<Router>| async move { Ok::<_, Fail>(router.replace(store).await) };
        let (made, _) = clients.ask(clients.any_router(), asked).await;
        world.note(format_args!("replace s{store}: {made:?}"));
        // It may be done although no answer came.
        let entries = clients.meta.entries();
        let state = entries.keys.get(STATE).and_then(|stored| ClusterState::from_json(&stored.value).ok());
        if let Some(opens_at) = state.and_then(|state| state.stores.get(place)?.opens_at) {
            break opens_at;
        }
    };
    while shards[place].wall.at(world.now()) <= opens_at {
        world.sleep(100 * MS).await;
    }
    clients.net.start_store(place);
}

/// The moves that are not over.
fn open(clients: &Clients) -> Vec<MoveId> {
    let records = records(&clients.meta.entries()).into_values();
    records.filter(|(of, _)| !of.phase.is_over()).map(|(of, _)| of.id).collect()
}

/// An operator who makes so many requests.
pub async fn run(clients: Rc<Clients>, changes: usize) {
    let world = clients.world.clone();
    for _ in 0..changes {
        clients.pause().await;
        world.sleep(world.between(MS, 500 * MS)).await;
        if clients.over.get() {
            return;
        }
        let router = clients.any_router();
        if world.chance(10) {
            let (found, _) =
                clients.ask(router, |router| async move { Ok::<_, Fail>(router.reconcile().await) }).await;
            world.note(format_args!("reconcile: {found:?}"));
            continue;
        }
        let open = open(&clients);
        if !open.is_empty() && world.chance(50) {
            let (id, request) = (*world.pick(&open), *world.pick(&["abort", "reverse", "complete", "abort"]));
            world.note(format_args!("{request} move {}", id.0));
            let (asked, _) = clients
                .ask(router, move |router| async move { Ok::<_, Fail>(router.ask_move(id, request).await) })
                .await;
            world.note(format_args!("{request} move {}: {asked:?}", id.0));
            continue;
        }
        let kind = clients.topology.kind_name(clients.any_kind());
        let (made, _) = clients
            .ask(router, move |router| async move {
                let change = Change::any(&router.world, &Meta::of(&router).state(), kind);
                Ok::<_, Fail>((format!("{change:?}"), router.change(&change).await))
            })
            .await;
        world.note(format_args!("{made:?}"));
        if let Ok((_, Ok(began))) = made {
            clients.history.write().moves += began.len() as u64;
        }
    }
}
