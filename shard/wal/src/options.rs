//! How a log is written.

use std::time::Duration;

use crate::layout::LogKind;

/// How a log is written. [`LogOptions::new`] gives what is right for most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Which log: `fsync` writes and syncs as soon as there is something and the last sync is done, `buffered` once in
    /// [`LogOptions::flush_interval`].
    pub kind: LogKind,
    /// Random, another one at each start: frames of one file can then never be taken for those of another.
    pub salt: u64,
    /// A segment at least this long is followed by the next one.
    pub segment_bytes: u64,
    /// So many zeros are written ahead of the frames, and twice as many, up to four times, whenever those before are used up, unless so much
    /// is written at once that it is not worth it. Writing over what is there changes nothing but data, so that an fdatasync need not wait for the file system's journal,
    /// where it stands in line with all who write there. 0 for none.
    pub fill_bytes: u64,
    /// How long a frame of the buffered log waits for others.
    pub flush_interval: Duration,
    /// The buffered log does not wait further when it holds this much.
    pub flush_bytes: u64,
    /// How long a promise waits when there is nothing else to write.
    pub promise_interval: Duration,
    /// [`Log::has_room`](crate::Log::has_room) answers no when frames of this many bytes are not yet durable.
    pub max_pending_bytes: u64,
    /// A new segment is refused when the disk would be left with less than this: the clock, a checkpoint and an operator need some, and a
    /// log that recovers with the last free block fails again at once.
    pub min_free_bytes: u64,
    /// The first wait after a failure; it doubles from there.
    pub retry_first: Duration,
    /// The longest wait after a failure.
    pub retry_last: Duration,
}

impl LogOptions {
    /// What is right for most.
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
