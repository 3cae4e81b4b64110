//! Which feed a watch belongs to.
//!
//! Watches of one Kind that need the same stores share one feed over all that those stores hold of the Kind, whatever
//! part of it each wants: an apiserver's watch of all pods and a watch of one namespace cost a store one stream. A watch
//! that needs fewer stores gets a feed without the others, so that none of those can delay it. What belongs to no Kind
//! with partitions of its own, or to several, has a feed of exactly its range.
//!
//! A watch of one key stays on a stream of its own: its store finds the key's events by itself, while the feed of its
//! Kind may carry a hundred thousand others a second.

use kindred_partition_config::key::KeyRange;
use kindred_proto::shard_v1 as pb;
use kindred_router_core::plan::{Placement, Refusal, plan_watch_parts};
use kindred_router_core::store::StoreIx;

use crate::routes::Routes;
use crate::stores::Stores;

/// What a feed is of: each of its stores with the ranges that it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FeedKey {
    parts: Vec<(StoreIx, Vec<KeyRange>)>,
}

impl FeedKey {
    /// The feed of these parts, a part for each store.
    #[must_use]
    pub fn new(mut parts: Vec<(StoreIx, Vec<KeyRange>)>) -> Self {
        parts.sort_by_key(|(store, _)| *store);
        Self { parts }
    }

    /// The stores, in the order of the feed's sources.
    pub fn stores(&self) -> impl ExactSizeIterator<Item = StoreIx> {
        self.parts.iter().map(|(store, _)| *store)
    }

    /// What the source at this place is asked for.
    #[must_use]
    pub fn ranges(&self, at: usize) -> Vec<pb::KeyRange> {
        self.parts.get(at).map_or_else(Vec::new, |(_, ranges)| ranges.iter().map(wire).collect())
    }
}

/// Where the events of a watch come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// A watch on this store.
    Store(StoreIx),
    /// A feed.
    Feed(FeedKey),
}

/// Places a watch.
///
/// # Errors
/// When its keys join a stock etcd with another store: an etcd cannot be raised to another store's revision.
pub fn place(key: &[u8], range_end: &[u8], routes: &Routes, stores: &Stores) -> Result<Placed, Refusal> {
    let needed = plan_watch_parts(key, range_end, routes)?.stores();
    if let [store] = needed.as_slice()
        && (range_end.is_empty() || !stores.get(*store).is_shard())
    {
        return Ok(Placed::Store(*store));
    }
    let range = KeyRange::from_wire(key.to_vec().into(), range_end.to_vec().into());
    let kind = routes.map().lookup(range.start()).kind.as_ref().map(|kind| kind.range());
    let whole = match kind {
        Some(kind) if covers(&kind, &range) => kind,
        _ => range,
    };
    let parts = routes.parts_of(&whole);
    let of = |store: StoreIx| {
        let ranges = parts.iter().filter(|part| part.stores.contains(&store));
        (store, ranges.map(|part| part.range.clone()).collect())
    };
    Ok(Placed::Feed(FeedKey::new(needed.into_iter().map(of).collect())))
}

/// Whether every key of `part` lies in `whole`, a span with an end.
fn covers(whole: &KeyRange, part: &KeyRange) -> bool {
    let (KeyRange::Span { end: Some(end), .. }, KeyRange::Span { end: Some(part_end), .. }) = (whole, part)
    else {
        return false;
    };
    whole.contains(part.start()) && part_end <= end
}

/// In etcd's convention. A start of no bytes is all keys, which etcd writes as a zero byte.
fn wire(range: &KeyRange) -> pb::KeyRange {
    let zero = || bytes::Bytes::from_static(&[0]);
    let some = |key: &bytes::Bytes| if key.is_empty() { zero() } else { key.clone() };
    match range {
        KeyRange::Single(key) => pb::KeyRange { key: some(&key.0), range_end: bytes::Bytes::new() },
        KeyRange::Span { start, end } => pb::KeyRange {
            key: some(&start.0),
            range_end: end.as_ref().map_or_else(zero, |end| end.0.clone()),
        },
    }
}
