//! The keys of a snapshot between two orders: they are read in the order of keys, and etcd's file has them in the order of
//! revisions. They wait in a file without a name in the folder for temporary files (`TMPDIR`), and memory has 24 bytes for
//! each.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;

use kindred_proto::mvccpb::KeyValue;
use prost::Message as _;

/// The place of a key.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The revision of its last change.
    pub revision: i64,
    /// Its place among the keys of that revision.
    pub sub: u32,
    pub bytes: u32,
    at: u64,
}

/// Takes keys.
#[derive(Debug)]
pub struct Spool {
    file: BufWriter<File>,
    entries: Vec<Entry>,
    leases: BTreeSet<i64>,
    at: u64,
    encoded: Vec<u8>,
}

/// All keys of a snapshot.
#[derive(Debug)]
pub struct Spooled {
    file: File,
    /// In the order of revisions.
    pub entries: Vec<Entry>,
    /// The leases of keys.
    pub leases: BTreeSet<i64>,
}

impl Spool {
    /// # Errors
    /// When there can be no temporary file.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::with_capacity(1 << 18, tempfile::tempfile()?),
            entries: Vec::new(),
            leases: BTreeSet::new(),
            at: 0,
            encoded: Vec::new(),
        })
    }

    /// # Errors
    /// When the disk is full.
    pub fn add(&mut self, kv: &KeyValue) -> io::Result<()> {
        self.encoded.clear();
        // A vector has room for all.
        let _ = kv.encode(&mut self.encoded);
        let bytes = u32::try_from(self.encoded.len()).map_err(io::Error::other)?;
        self.file.write_all(&self.encoded)?;
        self.entries.push(Entry { revision: kv.mod_revision, sub: 0, bytes, at: self.at });
        self.at += u64::from(bytes);
        if kv.lease != 0 {
            self.leases.insert(kv.lease);
        }
        Ok(())
    }

    /// # Errors
    /// When the disk is full.
    pub fn finish(self) -> io::Result<Spooled> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        let mut entries = self.entries;
        entries.sort_unstable_by_key(|entry| (entry.revision, entry.at));
        let mut last = None;
        for entry in &mut entries {
            entry.sub = match last {
                Some((revision, sub)) if revision == entry.revision => sub + 1,
                _ => 0,
            };
            last = Some((entry.revision, entry.sub));
        }
        Ok(Spooled { file, entries, leases: self.leases })
    }
}

impl Spooled {
    /// Appends a key as a message.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self, entry: &Entry, out: &mut Vec<u8>) -> io::Result<()> {
        let begin = out.len();
        out.resize(begin + entry.bytes as usize, 0);
        self.file.read_exact_at(&mut out[begin..], entry.at)
    }
}
