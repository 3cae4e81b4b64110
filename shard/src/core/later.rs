//! What [`Core`](super::Core) itself asks the loop to do later.

use kindred_engine::{durability::KindModes, engine::EndedLease};
use kindred_partition_config::ids::Revision;
use tokio::sync::oneshot;

use crate::etcd_status::KvError;

/// Sends an answer.
pub(crate) type AfterPublish = Box<dyn FnOnce() + Send>;

/// The receiver of a compaction's answer.
pub type Answer = oneshot::Sender<Result<Revision, KvError>>;

/// Done when everything executed so far is as durable as it must be.
pub(crate) enum WhenDurable {
    /// Answer a compaction.
    Compacted(Answer),
    /// Tell the watchers of leases which ones ended.
    Ended(Vec<EndedLease>),
    /// Send an answer that is known already.
    Send(AfterPublish),
}

/// The modes in force after a request.
pub struct Taken {
    pub(super) modes: KindModes,
    /// Why some differ from the requested ones.
    pub(super) why: String,
}

/// Modes of the Kinds that are logged before they are in force: to be taken when both logs are flushed, before anything
/// else is executed.
pub(crate) struct LoggedModes {
    pub(crate) asked: KindModes,
    pub(crate) answer: oneshot::Sender<Result<Taken, KvError>>,
}

/// A call that the core asks for.
pub(crate) enum Later {
    Durable(WhenDurable),
    Flushed(LoggedModes),
}
