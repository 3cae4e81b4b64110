//! A shard's durable storage: a write-ahead log for each durability mode, checkpoints, and the ceiling of its
//! clock. This crate knows bytes and files, not engines; the shard encodes and interprets the records.
//!
//! [`format`](mod@format) describes the on-disk format. All I/O goes through a [`Disk`]: [`RealDisk`], or
//! [`sim::SimDisk`] in tests.
//!
//! # The life of a shard's files
//!
//! 1. **Start**: [`DirectoryLock::take`], then [`recover()`] passes every [`Record`] to a [`Recovery`]: those of the
//!    newest valid checkpoint, then those of each log from the position that the checkpoint names. It returns the
//!    end of each log. [`ClockFile::open`] returns the ceiling.
//! 2. **Work**: [`Log::open`] for each [`LogKind`] with its [`LogEnd`]. For each batch of the apply loop, and for
//!    each log that it concerns: ask [`Log::has_room`], then [`Log::append`] a [`Batch`], which returns its
//!    [`FrameSeq`], then call [`Log::promise`]. [`Event::Durable`] reports when the frame is durable.
//! 3. **Checkpoint**, while work goes on: note [`Log::next`] of both logs; [`CheckpointWriter::create`] with these
//!    positions; walk through the state and [`CheckpointWriter::write`] it; note `Log::next().prev()` of both logs
//!    and wait until both are durable up to there; [`CheckpointWriter::finish`] with these positions; [`sweep`].
//! 4. **Stop**: append [`Record::Clean`] to both logs, [`Log::close`] them, and lower the ceiling with
//!    [`ClockFile::store`].
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
//! # Guarantees
//!
//! After any crash, the frames that [`recover()`] returns from a log are a prefix of those appended. They are whole
//! frames and include all that were reported durable. A second recovery returns the same frames. Damage to durable
//! frames is detected, in the fsync log even in the very last write, because a torn write lacks whole sectors. A
//! truncated log is detected by the clock file, which records how far it was durable. `src/crashes.rs` tests this
//! against a disk that loses, tears and reorders unsynced data.

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
mod workers;
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
    record::{Batch, GapRecord, Record, RecordDamage, Records, TooLarge, VersionHead, VersionRecord},
    recover::{Progress, Recovered, Recovery, Source, recover},
    scan::{Frame, LogEnd, Visit, Wanted, scan},
    segments::{Segment, removable, segments},
    workers::{Driven, Job, Stepped, Workers},
    writer::{Event, Failure, FailureReason, LogStatus},
};
