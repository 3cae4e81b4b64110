//! The only place where a shard's refusals become etcd's errors, and these become gRPC statuses.

use kindred_engine::{
    durability::Durability,
    error::EngineError,
    units::{NotOwned, UnitError},
};
use kindred_partition_config::key::Key;
use kindred_proto::nested::NotATxn;
use kindred_wire::{
    error::EtcdError,
    protocol::{NOT_OWNED, NOT_PRIMARY, STALE_TERM},
    refusal::{KeyOnStore, KindredError},
};
use tonic::{Status, metadata::MetadataValue};

/// Why a shard refused a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KvError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The shard does not own the keys at present (R13); nothing was executed.
    #[error(transparent)]
    NotOwned(#[from] NotOwned),
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// etcd refuses such a request before it looks at the data.
    #[error(transparent)]
    Invalid(#[from] EtcdError),
    /// The NOSPACE alarm is raised, or would be by this request.
    #[error("out of space")]
    NoSpace,
    #[error("marked corrupt")]
    Corrupt,
    /// The process is stopping; the request may or may not have been executed.
    #[error("stopping")]
    Stopped,
    /// No handshake has confirmed the clock of this shard in a cluster yet (R3); nothing was executed.
    #[error("waiting for a router to confirm this store's clock (R3)")]
    AwaitsClock,
    /// Another member of this store serves, or is to; nothing was executed.
    #[error("this member is not the primary of its store")]
    NotPrimary,
    /// The disk is too slow or refuses, and the request must wait for it; nothing was executed.
    #[error("waiting for the disk of --data-dir")]
    DiskWait,
    #[error("malformed request: {0}")]
    Malformed(String),
    #[error("{what} is not supported; {instead}")]
    Unsupported {
        /// The call.
        what: &'static str,
        instead: &'static str,
    },
}

impl From<prost::DecodeError> for KvError {
    fn from(error: prost::DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl From<NotATxn> for KvError {
    fn from(error: NotATxn) -> Self {
        match error {
            NotATxn::TooDeep => Self::Invalid(EtcdError::TooManyOps),
            NotATxn::Malformed(reason) => Self::Malformed(reason),
        }
    }
}

/// etcd's error for a refusal; `None` where etcd has none.
#[must_use]
pub fn etcd_error(error: &KvError) -> Option<EtcdError> {
    Some(match error {
        KvError::Engine(engine) => match engine {
            EngineError::Compacted { .. } => EtcdError::Compacted,
            EngineError::Future { .. } => EtcdError::FutureRevision,
            EngineError::KeyNotFound => EtcdError::KeyNotFound,
            EngineError::LeaseNotFound(_) => EtcdError::LeaseNotFound,
            EngineError::LeaseExists(_) => EtcdError::LeaseExists,
            EngineError::LeaseTtlTooLarge(_) => EtcdError::LeaseTtlTooLarge,
            EngineError::TooManyRetained => EtcdError::TooManyRequests,
            EngineError::ClockOffset { .. }
            | EngineError::Ceiling { .. }
            | EngineError::DuplicateWatchId
            | EngineError::MixedModes(_)
            | EngineError::NotOwned(_) => return None,
        },
        KvError::Invalid(error) => *error,
        KvError::NoSpace => EtcdError::NoSpace,
        KvError::Corrupt => EtcdError::Corrupt,
        KvError::Stopped => EtcdError::Stopped,
        KvError::NotOwned(_)
        | KvError::Unit(_)
        | KvError::AwaitsClock
        | KvError::NotPrimary
        | KvError::DiskWait
        | KvError::Malformed(_)
        | KvError::Unsupported { .. } => return None,
    })
}

#[must_use]
pub fn status(error: &KvError) -> Status {
    if let Some(etcd) = etcd_error(error) {
        return kindred_transport::grpc::status(etcd);
    }
    match error {
        KvError::NotOwned(refused) | KvError::Engine(EngineError::NotOwned(refused)) => {
            not_owned_status(refused)
        }
        KvError::Unit(refused) => unit_status(refused),
        KvError::Engine(EngineError::MixedModes(mixed)) => {
            let of = |key: &Key, mode: Durability| KeyOnStore { key: key.to_vec(), store: mode.to_string() };
            let keys = vec![of(&mixed.one, mixed.one_mode), of(&mixed.other, mixed.other_mode)];
            kindred_transport::grpc::refusal(&KindredError::CrossDurabilityTxn { keys })
        }
        KvError::Engine(EngineError::Ceiling { .. }) => {
            let waiting_for = "the disk to take a higher clock ceiling (R2)".to_owned();
            kindred_transport::grpc::refusal(&KindredError::NotReady { waiting_for })
        }
        KvError::NotPrimary => {
            let waiting_for = "a call that makes this member the primary of its store (R19)".to_owned();
            let mut status = kindred_transport::grpc::refusal(&KindredError::NotReady { waiting_for });
            status.metadata_mut().insert(NOT_PRIMARY, MetadataValue::from_static(""));
            status
        }
        KvError::AwaitsClock => {
            let waiting_for = "a router's handshake that finds this store's clock within 10 s of the others'";
            kindred_transport::grpc::refusal(&KindredError::NotReady { waiting_for: waiting_for.to_owned() })
        }
        KvError::DiskWait => {
            let waiting_for =
                "this store's disk, which is slow or refuses writes; see its log and --data-dir";
            kindred_transport::grpc::refusal(&KindredError::NotReady { waiting_for: waiting_for.to_owned() })
        }
        KvError::Malformed(reason) => {
            kindred_transport::grpc::refusal(&KindredError::Malformed { reason: reason.clone() })
        }
        KvError::Unsupported { what, instead } => {
            kindred_transport::grpc::refusal(&KindredError::Unsupported { what, instead })
        }
        other => Status::failed_precondition(format!("kindred: {other}")),
    }
}

/// The refusal for keys that the shard does not own, as requests and watches get it.
#[must_use]
pub fn not_owned(refused: &NotOwned) -> KindredError {
    KindredError::NotOwned { key: refused.key.to_vec(), epoch: refused.epoch.0 }
}

fn not_owned_status(refused: &NotOwned) -> Status {
    crate::metrics::not_owned();
    let mut status = kindred_transport::grpc::refusal(&not_owned(refused));
    status.metadata_mut().insert(NOT_OWNED, MetadataValue::from(refused.epoch.0));
    status
}

/// The status of a refused call for a move: `InvalidArgument` for what no state allows, `Unavailable` for a call that
/// may be repeated unchanged, else `FailedPrecondition`.
fn unit_status(refused: &UnitError) -> Status {
    match refused {
        UnitError::StaleTerm { id, term, seen } => {
            let refusal = KindredError::StaleTerm { move_id: id.0, term: term.0, seen: seen.0 };
            let mut status = kindred_transport::grpc::refusal(&refusal);
            status.metadata_mut().insert(STALE_TERM, MetadataValue::from(seen.0));
            status
        }
        UnitError::BadUnit => Status::invalid_argument(format!("kindred: {refused}")),
        UnitError::NotReady(_) | UnitError::Read { .. } => Status::unavailable(format!("kindred: {refused}")),
        // Indicates a bug in the shard, as such calls run between batches.
        UnitError::Unpublished => Status::internal(format!("kindred: {refused}")),
        UnitError::Unknown(_)
        | UnitError::State { .. }
        | UnitError::Overlaps { .. }
        | UnitError::Key { .. }
        | UnitError::Behind { .. }
        | UnitError::Leases { .. }
        | UnitError::Clock(_) => {
            kindred_transport::grpc::refusal(&KindredError::UnitState { reason: refused.to_string() })
        }
    }
}

impl From<KvError> for Status {
    fn from(error: KvError) -> Self {
        status(&error)
    }
}
