//! Durability settings: each Kind's mode, and quotas of Kinds.

use std::{collections::BTreeMap, time::Duration};

use kindred_partition_config::{
    duration::parse_duration,
    errors::Errors,
    kind::{KindPrefix, KindScheme},
    model::Durability,
};

use super::{FieldError, Options, Revisions, in_field, list, wrong};

/// Kinds that may be empty after a restart, since their writers keep writing them again.
const EPHEMERAL: [&str; 2] = ["leases", "events"];
/// The default of `--flush-interval`.
const FLUSH_INTERVAL: Duration = Duration::from_millis(5);
/// The maximum of `--flush-interval`, which bounds what a crash may lose of mode `buffered`.
const FLUSH_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// The default of `--checkpoint-bytes`.
const CHECKPOINT_BYTES: u64 = 256 << 20;
/// The minimum of `--checkpoint-bytes`; with fewer, checkpoints would be written all the time.
const CHECKPOINT_BYTES_MIN: u64 = 1 << 20;

/// Room for further log records and for a small checkpoint. A larger checkpoint takes the room of the one before.
const RESERVE_BYTES: u64 = 32 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurabilitySettings {
    /// The mode of every Kind that is not in `of`.
    pub default: Durability,
    pub of: BTreeMap<KindPrefix, Durability>,
    /// See `--flush-interval`.
    pub flush_interval: Duration,
    /// See `--checkpoint-bytes`.
    pub checkpoint_bytes: u64,
    /// See `--segment-bytes`.
    pub segment_bytes: Option<u64>,
    /// See `--accept-data-loss`.
    pub accept_data_loss: bool,
    /// Bytes reserved for the way out of a full disk.
    pub reserve_bytes: u64,
    /// Bytes that all versions of a Kind may take.
    pub quotas: BTreeMap<KindPrefix, u64>,
}

pub(super) fn check(
    options: &Options,
    kinds: &KindScheme,
    revisions: Revisions,
    errors: &mut Errors<FieldError>,
) -> DurabilitySettings {
    let kept = options.data_dir.is_some();
    let dense = revisions == Revisions::Dense;
    let chosen = options.durability.as_deref().map(mode).transpose();
    let chosen = errors.or(in_field("durability", chosen), None);
    let default = match (chosen, kept, dense) {
        (Some(mode), ..) => mode,
        (None, false, _) => Durability::None,
        (None, true, _) => Durability::Fsync,
    };
    if default != Durability::None && !kept {
        errors.push(wrong("durability", "needs --data-dir, the directory to keep the data in"));
    }
    if default == Durability::Buffered && dense {
        errors.push(wrong(
            "durability",
            "dense revisions go with none or fsync: a number that was lost would be given again",
        ));
    }
    let mut of = BTreeMap::new();
    if chosen.is_none() && kept && !dense {
        let ephemeral = EPHEMERAL.iter().filter_map(|name| kinds.resolve(name).ok());
        of.extend(ephemeral.map(|kind| (kind, Durability::None)));
    }
    let named = each("durability-of", options.durability_of.as_deref(), kinds, mode, errors);
    if !named.is_empty() && dense {
        errors.push(wrong(
            "durability-of",
            "all keys of a shard with dense revisions have one mode; see --durability",
        ));
    }
    if !kept && named.values().any(|mode| *mode != Durability::None) {
        errors.push(wrong("durability-of", "needs --data-dir, the directory to keep the data in"));
    }
    of.extend(named);
    let flush = options.flush_interval.as_deref().map_or(Ok(FLUSH_INTERVAL), parse_duration);
    let flush_interval = errors.or(in_field("flush-interval", flush), FLUSH_INTERVAL);
    if flush_interval > FLUSH_INTERVAL_MAX {
        errors.push(wrong(
            "flush-interval",
            "write at most 1s: so much of what was acknowledged can be lost in a crash",
        ));
    }
    let checkpoint_bytes = options.checkpoint_bytes.unwrap_or(CHECKPOINT_BYTES);
    if checkpoint_bytes < CHECKPOINT_BYTES_MIN {
        errors.push(wrong("checkpoint-bytes", format!("write {CHECKPOINT_BYTES_MIN} or more")));
    }
    if options.accept_data_loss && !kept {
        errors.push(wrong("accept-data-loss", "is about the data in --data-dir, which is missing"));
    }
    let quotas = each("quota", options.quota.as_deref(), kinds, bytes, errors);
    DurabilitySettings {
        default,
        of,
        flush_interval,
        checkpoint_bytes,
        segment_bytes: options.segment_bytes,
        accept_data_loss: options.accept_data_loss,
        reserve_bytes: RESERVE_BYTES,
        quotas,
    }
}

