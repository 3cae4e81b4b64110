//! The buckets of etcd's database and their contents (`server/storage/schema`, `server/storage/mvcc/revision.go`,
//! `server/lease/leasepb`).
//!
//! A file is written in the schema of etcd 3.5, which 3.5 and all later ones read: the term, the state of the members and
//! the index of a log that nobody needs, as `etcdutl snapshot restore` begins a new one. History is compacted up to the
//! revision of the snapshot, and that is then the current revision.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};

use aws_lc_rs::digest;
use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_proto::mvccpb::KeyValue;
use prost::Message as _;

use crate::bolt::{BoltError, Bucket, Items, Pairs, Plan, Reader};
use crate::spool::Spooled;

const KEY: &str = "key";
const LEASE: &str = "lease";
const META: &str = "meta";
/// The buckets of every etcd, in the order of their names.
const OTHERS: [&str; 7] =
    ["alarm", "auth", "authRoles", "authUsers", "cluster", "members", "members_removed"];
const SCHEDULED: &str = "scheduledCompactRev";
const FINISHED: &str = "finishedCompactRev";
/// A key of the bucket `key`: the revision, `_`, and the place of the change in that revision. A deletion has a `t` behind it.
pub const REVISION_BYTES: usize = 17;
/// The checksum behind the file of a snapshot.
const SHA_BYTES: u64 = 32;
/// A file has whole sectors, so what is over is a checksum (`etcdutl/snapshot/v3_snapshot.go`).
const SECTOR_BYTES: u64 = 512;

/// A lease, with times in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: i64,
    pub ttl: i64,
    /// The time that is left; 0 if that is not known.
    pub remaining: i64,
}

/// `leasepb.Lease`.
#[derive(Clone, PartialEq, prost::Message)]
struct LeaseRecord {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl: i64,
    #[prost(int64, tag = "3")]
    remaining: i64,
}

/// Why a snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{0}")]
    Bolt(#[from] BoltError),
    #[error("its checksum is not that of its content: it is damaged, or was cut off")]
    Checksum,
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("it has users and roles, which are not taken over: disable authentication there first")]
    Auth,
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Bolt(error.into())
    }
}

/// A revision as a key of the bucket `key`.
#[must_use]
pub fn revision_key(revision: i64, sub: u32) -> [u8; REVISION_BYTES] {
    let mut key = [b'_'; REVISION_BYTES];
    key[..8].copy_from_slice(&revision.to_be_bytes());
    key[9..].copy_from_slice(&i64::from(sub).to_be_bytes());
    key
}

/// The keys of a snapshot as the bucket `key`. Each has its own place in its revision.
struct Keys<'a> {
    spooled: &'a Spooled,
}

impl Items for Keys<'_> {
    fn count(&self) -> usize {
        self.spooled.entries.len()
    }

    fn key(&self, at: usize, out: &mut Vec<u8>) {
        let entry = &self.spooled.entries[at];
        out.extend(revision_key(entry.revision, entry.sub));
    }

    fn value_bytes(&self, at: usize) -> usize {
        self.spooled.entries[at].bytes as usize
    }

    fn value(&self, at: usize, out: &mut Vec<u8>) -> io::Result<()> {
        self.spooled.read(&self.spooled.entries[at], out)
    }
}

/// Writes a snapshot, with the checksum behind it. `begin` is told its size, and returns where it goes.
///
/// # Errors
/// When the keys cannot be read, or it cannot be written.
pub fn write<W: Write>(
    spooled: &Spooled,
    leases: &[Lease],
    revision: Revision,
    begin: impl FnOnce(u64) -> W,
) -> io::Result<()> {
    let record = |lease: &Lease| {
        let Lease { id, ttl, remaining } = *lease;
        (id.to_be_bytes().to_vec(), LeaseRecord { id, ttl, remaining }.encode_to_vec())
    };
    let mut leases: Vec<_> = leases.iter().map(record).collect();
    leases.sort_unstable();
    let compacted = revision_key(revision.get(), 0).to_vec();
    let number = 1_u64.to_be_bytes().to_vec();
    let members = br#"{"voters":[1],"auto_leave":false}"#.to_vec();
    let meta = [
        ("confState", members),
        ("consistent_index", number.clone()),
        (FINISHED, compacted.clone()),
        (SCHEDULED, compacted),
        ("term", number),
    ];
    let meta = Pairs(meta.into_iter().map(|(key, value)| (key.as_bytes().to_vec(), value)).collect());
    let (leases, nothing, keys) = (Pairs(leases), Pairs(Vec::new()), Keys { spooled });
    let mut buckets: Vec<Bucket<'_>> =
        OTHERS.into_iter().map(|name| Bucket { name, items: &nothing }).collect();
    buckets.push(Bucket { name: KEY, items: &keys });
    buckets.push(Bucket { name: LEASE, items: &leases });
    buckets.push(Bucket { name: META, items: &meta });
    buckets.sort_unstable_by_key(|bucket| bucket.name);
    let plan = Plan::new(buckets);
    let mut out = Summed { out: begin(plan.bytes() + SHA_BYTES), sum: digest::Context::new(&digest::SHA256) };
    plan.write(&mut out)?;
    let Summed { mut out, sum } = out;
    out.write_all(sum.finish().as_ref())?;
    out.flush()
}

