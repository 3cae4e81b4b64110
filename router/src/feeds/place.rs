//! The ranges of a feed in etcd's wire format.

use kindred_partition_config::key::KeyRange;
use kindred_proto::shard_v1 as pb;
use kindred_router_core::place::FeedKey;

/// The ranges to ask of the store at index `at` of the key.
#[must_use]
pub fn wire_ranges(key: &FeedKey, at: usize) -> Vec<pb::KeyRange> {
    key.ranges(at).iter().map(wire).collect()
}

/// The range in etcd's convention.
#[must_use]
pub fn wire(range: &KeyRange) -> pb::KeyRange {
    let (key, range_end) = range.to_wire();
    pb::KeyRange { key, range_end }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kindred_partition_config::key::Key;
    use kindred_router_core::place::{Placed, place};
    use kindred_router_core::store::StoreIx;

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

    #[test]
    fn watches_of_a_kind_share_what_their_stores_hold_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, CONFIG).unwrap();
        let flags = ["x", "--config", file.to_str().unwrap()];
        let settings = Cli::parse_from(flags).args.settings().unwrap();
        let placed = |key: &str, end: &str| {
            place(key.as_bytes(), end.as_bytes(), &settings.routes).map(|(placed, _)| placed)
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
        let ranges: Vec<_> =
            wire_ranges(&key, 0).into_iter().map(|range| (range.key, range.range_end)).collect();
        assert_eq!(ranges, [("\0".into(), "\0".into()), ("k".into(), bytes::Bytes::new())]);
        assert!(wire_ranges(&key, 1).is_empty());
    }
}
