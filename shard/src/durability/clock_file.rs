//! Opens the clock's file at a start. The file is created before anything else of a store, so where anything else
//! exists it must exist too.
//!
//! Without it, the ceiling of the revisions (R2) and the log positions on disk would be lost silently. It also counts
//! the starts, as it is the one file that a start writes in place: a full disk prevents no start.

use std::time::SystemTime;

use kindred_partition_config::ids::Revision;
use kindred_wal::{ClockDamage, ClockFile, Disk, Layout, LogKind, OnDamage, WalError, checkpoints, segments};

use crate::identity::Identity;

/// Other facts about the store.
#[derive(Debug, Clone, Copy)]
pub struct Beside {
    /// Whether it counts revisions densely. Versions before format 2 created no clock file for such a store.
    pub dense: bool,
    /// Whether it has an identity.
    pub identity: bool,
}

/// The format version of the files since which every store has a clock file.
const ALWAYS_SINCE: u16 = 2;

/// Opens the file. `None` where none exists and none must, or where its loss is accepted.
///
/// # Errors
/// When it cannot be read, is damaged, or is missing.
pub fn open(
    disk: &dyn Disk,
    layout: &Layout,
    beside: Beside,
    on_damage: OnDamage,
) -> Result<Option<(ClockFile, Revision)>, WalError> {
    let found = match ClockFile::open(disk, &layout.clock()) {
        Ok(None) => match witness(disk, layout, beside)? {
            Some(witness) => {
                let why = ClockDamage::Missing(witness);
                Err(WalError::Clock { path: layout.clock(), why })
            }
            None => Ok(None),
        },
        found => found,
    };
    match found {
        Err(error @ WalError::Clock { .. }) if on_damage == OnDamage::Accept => {
            tracing::warn!(%error, "the loss is accepted");
            Ok(None)
        }
        other => other,
    }
}

/// Something that exists only if the clock file was created before.
fn witness(disk: &dyn Disk, layout: &Layout, beside: Beside) -> Result<Option<&'static str>, WalError> {
    let mut files = checkpoints(disk, layout)?;
    for kind in LogKind::ALL {
        files.extend(segments(disk, &layout.log(kind), kind)?);
    }
    let tells = |version: Option<u16>| !beside.dense || version.is_none_or(|version| version >= ALWAYS_SINCE);
    if files.iter().any(|file| tells(file.header.as_ref().ok().map(|header| header.version))) {
        return Ok(Some("a log or a checkpoint"));
    }
    Ok((beside.identity && !beside.dense).then_some("the store's identity.json"))
}

/// Counts another start of the store in its clock file. Returns the number of this start.
///
/// # Errors
/// As [`open`], and when the file cannot be written.
pub fn begin(
    disk: &dyn Disk,
    layout: &Layout,
    beside: Beside,
    on_damage: OnDamage,
    identity: Option<&Identity>,
) -> Result<u64, WalError> {
    let opened = open(disk, layout, beside, on_damage)?;
    let counted = identity.map_or(0, |identity| identity.incarnation);
    let (mut file, before) = match opened {
        Some((file, _)) => {
            let before = file.incarnation().max(counted);
            (file, before)
        }
        None => {
            let file = ClockFile::create(disk, &layout.clock(), Revision::ZERO)?;
            // After its loss the number of starts is unknown, but below the number of seconds.
            (file, if identity.is_some() && !beside.dense { counted.max(seconds()) } else { counted })
        }
    };
    let incarnation = before.saturating_add(1);
    file.begin(incarnation)?;
    Ok(incarnation)
}

fn seconds() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}
