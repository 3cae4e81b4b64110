//! What goes into a session and comes out of it.

use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_wire::error::EtcdError;
use kindred_wire::refusal::KindredError;

use crate::progress;
use crate::store::StoreIx;

/// What a simulation sets otherwise, so that less is more often in the middle of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Approximate number of bytes that one turn reads for a watch.
    pub take_bytes: usize,
    /// Approximate number of bytes of a feed that are looked through at a time.
    pub look_bytes: usize,
    /// How often an idle watch with `progress_notify` gets a notification.
    pub notify: Duration,
    /// Maximum size of a fragment. The default is etcd's: the request limit of 1.5 MiB, and 512 KiB for the message
    /// around it.
    pub fragment_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            take_bytes: 64 << 10,
            look_bytes: 1 << 20,
            notify: Duration::from_secs(5),
            fragment_bytes: 2 << 20,
        }
    }
}

/// The session's own number of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FeedNo(pub usize);

/// Where the events of a watch come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The session's own stream at this store.
    Store(StoreIx),
    /// A feed that the session follows.
    Feed(FeedNo),
}

impl progress::Member for Origin {
    fn relays(self) -> bool {
        matches!(self, Self::Store(_))
    }
}

/// What happens to a session.
#[derive(Debug)]
pub enum Event<'a> {
    /// The client has sent this.
    Request(&'a Bytes),
    /// A store has said something on the stream with this number.
    Upstream {
        /// The store.
        store: StoreIx,
        /// The number of `Outside::open`.
        number: u64,
        /// What it said.
        said: Said,
    },
    /// The answer to a question; `None` if it failed or took too long.
    Asked(Ask, Option<Revision>),
    /// The answer to `Outside::ask_present`.
    Present {
        /// The watch.
        uid: i64,
        /// What the feed said.
        present: Present,
    },
    /// Bells of feeds have rung.
    Rung,
    /// There is a newer map.
    NewMap,
    /// A client has compacted: `Outside::compacted` is higher.
    Compacted,
    /// The time of `Session::timer` has come.
    Timer,
}

/// What a store says on a stream.
#[derive(Debug)]
pub enum Said {
    /// A watch response.
    Message(Bytes),
    /// The stream is over, and may be opened again.
    Broken,
    /// The stream is over, and the store would refuse it again.
    Refused,
}

/// A feed's answer to a create that waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Present {
    /// All stores of the feed promise this revision.
    At(Revision),
    /// The stores did not answer in time.
    Away,
    /// The feed has ended, so its successor is to be asked.
    Ended,
}

/// Why a session ends by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The client has sent something that is no request.
    Malformed(KindredError),
    /// With this error of etcd's.
    Etcd(EtcdError),
    /// A store refused the session's stream, and would again.
    Refused(StoreIx),
    /// A store sent something that is no watch response.
    BadMessage(StoreIx, String),
}

/// A question to a store or feed for its current revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The session's number of the question. An answer with another number than the latest question's does not count.
    pub round: u64,
    /// Whom it is asked of.
    pub member: Origin,
    /// The revision to which a store is to be raised; `None` to ask only.
    pub to: Option<Revision>,
}
