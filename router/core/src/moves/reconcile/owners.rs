//! Determines who owns which keys.

use std::collections::BTreeSet;

use kindred_partition_config::{
    ids::Epoch,
    key::{Key, KeyRange},
    kind::KindPrefix,
    map::{Partition, Placement, StoreIdx},
    ring::{Bucket, BucketSet},
    state::ClusterState,
    unit::{Unit, UnitBuckets},
};

use super::{Held, HeldState, Report};

/// A set of keys for which map and records agree within themselves, so that it has one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    pub unit: Unit,
    pub kind: Option<KindPrefix>,
    /// The owner by the map, and the generation of the map since which it is.
    pub by_map: (StoreIdx, Epoch),
    /// The owner; `None` if it cannot be determined.
    pub owner: Option<StoreIdx>,
    /// The highest generation of a change of ownership that a shard knows; [`Epoch::NONE`] if it knows none.
    pub said: Epoch,
    /// Whether the owner holds the keys but does not serve them, because it does not know that it owns them.
    pub hidden: bool,
    /// Whether the owner's own record says that it owns the keys, even if it is giving them away.
    pub claimed: bool,
}

impl Cell {
    /// The generation of the map since which the owner owns the keys.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.said.max(self.by_map.1)
    }

    /// Whether the map has the right owner.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.owner == Some(self.by_map.0)
    }
}

/// All keys of which some shard has a record, in cells with one owner each.
#[must_use]
pub fn cells(state: &ClusterState, reports: &[Report]) -> Vec<Cell> {
    let mut found: Vec<Cell> = Vec::new();
    for range in ranges(state, reports) {
        let held = |held: &&Held| held.unit.range.overlaps(&range);
        let views: Vec<(StoreIdx, Vec<&Held>)> = reports
            .iter()
            .map(|report| (report.store, report.records.iter().filter(held).collect()))
            .collect();
        if views.iter().all(|(_, records)| records.is_empty()) {
            continue;
        }
        let partition = state.map.lookup(range.start());
        let kind = partition.kind.clone().or_else(|| kind_of(state, &range));
        for (buckets, sample) in atoms(partition, kind.as_ref(), &views) {
            let deciding = |records: &[&'_ Held]| {
                let decides = |held: &&&Held| has_bucket(&held.unit, sample);
                records.iter().rev().find(decides).map(|held| (*held).clone())
            };
            let views: Vec<_> = views.iter().map(|(store, records)| (*store, deciding(records))).collect();
            let by_map = (owner_by_map(partition, sample), partition.epoch);
            let (owner, said) = owner(by_map, &views);
            let owner = owner.or_else(|| heir(state, &views));
            let at = |store| views.iter().find(|(of, _)| *of == store).and_then(|(_, held)| held.as_ref());
            let of_owner = owner.and_then(at).map(|held| held.state.is_owner());
            let (hidden, claimed) = (of_owner == Some(false), of_owner == Some(true));
            let unit = Unit { range: range.clone(), buckets };
            join(&mut found, Cell { unit, kind: kind.clone(), by_map, owner, said, hidden, claimed });
        }
    }
    found
}

/// Appends a cell, or extends the last one if it continues there.
fn join(found: &mut Vec<Cell>, next: Cell) {
    if let Some(last) = found.last_mut() {
        let whole = Cell { unit: last.unit.clone(), ..next.clone() };
        let buckets = last.unit.buckets == next.unit.buckets;
        let pseudo =
            |cell: &Cell| cell.kind.as_ref().is_some_and(|kind| kind.stem() == &**cell.unit.range.start());
        if let (KeyRange::Span { end: Some(end), .. }, KeyRange::Span { end: behind, .. }) =
            (&last.unit.range, &next.unit.range)
            && end == next.unit.range.start()
            && buckets
            && whole == *last
            && !pseudo(last)
        {
            let start = last.unit.range.start().clone();
            last.unit.range = KeyRange::Span { start, end: behind.clone() };
            return;
        }
    }
    found.push(next);
}

/// The key space, cut wherever a partition or a record begins or ends.
fn ranges(state: &ClusterState, reports: &[Report]) -> Vec<KeyRange> {
    let mut points: BTreeSet<Key> = BTreeSet::new();
    let mut add = |range: &KeyRange| {
        points.insert(range.start().clone());
        if let KeyRange::Span { end: Some(end), .. } = range {
            points.insert(end.clone());
        }
    };
    state.map.partitions().iter().for_each(|partition| add(&partition.range));
    reports.iter().flat_map(|report| &report.records).for_each(|held| add(&held.unit.range));
    let points: Vec<_> = points.into_iter().collect();
    let ends = points.iter().skip(1).cloned().map(Some).chain([None]);
    points.iter().zip(ends).map(|(start, end)| KeyRange::Span { start: start.clone(), end }).collect()
}

/// The Kind of a range for which the map has none, if all keys of the range belong to one Kind.
fn kind_of(state: &ClusterState, range: &KeyRange) -> Option<KindPrefix> {
    let kind = state.scheme().kind_of(range.start())?;
    let pseudo = KeyRange::Span {
        start: Key::copy_from(kind.stem()),
        end: Some(Key::copy_from(kind.stem()).successor()),
    };
    let within = [kind.range(), pseudo].iter().any(|area| area.intersection(range) == *range);
    within.then_some(kind)
}

