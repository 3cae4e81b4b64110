//! The home stores of leases (R12), also after a home has changed.
//!
//! The slot in the low bits of a generated id names the store that granted the lease. The default store grants
//! leases with ids that clients chose. A drained or lost store has an *heir*, and so may the heir: a lease lives at
//! the store that granted it or at one further down its chain of heirs. A former default store keeps its leases,
//! and the document remembers it. So every document names all possible homes of a lease, and a router that has
//! asked them all knows whether the lease exists.

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

    /// The slot of the store that keeps leases with client-chosen ids: the default store, or another shard if the
    /// default store is a stock etcd.
    #[must_use]
    pub fn lease_home(&self) -> Option<u16> {
        let default = self.store(&self.default).map(|(_, store)| store);
        let default = default.filter(|store| store.store_type == StoreType::Shard);
        let others = || self.shards(StoreState::Active).chain(self.shards(StoreState::Draining)).next();
        default.or_else(others)?.slot
    }

    /// The new document, completed with what it must remember of `before`: the home of client-chosen ids, if it
    /// changed. Stock etcds that an earlier version gave no slot get one.
    #[must_use]
    pub fn after(mut self, before: &Self) -> Self {
        self = self.with_slots();
        if let Some(home) = before.lease_home().filter(|home| self.lease_home() != Some(*home)) {
            self.lease_homes.retain(|known| *known != home);
            self.lease_homes.push(home);
        }
        self
    }

    /// The store that inherits the leases of `of`: `heir` if that is an active shard, else the default store, else
    /// any active shard.
    pub(super) fn heir_of_leases(&self, of: StoreIdx, heir: Option<&StoreName>) -> Option<u16> {
        let own = self.stores.get(usize::from(of.0))?.slot?;
        let others = || self.shards(StoreState::Active).filter(move |store| store.slot != Some(own));
        let named = |name: &StoreName| others().find(|store| store.name == *name);
        heir.and_then(named).or_else(|| named(&self.default)).or_else(|| others().next())?.slot
    }

    /// A slot, its heir, the heir's heir and so on; then the former heirs of all these with their own chains.
    /// Without duplicates.
    #[must_use]
    pub fn lease_chain(&self, slot: u16) -> Vec<u16> {
        let mut chain = Vec::new();
        self.chain_on(&mut chain, slot);
        // `chain` grows during the loop.
        let mut at = 0;
        while let Some(slot) = chain.get(at) {
            let before = self.by_slot(*slot).map(|store| store.lease_heirs_before.as_slice());
            before.unwrap_or_default().iter().rev().for_each(|heir| self.chain_on(&mut chain, *heir));
            at += 1;
        }
        chain
    }

    fn chain_on(&self, chain: &mut Vec<u16>, slot: u16) {
        let mut next = Some(slot).filter(|slot| !chain.contains(slot));
        while let Some(slot) = next {
            chain.push(slot);
            let heir = self.by_slot(slot).and_then(|store| store.lease_heir);
            next = heir.filter(|heir| !chain.contains(heir));
        }
    }

    /// The store that should inherit the leases of a draining or removed store: the next active one in its chain,
    /// or else the next draining one.
    #[must_use]
    pub fn lease_heir(&self, slot: u16) -> Option<u16> {
        let chain = self.lease_chain(slot);
        let in_state = |state| {
            let is = move |slot: &&u16| self.by_slot(**slot).is_some_and(|store| store.state == state);
            chain.iter().skip(1).find(is).copied()
        };
        in_state(StoreState::Active).or_else(|| in_state(StoreState::Draining))
    }

    /// The slots of other stores whose leases may have been inherited by this one.
    #[must_use]
    pub fn lease_slots_before(&self, home: u16) -> Vec<u16> {
        let slots = self.stores.iter().filter_map(|store| store.slot).filter(|slot| *slot != home);
        slots.filter(|slot| self.lease_chain(*slot).contains(&home)).collect()
    }

    /// The slots of all stores that may be the home of a lease, the likeliest first, stock etcds last. Includes removed
    /// shards, which cannot be asked.
    #[must_use]
    pub fn lease_candidates(&self, id: LeaseId) -> Vec<u16> {
        let low = id.get() & ((1 << SLOT_BITS) - 1);
        let is_shard = |slot: &u16| self.by_slot(*slot).is_some_and(|of| of.store_type == StoreType::Shard);
        let generated = u16::try_from(low).ok().filter(is_shard);
        let former = self.lease_homes.iter().rev().copied();
        let mut candidates = Vec::new();
        for slot in generated.into_iter().chain(self.lease_home()).chain(former) {
            let mut chain = self.lease_chain(slot);
            if self.by_slot(slot).is_some_and(|store| store.state != StoreState::Active) {
                // A store that is not active has handed most of its leases to its heirs, so they come first.
                chain.rotate_left(1);
            }
            candidates.extend(chain);
        }
        // An etcd may have granted leases before there was a shard. What a shard knows of a lease counts first.
        let etcds = self.stores.iter().filter(|store| store.store_type == StoreType::Etcd);
        candidates
            .extend(etcds.filter(|store| store.state != StoreState::Removed).filter_map(|store| store.slot));
        let mut known = std::collections::BTreeSet::new();
        candidates.retain(|slot| known.insert(*slot));
        candidates
    }

    /// The slot of the stock etcd that has all keys; `None` while another store has some.
    #[must_use]
    pub fn only_etcd(&self) -> Option<u16> {
        let mut partitions = self.map.partitions().iter().map(|partition| partition.placement.single());
        let only = partitions.next()??;
        let store = self.stores.get(usize::from(only.0))?;
        let has_all = store.store_type == StoreType::Etcd && partitions.all(|at| at == Some(only));
        store.slot.filter(|_| has_all)
    }

    #[must_use]
    pub fn is_removed_slot(&self, slot: u16) -> bool {
        self.by_slot(slot).is_some_and(|store| store.state == StoreState::Removed)
    }

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

    /// Drains a store and completes its moves.
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
        // The heir is drained as well.
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
    fn f04_leases_that_went_to_an_heir_are_found_when_there_is_another() {
        let twice = |state: ClusterState| {
            let state = drained(&state, "b", "c").activate_store(&name("b")).unwrap();
            drained(&state, "b", "a")
        };
        let state = twice(three());
        assert_eq!((state.lease_heir(2), candidates(&state, 2)), (Some(1), vec![1, 3, 2]));
        assert_eq!(state.lease_slots_before(3), [2], "it may say where the lease was");
        let read = ClusterState::from_json(&state.to_json()).unwrap();
        assert_eq!(read, state);
        // The first heir hands over to a store that is not in the second heir's chain.
        let later = drained(&state, "c", "a");
        assert_eq!((later.lease_heir(3), candidates(&later, 2)), (Some(1), vec![1, 3, 2]));
        // Draining to and fro leaves no duplicates in the chain.
        let again = twice(state.activate_store(&name("b")).unwrap());
        assert_eq!((again.lease_heir(2), candidates(&again, 2)), (Some(1), vec![1, 3, 2]));
        // A lost store and its replacement stay in the chain.
        let (state, _) = state.replace_store(&name("b"), vec![], 7).unwrap();
        assert_eq!((state.lease_heir(2), candidates(&state, 2)), (Some(1), vec![4, 1, 3, 2]));
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
        // A former default store that was drained is asked through its heir.
        let next = drained(&before, "a", "b");
        assert_eq!((next.lease_home(), candidates(&next, 900)), (Some(2), vec![2, 1]));
        let etcd = state(
            "{name: a, type: etcd, endpoints: [\"http://x:1\"]}, {name: b, slot: 2}, {name: c, slot: 3}",
        );
        assert_eq!((etcd.lease_home(), candidates(&etcd, 900)), (Some(2), vec![2, 1023]));
        assert_eq!(candidates(&etcd, 1023), [2, 1023], "an etcd's ids have no slot");
        let next = drained(&etcd, "b", "c");
        assert_eq!((next.lease_home(), next.lease_heir(2)), (Some(3), Some(3)));
        assert_eq!(candidates(&next, 900), [3, 2, 1023]);
    }

    #[test]
    fn the_only_etcd_has_all_keys() {
        let stores = "{name: a, type: etcd, endpoints: [\"http://x:1\"]}, {name: b, slot: 2}";
        let with = |partitions: &str| {
            let text = format!("default: a\nstores: [{stores}]\npartitions: [{partitions}]\n");
            ClusterState::bootstrap(&parse_config(&text).unwrap()).unwrap().only_etcd()
        };
        assert_eq!(with(""), Some(1023));
        let pods = |store| format!("{{metadata: {{name: pods}}, resource: pods, serviceGroupId: {store}}}");
        assert_eq!((with(&pods("a")), with(&pods("b"))), (Some(1023), None));
        assert_eq!(three().only_etcd(), None);
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
