//! Requests of routers and answers of shards: `kindred.shard.v1` and etcd's API without their encoding.

use kindred_engine::engine::{EndedLease, FeedOut, WatchId, WatchOut, WatchSpec};
use kindred_engine::error::EngineError;
use kindred_engine::ops::{Op, OpAnswer, RangeAnswer, RangeQuery};
use kindred_engine::units::NotOwned;
use kindred_partition_config::ids::{Epoch, LeaseId, Revision, Slot};
use kindred_partition_config::key::KeyRange;
use kindred_proto::shard_v1 as pb;
use tonic::Status;

#[derive(Debug, Clone)]
pub enum Request {
    /// A write or a txn by this map. Its answer has at least the hinted revision.
    Apply {
        op: Op,
        min_revision: Option<Revision>,
        generation: Epoch,
    },
    /// A read by this map, with its hints.
    Read {
        query: RangeQuery,
        min_revision: Option<Revision>,
        pin: bool,
        generation: Epoch,
    },
    /// The current revision of the ranges, raised to a revision.
    Raise {
        ranges: Vec<KeyRange>,
        to: Revision,
        generation: Epoch,
    },
    /// The same with a pin. The answer says whether anything has changed.
    RaiseSince {
        ranges: Vec<KeyRange>,
        to: Revision,
        since: Revision,
        generation: Epoch,
    },
    Compact {
        at: Revision,
    },
    /// A lease of this store's own.
    LeaseGrant {
        ttl_s: i64,
    },
    LeaseKeepAlive {
        id: LeaseId,
    },
    LeaseRevoke {
        id: LeaseId,
    },
    /// To the home: a store will hold keys of the lease.
    LeaseAttach {
        id: LeaseId,
        store: Slot,
    },
    /// To another store: know the lease.
    LeaseAdopt {
        id: LeaseId,
        ttl_s: i64,
        home: Slot,
    },
    /// To another store: the lease is over.
    LeaseEnd {
        id: LeaseId,
    },
    /// To the home: all keys of the lease are deleted.
    LeaseForget {
        id: LeaseId,
    },
    /// To the home: the leases that are over and wait for other stores.
    LeasesEnded,
    Unit(UnitRequest),
}

/// A call of a move: service `Units`.
#[derive(Debug, Clone)]
pub enum UnitRequest {
    List,
    Together(pb::UnitCalls),
    Tails(pb::TailsRequest),
    Import(pb::ImportRequest),
}

#[derive(Debug, Clone)]
pub enum UnitReply {
    Listed(pb::UnitsListResponse),
    Together(pb::UnitAnswers),
    Tails(pb::TailsResponse),
    Imported(pb::ImportResponse),
}

impl Request {
    /// Whether it may be sent again when its answer is lost (R11).
    #[must_use]
    pub fn is_read(&self) -> bool {
        !matches!(
            self,
            Self::Apply { .. } | Self::Compact { .. } | Self::LeaseGrant { .. } | Self::LeaseRevoke { .. }
        )
    }
}

#[derive(Debug, Clone)]
pub enum Reply {
    Applied(OpAnswer),
    Read(RangeAnswer),
    Raised {
        current: Revision,
        changed: bool,
    },
    /// To a compaction: the current revision.
    Compacted(Revision),
    Granted {
        id: LeaseId,
        ttl_s: i64,
    },
    /// To a keep-alive or an attach: seconds.
    Ttl(i64),
    /// To a revoke: the stores that hold keys.
    Revoked(Vec<Slot>),
    /// To what has no answer.
    Done,
    Ended(Vec<EndedLease>),
    /// To a call of a move.
    Unit(Result<UnitReply, Status>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The call was certainly not executed.
    Down,
    /// The call may have been executed.
    Lost,
    Refused(EngineError),
    /// The shard refuses for another reason.
    Other(String),
}

/// A message on a stream from a shard.
#[derive(Debug, Clone)]
pub enum StreamOut {
    Feed(FeedOut),
    Watch(Vec<WatchOut>),
    /// The store does not own the keys of a watch.
    WatchRefused(WatchId, Revision, NotOwned),
    /// The stream is over, with this status.
    Refused(Status),
    /// A part of a copy; none at its end.
    Copied(Option<pb::CopyResponse>),
    /// A digest; none at the end.
    Digest(Option<pb::VerifyResponse>),
    Broken,
}

/// A message on a stream to a shard.
#[derive(Debug, Clone)]
pub enum StreamIn {
    /// Opens a feed by this map.
    Feed {
        ranges: Vec<KeyRange>,
        start: Revision,
        generation: Epoch,
    },
    /// Asks for a copy of a unit.
    Copy(pb::CopyRequest),
    /// Asks for the digests of a unit.
    Verify(pb::VerifyRequest),
    Advance(Revision),
    Watch(WatchSpec),
    Cancel(i64),
    Progress,
    /// The router closes the stream, or is gone.
    Close,
}
