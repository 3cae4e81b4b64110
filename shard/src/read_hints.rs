//! The additions of a router to a request in the call's metadata: hints, which are followed or ignored (R5, R8), and
//! the generation of the map by which it routed the request (R13).

use kindred_engine::engine::PinId;
use kindred_partition_config::{
    ids::{Epoch, Revision},
    unit::UnitBuckets,
};
use kindred_transport::grpc;
use kindred_wire::protocol::{BUCKETS, MAP, MIN_REVISION, PIN};
use tonic::metadata::MetadataMap;

use crate::etcd_status::KvError;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadHints {
    /// See [`MIN_REVISION`].
    pub min_revision: Option<Revision>,
    /// See [`PIN`].
    pub pin: Option<PinId>,
    /// See [`MAP`]; `None` = not checked.
    pub generation: Option<Epoch>,
}

impl ReadHints {
    /// The hints in a call's metadata. A value that does not parse is ignored.
    #[must_use]
    pub fn of(metadata: &MetadataMap) -> Self {
        let text = |name| grpc::header(metadata.as_ref(), name)?.to_str().ok();
        let min_revision = text(MIN_REVISION).and_then(|text| text.parse().ok());
        let pin = text(PIN).and_then(|text| text.parse().ok());
        let generation = text(MAP).and_then(|text| text.parse().ok());
        Self {
            min_revision: min_revision.and_then(Revision::from_wire),
            pin: pin.and_then(pin_id),
            generation: generation.and_then(checked),
        }
    }
}

/// The buckets to which a deletion is restricted; `None` = all.
pub fn buckets(metadata: &MetadataMap) -> Result<Option<UnitBuckets>, KvError> {
    let Some(value) = metadata.get(BUCKETS) else { return Ok(None) };
    let malformed = |reason: String| KvError::Malformed(format!("the metadata {BUCKETS}: {reason}"));
    let text = value.to_str().map_err(|error| malformed(error.to_string()))?;
    text.parse().map(Some).map_err(malformed)
}

/// A pin's name in the protocol; 0 is none.
#[must_use]
pub fn pin_id(pin: u64) -> Option<PinId> {
    (pin != 0).then_some(PinId(pin))
}

/// A generation in the protocol; 0 stands for a map that never changes, so nothing is checked.
#[must_use]
pub fn checked(generation: u64) -> Option<Epoch> {
    (generation != 0).then_some(Epoch(generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_understood_or_refused() {
        let mut metadata = MetadataMap::new();
        assert_eq!(buckets(&metadata), Ok(None));
        let set = [kindred_partition_config::ring::Bucket(7)].into_iter().collect();
        let wanted = UnitBuckets { prefix_len: 15, set };
        metadata.insert(BUCKETS, wanted.to_string().parse().unwrap());
        assert_eq!(buckets(&metadata), Ok(Some(wanted)));
        metadata.insert(BUCKETS, "15 all".parse().unwrap());
        assert!(matches!(buckets(&metadata), Err(KvError::Malformed(why)) if why.contains(BUCKETS)));
    }

    #[test]
    fn only_what_can_be_read_is_a_hint() {
        for (text, expected) in
            [("7", Some(7)), ("0", None), ("-7", None), ("", None), ("x", None), ("7 ", None)]
        {
            let mut metadata = MetadataMap::new();
            metadata.insert(MIN_REVISION, text.parse().unwrap());
            let hints = ReadHints::of(&metadata);
            assert_eq!((hints.min_revision, hints.pin), (expected.map(Revision), None), "{text:?}");
        }
        let largest = u64::MAX.to_string();
        let pins =
            [("1", Some(1)), (&largest, Some(u64::MAX)), ("0", None), ("", None), ("-1", None), ("x", None)];
        for (text, expected) in pins {
            let mut metadata = MetadataMap::new();
            metadata.insert(PIN, text.parse().unwrap());
            assert_eq!(ReadHints::of(&metadata).pin, expected.map(PinId), "{text:?}");
        }
        for (text, expected) in [("7", Some(7)), ("0", None), ("-7", None), ("x", None)] {
            let mut metadata = MetadataMap::new();
            metadata.insert(MAP, text.parse().unwrap());
            assert_eq!(ReadHints::of(&metadata).generation, expected.map(Epoch), "{text:?}");
        }
    }
}
