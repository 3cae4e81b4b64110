//! Flipped bits and missing files: they are detected and named, and `--accept-data-loss` gets past each of them
//! once.

use std::path::PathBuf;

use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

use super::life::{Given, Shard, durable};
use crate::{
    Disk as _, LogEnd, LogKind, LogOptions, OnDamage, Recovered, WalError,
    format::{FILE_HEADER_BYTES, FileHeader, FrameHeader},
    layout::Layout,
    log::prepare,
    recover,
    sim::SimDisk,
    writer::{
        core::{Core, Step},
        executor::Executor,
    },
};

const SEEDS: u64 = 60;
const FLIPS: usize = 25;

fn files(disk: &SimDisk, layout: &Layout) -> Vec<PathBuf> {
    let directories = [layout.checkpoints(), layout.log(LogKind::Fsync), layout.log(LogKind::Buffered)];
    let all = directories.into_iter().flat_map(|directory| {
        let names = disk.list(&directory).unwrap_or_default();
        names.into_iter().map(move |name| directory.join(name))
    });
    all.filter(|path| path.extension().is_some_and(|end| end != "new")).collect()
}

fn read(disk: &SimDisk, layout: &Layout, on_damage: OnDamage) -> Result<(Recovered, Given), WalError> {
    let mut given = Given::default();
    recover(disk, layout, durable(disk, layout), on_damage, &mut given).map(|found| (found, given))
}

/// Whether each log of `part` is a prefix of the same log of `whole`.
fn is_prefix(part: &Given, whole: &Given) -> bool {
    part.frames.iter().all(|(kind, frames)| {
        let Some(all) = whole.frames.get(kind) else { return frames.is_empty() };
        frames.len() <= all.len() && frames.iter().zip(all).all(|(one, other)| one == other)
    })
}

/// A quiet disk after some lives, and what recovery reads from it.
fn worked(seed: u64) -> (Shard, Given) {
    let mut shard = Shard::new(seed);
    for life in 0..3 {
        shard.live(&format!("seed {seed}, life {life}"));
    }
    let (_, given) = read(&shard.disk, &shard.layout, OnDamage::Refuse).unwrap();
    (shard, given)
}

#[test]
fn flipped_bits_are_found() {
    let (mut refused, mut torn, mut passed_over, mut harmless) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let (shard, whole) = worked(seed);
        let mut random = SmallRng::seed_from_u64(seed);
        let files = files(&shard.disk, &shard.layout);
        if files.is_empty() {
            continue;
        }
        for flip in 0..FLIPS {
            let disk = shard.disk.copy(seed);
            let path = &files[random.random_range(0..files.len())];
            let bits = disk.content(path).unwrap().len() as u64 * 8;
            if bits == 0 {
                continue;
            }
            let bit = random.random_range(0..bits);
            disk.flip(path, bit);
            let at = format!("seed {seed}, flip {flip}: bit {bit} of {}", path.display());
            match read(&disk, &shard.layout, OnDamage::Refuse) {
                Err(WalError::Damaged(loss)) => {
                    refused += 1;
                    let told = loss.to_string();
                    assert!(
                        told.contains(&*loss.file.to_string_lossy()) && told.contains("--accept-data-loss"),
                        "{told}"
                    );
                    accepted(&disk, &shard.layout, &whole, &at);
                }
                Err(other) => panic!("{at}: {other}"),
                Ok((found, given)) => {
                    assert!(is_prefix(&given, &whole), "{at}: something else came back");
                    let was_torn = found.fsync.torn.is_some() || found.buffered.torn.is_some();
                    assert!(was_torn || given == whole, "{at}: lost without a word");
                    if given != whole {
                        assert!(
                            path.starts_with(shard.layout.log(LogKind::Buffered)),
                            "{at}: what was on the disk is lost"
                        );
                        assert!(lost_only_behind(&given, &whole, &disk, &shard.layout), "{at}");
                        let original = shard.disk.content(path).unwrap();
                        assert!(
                            bit / 8 >= proven(&original),
                            "{at}: what was on the disk was taken for a torn tail"
                        );
                        torn += 1;
                    }
                    passed_over += u64::from(!found.passed_over.is_empty());
                    harmless += u64::from(given == whole && found.passed_over.is_empty());
                }
            }
        }
    }
    println!(
        "refused {refused}, cut as torn {torn}, an older checkpoint served {passed_over}, in what nobody needs {harmless}"
    );
    assert!(refused > 100 && torn > 5 && passed_over > 10 && harmless > 20);
}

/// The number of bytes of a segment that its own frames prove to be durable.
fn proven(segment: &[u8]) -> u64 {
    let (head, seed) = FileHeader::decode(segment).unwrap();
    let (mut proven, mut at) = (head.whole, FILE_HEADER_BYTES);
    while let Some(frame) = segment.get(at..).and_then(|rest| FrameHeader::decode(seed, rest)) {
        proven = proven.max(frame.synced);
        at += usize::try_from(frame.frame_bytes()).unwrap();
    }
    proven
}

