//! Checks what each mode promises, while the writers pause.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context, ensure};
use kindred_tests::client::Client;

use crate::crash::{
    cluster::{Kind, Mode},
    watchers::{Found, at_revision, list},
    writers::Attempt,
};

/// How many of the last acknowledged writes of a Kind on a killed shard are looked for one by one.
const LAST_MAX: usize = 120;

/// The results for one mode.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub checked: usize,
    pub lost: usize,
    /// The largest age that a lost write had when its shard ended, in ms.
    pub oldest_ms: u128,
}

/// How a shard ended.
#[derive(Debug, Clone, Copy)]
pub struct End {
    pub store: usize,
    pub at: Instant,
    /// The shard ended by a clean stop.
    pub clean: bool,
}

/// Looks for the writes that a shard's last incarnation acknowledged, and marks the lost ones. `promised` returns the
/// mode that applies to a write, by the index of its Kind and the time of its acknowledgement.
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
                    "{attempt:?} survived, but what was written before it at {gone:?} is lost"
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
            // A write of mode buffered reached the operating system before it was acknowledged, and only the process
            // has died.
            ensure!(mode == Mode::None, "{attempt:?} was acknowledged, and is lost at the age of {age:?}");
            gone = gone.or(Some(revision));
            attempt.lost = true;
            tally.lost += 1;
            tally.oldest_ms = tally.oldest_ms.max(age.as_millis());
            if index == from {
                // The oldest write that is looked for is lost, so the older ones count as lost too.
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

/// Asserts that every key has the value of its last acknowledged write that is not lost, or of a later write that was
/// never answered, and that the keys of one txn have the same number.
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
