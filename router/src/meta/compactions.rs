//! Compactions of clients in meta. Every router records those that it accepted, and applies those of others to its
//! shards, including those from before its own start. So also a shard that was away longer than any router has lived
//! gets them.

use std::time::Duration;

use kindred_partition_config::ids::Revision;

use super::client::{Expect, Write};
use super::{COMPACTION, Meta, MetaError};
use crate::execute::compact::Compactor;
use crate::ticks::Ticks;

/// The time between two checks of meta when nothing changes. A write that failed is tried again then.
const EVERY: Duration = Duration::from_secs(1);

/// Runs for ever.
pub async fn run(compactor: &Compactor, meta: &Meta, ticks: Ticks) {
    let (mut owns, mut known) = (compactor.compactions(), meta.entries.subscribe());
    let mut settled = 0;
    loop {
        // Until other routers know of it, they serve watches from below it.
        tokio::select! {
            () = ticks.sleep(EVERY) => {}
            Ok(()) = owns.changed() => {}
            Ok(()) = known.changed() => {}
        }
        let recorded = {
            let entries = meta.entries.borrow();
            entries.text(COMPACTION).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0)
        };
        let own = compactor.compacted().get();
        if recorded > settled {
            // A compaction of this router's own needs nothing: it knows which stores missed it. After a start it knows
            // of none.
            if own < recorded {
                compactor.owe_all(Revision(recorded));
            }
            settled = recorded;
        }
        if own > recorded
            && meta.problem().is_none()
            && let Err(error) = record(meta, own).await
        {
            tracing::debug!(%error, "a compaction is not recorded yet");
        }
    }
}

/// Raises the recorded revision, if it is lower.
async fn record(meta: &Meta, revision: i64) -> Result<(), MetaError> {
    let stored = meta.client.get(COMPACTION).await?;
    let recorded =
        stored.as_ref().and_then(|stored| std::str::from_utf8(&stored.value).ok()?.parse::<i64>().ok());
    if recorded.is_some_and(|recorded| recorded >= revision) {
        return Ok(());
    }
    let mod_revision = stored.map_or(0, |stored| stored.mod_revision);
    let expect = Expect { key: COMPACTION.to_owned(), mod_revision };
    // If another router was faster, the next round checks again.
    meta.client.commit(&[expect], vec![Write::put(COMPACTION, revision.to_string())]).await.map(drop)
}
