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
use kindred_partition_config::kind::KindPrefix;
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

/// Places a watch; with the Kinds on several stores whose revisions it shows.
///
/// # Errors
/// When its keys join a stock etcd with another store: an etcd cannot be raised to another store's revision.
pub fn place(
    key: &[u8],
    range_end: &[u8],
    routes: &Routes,
    stores: &Stores,
) -> Result<(Placed, Vec<KindPrefix>), Refusal> {
    let fan_out = plan_watch_parts(key, range_end, routes)?;
    let (needed, spread) = (fan_out.stores(), fan_out.spread);
    if let [store] = needed.as_slice()
        && (range_end.is_empty() || !stores.get(*store).is_shard())
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

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kindred_partition_config::key::Key;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: crate::config::Args,
    }

    const CONFIG: &str = "default: s1\nstores:\n\
        - {name: s1, slot: 1, endpoints: ['127.0.0.1:1']}\n- {name: s2, slot: 2, endpoints: ['127.0.0.1:1']}\n\
        - {name: s3, type: etcd, endpoints: ['127.0.0.1:1']}\npartitions:\n\
        - {metadata: {name: a}, resource: pods, rangeEnd: m, isRangeEndValid: true, serviceGroupId: s1}\n\
        - {metadata: {name: b}, resource: pods, rangeStart: m, isRangeStartValid: true, serviceGroupId: s2}\n\
        - {metadata: {name: c}, resource: secrets, serviceGroupId: s3}\n";

    fn span(start: &str, end: &str) -> KeyRange {
        KeyRange::Span { start: start.into(), end: Some(Key::from(end)) }
    }

    #[tokio::test]
    async fn watches_of_a_kind_share_what_their_stores_hold_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, CONFIG).unwrap();
        let flags = ["x", "--config", file.to_str().unwrap()];
        let settings = Cli::parse_from(flags).args.settings().unwrap();
        let connector = kindred_transport::Connector::default();
        let store = |(at, spec)| crate::stores::Store::new(StoreIx(at), spec, &connector).unwrap().into();
        let stores =
            Stores::new(settings.stores.into_iter().enumerate().map(store).collect(), settings.default);
        let placed = |key: &str, end: &str| {
            place(key.as_bytes(), end.as_bytes(), &settings.routes, &stores).map(|(placed, _)| placed)
        };
        let (first, second) = (StoreIx(0), StoreIx(1));
        let low = (first, vec![span("/registry/pods/", "/registry/pods/m")]);
        let high = (second, vec![span("/registry/pods/m", "/registry/pods0")]);
        let both = Placed::Feed(FeedKey::new(vec![high.clone(), low.clone()]));
        assert_eq!(placed("/registry/pods/", "/registry/pods0"), Ok(both.clone()));
        assert_eq!(placed("/registry/pods/l", "/registry/pods/n"), Ok(both));
        assert_eq!(
            placed("/registry/pods/z/", "/registry/pods/z0"),
            Ok(Placed::Feed(FeedKey::new(vec![high])))
        );
        assert_eq!(placed("/registry/pods/a/1", ""), Ok(Placed::Store(first)), "one key");
        let exact = FeedKey::new(vec![(first, vec![span("/registry/nodes/", "/registry/nodes0")])]);
        assert_eq!(
            placed("/registry/nodes/", "/registry/nodes0"),
            Ok(Placed::Feed(exact)),
            "no partition of its own"
        );
        assert_eq!(
            placed("/registry/secrets/", "/registry/secrets0"),
            Ok(Placed::Store(StoreIx(2))),
            "a stock etcd"
        );
        assert!(placed("\0", "\0").is_err(), "an etcd and other stores");
    }

    #[test]
    fn ranges_in_etcds_convention() {
        let all = KeyRange::everything();
        let key = FeedKey::new(vec![(StoreIx(0), vec![all, KeyRange::Single("k".into())])]);
        let ranges: Vec<_> = key.ranges(0).into_iter().map(|range| (range.key, range.range_end)).collect();
        assert_eq!(ranges, [("\0".into(), "\0".into()), ("k".into(), bytes::Bytes::new())]);
        assert!(key.ranges(1).is_empty());
    }
}