/// Parses `KIND=VALUE,…`.
fn each<T>(
    field: &str,
    text: Option<&str>,
    kinds: &KindScheme,
    value: impl Fn(&str) -> Result<T, String>,
    errors: &mut Errors<FieldError>,
) -> BTreeMap<KindPrefix, T> {
    let mut values = BTreeMap::new();
    for part in text.map(list).into_iter().flatten() {
        let Some((name, text)) = part.split_once('=') else {
            errors.push(wrong(field, format!("{part:?} has no {:?}; write KIND=VALUE", '=')));
            continue;
        };
        match (kinds.resolve(name.trim()), value(text.trim())) {
            (Err(problem), _) => errors.push(wrong(field, problem)),
            (_, Err(problem)) => errors.push(wrong(field, format!("{name}: {problem}"))),
            (Ok(kind), Ok(value)) => {
                if values.insert(kind, value).is_some() {
                    errors.push(wrong(field, format!("{name} stands there twice")));
                }
            }
        }
    }
    values
}

fn mode(text: &str) -> Result<Durability, String> {
    match text {
        "none" => Ok(Durability::None),
        "buffered" => Ok(Durability::Buffered),
        "fsync" => Ok(Durability::Fsync),
        other => Err(format!("{other:?} is neither none, buffered nor fsync")),
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let parsed = text.parse().ok().filter(|bytes| *bytes > 0);
    parsed.ok_or_else(|| format!("{text:?} is not a number of bytes, 1 or more"))
}

#[must_use]
pub fn mode_name(mode: Durability) -> &'static str {
    match mode {
        Durability::None => "none",
        Durability::Buffered => "buffered",
        Durability::Fsync => "fsync",
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ConfigErrors, *};
    use crate::config::{Args, Settings};

    fn resolve(text: &str) -> Result<DurabilitySettings, ConfigErrors> {
        let options: Options = serde_saphyr::from_str(text).unwrap();
        Settings::resolve(Args { options, ..Args::default() }).map(|settings| settings.durability)
    }

    fn modes(settings: &DurabilitySettings) -> Vec<(String, Durability)> {
        settings.of.iter().map(|(kind, mode)| (kind.to_string(), *mode)).collect()
    }

    fn refused(text: &str) -> Vec<String> {
        let ConfigErrors(errors) = resolve(text).unwrap_err();
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn defaults_follow_the_data_directory_and_the_revisions() {
        let memory = resolve("{}").unwrap();
        assert_eq!((memory.default, memory.of.len()), (Durability::None, 0));
        let kept = resolve("{data-dir: /d}").unwrap();
        assert_eq!(kept.default, Durability::Fsync, "safe unless something else is asked for");
        let none = Durability::None;
        assert_eq!(
            modes(&kept),
            [("/registry/events/".to_owned(), none), ("/registry/leases/".to_owned(), none)]
        );
        assert_eq!((kept.flush_interval, kept.checkpoint_bytes), (FLUSH_INTERVAL, CHECKPOINT_BYTES));
        let dense = resolve("{data-dir: /d, revisions: dense}").unwrap();
        assert_eq!((dense.default, dense.of.len()), (Durability::Fsync, 0));
        assert_eq!(resolve("{data-dir: /d, revisions: dense, durability: none}").unwrap().default, none);
    }

    #[test]
    fn what_is_said_of_a_kind_wins() {
        let text = "{data-dir: /d, etcd-prefix: /k, durability-of: 'leases=buffered, secrets=fsync,foos.example.com=none'}";
        let settings = resolve(text).unwrap();
        let expected = [
            ("/k/events/", Durability::None),
            ("/k/example.com/foos/", Durability::None),
            ("/k/leases/", Durability::Buffered),
            ("/k/secrets/", Durability::Fsync),
        ];
        assert_eq!(modes(&settings), expected.map(|(kind, mode)| (kind.to_owned(), mode)));
        // A mode that is chosen for all Kinds applies to all.
        assert!(modes(&resolve("{data-dir: /d, durability: fsync}").unwrap()).is_empty());
        let quotas = resolve("{quota: 'events=1000,pods=5'}").unwrap().quotas;
        assert_eq!(quotas.values().copied().collect::<Vec<_>>(), [1000, 5]);
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for (text, fields) in [
            ("{durability: fsync}", vec!["durability"]),
            ("{durability: always, data-dir: /d}", vec!["durability"]),
            ("{durability-of: pods=buffered}", vec!["durability-of"]),
            ("{durability-of: 'pods,pod=fsync,pods=x', data-dir: /d}", vec!["durability-of"; 3]),
            ("{durability-of: 'pods=none,pods=fsync', data-dir: /d}", vec!["durability-of"]),
            ("{durability: buffered, data-dir: /d, revisions: dense}", vec!["durability"]),
            ("{durability-of: pods=none, data-dir: /d, revisions: dense}", vec!["durability-of"]),
            (
                "{flush-interval: 2s, checkpoint-bytes: 5, data-dir: /d}",
                vec!["flush-interval", "checkpoint-bytes"],
            ),
            ("{accept-data-loss: true}", vec!["accept-data-loss"]),
            ("{quota: 'pods=0,nodes=1k'}", vec!["quota", "quota"]),
        ] {
            assert_eq!(refused(text), fields, "{text}");
        }
        assert!(resolve("{durability-of: pods=none}").is_ok());
    }
}
