//! Records, and the batches of records that are written as one frame.

use kindred_partition_config::ids::Revision;

use crate::{
    format::{MAX_PAYLOAD_BYTES, RecordId, VERSION_IS_DELETION, get_u64},
    number::FileNumber,
};

/// A durable record. This crate does not interpret the contents that are slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    Version(VersionRecord<'a>),
    /// Every change at or below this revision that this log keeps precedes this record. The writer adds these
    /// records ([`Log::promise`](crate::Log::promise)).
    Promise(Revision),
    /// A change of a lease.
    Lease(&'a [u8]),
    /// A change of a unit.
    Unit(&'a [u8]),
    /// A compaction at this revision.
    Compaction(Revision),
    /// The durability modes of the Kinds.
    Modes(&'a [u8]),
    /// A gap of revisions that may have been shown and are lost (R10).
    Gap(GapRecord<'a>),
    /// A clean stop at this revision, the shard's last.
    Clean(Revision),
    /// The checkpoint with this number holds data that no log has, so recovery refuses to replay the following
    /// records on an older one. It is written to the `fsync` log after such a checkpoint is finished (for an
    /// imported unit, R15), and before anything relies on it.
    Needs(FileNumber),
    /// Data imported into a unit that the shard does not own yet.
    Import(&'a [u8]),
    /// The revision at which the store began.
    Began(Revision),
}

/// A durable version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRecord<'a> {
    pub revision: Revision,
    /// The position among the changes of that revision.
    pub sub: u32,
    pub deletion: bool,
    /// The encoded `mvccpb.KeyValue`.
    pub key_value: &'a [u8],
}

/// The fields of a [`VersionRecord`] beside its key-value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionHead {
    pub revision: Revision,
    /// The position among the changes of that revision.
    pub sub: u32,
    pub deletion: bool,
}

/// Bytes of a version's record before the key-value: flags, position and revision.
const VERSION_HEAD_BYTES: usize = 13;

/// The gap (D, s) of a Kind, or of all Kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapRecord<'a> {
    /// D: the last durable revision.
    pub after: Revision,
    pub until: Revision,
    /// The Kind prefix; empty for all Kinds.
    pub kind: &'a [u8],
}

/// Why a frame with a valid checksum does not hold valid records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordDamage {
    /// The record id is unknown to this version.
    #[error(
        "a record of kind {0}, which this version does not know: start the version that wrote it, or a later one"
    )]
    Unknown(u8),
    /// A record's length exceeds the frame.
    #[error("a record that goes beyond its frame")]
    Length,
    /// The content of a record with this id is malformed.
    #[error("a malformed record of kind {0}")]
    Malformed(u8),
}

impl<'a> Record<'a> {
    #[must_use]
    pub const fn id(&self) -> RecordId {
        match self {
            Self::Version(_) => RecordId::VERSION,
            Self::Promise(_) => RecordId::PROMISE,
            Self::Lease(_) => RecordId::LEASE,
            Self::Unit(_) => RecordId::UNIT,
            Self::Compaction(_) => RecordId::COMPACTION,
            Self::Modes(_) => RecordId::MODES,
            Self::Gap(_) => RecordId::GAP,
            Self::Clean(_) => RecordId::CLEAN,
            Self::Needs(_) => RecordId::NEEDS,
            Self::Import(_) => RecordId::IMPORT,
            Self::Began(_) => RecordId::BEGAN,
        }
    }

    /// The revision that the record is about, if there is one.
    #[must_use]
    pub const fn revision(&self) -> Option<Revision> {
        match self {
            Self::Version(version) => Some(version.revision),
            Self::Promise(revision)
            | Self::Compaction(revision)
            | Self::Clean(revision)
            | Self::Began(revision) => Some(*revision),
            Self::Lease(_)
            | Self::Unit(_)
            | Self::Modes(_)
            | Self::Gap(_)
            | Self::Needs(_)
            | Self::Import(_) => None,
        }
    }

    fn decode(id: RecordId, content: &'a [u8]) -> Result<Self, RecordDamage> {
        let malformed = RecordDamage::Malformed(id.0);
        let number = || if content.len() == 8 { Ok(get_u64(content, 0)) } else { Err(malformed) };
        let revision = || number().map(|number| Revision(number.cast_signed()));
        match id {
            RecordId::VERSION => VersionRecord::decode(content).map(Self::Version).ok_or(malformed),
            RecordId::PROMISE => revision().map(Self::Promise),
            RecordId::LEASE => Ok(Self::Lease(content)),
            RecordId::UNIT => Ok(Self::Unit(content)),
            RecordId::COMPACTION => revision().map(Self::Compaction),
            RecordId::MODES => Ok(Self::Modes(content)),
            RecordId::GAP => GapRecord::decode(content).map(Self::Gap).ok_or(malformed),
            RecordId::CLEAN => revision().map(Self::Clean),
            RecordId::NEEDS => number().map(FileNumber).map(Self::Needs),
            RecordId::IMPORT => Ok(Self::Import(content)),
            RecordId::BEGAN => revision().map(Self::Began),
            RecordId(unknown) => Err(RecordDamage::Unknown(unknown)),
        }
    }
}

