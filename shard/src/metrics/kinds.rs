//! The size of each Kind, as of the last second.

use std::collections::BTreeMap;

use kindred_partition_config::kind::{ALL_ELSE, KindScheme};
use kindred_proto::shard_v1::KindLoad;
use kindred_transport::metrics::exposition::{Kind, Metric};
use parking_lot::Mutex;

use super::Label;

const KEYS: Metric =
    Metric { name: "kindred_shard_kind_keys", kind: Kind::Gauge, help: "Live keys, by Kind." };
const LIVE_BYTES: Metric = Metric {
    name: "kindred_shard_kind_live_bytes",
    kind: Kind::Gauge,
    help: "Bytes of the versions current now, by Kind.",
};
const HISTORY_BYTES: Metric = Metric {
    name: "kindred_shard_kind_history_bytes",
    kind: Kind::Gauge,
    help: "Bytes of the other versions that are kept, by Kind.",
};
const QUOTA_BYTES: Metric = Metric {
    name: "kindred_shard_kind_quota_bytes",
    kind: Kind::Gauge,
    help: "Bytes above which no write to the Kind is taken, for the Kinds that have such a limit.",
};
const WRITTEN_BYTES: Metric = Metric {
    name: "kindred_shard_kind_written_bytes_total",
    kind: Kind::Counter,
    help: "Bytes written by clients since the start, by Kind.",
};

/// All metrics of this module.
pub const METRICS: [Metric; 5] = [KEYS, LIVE_BYTES, HISTORY_BYTES, QUOTA_BYTES, WRITTEN_BYTES];

/// The Kinds with series of their own, those with the most bytes.
const KINDS_MAX: usize = 512;

/// By the labels of the stores.
static KINDS: Mutex<BTreeMap<Label, Vec<(String, KindLoad)>>> = Mutex::new(BTreeMap::new());

/// Notes the sizes of all Kinds of a store.
pub fn set(label: &Label, mut kinds: Vec<KindLoad>) {
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.held_bytes));
    kinds.truncate(KINDS_MAX);
    let mut stores = KINDS.lock();
    let known = stores.entry(label.clone()).or_default();
    let named = kinds.into_iter().map(|load| {
        // The name of a Kind does not change, and most of them are where they were.
        let name = known.iter().find(|(_, old)| old.prefix == load.prefix).map(|(name, _)| name.clone());
        (name.unwrap_or_else(|| name_of(&load.prefix)), load)
    });
    *known = named.collect();
}

/// The Kind's name. A shard does not know the prefix of the keys, which clusters rarely change.
fn name_of(prefix: &[u8]) -> String {
    let scheme = KindScheme::default();
    match scheme.kind_prefix(prefix) {
        Some(kind) => scheme.name_of(&kind),
        None if prefix.is_empty() => ALL_ELSE.to_owned(),
        None => String::from_utf8_lossy(prefix).into_owned(),
    }
}

pub(super) fn render(out: &mut String, label: &Label) {
    let stores = KINDS.lock();
    let kinds = stores.get(label).map(Vec::as_slice).unwrap_or_default();
    for metric in METRICS {
        metric.begin(out);
        for (name, load) in kinds {
            let number = match metric.name {
                name if name == KEYS.name => load.keys,
                name if name == LIVE_BYTES.name => load.live_bytes,
                name if name == HISTORY_BYTES.name => load.bytes.saturating_sub(load.live_bytes),
                name if name == QUOTA_BYTES.name && load.quota_bytes == 0 => continue,
                name if name == QUOTA_BYTES.name => load.quota_bytes,
                _ => load.written_bytes,
            };
            metric.sample(out, &[("kind", name)], number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_its_name_and_sizes() {
        let load = |prefix: &'static str, held_bytes| KindLoad {
            prefix: prefix.into(),
            keys: 3,
            live_bytes: 10,
            bytes: 25,
            held_bytes,
            ..KindLoad::default()
        };
        let (alone, other) = (Label::default(), Label::of("b"));
        set(&alone, vec![load("", 1), load("/registry/leases/", 30), load("/other/prefix/", 2)]);
        set(&other, vec![load("/registry/pods/", 1)]);
        let (mut out, mut of_other) = (String::new(), String::new());
        render(&mut out, &alone);
        render(&mut of_other, &other);
        assert!(of_other.contains("{kind=\"pods\"} 15") && !of_other.contains("leases"), "{of_other}");
        let history: Vec<&str> =
            out.lines().filter(|line| line.starts_with("kindred_shard_kind_history_bytes{")).collect();
        assert_eq!(
            history,
            [
                "kindred_shard_kind_history_bytes{kind=\"leases\"} 15",
                "kindred_shard_kind_history_bytes{kind=\"/other/prefix/\"} 15",
                "kindred_shard_kind_history_bytes{kind=\"<all else>\"} 15",
            ]
        );
        assert!(!out.lines().any(|line| line.starts_with("kindred_shard_kind_quota_bytes{")));
    }
}
