//! bbolt's file: pages, of which two are *metas*, and trees of branch and leaf pages. The root tree's values are the roots
//! of *buckets*, each a tree of its own. The format is that of `go.etcd.io/bbolt` (`internal/common/page.go`, `meta.go`,
//! `bucket.go`), whose numbers are in the byte order of the machine: here little-endian, as on every machine that etcd
//! supports.

use std::io;

mod read;
mod write;

pub use read::Reader;
pub use write::{Bucket, Items, Pairs, Plan};

/// The page size that is written. Readers take any.
pub const PAGE_BYTES: usize = 4096;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREELIST: u16 = 0x10;
/// The flag of a leaf's element whose value is a bucket.
const IS_BUCKET: u32 = 0x01;
/// id u64, flags u16, count u16, overflow u32.
const HEADER_BYTES: usize = 16;
/// An element of a leaf (flags, pos, ksize, vsize: u32) or of a branch (pos, ksize: u32, pgid: u64).
const ELEMENT_BYTES: usize = 16;
/// A bucket's value: root u64, sequence u64. A bucket with root 0 is *inline*: its only page follows.
const BUCKET_BYTES: usize = 16;
/// The bytes of a meta, from its magic to before its checksum.
const META_BYTES: usize = 56;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BoltError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is no database of etcd: {0}")]
    NotBolt(&'static str),
    #[error("it is damaged: page {page}: {what}")]
    Damaged { page: u64, what: &'static str },
}

/// FNV-1a of 64 bits, by which bbolt checks its metas.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
