//! The serialised form of a transfer. Keys are escaped as in the map.

use serde::{Deserialize, Serialize};

use super::Transfer;
use crate::{
    key::KeyRange,
    kind::KindPrefix,
    map::{StoreIdx, unescape},
    ring::BucketSet,
    unit::{Unit, UnitBuckets},
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TransferRepr {
    start: String,
    /// Absent if there is no upper bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<String>,
    /// Absent for all buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    buckets: Option<BucketSet>,
    from: StoreIdx,
    to: StoreIdx,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
}

impl From<Transfer> for TransferRepr {
    fn from(transfer: Transfer) -> Self {
        let end = match &transfer.unit.range {
            KeyRange::Single(key) => Some(key.successor()),
            KeyRange::Span { end, .. } => end.clone(),
        };
        Self {
            start: transfer.unit.range.start().to_string(),
            end: end.map(|end| end.to_string()),
            buckets: transfer.unit.buckets.map(|buckets| buckets.set),
            from: transfer.from,
            to: transfer.to,
            kind: transfer.kind.map(|kind| kind.to_string()),
        }
    }
}

impl TryFrom<TransferRepr> for Transfer {
    type Error = String;

    fn try_from(repr: TransferRepr) -> Result<Self, String> {
        let kind = match repr.kind {
            None => None,
            Some(text) => Some(
                KindPrefix::from_stored(unescape(&text)?)
                    .ok_or_else(|| format!("{text:?} is no Kind prefix"))?,
            ),
        };
        let buckets = match (repr.buckets, &kind) {
            (None, _) => None,
            (Some(_), None) => return Err("buckets without a kind".to_owned()),
            (Some(set), Some(kind)) => Some(UnitBuckets { prefix_len: kind.as_key().len(), set }),
        };
        let range = KeyRange::Span {
            start: unescape(&repr.start)?,
            end: repr.end.as_deref().map(unescape).transpose()?,
        };
        if range.is_empty() {
            return Err(format!("the range from {:?} on is empty", repr.start));
        }
        Ok(Self { unit: Unit { range, buckets }, from: repr.from, to: repr.to, kind })
    }
}
