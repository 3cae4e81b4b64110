//! Decides which feed a watch reads.
//!
//! Watches of one Kind that need the same stores share a feed over all that those stores hold of the Kind, whatever
//! part of it each wants: an apiserver's watch of all pods and a watch of one namespace cost a store one stream. A
//! watch that needs fewer stores gets a feed without the others, so that these cannot delay it. A range that belongs to
//! several Kinds, or to none with partitions of its own, has a feed of exactly that range.
//!
//! A watch of one key has a stream of its own: its store finds the key's events by itself, while a feed of its Kind may
//! carry a hundred thousand others per second.

use crate::plan::{Placement, Refusal, plan_watch_parts};
use crate::store::StoreIx;
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;

use crate::routes::Routes;

/// The identity of a feed: its stores, each with the ranges that are asked of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedKey {
    parts: Vec<(StoreIx, Vec<KeyRange>)>,
}

impl FeedKey {
    /// The feed of these parts, one for each store.
    #[must_use]
    pub fn new(mut parts: Vec<(StoreIx, Vec<KeyRange>)>) -> Self {
        parts.sort_by_key(|(store, _)| *store);
        Self { parts }
    }

    /// The stores in the order of the feed's sources.
    pub fn stores(&self) -> impl ExactSizeIterator<Item = StoreIx> {
        self.parts.iter().map(|(store, _)| *store)
    }

    /// The ranges asked of the source at this place.
    #[must_use]
    pub fn ranges(&self, at: usize) -> &[KeyRange] {
        self.parts.get(at).map_or(&[], |(_, ranges)| ranges)
    }
}

/// Where the events of a watch come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// A watch of its own on this store.
    Store(StoreIx),
    Feed(FeedKey),
}

/// Places a watch. Also returns the Kinds on several stores whose revisions it shows.
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

/// Whether all keys of `part` lie in `whole`; both must be spans with an end.
fn covers(whole: &KeyRange, part: &KeyRange) -> bool {
    let (KeyRange::Span { end: Some(end), .. }, KeyRange::Span { end: Some(part_end), .. }) = (whole, part)
    else {
        return false;
    };
    whole.contains(part.start()) && part_end <= end
}
