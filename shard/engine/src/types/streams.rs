//! Events, and the messages of watch streams and feeds.

use kindred_partition_config::{ids::Revision, key::KeyRange};

use super::gap::Gap;
use crate::version::Version;

/// The name of the pins of a read over several shards (R5). The client chooses it and must not share it with another
/// read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PinId(pub u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A watch's id on its stream, as in etcd's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub i64);

/// A watch request.
#[derive(Debug, Clone)]
pub struct WatchSpec {
    pub range: KeyRange,
    /// The first revision wanted; `None` = from now on (R8).
    pub start: Option<Revision>,
    /// The id that the client chose; `None` = the stream's next free id.
    pub id: Option<WatchId>,
    /// Whether events carry the previous version.
    pub prev_kv: bool,
    /// Whether to leave out puts.
    pub no_put: bool,
    /// Whether to leave out deletions.
    pub no_delete: bool,
    /// Whether periodic progress is wanted.
    pub progress_notify: bool,
    /// Whether large messages may be split into fragments, which the encoder does.
    pub fragment: bool,
}

/// One change of one key.
#[derive(Debug, Clone)]
pub struct Event {
    /// The new version, or a tombstone with key and mod_revision only.
    pub kv: Version,
    /// The previous version, if there was one and it is still held.
    pub prev: Option<Version>,
}

impl Event {
    #[must_use]
    pub fn is_delete(&self) -> bool {
        self.kv.is_tombstone()
    }
}

/// A message of a watch stream. Messages must be sent in the order in which they come.
#[derive(Debug, Clone)]
pub enum WatchOut {
    /// The watch was created; no event at or below `header` follows unless its start asks for it.
    Created { id: WatchId, header: Revision },
    /// Events of one watch in revision order. A revision is never split.
    Events { id: WatchId, header: Revision, events: Vec<Event>, prev_kv: bool, fragment: bool },
    /// The watch ended because its next revision is compacted.
    Compacted { id: WatchId, floor: Revision },
    /// The watch ended because keys of it move to another store; all events up to `header` were delivered (R15a).
    Moved { id: WatchId, header: Revision },
    /// The client cancelled the watch.
    Canceled { id: WatchId, header: Revision },
    /// A progress notification (R7) for one watch (periodic), or for the whole stream (`None`, on request).
    Progress { id: Option<WatchId>, header: Revision },
}

/// Identifies a feed (R6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FeedId(pub u64);

/// The next message of a feed. Its parts apply in the order of the fields, except that gaps come with `opened`.
#[derive(Debug, Clone, Default)]
pub struct FeedOut {
    /// In the first message: the feed will hold every event above this revision.
    pub opened: Option<Revision>,
    /// Events with their previous versions, in revision order. A revision is never split.
    pub events: Vec<Event>,
    /// A watermark behind the events: none at or below it is still to come.
    pub watermark: Option<Revision>,
    /// In the first message: the gaps of the ranges that end above the feed's start (R10).
    pub gaps: Vec<Gap>,
    /// The feed ended, because events that it still has to deliver may be below this floor.
    pub compacted: Option<Revision>,
    /// The feed ended, because keys of it move to another store. All events up to this revision were delivered, none
    /// above.
    pub moved: Option<Revision>,
}

impl FeedOut {
    /// Whether there is anything to send.
    #[must_use]
    pub fn says_something(&self) -> bool {
        self.opened.is_some()
            || !self.events.is_empty()
            || self.watermark.is_some()
            || self.compacted.is_some()
            || self.moved.is_some()
    }
}
