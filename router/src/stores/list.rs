//! The list of stores. It only grows, so a [`StoreIx`] means the same store for the life of the process.
//!
//! Requests read the list without a lock or a shared counter: a place is written once and then only read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use kindred_router_core::store::{Member, StoreIx};
use kindred_transport::clock::WallClock;
use kindred_transport::connect::ConnectError;
use kindred_transport::{Connector, Workers};
use tokio::sync::watch;

use super::clocks::Clocks;
use super::modes::Modes;
use super::releases::PinNames;
use super::{Linking, Store, StoreSpec};
use crate::ticks::Ticks;

/// The most stores that a router can ever know, removed ones included: twice the number of slots (R1).
pub const STORES_MAX: usize = 2048;

/// Why a store cannot be added or changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreListError {
    /// No channel to the store can be built.
    #[error("store {name:?}: {source}")]
    Connect {
        /// The name of the store.
        name: String,
        /// The connector's error, such as unusable TLS files.
        source: ConnectError,
    },
    /// The list is full.
    #[error("store {name:?}: this router has had {STORES_MAX} stores, more do not fit; restart it")]
    Full {
        /// The store that did not fit.
        name: String,
    },
    /// A store keeps its name and type for ever.
    #[error(
        "store {name:?} is {was:?} in this router, name and type of a store never change; add another store"
    )]
    Another {
        /// The name in the new list.
        name: String,
        /// The name that this router has at that place.
        was: String,
    },
}

#[derive(Debug)]
struct Inner {
    places: Box<[OnceLock<Arc<Store>>]>,
    /// The number of filled places; these are at the front.
    filled: AtomicUsize,
    default: AtomicUsize,
    linking: Linking,
    clocks: Arc<Clocks>,
    modes: watch::Sender<Arc<Modes>>,
    pins: PinNames,
    ticks: Ticks,
    /// Held while a store is appended; never across an await.
    appending: Mutex<()>,
}

/// All stores, in the order of the configuration. Clones are handles of the same list.
#[derive(Debug, Clone)]
pub struct Stores {
    inner: Arc<Inner>,
}

impl Stores {
    /// An empty list. `workers` are the threads whose requests get connections of their own. `default` is the store for
    /// keys of no Kind and for leases with ids that clients chose; `wall_clock` is the router's own.
    #[must_use]
    pub fn new(connector: Connector, workers: Workers, default: StoreIx, wall_clock: WallClock) -> Self {
        let linking = Linking { connector, workers };
        let clocks = Arc::new(Clocks::new(wall_clock));
        let places = (0..STORES_MAX).map(|_| OnceLock::new()).collect();
        let default = AtomicUsize::new(default.0);
        let (filled, appending) = (AtomicUsize::new(0), Mutex::new(()));
        let (modes, pins, ticks) = (watch::Sender::default(), PinNames::default(), Ticks::start());
        let inner = Inner { places, filled, default, linking, clocks, modes, pins, ticks, appending };
        Self { inner: Arc::new(inner) }
    }

    /// Appends a store. The caller starts its tasks.
    ///
    /// # Errors
    /// When no channel to it can be built, or the list is full.
    pub fn add(&self, spec: StoreSpec) -> Result<&Arc<Store>, StoreListError> {
        let _appending = self.inner.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.len();
        let name = spec.name.0.clone();
        let Some(place) = self.inner.places.get(index) else { return Err(StoreListError::Full { name }) };
        let store = Store::new(StoreIx(index), spec, &self.inner.linking)
            .map_err(|source| StoreListError::Connect { name, source })?;
        self.inner.clocks.expect(StoreIx(index));
        let store = place.get_or_init(|| Arc::new(store));
        self.inner.filled.store(index + 1, Ordering::Release);
        Ok(store)
    }

    /// Changes a store's address, slot or UUID. Does nothing if the configuration is the same.
    ///
    /// # Errors
    /// When no channel to it can be built, or its name or type would change.
    pub fn replace(&self, index: StoreIx, spec: StoreSpec) -> Result<(), StoreListError> {
        let (store, name) = (self.get(index), spec.name.0.clone());
        if store.name() != name || store.kind != spec.kind {
            return Err(StoreListError::Another { name, was: store.name().to_owned() });
        }
        let known = store.spec();
        if *known == spec {
            return Ok(());
        }
        let (uuid, has_standbys) = (known.uuid.clone(), known.has_standbys);
        let same_member = known.primary.is_none() || known.primary == spec.primary;
        let primary = known.primary.clone();
        if same_member && (StoreSpec { uuid, has_standbys, primary, ..spec.clone() }) == *known {
            store.learn(spec);
            return Ok(());
        }
        store.relink(spec, &self.inner.linking).map_err(|source| StoreListError::Connect { name, source })
    }

    /// What connections to stores are made with.
    #[must_use]
    pub fn connector(&self) -> &Connector {
        &self.inner.linking.connector
    }

    #[must_use]
    pub fn clocks(&self) -> &Arc<Clocks> {
        &self.inner.clocks
    }

    /// When the router does what it does every few seconds.
    #[must_use]
    pub fn ticks(&self) -> Ticks {
        self.inner.ticks
    }

    /// Makes ids for pins.
    #[must_use]
    pub fn pins(&self) -> &PinNames {
        &self.inner.pins
    }

    /// Sets the durability modes that every shard is told. Modes of an older generation are ignored.
    pub fn set_modes(&self, modes: Modes) {
        self.inner.modes.send_if_modified(|known| {
            let news = modes.generation >= known.generation && **known != modes;
            if news {
                *known = Arc::new(modes);
            }
            news
        });
    }

    /// A receiver of the durability modes.
    #[must_use]
    pub fn modes(&self) -> watch::Receiver<Arc<Modes>> {
        self.inner.modes.subscribe()
    }

