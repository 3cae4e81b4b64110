//! The stores that a lease concerns (R12).
//!
//! A lease has one home. An id that a shard generated has the home's slot in its low bits; an id that a client chose
//! belongs to the default store. An id does not tell which of the two kinds it is, so a lookup has at most two
//! candidates.

use kindred_partition_config::ids::{LeaseId, SLOT_BITS, Slot};

use crate::store::{Member, StoreIx, StoreKind};

/// The slot in the low bits of an id; meaningful only if a shard generated the id.
#[must_use]
pub fn slot_of(id: LeaseId) -> Option<Slot> {
    let low = id.get() & ((1 << SLOT_BITS) - 1);
    u16::try_from(low).ok().and_then(Slot::new)
}

/// The home of leases with ids that clients chose: the default store, unless that is a stock etcd and there is a shard
/// (homes are shards if there are any).
#[must_use]
pub fn default_home(members: &[Member], default: StoreIx) -> StoreIx {
    let is_shard = |member: &&Member| member.kind == StoreKind::Shard;
    if members.iter().filter(is_shard).any(|member| member.index == default) {
        return default;
    }
    members.iter().find(is_shard).map_or(default, |member| member.index)
}

/// The store that grants a lease. For a chosen id it is fixed; for a generated one a reachable store is preferred, so
/// that a dead default store does not stop grants.
#[must_use]
pub fn grant_home(id: Option<LeaseId>, members: &[Member], default: StoreIx) -> StoreIx {
    let home = default_home(members, default);
    if id.is_some() || members.iter().any(|member| member.index == home && member.up) {
        return home;
    }
    members.iter().find(|member| member.up && member.kind == StoreKind::Shard).map_or(home, |m| m.index)
}

/// The possible homes of a lease, the likeliest first: the store whose slot is in the id, then the default home.
#[must_use]
pub fn home_candidates(id: LeaseId, members: &[Member], default: StoreIx) -> Vec<StoreIx> {
    let by_slot = slot_of(id).and_then(|slot| {
        members.iter().find(|m| m.kind == StoreKind::Shard && m.slot == Some(slot)).map(|m| m.index)
    });
    let fallback = default_home(members, default);
    match by_slot {
        Some(store) if store != fallback => vec![store, fallback],
        _ => vec![fallback],
    }
}

/// A candidate's answer about a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said<T, E> {
    /// It is the home.
    Home(T),
    /// It never had the lease, or no longer has it.
    Unknown,
    /// It could not be asked.
    Failed(E),
}

/// Combines the answers of all candidates: the home and its value, or `None` if none of them has the lease.
///
/// # Errors
/// The first failure, if no candidate is known to be the home, because the lease may live at the one that failed.
pub fn combine<T, E>(answers: Vec<(StoreIx, Said<T, E>)>) -> Result<Option<(StoreIx, T)>, E> {
    let mut failure = None;
    for (store, said) in answers {
        match said {
            Said::Home(value) => return Ok(Some((store, value))),
            Said::Unknown => {}
            Said::Failed(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(None), Err)
}

/// The union of several lists, sorted and without duplicates.
#[must_use]
pub fn union<T: Ord>(parts: impl IntoIterator<Item = Vec<T>>) -> Vec<T> {
    let mut all: Vec<T> = parts.into_iter().flatten().collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(index: usize, slot: u16, up: bool) -> Member {
        Member { index: StoreIx(index), slot: Slot::new(slot), kind: StoreKind::Shard, up }
    }

    fn etcd(index: usize) -> Member {
        Member { index: StoreIx(index), slot: None, kind: StoreKind::Etcd, up: true }
    }

    #[test]
    fn a_dead_default_store_does_not_stop_generated_grants() {
        let members = [member(0, 1, false), member(1, 2, true)];
        assert_eq!(grant_home(None, &members, StoreIx(0)), StoreIx(1));
        assert_eq!(grant_home(Some(LeaseId(7)), &members, StoreIx(0)), StoreIx(0));
        let members = [member(0, 1, true), member(1, 2, true)];
        assert_eq!(grant_home(None, &members, StoreIx(0)), StoreIx(0));
        let members = [member(0, 1, false), etcd(1)];
        assert_eq!(grant_home(None, &members, StoreIx(0)), StoreIx(0), "an etcd is no home beside shards");
    }

    #[test]
    fn homes_are_shards_when_there_is_one() {
        assert_eq!(default_home(&[etcd(0), member(1, 3, true)], StoreIx(0)), StoreIx(1));
        assert_eq!(default_home(&[etcd(0)], StoreIx(0)), StoreIx(0));
        assert_eq!(grant_home(None, &[etcd(0)], StoreIx(0)), StoreIx(0));
    }

    #[test]
    fn candidates_are_the_slots_store_and_the_default() {
        let members = [member(0, 1, true), member(1, 2, true), member(2, 1023, true)];
        let id = |slot: i64| LeaseId((77 << 10) | slot);
        for (id, expected) in [
            (id(1), vec![0]),
            (id(2), vec![1, 0]),
            (id(1023), vec![2, 0]),
            (id(5), vec![0]),
            (LeaseId(-1), vec![2, 0]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(StoreIx).collect();
            assert_eq!(home_candidates(id, &members, StoreIx(0)), expected, "{id}");
        }
    }

    #[test]
    fn unknown_everywhere_is_not_found_but_a_failure_is_not() {
        type S = Said<u8, &'static str>;
        let (a, b) = (StoreIx(0), StoreIx(1));
        assert_eq!(combine(vec![(a, S::Unknown), (b, S::Unknown)]), Ok(None));
        assert_eq!(combine(vec![(a, S::Failed("down")), (b, S::Unknown)]), Err("down"));
        assert_eq!(combine(vec![(a, S::Failed("down")), (b, S::Home(3))]), Ok(Some((b, 3))));
    }

    #[test]
    fn unions_are_ordered_and_unique() {
        assert_eq!(union([vec![3, 1], vec![2, 3]]), vec![1, 2, 3]);
    }
}
