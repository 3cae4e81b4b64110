//! The refusal of a store that does not own the keys of a request. Nothing of the request was executed then.

use kindred_partition_config::ids::Epoch;
use kindred_transport::grpc;
use kindred_wire::protocol::{NOT_OWNED, NOT_PRIMARY};
use kindred_wire::refusal::KindredError;
use tonic::Status;
use tonic::metadata::{MetadataMap, MetadataValue};

/// A refusal because the store does not own the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotOwned {
    /// The generation of the map since which another store owns the keys; 0 while that is being decided.
    pub epoch: Epoch,
}

impl NotOwned {
    /// Reads the refusal out of a status; `None` if the status is no such refusal.
    #[must_use]
    pub fn of(status: &Status) -> Option<Self> {
        Self::in_metadata(status.metadata())
    }

    /// Whether the refusal is by a store whose standby is to take over, or by the member that it takes over from: it is
    /// worth to wait.
    #[must_use]
    pub fn waits_for_takeover(status: &Status) -> bool {
        status.metadata().contains_key(NOT_PRIMARY)
    }

    /// The status of such a refusal, for requests whose store is not a shard; a shard sends its own.
    #[must_use]
    pub fn status(self, key: Vec<u8>) -> Status {
        let mut status = grpc::refusal(&KindredError::NotOwned { key, epoch: self.epoch.0 });
        status.metadata_mut().insert(NOT_OWNED, MetadataValue::from(self.epoch.0));
        status
    }

    fn in_metadata(metadata: &MetadataMap) -> Option<Self> {
        let epoch = metadata.get(NOT_OWNED)?.to_str().ok()?.parse().ok()?;
        Some(Self { epoch: Epoch(epoch) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_ownership_is_known_by_its_metadata() {
        let mut status = Status::unavailable("kindred: …");
        assert_eq!(NotOwned::of(&status), None);
        status.metadata_mut().insert(NOT_OWNED, "17".parse().unwrap());
        assert_eq!(NotOwned::of(&status), Some(NotOwned { epoch: Epoch(17) }));
        let own = NotOwned { epoch: Epoch(3) }.status(b"/registry/pods/a".to_vec());
        assert_eq!(NotOwned::of(&own), Some(NotOwned { epoch: Epoch(3) }));
    }
}
