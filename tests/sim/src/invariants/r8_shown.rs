//! **R8**: a router never falls behind what it has shown of a Kind on several stores: every answer about the Kind has a
//! header at or above every one that left this router before the request came in. A store whose clock cannot follow
//! (R3) is allowed to show its own revision, so runs with one are left out; and so is a store that gives keys away,
//! which answers reads of the past at its final revision (R13).

use kindred_partition_config::ids::Revision;

use crate::history::{ReadAnswer, Record, Times, WriteAnswer};
use crate::topology::NODES;

/// See the text above.
///
/// # Errors
/// What is wrong.
pub fn check(record: &Record) -> Result<(), String> {
    if !record.bad_stores.is_empty() {
        return Ok(());
    }
    let reads = record.reads.iter().filter_map(|read| match &read.answer {
        ReadAnswer::Data { header, .. } if !record.is_of_former_owner(read, *header) => {
            Some((read.kind, read.times, *header))
        }
        _ => None,
    });
    let writes = record.writes.iter().filter_map(|write| match write.answer {
        WriteAnswer::Done(header) | WriteAnswer::Nothing(header) => Some((write.kind, write.times, header)),
        _ => None,
    });
    let shown: Vec<(usize, Times, Revision)> =
        reads.chain(writes).filter(|(kind, ..)| *kind != NODES).collect();
    for (kind, times, header) in &shown {
        let Some((router, arrived)) = times.router else { continue };
        let before = shown.iter().filter(|(other, before, _)| {
            let same = before.router.is_some_and(|(other, _)| other == router);
            other == kind && same && before.left.is_some_and(|left| left < arrived)
        });
        if let Some((.., higher)) =
            before.max_by_key(|(.., header)| *header).filter(|before| before.2 > *header)
        {
            return Err(format!("a router showed {header} of Kind {kind} after it had shown {higher}"));
        }
    }
    Ok(())
}