/// After an accepted loss the log works, and the next start does not report it again.
fn accepted(disk: &SimDisk, layout: &Layout, whole: &Given, at: &str) {
    let (found, given) = read(disk, layout, OnDamage::Accept).unwrap_or_else(|error| panic!("{at}: {error}"));
    assert!(!found.losses.is_empty(), "{at}");
    let of_a_checkpoint = found.losses.iter().any(|loss| loss.file.starts_with(layout.checkpoints()));
    assert!(of_a_checkpoint || is_prefix(&given, whole), "{at}: not a prefix");
    if of_a_checkpoint {
        // A damaged checkpoint is reported until there is a newer one.
        return;
    }
    let mut next = Vec::new();
    for (kind, end) in [(LogKind::Fsync, found.fsync), (LogKind::Buffered, found.buffered)] {
        next.push(end.next);
        go_on(disk, layout, kind, end);
    }
    let (again, after) =
        read(disk, layout, OnDamage::Refuse).unwrap_or_else(|error| panic!("{at}, again: {error}"));
    assert_eq!((given, again.losses.len()), (after, 0), "{at}");
    assert_eq!(
        next,
        [again.fsync.next, again.buffered.next],
        "{at}: numbers of lost frames are not given again"
    );
}

fn go_on(disk: &SimDisk, layout: &Layout, kind: LogKind, end: LogEnd) {
    let options = LogOptions { fill_bytes: 100, ..LogOptions::new(kind, 77) };
    let directory = layout.log(kind);
    prepare(disk, &directory, &end).unwrap();
    let mut core = Core::new(options.clone(), end, std::time::Duration::ZERO);
    let mut executor = Executor::new(std::sync::Arc::new(disk.clone()), directory, options);
    let step = core.next(std::time::Duration::ZERO);
    assert!(matches!(step, Step::Create(_)));
    executor.perform(&step).unwrap();
}

/// Whether all missing frames are after those that the clock file records as durable.
fn lost_only_behind(given: &Given, whole: &Given, disk: &SimDisk, layout: &Layout) -> bool {
    let known = durable(disk, layout);
    whole.frames.iter().all(|(kind, frames)| {
        let given = given.frames.get(kind);
        let mut lost = frames.keys().filter(|seq| given.is_none_or(|given| !given.contains_key(seq)));
        lost.all(|seq| *seq > known.of(*kind))
    })
}

#[test]
fn f50_logs_that_are_cut_off_are_found() {
    let (mut refused, mut unseen, mut harmless) = (0, 0, 0);
    for seed in 0..SEEDS {
        let (shard, whole) = worked(seed);
        let mut random = SmallRng::seed_from_u64(seed);
        for kind in LogKind::ALL {
            let directory = shard.layout.log(kind);
            let names = shard.disk.list(&directory).unwrap_or_default();
            let segments: Vec<_> = names.into_iter().filter(|name| name.ends_with(".wal")).collect();
            for name in segments.iter().chain(segments.last()).chain(segments.last()) {
                let disk = shard.disk.copy(seed);
                let path = directory.join(name);
                let mut content = disk.content(&path).unwrap();
                let length = random.random_range(0..content.len());
                content.truncate(length);
                disk.place(&path, content);
                let at = format!("seed {seed}: {} cut to {length} bytes", path.display());
                match read(&disk, &shard.layout, OnDamage::Refuse) {
                    Err(WalError::Damaged(_)) => {
                        refused += 1;
                        accepted(&disk, &shard.layout, &whole, &at);
                    }
                    Err(other) => panic!("{at}: {other}"),
                    Ok((_, given)) => {
                        assert!(is_prefix(&given, &whole), "{at}");
                        assert!(lost_only_behind(&given, &whole, &disk, &shard.layout), "{at}");
                        *(if given == whole { &mut harmless } else { &mut unseen }) += 1;
                    }
                }
            }
        }
    }
    println!("refused {refused}, of what the clock did not know yet {unseen}, harmless {harmless}");
    assert!(refused > 100);
}

#[test]
fn missing_files_are_found() {
    let (mut refused, mut missed) = (0, 0);
    for seed in 0..SEEDS {
        let (shard, whole) = worked(seed);
        let files = files(&shard.disk, &shard.layout);
        for path in &files {
            let disk = shard.disk.copy(seed);
            disk.remove(path).unwrap();
            let at = format!("seed {seed} without {}", path.display());
            match read(&disk, &shard.layout, OnDamage::Refuse) {
                Err(WalError::Damaged(_)) => {
                    refused += 1;
                    accepted(&disk, &shard.layout, &whole, &at);
                }
                Err(other) => panic!("{at}: {other}"),
                // The removed file was the last segment, of which there is no other record, or a checkpoint whose
                // predecessor serves.
                Ok((_, given)) => {
                    assert!(is_prefix(&given, &whole), "{at}");
                    assert!(lost_only_behind(&given, &whole, &disk, &shard.layout), "{at}");
                    missed += u64::from(given != whole);
                }
            }
        }
    }
    println!("refused {refused}, the end of a log cut off without a trace {missed}");
    assert!(refused > 50);
}