    /// Removes a store: its tasks end, and requests to it are refused.
    pub fn remove(&self, index: StoreIx) {
        self.get(index).remove();
        self.inner.clocks.leave_out(index);
    }

    /// The number of stores, removed ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.filled.load(Ordering::Acquire)
    }

    /// Whether no store was ever added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The store at an index of this list, or of a map whose stores were added before it was swapped in.
    #[must_use]
    pub fn get(&self, index: StoreIx) -> &Arc<Store> {
        self.inner.places[index.0].get().expect("a map names only stores that were added before it")
    }

    /// All stores that were not removed.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Store>> {
        let places = &self.inner.places[..self.len()];
        places.iter().filter_map(OnceLock::get).filter(|store| !store.is_removed())
    }

    /// All stores that are up.
    pub fn up(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.iter().filter(|store| store.state.is_up())
    }

    #[must_use]
    pub fn default_store(&self) -> StoreIx {
        StoreIx(self.inner.default.load(Ordering::Acquire))
    }

    pub fn set_default(&self, index: StoreIx) {
        self.inner.default.store(index.0, Ordering::Release);
    }

    /// A snapshot of the stores for the pure crate.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.iter().map(|store| store.member()).collect()
    }

    /// The store with this slot, unless it was removed.
    #[must_use]
    pub fn by_slot(&self, slot: u32) -> Option<&Arc<Store>> {
        self.iter().find(|store| store.slot().is_some_and(|own| u32::from(own.get()) == slot))
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::ids::{Slot, StoreName};
    use kindred_router_core::store::StoreKind;

    use super::*;
    use crate::stores::state::{Identity, Phase};

    fn spec(name: &str, slot: u16, endpoint: &str) -> StoreSpec {
        StoreSpec {
            name: StoreName(name.to_owned()),
            kind: StoreKind::Shard,
            slot: Slot::new(slot),
            uuid: None,
            opens_at: None,
            endpoints: vec![endpoint.parse().unwrap()],
            primary: None,
            has_standbys: false,
        }
    }

    fn up() -> Phase {
        let (slot, version) = (Slot::new(1), String::new());
        Phase::Up(Identity { uuid: None, slot, version, incarnation: 1, features: 0 })
    }

    #[tokio::test]
    async fn the_list_grows_and_places_stay() {
        let stores = Stores::new(Connector::default(), Workers::default(), StoreIx(0), WallClock::System);
        let seen_elsewhere = stores.clone();
        let first = stores.add(spec("a", 1, "127.0.0.1:1")).unwrap().clone();
        stores.add(spec("b", 2, "127.0.0.1:2")).unwrap();
        assert!(Arc::ptr_eq(&first, seen_elsewhere.get(StoreIx(0))));
        assert_eq!(
            seen_elsewhere.iter().map(|store| store.name().to_owned()).collect::<Vec<_>>(),
            ["a", "b"]
        );
        stores.remove(StoreIx(0));
        assert_eq!(seen_elsewhere.members().len(), 1);
        assert_eq!(seen_elsewhere.by_slot(1).map(|store| store.index), None, "a removed store has no leases");
        stores.add(spec("c", 1, "127.0.0.1:3")).unwrap();
        assert_eq!(
            seen_elsewhere.by_slot(1).map(|store| store.index),
            Some(StoreIx(2)),
            "its slot may be used again"
        );
        assert_eq!(stores.get(StoreIx(0)).name(), "a");
    }

    #[tokio::test]
    async fn f02_who_a_store_is_becomes_known_without_another_connection() {
        let stores = Stores::new(Connector::default(), Workers::default(), StoreIx(0), WallClock::System);
        let store = stores.add(spec("a", 1, "127.0.0.1:1")).unwrap().clone();
        let phase = |uuid: &str| {
            let Phase::Up(identity) = up() else { unreachable!() };
            Phase::Up(Identity { uuid: Some(uuid.to_owned()), ..identity })
        };
        let known = |uuid: &str| StoreSpec { uuid: Some(uuid.to_owned()), ..spec("a", 1, "127.0.0.1:1") };
        let asked = store.spec();
        store.settle(&asked, phase("u"));
        let ways = store.link.load().ways.clone();
        stores.replace(StoreIx(0), known("u")).unwrap();
        assert!(store.ready().is_ok() && Arc::ptr_eq(&ways, &store.link.load().ways), "it is who it was");
        assert!(!store.is_current(&asked), "a handshake that knew less is made anew");
        // Another router was faster, and met another store.
        stores.replace(StoreIx(0), known("v")).unwrap();
        assert!(store.ready().unwrap_err().message().contains("another store"));
        assert!(Arc::ptr_eq(&ways, &store.link.load().ways));
    }

    #[tokio::test]
    async fn another_address_is_not_believed_before_its_own_handshake() {
        let stores = Stores::new(Connector::default(), Workers::default(), StoreIx(0), WallClock::System);
        let store = stores.add(spec("a", 1, "127.0.0.1:1")).unwrap().clone();
        let asked = store.spec();
        assert!(store.settle(&asked, up()));
        stores.replace(StoreIx(0), spec("a", 1, "127.0.0.1:1")).unwrap();
        assert!(store.ready().is_ok(), "nothing changed");
        stores.replace(StoreIx(0), spec("a", 1, "127.0.0.1:2")).unwrap();
        assert!(store.ready().is_err());
        assert!(!store.settle(&asked, up()), "an answer from the old address");
        assert!(store.ready().is_err());
        assert!(store.settle(&store.spec(), up()));
        assert!(store.ready().is_ok());
        stores.replace(StoreIx(0), spec("b", 1, "127.0.0.1:2")).unwrap_err();
    }
}
