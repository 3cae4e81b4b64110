//! The file of the clock at a start: it is made before anything else of a store, so where anything else is it must be there.
//!
//! Without it the ceiling of the revisions (R2) and how far the logs were on disk would be forgotten without a word. It also counts the
//! starts, as it is the one file that a start writes in place: a full disk stops no start.

use std::time::SystemTime;

use kindred_partition_config::ids::Revision;
use kindred_wal::{ClockDamage, ClockFile, Disk, Layout, LogKind, OnDamage, WalError, checkpoints, segments};

use crate::identity::Identity;

/// What else is known of the store.
#[derive(Debug, Clone, Copy)]
pub struct Beside {
    /// Its revisions are counted. Versions before this one made no file of the clock for such a store.
    pub dense: bool,
    /// It has an identity.
    pub identity: bool,
}

/// The layout of files from which on every store has a file of the clock.
const ALWAYS_SINCE: u16 = 2;

/// Opens the file; nothing where there is none and none must be, or where its loss is accepted.
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

/// Something that is made after the file of the clock only.
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

/// Notes another start of the store, in the file of the clock; answers which one it is.
///
/// # Errors
/// As of [`open`], and when it cannot be written.
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
            // Where it was lost nobody knows how many starts there were: fewer than seconds.
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
