//! Where leases have their home (R12), also after it changed.
//!
//! The slot in the low bits of a generated id names the store that granted it; ids that clients chose are the default
//! store's. A store that is drained or lost has an *heir*, and so may the heir: what a store granted is at home there or
//! at one of those behind it in that chain. A default store that is default no more keeps the leases that it has, and is
//! remembered. So every state names all stores that may have a lease, and who has asked them all knows.

use super::{ClusterState, StoreObject, StoreState};
use crate::{
    ids::{LeaseId, SLOT_BITS, StoreName},
    map::StoreIdx,
    model::StoreType,
};

impl ClusterState {
    fn by_slot(&self, slot: u16) -> Option<&StoreObject> {
        self.stores.iter().find(|store| store.slot == Some(slot))
    }

    fn shards(&self, state: StoreState) -> impl Iterator<Item = &StoreObject> {
        let is_shard = |store: &&StoreObject| store.store_type == StoreType::Shard && store.slot.is_some();
        self.stores.iter().filter(is_shard).filter(move |store| store.state == state)
    }

    /// The slot of the store that keeps leases whose ids clients choose: the default store, unless it is a stock etcd and
    /// there is a shard.
    #[must_use]
    pub fn lease_home(&self) -> Option<u16> {
        let default = self.store(&self.default).map(|(_, store)| store);
        let default = default.filter(|store| store.store_type == StoreType::Shard);
        let others = || self.shards(StoreState::Active).chain(self.shards(StoreState::Draining)).next();
        default.or_else(others)?.slot
    }

    /// The document behind a change, with what it needs to know of the one before: the home of chosen ids, if it is
    /// another one now.
    #[must_use]
    pub fn after(mut self, before: &Self) -> Self {
        if let Some(home) = before.lease_home().filter(|home| self.lease_home() != Some(*home)) {
            self.lease_homes.retain(|known| *known != home);
            self.lease_homes.push(home);
        }
        self
    }

    /// Who takes over the leases of a store: the store that takes over the rest, if it is a shard, or another.
    pub(super) fn heir_of_leases(&self, of: StoreIdx, heir: Option<&StoreName>) -> Option<u16> {
        let own = self.stores.get(usize::from(of.0))?.slot?;
        let others = || self.shards(StoreState::Active).filter(move |store| store.slot != Some(own));
        let named = |name: &StoreName| others().find(|store| store.name == *name);
        heir.and_then(named).or_else(|| named(&self.default)).or_else(|| others().next())?.slot
    }

    /// A slot, its heir, the heir's heir and so on, each once.
    #[must_use]
    pub fn lease_chain(&self, slot: u16) -> Vec<u16> {
        let mut chain = vec![slot];
        let mut last = slot;
        while let Some(heir) = self.by_slot(last).and_then(|store| store.lease_heir) {
            if chain.contains(&heir) {
                break;
            }
            chain.push(heir);
            last = heir;
        }
        chain
    }

    /// The store to which the leases of a store that goes, or is gone, are to go now: the next in its chain that stays, or
    /// is at least there.
    #[must_use]
    pub fn lease_heir(&self, slot: u16) -> Option<u16> {
        let chain = self.lease_chain(slot);
        let in_state = |state| {
            let is = move |slot: &&u16| self.by_slot(**slot).is_some_and(|store| store.state == state);
            chain.iter().skip(1).find(is).copied()
        };
        in_state(StoreState::Active).or_else(|| in_state(StoreState::Draining))
    }

    /// The slots whose leases may have come to have their home at this one.
    #[must_use]
    pub fn lease_slots_before(&self, home: u16) -> Vec<u16> {
        let slots = self.stores.iter().filter_map(|store| store.slot).filter(|slot| *slot != home);
        slots.filter(|slot| self.lease_chain(*slot).contains(&home)).collect()
    }

    /// The slots of all stores that may be the home of a lease, the likeliest first; removed ones, too, where nobody can
    /// be asked.
    #[must_use]
    pub fn lease_candidates(&self, id: LeaseId) -> Vec<u16> {
        let low = id.get() & ((1 << SLOT_BITS) - 1);
        let generated = u16::try_from(low).ok().filter(|slot| self.by_slot(*slot).is_some());
        let former = self.lease_homes.iter().rev().copied();
        let mut candidates = Vec::new();
        for slot in generated.into_iter().chain(self.lease_home()).chain(former) {
            let mut chain = self.lease_chain(slot);
            if self.by_slot(slot).is_some_and(|store| store.state != StoreState::Active) {
                // It has few left, if any.
                chain.rotate_left(1);
            }
            candidates.extend(chain);
        }
        let mut known = std::collections::BTreeSet::new();
        candidates.retain(|slot| known.insert(*slot));
        candidates
    }

