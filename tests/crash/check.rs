//! What each mode promises, looked for while nobody writes.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context, ensure};
use kindred_tests::client::Client;

use crate::{
    cluster::{Kind, Mode},
    watchers::{Found, at_revision, list},
    writers::Attempt,
};

/// Of the acknowledged writes of a Kind on a killed shard, how many of the last are looked for one by one.
const LAST_MAX: usize = 120;

/// What was found of one mode.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub checked: usize,
    pub lost: usize,
    /// The age of the oldest lost write when its shard ended, ms.
    pub oldest_ms: u128,
}

/// How a shard ended.
#[derive(Debug, Clone, Copy)]
pub struct End {
    pub store: usize,
    pub at: Instant,
    /// It was told to stop, and had the time.
    pub clean: bool,
}

/// Looks for what was acknowledged by a shard's last life, and notes what is lost. `promised` says what a write of a Kind
/// at a place among them survives.
pub async fn after_end(
    client: &mut Client,
    kinds: &[Kind],
    promised: impl Fn(usize, Instant) -> Mode,
    life: &mut [Attempt],
    end: End,
    tallies: &mut BTreeMap<&'static str, Tally>,
) -> anyhow::Result<()> {
    for (at, kind) in kinds.iter().enumerate() {
        let of = |attempt: &&mut Attempt| {
            attempt.kind == at
                && attempt.store == end.store
                && attempt.acknowledged.is_some()
                && !attempt.lost
        };
        let mut written: Vec<&mut Attempt> = life.iter_mut().filter(of).collect();
        written.sort_by_key(|attempt| attempt.acknowledged.map(|(revision, _)| revision));
        let from = written.len().saturating_sub(LAST_MAX);
        let mut gone: Option<i64> = None;
        for index in from..written.len() {
            let attempt = &mut *written[index];
            let Some((revision, when)) = attempt.acknowledged else { continue };
            let mode = promised(at, when);
            let tally = tallies.entry(kind.changes.map_or(mode.word(), |word| word)).or_default();
            let found = at_revision(client, &attempt.key, revision).await?;
            tally.checked += 1;
            if found == Found::There(attempt.number, revision) {
                let outlived = kind.changes.is_none() && mode == Mode::None && !end.clean;
                ensure!(!outlived, "{attempt:?} outlived its shard, which keeps nothing");
                ensure!(
                    gone.is_none(),
                    "{attempt:?} is there, but not what was written before it at {gone:?}"
                );
                continue;
            }
            ensure!(
                found == Found::Compacted,
                "{attempt:?} is gone, and its revision is not compacted but shows {found:?}"
            );
            ensure!(mode != Mode::Fsync, "{attempt:?} was acknowledged, and is lost");
            ensure!(mode == Mode::None || !end.clean, "{attempt:?} is lost in a clean stop");
            let age = end.at.saturating_duration_since(when);
            // Of mode buffered the system had it before it was acknowledged, and only the process has died.
            ensure!(mode == Mode::None, "{attempt:?} was acknowledged, and is lost at the age of {age:?}");
            gone = gone.or(Some(revision));
            attempt.lost = true;
            tally.lost += 1;
            tally.oldest_ms = tally.oldest_ms.max(age.as_millis());
            if index == from {
                // Of the older ones nothing can be there when nothing of the newest is.
                ensure!(
                    from == 0 || mode == Mode::None,
                    "the last {LAST_MAX} writes of {} are lost, and more may be",
                    kind.resource
                );
                written[..from].iter_mut().for_each(|older| older.lost = true);
            }
        }
    }
    Ok(())
}

/// Every key has the value of its last write that is not lost, or of a later one whose answer never came; what is written
/// together is there together.
pub async fn contents(client: &mut Client, kinds: &[Kind], attempts: &[Attempt]) -> anyhow::Result<()> {
    let mut last: BTreeMap<&str, (u64, &Attempt)> = BTreeMap::new();
    for attempt in attempts.iter().filter(|attempt| attempt.acknowledged.is_some() && !attempt.lost) {
        last.insert(&attempt.key, (attempt.number, attempt));
    }
    for (at, kind) in kinds.iter().enumerate() {
        let (there, _) = list(client, kind).await.with_context(|| format!("a list of {}", kind.resource))?;
        for (key, (number, attempt)) in last.iter().filter(|(_, (_, attempt))| attempt.kind == at) {
            let found =
                there.get(*key).with_context(|| format!("{attempt:?} is lost: there is no such key"))?;
            ensure!(found.0 >= *number, "{attempt:?} is lost: there is {found:?}");
        }
        if kind.spread {
            continue;
        }
        for (key, found) in &there {
            let other = match key.strip_suffix("-left") {
                Some(stem) => format!("{stem}-right"),
                None => format!("{}-left", key.trim_end_matches("-right")),
            };
            ensure!(
                there.get(&other) == Some(found),
                "half a txn: {key} is {found:?}, {other} {:?}",
                there.get(&other)
            );
        }
    }
    Ok(())
}
