//! Operators: they move, split and merge Kinds, and abort, reverse and complete moves, through any router.

use std::rc::Rc;

use kindred_partition_config::ids::{MoveId, StoreName};
use kindred_partition_config::state::{Change, ClusterState};
use kindred_partition_config::validate::FieldError;
use kindred_router::meta::change::change_state;
use kindred_router::meta::client::{Expect, Write};
use kindred_router::meta::store::MetaStore as _;
use kindred_router::meta::{MetaError, Next};
use kindred_router::moves::begin::{begin, used_numbers};
use kindred_router::moves::desk::Asked;
use kindred_router::moves::{records, request_key};
use kindred_router_core::moves::conflict::{self, Begins};

use super::Clients;
use crate::router::moves::{Meta, Stores};
use crate::router::{Fail, Router};
use crate::world::MS;

/// Where ranges are cut; keys lie between these.
const CUTS: [&str; 3] = ["h", "l", "s"];

/// A change that an operator asks for.
#[derive(Debug, Clone)]
pub enum Verb {
    /// Moves a Kind.
    Move(&'static str, StoreName),
    /// Gives names from one on to another store.
    Split(&'static str, &'static str, StoreName),
    /// Joins all ranges of a Kind.
    Merge(&'static str, StoreName),
}

impl Verb {
    fn change(&self, state: &ClusterState) -> Result<Change, Vec<FieldError>> {
        match self {
            Self::Move(kind, to) => state.move_kind(kind, to),
            Self::Split(kind, at, to) => state.split(kind, at, to),
            Self::Merge(kind, to) => state.merge(kind, None, Some(to)),
        }
    }
}

impl Router {
    /// As `make` in `admin/verbs.rs`.
    ///
    /// # Errors
    /// When it is refused, or meta cannot be written.
    pub async fn change(self: &Rc<Self>, verb: &Verb) -> Result<Vec<MoveId>, String> {
        let meta = Meta::of(self);
        let settled = |state: &ClusterState| {
            let change = verb.change(state).map_err(|errors| format!("{errors:?}"))?;
            let known = records(&meta.entries());
            let moves = known.values().map(|(record, _)| record);
            let change = conflict::beside(state, change, moves, Begins::WhatIsNotThere);
            Ok::<_, String>((change.map_err(|conflict| conflict.to_string())?, known))
        };
        let used = match settled(&meta.state()) {
            Ok((change, _)) => used_numbers(&Stores(self.clone()), &change).await,
            Err(_) => 0,
        };
        let mut began = Vec::new();
        let changed = change_state(&meta, |state| {
            let (change, known) = settled(state)?;
            let (next, moves) = begin(state, &change, &known, used);
            let same = next.state.configs == state.configs && next.state.map == state.map && moves.is_empty();
            began = moves;
            Ok::<_, String>(if same { Next::from(state.clone()) } else { next })
        });
        changed.await.map_err(|error| error.to_string())?;
        Ok(began)
    }

    /// As `ask` in `admin/moves.rs`, without waiting for the answer.
    ///
    /// # Errors
    /// When meta cannot be written.
    pub async fn ask_move(self: &Rc<Self>, id: MoveId, request: &str) -> Result<bool, MetaError> {
        let (meta, key) = (Meta::of(self), request_key(id));
        let before = meta.get(&key).await?.map_or(0, |stored| stored.mod_revision);
        let asked = Asked { request: request.to_owned(), refused: None };
        let write = Write::put(key.clone(), serde_json::to_vec(&asked).unwrap_or_default());
        Ok(meta.commit(&[Expect { key, mod_revision: before }], vec![write]).await?.is_some())
    }
}

/// An operator with so much to do.
pub async fn run(clients: Rc<Clients>, changes: usize) {
    let world = clients.world.clone();
    let stores = clients.topology.slots.len();
    for _ in 0..changes {
        clients.pause().await;
        world.sleep(world.between(MS, 500 * MS)).await;
        if clients.over.get() {
            return;
        }
        let router = clients.any_router();
        let open: Vec<MoveId> = {
            let entries = clients.meta.entries();
            records(&entries)
                .into_values()
                .filter(|(of, _)| !of.phase.is_over())
                .map(|(of, _)| of.id)
                .collect()
        };
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
        let to = StoreName(format!("s{}", world.index(stores)));
        let verb = match world.below(10) {
            0..=5 => Verb::Move(kind, to),
            6..=8 => Verb::Split(kind, CUTS[world.index(CUTS.len())], to),
            _ => Verb::Merge(kind, to),
        };
        let what = format!("{verb:?}");
        let (made, _) =
            clients.ask(router, move |router| async move { Ok::<_, Fail>(router.change(&verb).await) }).await;
        world.note(format_args!("{what}: {made:?}"));
        if let Ok(Ok(began)) = made {
            clients.history.write().moves += began.len() as u64;
        }
    }
}
