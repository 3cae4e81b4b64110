//! Client compactions in meta: every router records those that it accepted, and has its shards apply those of others,
//! also of before its own start. A shard that was away for longer than any router lived still gets them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kindred_partition_config::ids::Revision;

use super::client::{Expect, Write};
use super::{COMPACTION, Meta, MetaError};
use crate::app::App;

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(1);

/// Runs for ever.
pub async fn run(app: &Arc<App>, meta: &Arc<Meta>) {
    let mut settled = 0;
    loop {
        tokio::time::sleep(EVERY).await;
        let recorded = {
            let entries = meta.entries.borrow();
            entries.text(COMPACTION).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0)
        };
        let own = app.compacted.load(Ordering::Acquire);
        if recorded > settled {
            // This router's own: it knows which stores it could not reach. At its start it does not.
            if own < recorded {
                app.owe_all(Revision(recorded));
                app.compacted.fetch_max(recorded, Ordering::AcqRel);
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

/// Raises what is recorded.
async fn record(meta: &Meta, revision: i64) -> Result<(), MetaError> {
    let stored = meta.client.get(COMPACTION).await?;
    let recorded =
        stored.as_ref().and_then(|stored| std::str::from_utf8(&stored.value).ok()?.parse::<i64>().ok());
    if recorded.is_some_and(|recorded| recorded >= revision) {
        return Ok(());
    }
    let mod_revision = stored.map_or(0, |stored| stored.mod_revision);
    let expect = Expect { key: COMPACTION.to_owned(), mod_revision };
    // When another router was faster, the next round looks again.
    meta.client.commit(&[expect], vec![Write::put(COMPACTION, revision.to_string())]).await.map(drop)
}