/// Sums what it writes.
struct Summed<W> {
    out: W,
    sum: digest::Context,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What is current in a snapshot.
#[derive(Debug, Default)]
pub struct Contents {
    /// The current revision.
    pub revision: i64,
    /// The keys, in no order.
    pub keys: Vec<KeyValue>,
    pub leases: Vec<Lease>,
    /// The number of its users and roles, which are not in use.
    pub users: u64,
    pub roles: u64,
}

/// Reads a snapshot, or the database of an etcd that does not run. The whole content is in memory then.
///
/// # Errors
/// When it cannot be read, or is damaged.
pub fn read(mut file: File) -> Result<Contents, ReadError> {
    check_sum(&mut file)?;
    let bolt = Reader::new(file)?;
    let mut contents = Contents::default();
    let mut current: HashMap<Bytes, KeyValue> = HashMap::new();
    bolt.each(KEY, |key, value| {
        let (revision, is_deletion) = match key {
            [revision @ .., b't'] if revision.len() == REVISION_BYTES => (revision, true),
            revision if revision.len() == REVISION_BYTES => (revision, false),
            _ => {
                return Err(ReadError::Damaged(format!(
                    "{:?} is no revision",
                    key.escape_ascii().to_string()
                )));
            }
        };
        contents.revision = contents.revision.max(main(revision));
        let unread = |error: prost::DecodeError| {
            ReadError::Damaged(format!("a key at revision {}: {error}", main(revision)))
        };
        let kv = KeyValue::decode(Bytes::copy_from_slice(value)).map_err(unread)?;
        // Revisions come in their order, so the last version of a key is the current one.
        if is_deletion {
            current.remove(&kv.key);
        } else {
            current.insert(kv.key.clone(), kv);
        }
        Ok(())
    })?;
    contents.keys = current.into_values().collect();
    bolt.each(LEASE, |_, value| {
        let record =
            LeaseRecord::decode(value).map_err(|error| ReadError::Damaged(format!("a lease: {error}")))?;
        let LeaseRecord { id, ttl, remaining } = record;
        contents.leases.push(Lease { id, ttl, remaining });
        Ok::<(), ReadError>(())
    })?;
    bolt.each(META, |key, value| {
        if [SCHEDULED, FINISHED].iter().any(|name| name.as_bytes() == key) && value.len() >= 8 {
            contents.revision = contents.revision.max(main(value));
        }
        Ok::<(), ReadError>(())
    })?;
    for (bucket, number) in [("authUsers", &mut contents.users), ("authRoles", &mut contents.roles)] {
        bolt.each(bucket, |_, _| {
            *number += 1;
            Ok::<(), ReadError>(())
        })?;
    }
    let mut is_guarded = false;
    bolt.each("auth", |key, value| {
        is_guarded |= key == b"authEnabled" && value == [1];
        Ok::<(), ReadError>(())
    })?;
    if is_guarded { Err(ReadError::Auth) } else { Ok(contents) }
}

/// Checks the checksum behind a snapshot, if there is one.
fn check_sum(file: &mut File) -> Result<(), ReadError> {
    let length = file.metadata()?.len();
    if length % SECTOR_BYTES != SHA_BYTES {
        return Ok(());
    }
    let mut sum = digest::Context::new(&digest::SHA256);
    let mut left = length - SHA_BYTES;
    let mut buffer = vec![0; 1 << 16];
    file.seek(SeekFrom::Start(0))?;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        file.read_exact(&mut buffer[..part])?;
        sum.update(&buffer[..part]);
        left -= part as u64;
    }
    let mut said = [0; SHA_BYTES as usize];
    file.read_exact(&mut said)?;
    if sum.finish().as_ref() == said { Ok(()) } else { Err(ReadError::Checksum) }
}

/// The revision in the first eight bytes.
fn main(key: &[u8]) -> i64 {
    key.get(..8).and_then(|eight| eight.try_into().ok()).map_or(0, i64::from_be_bytes)
}

#[cfg(test)]
mod tests;
