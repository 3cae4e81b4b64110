//! What a shard keeps on its disk: a write-ahead log for each durability mode, checkpoints, and the ceiling of its clock. Knows bytes and
//! files, not engines: records are made from and into what they mean by the shard.
//!
//! What lies on the disk, byte by byte: [`format`](mod@format). Everything goes through a [`Disk`]: [`RealDisk`], or [`sim::SimDisk`] in
//! tests.
//!
//! # The life of a shard's files
//!
//! 1. **Start**: [`DirectoryLock::take`], then [`recover`] calls a [`Recovery`] with every [`Record`] that is kept: those of the newest whole
//!    checkpoint, then those of each log from the place that it names, and answers where each log ends. [`ClockFile::open`] answers the
//!    ceiling.
//! 2. **Work**: [`Log::open`] for each [`LogKind`] with its [`LogEnd`]. For each batch of the apply loop: one [`Batch`] a log,
//!    [`Log::append`] answers its [`FrameSeq`], and [`Event::Durable`] tells when it is on the disk. [`Log::promise`] after it.
//!    [`Log::has_room`] before the next.
//! 3. **Checkpoint**, while work goes on: note [`Log::next`] of both logs; [`CheckpointWriter::create`] with these; walk through the state,
//!    [`CheckpointWriter::write`]; note `Log::next().prev()` of both logs and wait until both are durable to there;
//!    [`CheckpointWriter::finish`] with these; [`sweep`].
//! 4. **Stop**: append [`Record::Clean`] to both logs, [`Log::close`], and a lower ceiling with [`ClockFile::store`].
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use kindred_partition_config::ids::Revision;
//! use kindred_wal::*;
//!
//! struct Versions(Vec<Revision>);
//! impl Recovery for Versions {
//!     fn reset(&mut self) {
//!         self.0.clear();
//!     }
//!     fn frame(&mut self, _from: Source, frame: &Frame<'_>) -> Result<(), VisitError> {
//!         self.0.extend(frame.records().filter_map(|record| match record {
//!             Record::Version(version) => Some(version.revision),
//!             _ => None,
//!         }));
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! let (disk, layout) = (Arc::new(RealDisk), Layout::new(directory.path()));
//! let mut found = Versions(Vec::new());
//! let recovered = recover(&*disk, &layout, LogPlaces::NONE, OnDamage::Refuse, &mut found)?;
//! let (durable, told) = std::sync::mpsc::channel();
//! let options = LogOptions::new(LogKind::Fsync, 0x5eed /* random */);
//! let log = Log::open(disk.clone(), layout.log(LogKind::Fsync), options, recovered.fsync, move |event| {
//!     durable.send(event).ok();
//! })?;
//!
//! let mut batch = Batch::new();
//! let version = VersionRecord { revision: Revision(7), sub: 0, deletion: false, key_value: b"..." };
//! batch.push(&Record::Version(version));
//! let seq = log.append(batch)?;
//! assert!(matches!(told.recv()?, Event::Durable { seq: upto, .. } if upto == seq));
//! log.close(Duration::from_secs(10))?;
//!
//! recover(&*disk, &layout, LogPlaces::NONE, OnDamage::Refuse, &mut found)?;
//! assert_eq!(found.0, [Revision(7)]);
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! After any crash, the frames of a log that [`recover`] gives are a prefix of those appended, in whole frames, and contain all that were
//! reported durable; recovering again gives the same. Damage to what was reported durable is found: of the fsync log also in its very last
//! write, as a torn one lacks whole sectors; and a log that was cut off is found out by the file of the clock, which knows how far it was.
//! `src/crashes.rs` holds this against a disk that loses, tears and reorders what was not synced.

#![forbid(unsafe_code)]

mod checkpoint;
mod clock;
#[cfg(test)]
mod crashes;
mod disk;
mod error;
pub mod exercise;
pub mod format;
mod layout;
mod log;
mod number;
mod options;
mod reader;
mod record;
mod recover;
mod scan;
mod segments;
pub mod sim;
mod writer;

pub use self::{
    checkpoint::{Checkpoint, CheckpointWriter, LogPlaces, Swept, checkpoints, read_checkpoint, sweep},
    clock::ClockFile,
    disk::{DirectoryLock, Disk, DiskFile, LockError, RealDisk},
    error::{ClockDamage, Damage, Loss, OnDamage, TornTail, VisitError, WalError},
    layout::{Layout, LogKind},
    log::{Log, Unwritten},
    number::{FileNumber, FrameSeq},
    options::LogOptions,
    record::{Batch, GapRecord, Record, RecordDamage, Records, TooLarge, VersionRecord},
    recover::{Progress, Recovered, Recovery, Source, recover},
    scan::{Frame, LogEnd, Visit, Wanted, scan},
    segments::{Segment, removable, segments},
    writer::{Event, Failure, FailureReason, LogStatus},
};
