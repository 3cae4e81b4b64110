//! Measures how fast frames become durable: `cargo run --release -p kindred-wal --example throughput -- DIRECTORY`.
//!
//! Clients that each wait for their own frame, with and without zeros written ahead; then all frames are read back.

#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use kindred_partition_config::ids::Revision;
use kindred_wal::{
    Batch, Event, Frame, Layout, Log, LogEnd, LogKind, LogOptions, OnDamage, RealDisk, Record, Recovery,
    Source, VersionRecord, VisitError, recover,
};

const VALUE: [u8; 1024] = [b'v'; 1024];

#[derive(Default)]
struct Count {
    versions: u64,
    bytes: u64,
}

impl Recovery for Count {
    fn reset(&mut self) {
        *self = Self::default();
    }

    fn frame(&mut self, _source: Source, frame: &Frame<'_>) -> Result<(), VisitError> {
        for record in frame.records() {
            if let Record::Version(version) = record {
                self.versions += 1;
                self.bytes += version.key_value.len() as u64;
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::env::args().nth(1).ok_or("give a directory that is not there yet")?;
    for fill_bytes in [0, 2 << 20] {
        for clients in [1, 64] {
            let root = PathBuf::from(format!("{root}/{fill_bytes}-{clients}"));
            std::fs::create_dir_all(&root)?;
            let options = LogOptions { fill_bytes, ..LogOptions::new(LogKind::Fsync, 1) };
            closed_loop(&root, options, clients)?;
        }
    }
    let root = PathBuf::from(format!("{root}/bulk"));
    std::fs::create_dir_all(&root)?;
    bulk(&root)
}

fn batch(revision: i64) -> Batch {
    let mut batch = Batch::with_capacity(1100);
    batch.push(&Record::Version(VersionRecord {
        revision: Revision(revision),
        sub: 0,
        deletion: false,
        key_value: &VALUE,
    }));
    batch
}

/// Keeps `clients` frames in flight.
fn closed_loop(root: &Path, options: LogOptions, clients: u64) -> Result<(), Box<dyn std::error::Error>> {
    let (tell, told) = mpsc::channel();
    let fill = options.fill_bytes;
    let directory = Layout::new(root).log(LogKind::Fsync);
    let log = Log::open(Arc::new(RealDisk), directory, options, LogEnd::fresh(), move |event| {
        if let Event::Durable { seq, took, .. } = event {
            tell.send((seq.0, took)).ok();
        }
    })?;
    let begun = Instant::now();
    let (mut sent, mut done, mut took) = (0, 0, Vec::new());
    while begun.elapsed() < Duration::from_secs(5) {
        while sent < done + clients {
            sent = log.append(batch(1))?.0;
        }
        let (seq, time) = told.recv()?;
        done = seq;
        took.push(time);
    }
    took.sort_unstable();
    let seconds = begun.elapsed().as_secs_f64();
    let (middle, late) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    println!(
        "fsync, {clients} clients, {fill} zeros ahead: {:.0} frames/s of 1 KiB in {:.0} commits/s, commit p50 {middle:.2?}, p99 {late:.2?}",
        done as f64 / seconds,
        took.len() as f64 / seconds
    );
    Ok(())
}

/// Appends 300,000 frames at once and reads them back.
fn bulk(root: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let layout = Layout::new(root);
    let options = LogOptions::new(LogKind::Buffered, 1);
    let directory = layout.log(LogKind::Buffered);
    let (tell, told) = mpsc::sync_channel(1);
    let log = Log::open(Arc::new(RealDisk), directory, options, LogEnd::fresh(), move |_| {
        tell.try_send(()).ok();
    })?;
    let begun = Instant::now();
    for revision in 0..300_000 {
        while !log.has_room() {
            told.recv()?;
        }
        log.append(batch(revision))?;
    }
    log.close(Duration::from_secs(60))?;
    let seconds = begun.elapsed().as_secs_f64();
    println!("buffered, in bulk: {:.0} MB/s", 300_000.0 * 1024.0 / 1e6 / seconds);
    let begun = Instant::now();
    let mut count = Count::default();
    recover(&RealDisk, &layout, kindred_wal::LogPlaces::NONE, OnDamage::Refuse, &mut count)?;
    let seconds = begun.elapsed().as_secs_f64();
    println!("recovery: {} versions, {:.0} MB/s", count.versions, count.bytes as f64 / 1e6 / seconds);
    Ok(())
}
