//! The shards, the cluster's document, the router, and what was written.

use std::sync::Arc;

use kindred_engine::engine::{Engine, EngineConfig, RevisionMode, WallMicros};
use kindred_partition_config::{
    ids::{Revision, Slot, StoreName},
    kind::KindPrefix,
    model::{DataPartitionConfig, RingConfig},
    parse::parse_config,
    state::{Change, ClusterState, ConfigChange},
    validate::FieldError,
};
use kindred_router_core::{
    consistent_read::RevisionScope,
    moves::conflict::{self, Begins},
    place::Placed,
    routes::Routes,
    shown::ShownRevisions,
    store::StoreIx,
    store::StoreKind,
};

use crate::verbs::{moving::Moving, random::Random, watches::Client};

/// Kinds as people write them. The last two have no configs at first.
pub const KINDS: [&str; 5] = ["pods", "leases", "nodes", "configmaps", "services"];
/// Where ranges are cut.
const CUTS: [&str; 4] = ["b", "d", "d/3", "g"];
const NAMES: [&str; 10] = ["a/1", "a/2", "b/1", "c/1", "d/1", "d/4", "e/1", "g/1", "g/2", "z/1"];

const CONFIG: &str = "
default: main
stores: [{name: main, slot: 1}, {name: a, slot: 2}, {name: b, slot: 3}, {name: c, slot: 4}]
partitions:
- {metadata: {name: pods-1}, resource: pods, rangeEnd: d, isRangeEndValid: true, serviceGroupId: a}
- {metadata: {name: pods-2}, resource: pods, rangeStart: d, isRangeStartValid: true, serviceGroupId: b}
- {metadata: {name: leases}, resource: leases, ring: {stores: [a, c]}}
- {metadata: {name: nodes}, resource: nodes, serviceGroupId: b}
";

/// A version or a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrote {
    pub key: String,
    pub at: Revision,
    /// `None` for a deletion.
    pub value: Option<String>,
}

pub struct World {
    pub random: Random,
    pub now: WallMicros,
    pub engines: Vec<Engine>,
    pub state: ClusterState,
    /// The maps so far that a router may still go by, the newest last.
    pub maps: Vec<Arc<Routes>>,
    pub shown: ShownRevisions,
    /// Every event, in the order of revisions.
    pub wrote: Vec<Wrote>,
    pub compacted: Revision,
    /// All stores of the beginning are there from here on.
    pub begun: Revision,
    /// Kinds of which a leg is being switched: requests may be told to wait.
    pub switching: Option<KindPrefix>,
    /// What is switched is of no Kind: any request may have to do with it.
    pub switching_rest: bool,
    pub moves: Vec<Moving>,
    pub next_move: u64,
    pub clients: Vec<Client>,
    /// What was done, for who reads of a failure.
    pub done: Vec<String>,
    values: u64,
}

