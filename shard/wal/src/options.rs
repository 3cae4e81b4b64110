//! The tuning options of a log.

use std::time::Duration;

use crate::layout::LogKind;

/// The tuning options of a log. [`LogOptions::new`] gives the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// The fsync log writes and syncs as soon as it has frames and the previous sync is done. The buffered log
    /// syncs every [`LogOptions::flush_interval`].
    pub kind: LogKind,
    /// A random number, new at each start, so that frames of one file never pass as frames of another.
    pub salt: u64,
    /// A segment that reaches this length is followed by a new one.
    pub segment_bytes: u64,
    /// The number of zero bytes to write ahead of the frames when a segment begins. Whenever these are used up, the
    /// amount doubles, up to four times the first; a write too large to benefit skips this. Overwriting zeros
    /// changes only data, so an fdatasync need not wait for the file system's journal behind other writers. 0
    /// disables it.
    pub fill_bytes: u64,
    /// The longest time that a frame of the buffered log waits for its sync.
    pub flush_interval: Duration,
    /// The buffered log syncs at once when this many bytes are unsynced.
    pub flush_bytes: u64,
    /// How long a promise waits when there is nothing else to write.
    pub promise_interval: Duration,
    /// [`Log::has_room`](crate::Log::has_room) is false when at least this many bytes are not yet durable.
    pub max_pending_bytes: u64,
    /// A new segment is refused if it would leave less free space than this. The clock, a checkpoint and an
    /// operator need some space, and a log that recovers with the last free block would fail again at once.
    pub min_free_bytes: u64,
    /// The first delay after a failure; each further failure doubles it.
    pub retry_first: Duration,
    /// The maximum delay after a failure.
    pub retry_last: Duration,
}

impl LogOptions {
    /// The defaults.
    #[must_use]
    pub const fn new(kind: LogKind, salt: u64) -> Self {
        Self {
            kind,
            salt,
            segment_bytes: 64 << 20,
            fill_bytes: 2 << 20,
            flush_interval: Duration::from_millis(5),
            flush_bytes: 1 << 20,
            promise_interval: Duration::from_secs(1),
            max_pending_bytes: 64 << 20,
            min_free_bytes: 8 << 20,
            retry_first: Duration::from_millis(100),
            retry_last: Duration::from_secs(2),
        }
    }
}
