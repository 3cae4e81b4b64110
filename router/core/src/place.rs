//! Which feed a watch belongs to.
//!
//! Watches of one Kind that need the same stores share one feed over all that those stores hold of the Kind, whatever
//! part of it each wants: an apiserver's watch of all pods and a watch of one namespace cost a store one stream. A watch
//! that needs fewer stores gets a feed without the others, so that none of those can delay it. What belongs to no Kind
//! with partitions of its own, or to several, has a feed of exactly its range.
//!
//! A watch of one key stays on a stream of its own: its store finds the key's events by itself, while the feed of its
//! Kind may carry a hundred thousand others a second.

use crate::plan::{Placement, Refusal, plan_watch_parts};
use crate::store::StoreIx;
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;

use crate::routes::Routes;

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
    pub fn ranges(&self, at: usize) -> &[KeyRange] {
        self.parts.get(at).map_or(&[], |(_, ranges)| ranges)
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

/// Places a watch; with the Kinds on several stores whose revisions it shows.
///
/// # Errors
/// When its keys join a stock etcd with another store: an etcd cannot be raised to another store's revision.
pub fn place(key: &[u8], range_end: &[u8], routes: &Routes) -> Result<(Placed, Vec<KindPrefix>), Refusal> {
    let fan_out = plan_watch_parts(key, range_end, routes)?;
    let (needed, spread) = (fan_out.stores(), fan_out.spread);
    if let [store] = needed.as_slice()
        && (range_end.is_empty() || routes.is_etcd(*store))
    {
        return Ok((Placed::Store(*store), spread));
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
    Ok((Placed::Feed(FeedKey::new(needed.into_iter().map(of).collect())), spread))
}

/// Whether every key of `part` lies in `whole`, a span with an end.
fn covers(whole: &KeyRange, part: &KeyRange) -> bool {
    let (KeyRange::Span { end: Some(end), .. }, KeyRange::Span { end: Some(part_end), .. }) = (whole, part)
    else {
        return false;
    };
    whole.contains(part.start()) && part_end <= end
}