    /// Whether the store of this slot is removed.
    #[must_use]
    pub fn is_removed_slot(&self, slot: u16) -> bool {
        self.by_slot(slot).is_some_and(|store| store.state == StoreState::Removed)
    }

    /// The slots of all stores that are removed.
    #[must_use]
    pub fn removed_slots(&self) -> Vec<u16> {
        let removed = self.stores.iter().filter(|store| store.state == StoreState::Removed);
        removed.filter_map(|store| store.slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse_config;

    fn state(stores: &str) -> ClusterState {
        let text = format!("default: a\nstores: [{stores}]\npartitions: []\n");
        ClusterState::bootstrap(&parse_config(&text).unwrap()).unwrap()
    }

    fn three() -> ClusterState {
        state("{name: a, slot: 1}, {name: b, slot: 2}, {name: c, slot: 3}")
    }

    fn name(name: &str) -> StoreName {
        StoreName(name.to_owned())
    }

    /// Drained, its moves done.
    fn drained(state: &ClusterState, of: &str, to: &str) -> ClusterState {
        let change = state.drain_store(&name(of), Some(&name(to))).unwrap();
        let next = ClusterState { map: change.desired, ..change.state };
        next.after(state)
    }

    fn candidates(state: &ClusterState, low: i64) -> Vec<u16> {
        state.lease_candidates(LeaseId((77 << 10) | low))
    }

    #[test]
    fn f04_a_drained_store_has_an_heir_also_when_it_is_gone() {
        let state = three();
        assert_eq!((candidates(&state, 1), candidates(&state, 2)), (vec![1], vec![2, 1]));
        assert_eq!(candidates(&state, 900), [1], "no store has that slot");
        let state = drained(&state, "b", "c");
        assert_eq!(state.lease_heir(2), Some(3));
        assert_eq!(candidates(&state, 2), [3, 2, 1], "the heir first");
        let state = state.remove_store(&name("b")).unwrap();
        assert_eq!((state.lease_heir(2), candidates(&state, 2)), (Some(3), vec![3, 2, 1]));
        // The heir goes, too.
        let state = drained(&state, "c", "a");
        assert_eq!((state.lease_heir(2), state.lease_heir(3)), (Some(1), Some(1)));
        assert_eq!(candidates(&state, 2), [3, 1, 2]);
        assert_eq!(state.lease_slots_before(1), [2, 3]);
        let read = ClusterState::from_json(&state.to_json()).unwrap();
        assert_eq!(read, state);
    }

    #[test]
    fn f04_stores_that_inherited_from_each_other() {
        let state = drained(&three(), "b", "c");
        let state = state.activate_store(&name("b")).unwrap();
        assert_eq!(candidates(&state, 2), [2, 3, 1], "what it has it has, what went stays away");
        let state = drained(&state, "c", "b");
        assert_eq!((state.lease_chain(2), state.lease_chain(3)), (vec![2, 3], vec![3, 2]));
        assert_eq!((state.lease_heir(3), candidates(&state, 3)), (Some(2), vec![2, 3, 1]));
    }

    #[test]
    fn f04_a_former_default_store_is_asked_for_chosen_ids() {
        let before = three();
        let mut next = before.clone();
        next.default = name("b");
        let next = next.after(&before);
        assert_eq!((next.lease_home(), candidates(&next, 900)), (Some(2), vec![2, 1]));
        let back = ClusterState { default: name("a"), ..next.clone() }.after(&next);
        assert_eq!(candidates(&back, 900), [1, 2]);
        // Drained, it is asked through its heir.
        let next = drained(&before, "a", "b");
        assert_eq!((next.lease_home(), candidates(&next, 900)), (Some(2), vec![2, 1]));
        let etcd = state(
            "{name: a, type: etcd, endpoints: [\"http://x:1\"]}, {name: b, slot: 2}, {name: c, slot: 3}",
        );
        assert_eq!((etcd.lease_home(), candidates(&etcd, 900)), (Some(2), vec![2]));
        let next = drained(&etcd, "b", "c");
        assert_eq!((next.lease_home(), next.lease_heir(2)), (Some(3), Some(3)));
        assert_eq!(candidates(&next, 900), [3, 2]);
    }

    #[test]
    fn f04_what_is_in_the_place_of_a_lost_store_has_its_leases() {
        let (state, _) = three().replace_store(&name("b"), vec![], 7).unwrap();
        assert_eq!((state.lease_heir(2), candidates(&state, 2)), (Some(4), vec![4, 2, 1]));
        let (state, _) = state.replace_store(&name("b"), vec![], 8).unwrap();
        assert_eq!((state.lease_heir(2), state.lease_heir(4)), (Some(5), Some(5)));
        assert_eq!(state.removed_slots(), [2, 4]);
        assert!(state.is_removed_slot(4) && !state.is_removed_slot(5));
    }
}