fn engine(slot: u32, now: WallMicros, state: &ClusterState) -> Engine {
    let slot = Slot::new(u16::try_from(slot).expect("few")).expect("below 1024");
    let kinds = state.scheme();
    let revisions = RevisionMode::Hlc(slot);
    let config = EngineConfig { revisions, kinds, max_clock_offset_micros: 10_000_000, min_lease_ttl_s: 2 };
    Engine::new(config, now)
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let state = ClusterState::bootstrap(&parse_config(CONFIG).expect("parses")).expect("valid");
        let mut now = 1_000_000;
        let engines: Vec<Engine> = (1..=4)
            .map(|slot| {
                now += random.below(50) as u64;
                engine(slot, WallMicros(now), &state)
            })
            .collect();
        let begun = engines.iter().map(Engine::floor).max().expect("four");
        let mut world = Self {
            random,
            now: WallMicros(now + 1_000),
            engines,
            state,
            maps: Vec::new(),
            shown: ShownRevisions::new(RevisionScope::Kind),
            wrote: Vec::new(),
            compacted: Revision::ZERO,
            begun,
            switching: None,
            switching_rest: false,
            moves: Vec::new(),
            next_move: 1,
            clients: Vec::new(),
            done: vec![format!("seed {seed}")],
            values: 0,
        };
        world.take(world.state.clone());
        for _ in 0..20 {
            world.write();
        }
        world
    }

    pub fn moves_begun(&self) -> u64 {
        self.next_move - 1
    }

    pub fn did(&mut self, what: String) {
        self.done.push(what);
    }

    /// A failure, with all that led to it.
    pub fn fail(&self, what: &str) -> ! {
        let placed = |partition: &kindred_partition_config::map::Partition| {
            let stores: Vec<u16> = partition.placement.stores().into_iter().map(|store| store.0).collect();
            let kind = partition.kind.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("{}.. {stores:?} {kind} since {}", partition.start(), partition.epoch.0)
        };
        let map: Vec<String> = self.state.map.partitions().iter().map(placed).collect();
        panic!("{what}\nafter:\n{}\nby the map\n{}", self.done.join("\n"), map.join("\n"))
    }

    pub fn kind(&self, name: &str) -> KindPrefix {
        self.state.scheme().resolve(name).expect("a Kind")
    }

    pub fn tick(&mut self) {
        self.now = WallMicros(self.now.0 + 1 + self.random.below(300) as u64);
    }

    // ---- the map

    pub fn routes(&self) -> Arc<Routes> {
        self.maps.last().expect("one at least").clone()
    }

    /// The newest document, as a router takes it.
    pub fn take(&mut self, state: ClusterState) {
        state.validated().expect("what is written is valid");
        let bytes = state.to_json();
        assert_eq!(ClusterState::from_json(&bytes).as_ref(), Ok(&state), "it is read as it was written");
        let stores = state.stores.iter().map(|store| (store.name.0.clone(), StoreKind::Shard)).collect();
        let default = state.store(&state.default).expect("validated").0;
        let routes = Routes::new(state.map.clone(), state.scheme(), stores, StoreIx(usize::from(default.0)))
            .of_generation(state.generation);
        if self.maps.last().is_none_or(|last| last.generation() < routes.generation()) {
            self.note_shown(&routes);
            self.maps.push(Arc::new(routes));
            if self.maps.len() > 3 {
                self.maps.remove(0);
            }
        }
        self.state = state;
    }

    /// As `router/src/routing.rs`: a map that spreads a Kind begins with what its store has shown.
    fn note_shown(&mut self, new: &Routes) {
        let Some(old) = self.maps.last().cloned() else { return };
        for kind in KINDS.map(|kind| self.kind(kind)) {
            if new.map().is_spread(&kind) && !old.map().is_spread(&kind) {
                let stores = old.map().stores_of(&kind.range());
                let highest =
                    stores.iter().map(|store| self.engines[usize::from(store.0)].current_all()).max();
                self.shown.show(&[kind], highest.unwrap_or(Revision::ZERO));
            }
        }
    }

    // ---- writes

    pub fn key(&mut self) -> String {
        let name = *self.random.of(&KINDS);
        let kind = self.kind(name);
        let of_kind = *self.random.of(&NAMES);
        match self.random.below(12) {
            // A key of the name of a pseudo-key, as nobody writes one.
            0 => String::from_utf8(kind.stem().to_vec()).expect("text"),
            1 => "/registry/other".to_owned(),
            _ => format!("{kind}{of_kind}"),
        }
    }

    fn value(&mut self) -> String {
        self.values += 1;
        format!("v{}", self.values)
    }

    /// One write through the router; it may be told to wait while its Kind is at a switch.
    pub fn write(&mut self) {
        self.tick();
        let first = self.key();
        let mut changes = vec![(first.clone(), (!self.random.one_in(5)).then(|| self.value()))];
        let routes = self.routes();
        // Others of its store, in one transaction: also of the other side of a split to come.
        let store = routes.map().store_of(first.as_bytes());
        if self.random.one_in(3) {
            for _ in 0..3 {
                let key = self.key();
                let fresh = changes.iter().all(|(other, _)| *other != key);
                if fresh && routes.map().store_of(key.as_bytes()) == store {
                    let value = self.value();
                    changes.push((key, Some(value)));
                }
            }
        }
        let e = usize::from(store.0);
        let Some(at) = self.send_write(e, &routes, &changes) else { return };
        changes.retain(|(key, value)| value.is_some() || self.live(key, Revision(i64::MAX)).is_some());
        let fresh = changes.into_iter().map(|(key, value)| Wrote { key, at, value });
        let place = self.wrote.partition_point(|event| event.at <= at);
        self.wrote.splice(place..place, fresh.collect::<Vec<_>>());
    }

    // ---- the model

    pub fn live(&self, key: &str, at: Revision) -> Option<&Wrote> {
        let last = self.wrote.iter().rev().find(|event| event.at <= at && event.key == key)?;
        last.value.is_some().then_some(last)
    }

    // ---- changes

    /// One change of the configuration, and its moves as far as they go; or something about a move that is open.
    pub fn change(&mut self) {
        for _ in 0..4 {
            self.write();
        }
        if self.random.one_in(3) {
            self.compact();
        }
        self.go_on_with_open_moves();
        let kind = *self.random.of(&KINDS);
        let active: Vec<StoreName> = self
            .state
            .stores
            .iter()
            .filter(|store| store.state == kindred_partition_config::state::StoreState::Active)
            .map(|store| store.name.clone())
            .collect();
        let to = self.random.of(&active).clone();
        let at = *self.random.of(&CUTS);
        let (what, change) = match self.random.below(10) {
            0 | 1 => (format!("move {kind} --to {to}"), self.state.move_kind(kind, &to)),
            2..=4 => (format!("split {kind} --at {at} --to {to}"), self.state.split(kind, at, &to)),
            5 => (format!("merge {kind} --to {to}"), self.state.merge(kind, None, Some(&to))),
            6 => (format!("merge {kind} --at {at}"), self.state.merge(kind, Some(at), None)),
            7 => {
                let stores: Vec<StoreName> =
                    active.iter().filter(|_| !self.random.one_in(3)).cloned().collect();
                (format!("{kind} on the ring {stores:?}"), self.ring(kind, stores))
            }
            8 => {
                let drained = self.random.of(&active).clone();
                (format!("drain {drained}"), self.state.drain_store(&drained, None))
            }
            _ => (format!("no configs of {kind}"), self.replaced(kind, Vec::new())),
        };
        match change {
            Ok(change) => self.make(what, &change),
            Err(_) => self.stores_come_and_go(),
        }
    }

    fn ring(&self, kind: &str, stores: Vec<StoreName>) -> Result<Change, Vec<FieldError>> {
        let text = format!("metadata: {{name: ring-{kind}}}\nresource: {kind}\nserviceGroupId: main\n");
        let config: DataPartitionConfig =
            kindred_partition_config::parse::parse_object(&text).expect("a config");
        let ring = Some(RingConfig { stores });
        self.replaced(kind, vec![DataPartitionConfig { service_group_id: None, ring, ..config }])
    }

    /// The change after which these are the configs of a Kind.
    fn replaced(&self, kind: &str, of_kind: Vec<DataPartitionConfig>) -> Result<Change, Vec<FieldError>> {
        let prefix = self.kind(kind);
        let scheme = self.state.scheme();
        let others = self.state.configs.iter();
        let mut configs: Vec<DataPartitionConfig> = others
            .filter(|config| scheme.resolve(&config.resource).as_ref() != Ok(&prefix))
            .cloned()
            .collect();
        configs.extend(of_kind);
        self.state.apply_configs(&[ConfigChange::Replace(configs)])
    }

    fn make(&mut self, what: String, change: &Change) {
        let by_kind = change.by_kind();
        let busy = |moving: &Moving| by_kind.keys().any(|kind| moving.is_of(kind.as_ref()));
        if self.moves.iter().any(busy) {
            return self.did(format!("({what}: its keys are moving)"));
        }
        self.did(what);
        let before = self.state.clone();
        self.take(change.state.clone());
        for (kind, transfers) in by_kind {
            self.begin(kind, &transfers, &before);
        }
        for moving in std::mem::take(&mut self.moves) {
            let moving = if moving.is_new() { self.run(moving) } else { Some(moving) };
            self.moves.extend(moving);
        }
    }

    /// Stores that were drained serve again, or are removed; now and then there is a new one.
    fn stores_come_and_go(&mut self) {
        use kindred_partition_config::state::StoreState;
        let drained = self.state.stores.iter().find(|store| store.state == StoreState::Draining);
        if let Some(name) = drained.map(|store| store.name.clone()) {
            let removed = self.state.remove_store(&name).ok().and_then(|state| {
                let change = Change { desired: state.map.clone(), state, transfers: Vec::new() };
                let open: Vec<_> = self.moves.iter().map(Moving::record).collect();
                conflict::beside(&self.state, change, &open, Begins::WhatItChanges).ok()
            });
            let next = match removed {
                Some(removed) if self.random.one_in(2) => {
                    let needed = self.moves.iter().any(|moving| moving.has_leg_at(&name));
                    assert!(!needed, "{name} is removed, and a way back leads there");
                    self.did(format!("remove {name}"));
                    removed.state
                }
                _ => {
                    self.did(format!("activate {name}"));
                    self.state.activate_store(&name).expect("it is there")
                }
            };
            return self.take(next);
        }
        if self.engines.len() < 7 {
            let name = format!("new-{}", self.engines.len());
            let text = format!("name: {name}\nendpoints: ['http://h:1']\n");
            let config = kindred_partition_config::parse::parse_object(&text).expect("a store");
            let (next, place) = self.state.add_store(config).expect("a slot is free");
            assert_eq!(usize::from(place.0), self.engines.len());
            let slot = next.stores[usize::from(place.0)].config().slot.expect("it was given one");
            self.did(format!("add {name}"));
            self.tick();
            self.engines.push(engine(slot, self.now, &next));
            self.take(next);
        }
    }

    /// Compacts all shards, as a router does.
    fn compact(&mut self) {
        let highest = self.engines.iter_mut().map(Engine::current_all).max().expect("some");
        let Some(at) = self.wrote.get(self.random.below(self.wrote.len())).map(|event| event.at) else {
            return;
        };
        assert!(at <= highest, "what was written is shown");
        self.follow_on();
        let fresh = at > self.compacted;
        for e in 0..self.engines.len() {
            let everything = [kindred_partition_config::key::KeyRange::everything()];
            self.engines[e].raise_whole(self.now, &everything, at).expect("it follows");
            let compacted = self.engines[e].compact(kindred_engine::engine::MonoMillis(0), at);
            if fresh && compacted != Ok(None) {
                self.fail(&format!("store {e} does not compact at {at}: {compacted:?}"));
            }
            while self.engines[e].gc(1_000) {}
        }
        self.did(format!("compact {at}"));
        self.compacted = self.compacted.max(at);
    }

    /// Every move comes to its end.
    pub fn conclude(&mut self) {
        for moving in std::mem::take(&mut self.moves) {
            self.complete(moving);
        }
    }

    /// Whether a watch is placed at one store, and not at a feed.
    pub fn at_one_store(placed: &Placed) -> Option<usize> {
        match placed {
            Placed::Store(store) => Some(store.0),
            Placed::Feed(_) => None,
        }
    }
}
