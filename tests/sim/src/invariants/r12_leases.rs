//! **R12**: a lease ends at its home first. While the home runs, nothing attaches to the lease or keeps it alive after
//! that. An end that the home has reported to anybody is on its disk: no restart brings the lease back. Once all is
//! quiet, no key carries a lease that is over, whichever store it is on, and no home still waits for a store. A write
//! is refused for want of a lease only when that lease is over.

use std::collections::{BTreeMap, BTreeSet};

use kindred_partition_config::ids::LeaseId;

use crate::history::{LeaseStep, Order, Record, WriteAnswer};
use crate::shard::files::End;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    let mut over: BTreeMap<LeaseId, Order> = BTreeMap::new();
    let mut told: BTreeSet<LeaseId> = BTreeSet::new();
    for (order, id, _, step) in &record.leases {
        match step {
            LeaseStep::Ended => {
                over.insert(*id, *order);
            }
            LeaseStep::Told => {
                told.insert(*id);
            }
            LeaseStep::Back if told.contains(id) => {
                return Err(format!("lease {id} lives again, and its home has said that it was over"));
            }
            LeaseStep::Back => {
                over.remove(id);
            }
            LeaseStep::Granted | LeaseStep::Asked(true) if over.contains_key(id) => {
                return Err(format!("lease {id} was over and its home said {step:?}"));
            }
            _ => {}
        }
    }
    // Leases are lost with the disk of their home. The operator decides about their keys.
    let lost: BTreeMap<LeaseId, (Order, End)> =
        record.leases_lost.iter().map(|(order, id, end)| (*id, (*order, *end))).collect();
    for (granted, id) in &record.granted {
        let gone = lost.get(id).filter(|(order, end)| order > granted && *end != End::DiskLost);
        if let Some((_, end)) = gone {
            return Err(format!("lease {id} was granted, and is lost though its home ended by {end:?}"));
        }
    }
    let without_home = |lease: &LeaseId| {
        let home = record.leases.iter().find(|(_, id, ..)| id == lease).map(|(_, _, home, _)| *home);
        record.restarts.iter().any(|restart| Some(restart.store) == home && restart.end == End::DiskLost)
    };
    for (store, key, lease) in &record.leased_at_end {
        if !record.leases_at_end.contains(lease) && !without_home(lease) {
            return Err(format!("{} on store {} outlives its lease {lease}", key.escape_ascii(), store.0));
        }
    }
    if let Some(lease) = record.waiting_at_end.first() {
        return Err(format!("the home of lease {lease} still waits for a store"));
    }
    for write in record.writes.iter().filter(|write| write.answer == WriteAnswer::NoLease) {
        let Some(lease) = write.lease else { continue };
        let gone = lost.get(&lease).is_some_and(|(order, _)| *order < write.times.finished);
        if !gone && over.get(&lease).is_none_or(|ended| *ended > write.times.finished) {
            return Err(format!("a write was refused for want of lease {lease}, which lives"));
        }
    }
    Ok(())
}