impl<'a> VersionRecord<'a> {
    fn decode(content: &'a [u8]) -> Option<Self> {
        let (fixed, key_value) = content.split_at_checked(VERSION_HEAD_BYTES)?;
        let flags = fixed[0];
        let sub = u32::from_le_bytes([fixed[1], fixed[2], fixed[3], fixed[4]]);
        let revision = Revision(get_u64(fixed, 5).cast_signed());
        (flags & !VERSION_IS_DELETION == 0).then_some(Self {
            revision,
            sub,
            deletion: flags & VERSION_IS_DELETION != 0,
            key_value,
        })
    }
}

impl<'a> GapRecord<'a> {
    fn decode(content: &'a [u8]) -> Option<Self> {
        let (fixed, kind) = content.split_at_checked(16)?;
        let [after, until] = [0, 8].map(|at| Revision(get_u64(fixed, at).cast_signed()));
        Some(Self { after, until, kind })
    }
}

/// An iterator over the records of a frame.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// The records of a frame's payload, without allocation.
    #[must_use]
    pub const fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    fn take(&mut self) -> Result<Record<'a>, RecordDamage> {
        let (id, rest) = self.rest.split_first().ok_or(RecordDamage::Length)?;
        let (length, rest) = take_length(rest).ok_or(RecordDamage::Length)?;
        let (content, rest) = rest.split_at_checked(length).ok_or(RecordDamage::Length)?;
        self.rest = rest;
        Record::decode(RecordId(*id), content)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, RecordDamage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.take();
        if record.is_err() {
            // After an invalid record, the start of the next one is unknown.
            self.rest = &[];
        }
        Some(record)
    }
}

/// Decodes a LEB128 number of at most five bytes that fits 32 bits.
fn take_length(mut rest: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0_u64;
    for shift in (0..35).step_by(7) {
        let (byte, after) = rest.split_first()?;
        rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let value = u32::try_from(value).ok()?;
            return Some((usize::try_from(value).ok()?, rest));
        }
    }
    None
}

/// Records that become durable together, in one frame. All records of a transaction must be in one batch; a batch
/// may hold many transactions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    payload: Vec<u8>,
    records: usize,
}

impl Batch {
    #[must_use]
    pub const fn new() -> Self {
        Self { payload: Vec::new(), records: 0 }
    }

    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { payload: Vec::with_capacity(bytes), records: 0 }
    }

    pub fn push(&mut self, record: &Record<'_>) {
        let id = record.id();
        match record {
            Record::Version(VersionRecord { revision, sub, deletion, key_value }) => {
                let head = VersionHead { revision: *revision, sub: *sub, deletion: *deletion };
                self.push_version(head, key_value.len(), |out| out.extend_from_slice(key_value));
            }
            Record::Promise(revision)
            | Record::Compaction(revision)
            | Record::Clean(revision)
            | Record::Began(revision) => {
                self.add(id, &[&revision.get().to_le_bytes()]);
            }
            Record::Lease(content)
            | Record::Unit(content)
            | Record::Modes(content)
            | Record::Import(content) => self.add(id, &[content]),
            Record::Gap(gap) => {
                let [after, until] = [gap.after, gap.until].map(|revision| revision.get().to_le_bytes());
                self.add(id, &[&after, &until, gap.kind]);
            }
            Record::Needs(number) => self.add(id, &[&number.0.to_le_bytes()]),
        }
    }

    /// Adds a version whose encoded key-value need not lie in one piece: `append` adds its `bytes` bytes to a vector.
    pub fn push_version(&mut self, head: VersionHead, bytes: usize, append: impl FnOnce(&mut Vec<u8>)) {
        self.begin(RecordId::VERSION, VERSION_HEAD_BYTES + bytes);
        self.payload.push(if head.deletion { VERSION_IS_DELETION } else { 0 });
        self.payload.extend_from_slice(&head.sub.to_le_bytes());
        self.payload.extend_from_slice(&head.revision.get().to_le_bytes());
        let from = self.payload.len();
        append(&mut self.payload);
        assert_eq!(self.payload.len() - from, bytes, "a record has the length that it begins with");
    }

    fn add(&mut self, id: RecordId, parts: &[&[u8]]) {
        self.begin(id, parts.iter().map(|part| part.len()).sum());
        for part in parts {
            self.payload.extend_from_slice(part);
        }
    }

    /// Begins a record, whose content of `length` bytes follows.
    fn begin(&mut self, id: RecordId, mut length: usize) {
        self.payload.reserve(length + 6);
        self.payload.push(id.0);
        while length >= 0x80 {
            self.payload.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        self.payload.push(length as u8);
        self.records += 1;
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.records
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The length of the encoded records.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.payload.len()
    }

    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.payload)
    }

    /// The encoded records, as [`Records::new`] takes them.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The records, without a copy.
    #[must_use]
    pub fn into_records(self) -> Vec<u8> {
        self.payload
    }

    /// The batch as the payload of a frame.
    ///
    /// # Errors
    /// When it exceeds the maximum payload of a frame.
    pub(crate) fn into_payload(self) -> Result<Vec<u8>, TooLarge> {
        let bytes = self.payload.len();
        if bytes > MAX_PAYLOAD_BYTES { Err(TooLarge { bytes }) } else { Ok(self.payload) }
    }
}

/// The error for a batch that exceeds the maximum payload of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a batch of {bytes} bytes is more than a frame of the log holds ({MAX_PAYLOAD_BYTES} bytes)")]
pub struct TooLarge {
    /// The batch's length.
    pub bytes: usize,
}

#[cfg(test)]
mod tests;
