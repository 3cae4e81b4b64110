//! What routers ask of shards, and what they get: `kindred.shard.v1` and etcd's API without their bytes.

use kindred_engine::engine::{EndedLease, FeedOut, WatchId, WatchOut, WatchSpec};
use kindred_engine::error::EngineError;
use kindred_engine::ops::{Op, OpAnswer, RangeAnswer, RangeQuery};
use kindred_engine::units::NotOwned;
use kindred_partition_config::ids::{Epoch, LeaseId, Revision, Slot};
use kindred_partition_config::key::KeyRange;
use kindred_proto::shard_v1 as pb;
use tonic::Status;

/// One call.
#[derive(Debug, Clone)]
pub enum Request {
    /// A write or a txn by this map; its answer at or above the hint.
    Apply { op: Op, min_revision: Option<Revision>, generation: Epoch },
    /// A read by this map, with its hints.
    Read { query: RangeQuery, min_revision: Option<Revision>, pin: bool, generation: Epoch },
    /// The current revision of what this map places there, raised.
    Raise { ranges: Vec<KeyRange>, to: Revision, generation: Epoch },
    /// As above, pinned, and whether anything changed.
    RaiseSince { ranges: Vec<KeyRange>, to: Revision, since: Revision, generation: Epoch },
    /// Compacts.
    Compact { at: Revision },
    /// A lease of this store's own.
    LeaseGrant { ttl_s: i64 },
    /// Keeps one alive.
    LeaseKeepAlive { id: LeaseId },
    /// Ends one.
    LeaseRevoke { id: LeaseId },
    /// At the home: a store will hold keys of it.
    LeaseAttach { id: LeaseId, store: Slot },
    /// At another store: know it.
    LeaseAdopt { id: LeaseId, ttl_s: i64, home: Slot },
    /// At another store: it is over.
    LeaseEnd { id: LeaseId },
    /// At the home: all is deleted.
    LeaseForget { id: LeaseId },
    /// At the home: leases that are over and wait for other stores.
    LeasesEnded,
    /// Of moves.
    Unit(UnitRequest),
}

/// A call of a move: service `Units`.
#[derive(Debug, Clone)]
pub enum UnitRequest {
    /// All units.
    List,
    /// Several calls.
    Together(pb::UnitCalls),
    /// News.
    Tails(pb::TailsRequest),
    /// Data.
    Import(pb::ImportRequest),
}

/// The answer to one.
#[derive(Debug, Clone)]
pub enum UnitReply {
    /// To List.
    Listed(pb::UnitsListResponse),
    /// To Together.
    Together(pb::UnitAnswers),
    /// To Tails.
    Tails(pb::TailsResponse),
    /// To Import.
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

/// What comes back.
#[derive(Debug, Clone)]
pub enum Reply {
    /// To a write.
    Applied(OpAnswer),
    /// To a read.
    Read(RangeAnswer),
    /// To a raise.
    Raised { current: Revision, changed: bool },
    /// To a compaction: the current revision.
    Compacted(Revision),
    /// To a grant.
    Granted { id: LeaseId, ttl_s: i64 },
    /// To a keep-alive or an attach: seconds.
    Ttl(i64),
    /// To a revoke: the stores that hold keys.
    Revoked(Vec<Slot>),
    /// To what has no answer.
    Done,
    /// Leases that are over.
    Ended(Vec<EndedLease>),
    /// To a call of a move.
    Unit(Result<UnitReply, Status>),
}

/// How a call fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// Definitely not executed.
    Down,
    /// It may have been executed.
    Lost,
    /// The shard refuses.
    Refused(EngineError),
    /// The shard refuses for another reason.
    Other(String),
}

/// On a stream of a shard's, in order.
#[derive(Debug, Clone)]
pub enum StreamOut {
    /// Of a feed.
    Feed(FeedOut),
    /// Of a watch stream.
    Watch(Vec<WatchOut>),
    /// The store does not own the keys of a watch.
    WatchRefused(WatchId, Revision, NotOwned),
    /// The stream is over, with this status.
    Refused(Status),
    /// A part of a copy; none at its end.
    Copied(Option<pb::CopyResponse>),
    /// A digest; none at the end.
    Digest(Option<pb::VerifyResponse>),
    /// The stream is over.
    Broken,
}

/// On a stream to a shard, in order.
#[derive(Debug, Clone)]
pub enum StreamIn {
    /// Opens a feed by this map.
    Feed { ranges: Vec<KeyRange>, start: Revision, generation: Epoch },
    /// Asks for a copy of a unit.
    Copy(pb::CopyRequest),
    /// Asks for the digests of a unit.
    Verify(pb::VerifyRequest),
    /// Raises the feed.
    Advance(Revision),
    /// Adds a watch.
    Watch(WatchSpec),
    /// Ends a watch.
    Cancel(i64),
    /// Asks for progress.
    Progress,
    /// The router is gone, or does not want it any more.
    Close,
}
