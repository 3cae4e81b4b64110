//! What routers ask of shards, and what they get: `kindred.shard.v1` and etcd's API without their bytes.

use kindred_engine::engine::{EndedLease, FeedOut, WatchOut, WatchSpec};
use kindred_engine::error::EngineError;
use kindred_engine::ops::{Op, OpAnswer, RangeAnswer, RangeQuery};
use kindred_partition_config::ids::{LeaseId, Revision, Slot};
use kindred_partition_config::key::KeyRange;

/// One call.
#[derive(Debug, Clone)]
pub enum Request {
    /// A write or a txn; its answer at or above the hint.
    Apply { op: Op, min_revision: Option<Revision> },
    /// A read, with its hints.
    Read { query: RangeQuery, min_revision: Option<Revision>, pin: bool },
    /// The current revision, raised.
    Raise { ranges: Vec<KeyRange>, to: Revision },
    /// As above, pinned, and whether anything changed.
    RaiseSince { ranges: Vec<KeyRange>, to: Revision, since: Revision },
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
    /// The stream is over.
    Broken,
}

/// On a stream to a shard, in order.
#[derive(Debug, Clone)]
pub enum StreamIn {
    /// Opens a feed.
    Feed { ranges: Vec<KeyRange>, start: Revision },
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
