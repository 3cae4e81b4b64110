//! The serialised form of the map. Keys are escaped as in Rust's byte strings: all bytes survive and most stay
//! readable.

use serde::{Deserialize, Serialize};

use super::{Partition, PartitionMap, Placement, StoreIdx};
use crate::{
    ids::Epoch,
    key::{Key, KeyRange},
    kind::KindPrefix,
    ring::BucketTable,
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PartitionRepr {
    start: String,
    /// Absent if there is no upper bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// Exactly one of `store` and `ring` is present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<StoreIdx>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ring: Option<BucketTable>,
    epoch: Epoch,
}

impl From<PartitionMap> for Vec<PartitionRepr> {
    fn from(map: PartitionMap) -> Self {
        map.partitions
            .iter()
            .map(|partition| PartitionRepr {
                start: partition.start().to_string(),
                end: partition.end().map(ToString::to_string),
                kind: partition.kind.as_ref().map(ToString::to_string),
                store: partition.placement.single(),
                ring: match &partition.placement {
                    Placement::Single(_) => None,
                    Placement::Ring(table) => Some((**table).clone()),
                },
                epoch: partition.epoch,
            })
            .collect()
    }
}

impl TryFrom<Vec<PartitionRepr>> for PartitionMap {
    type Error = String;

    fn try_from(list: Vec<PartitionRepr>) -> Result<Self, String> {
        let partition = |repr: PartitionRepr| {
            let end = repr.end.as_deref().map(unescape).transpose()?;
            let kind = match repr.kind {
                None => None,
                Some(text) => Some(
                    KindPrefix::from_stored(unescape(&text)?)
                        .ok_or_else(|| format!("{text:?} is no Kind prefix"))?,
                ),
            };
            let range = KeyRange::Span { start: unescape(&repr.start)?, end };
            let placement = match (repr.store, repr.ring) {
                (Some(store), None) => Placement::Single(store),
                (None, Some(table)) => Placement::Ring(Box::new(table)),
                _ => return Err(format!("partition {:?} needs either a store or a ring", repr.start)),
            };
            Ok(Partition { range, kind, placement, epoch: repr.epoch })
        };
        let partitions = list.into_iter().map(partition).collect::<Result<_, String>>()?;
        Self::new(partitions).map_err(|error| error.to_string())
    }
}

/// The inverse of `escape_ascii`.
pub(crate) fn unescape(text: &str) -> Result<Key, String> {
    let bad = || format!("bad escape in key {text:?}");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next().ok_or_else(bad)? {
            b't' => b'\t',
            b'n' => b'\n',
            b'r' => b'\r',
            literal @ (b'\\' | b'\'' | b'"') => literal,
            b'x' => {
                let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(bad);
                (digit()? << 4 | digit()?) as u8
            }
            _ => return Err(bad()),
        });
    }
    Ok(Key(bytes.into()))
}