/// Splits the buckets of a range into sets that the map and all records treat alike, each with a sample bucket. One set
/// of all keys if nothing distinguishes buckets.
fn atoms(
    partition: &Partition,
    kind: Option<&KindPrefix>,
    views: &[(StoreIdx, Vec<&Held>)],
) -> Vec<(Option<UnitBuckets>, Option<Bucket>)> {
    let of_records =
        || views.iter().flat_map(|(_, records)| records.iter().filter_map(|held| held.unit.buckets));
    let table = match &partition.placement {
        Placement::Ring(table) => Some(table),
        Placement::Single(_) => None,
    };
    let prefix_len = of_records().next().map(|buckets| buckets.prefix_len);
    let Some(prefix_len) = prefix_len.or_else(|| table.and(kind).map(|kind| kind.as_key().len())) else {
        return vec![(None, None)];
    };
    let mut sets: Vec<BucketSet> = of_records().map(|buckets| buckets.set).collect();
    if let Some(table) = table {
        sets.extend(table.stores().into_iter().map(|store| table.of(store)));
    }
    let mut atoms: Vec<BucketSet> = vec![BucketSet::ALL];
    for set in sets {
        let cut = |atom: &BucketSet| [*atom & set, *atom - set];
        atoms = atoms.iter().flat_map(cut).filter(|atom| !atom.is_empty()).collect();
    }
    atoms
        .into_iter()
        .map(|set| {
            let buckets = (set != BucketSet::ALL).then_some(UnitBuckets { prefix_len, set });
            (buckets, set.iter().next())
        })
        .collect()
}

fn has_bucket(unit: &Unit, sample: Option<Bucket>) -> bool {
    match (&unit.buckets, sample) {
        (None, _) => true,
        (Some(buckets), Some(sample)) => buckets.set.contains(sample),
        (Some(_), None) => false,
    }
}

fn owner_by_map(partition: &Partition, sample: Option<Bucket>) -> StoreIdx {
    match &partition.placement {
        Placement::Single(store) => *store,
        Placement::Ring(table) => table.owner(sample.unwrap_or(Bucket(0))),
    }
}

/// The owner of keys that were lost with their store: no other store has any of them, and exactly one store replaces a
/// lost one.
fn heir(state: &ClusterState, views: &[(StoreIdx, Option<Held>)]) -> Option<StoreIdx> {
    let nothing = |held: &Option<Held>| held.as_ref().is_none_or(|held| held.state == HeldState::Gone);
    if !views.iter().all(|(_, held)| nothing(held)) {
        return None;
    }
    let in_place = |store: StoreIdx| {
        state.stores.get(usize::from(store.0)).is_some_and(|store| store.opens_at.is_some())
    };
    let mut heirs = views.iter().filter(|(store, held)| held.is_none() && in_place(*store));
    match (heirs.next(), heirs.next()) {
        (Some((heir, _)), None) => Some(*heir),
        _ => None,
    }
}

/// The owner of the keys, and the highest generation of a change of ownership that shards know.
fn owner(by_map: (StoreIdx, Epoch), views: &[(StoreIdx, Option<Held>)]) -> (Option<StoreIdx>, Epoch) {
    let held = || views.iter().filter_map(|(store, held)| Some((*store, held.as_ref()?)));
    let said = held().map(|(_, held)| held.epoch).max().unwrap_or(Epoch::NONE);
    let of_decision = || held().filter(|(_, held)| held.epoch == said);
    let knows = views.iter().any(|(store, held)| *store == by_map.0 && held.is_some());
    // A shard that gives keys away by a later decision does not keep them as an owner, and the target has a record. A
    // store that replaces a lost one has no record, and the map may have been wrong about what the lost one owned.
    let kept = !knows && of_decision().any(|(_, held)| held.state.is_owner());
    if said == Epoch::NONE || (by_map.1 > said && !kept) {
        // The map was decided later than all that shards have heard of, or the keys never changed hands.
        return (Some(by_map.0), said);
    }
    let mut owners = of_decision().filter(|(_, held)| held.state.is_owner());
    match (owners.next(), owners.next()) {
        (Some((owner, _)), None) => (Some(owner), said),
        (Some(_), Some(_)) => (None, said),
        (None, _) => {
            // One shard has released the keys and the other has not opened them yet; the sealed copy is complete.
            let moves: Vec<_> = of_decision().map(|(_, held)| held.id).collect();
            let sealed = |held: &Held| held.state == HeldState::Following { sealed: true };
            let mut ready = held().filter(|(_, held)| sealed(held) && moves.contains(&held.id));
            let only = match (ready.next(), ready.next()) {
                (Some((owner, _)), None) => Some(owner),
                _ => None,
            };
            // The map is the one of that decision.
            let only = only.or((by_map.1 == said).then_some(by_map.0));
            // Only the shard that gave the keys away has them, and it has all of them: no other has ever served them.
            let with_data = |held: &Held| !matches!(held.state, HeldState::Gone);
            let mut copies = held().filter(|(_, held)| with_data(held));
            let alone = match (copies.next(), copies.next()) {
                (Some((of, held)), None) if held.epoch == said && held.through.is_some() => Some(of),
                _ => None,
            };
            (only.or(alone), said)
        }
    }
}
