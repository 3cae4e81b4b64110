//! The revision of a read over several stores: runs a [`ConsistentRead`] as `router/src/execute/fan_out/snapshot.rs` does.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use kindred_engine::error::EngineError;
use kindred_engine::ops::{Contents, RangeAnswer, RangeQuery, RevisionFilter};
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_router_core::consistent_read::{Command, ConsistentRead, Event, Mode, ReadError};
use kindred_router_core::store::StoreIx;

use super::{Fail, Router};
use crate::messages::{CallError, Reply, Request};
use crate::sabotage::Sabotage;

/// A store and the keys that it is asked for.
#[derive(Debug, Clone)]
pub struct Source {
    /// The store.
    pub store: StoreIx,
    /// The keys.
    pub range: KeyRange,
}

/// A read's revision, and what came with it.
#[derive(Debug)]
pub struct Snapshot {
    /// Of the data.
    pub at: Revision,
    /// To show.
    pub header: Revision,
    /// What each source answered at `at`.
    pub firsts: Vec<Option<RangeAnswer>>,
}

/// All keys of a range, as of a revision.
#[must_use]
pub fn query(range: KeyRange, revision: Option<Revision>, limit: usize) -> RangeQuery {
    RangeQuery {
        range,
        revision,
        limit,
        sort: None,
        contents: Contents::Whole,
        count_only: false,
        filter: RevisionFilter::default(),
    }
}

impl Router {
    /// A page of a source; pinned.
    pub(super) async fn page(
        &self,
        store: StoreIx,
        query: RangeQuery,
        min_revision: Revision,
    ) -> Result<RangeAnswer, CallError> {
        let min_revision = Revision::from_wire(min_revision.get());
        match self.call(store, Request::Read { query, min_revision, pin: true }).await? {
            Reply::Read(answer) => Ok(answer),
            _ => Err(CallError::Down),
        }
    }

    async fn raise_since(
        &self,
        source: &Source,
        to: Revision,
        since: Option<Revision>,
    ) -> Result<Option<(Revision, bool)>, Fail> {
        let since = since.unwrap_or(Revision::ZERO);
        let request = Request::RaiseSince { ranges: vec![source.range.clone()], to, since };
        match self.call(source.store, request).await {
            Ok(Reply::Raised { current, changed }) => Ok(Some((current, changed))),
            Err(CallError::Refused(EngineError::ClockOffset { .. })) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(_) => Err(Fail::Unavailable),
        }
    }

    /// Finds it.
    ///
    /// # Errors
    /// As the client gets them.
    pub async fn take_snapshot(
        &self,
        sources: &[Source],
        mode: Mode,
        shown: Revision,
        ask: impl Fn(usize, Option<Revision>) -> Option<RangeQuery>,
    ) -> Result<Snapshot, Fail> {
        let participants: Vec<_> = (0..sources.len()).map(StoreIx).collect();
        let (mut read, commands) = ConsistentRead::start(mode, &participants, shown);
        let mut firsts: Vec<Option<RangeAnswer>> = sources.iter().map(|_| None).collect();
        let run = |command| self.run(sources, shown, command, &ask);
        let mut pending: FuturesUnordered<_> = commands.into_iter().map(run).collect();
        while let Some(answer) = pending.next().await {
            let (event, page) = answer?;
            if let (Event::Answered { store, .. }, Some(page)) = (event, page) {
                firsts[store.0] = Some(page);
            }
            let commands = if self.is(Sabotage::NoSnapshot) && mode == Mode::Now {
                if pending.is_empty() {
                    let header = firsts.iter().flatten().map(|first| first.header).max();
                    let header = header.unwrap_or(Revision::ZERO);
                    vec![Command::Done { at: header, header }]
                } else {
                    Vec::new()
                }
            } else {
                read.step(event).map_err(failed)?
            };
            for command in commands {
                match command {
                    Command::Done { at, header } => return Ok(Snapshot { at, header, firsts }),
                    command => pending.push(run(command)),
                }
            }
        }
        Err(Fail::Unavailable)
    }

    async fn run(
        &self,
        sources: &[Source],
        shown: Revision,
        command: Command,
        ask: &impl Fn(usize, Option<Revision>) -> Option<RangeQuery>,
    ) -> Result<(Event, Option<RangeAnswer>), Fail> {
        let data = |store: StoreIx, at, min_revision| async move {
            // A read for its revision alone asks for the count.
            let count = RangeQuery { count_only: true, ..query(sources[store.0].range.clone(), at, 0) };
            let query = ask(store.0, at).unwrap_or(count);
            self.page(sources[store.0].store, query, min_revision).await
        };
        match command {
            Command::Read { store, min_revision } => {
                let page = data(store, None, min_revision).await?;
                Ok((Event::Answered { store, header: page.header }, Some(page)))
            }
            Command::ReadAt { store, revision } => {
                let min_revision = revision.max(shown);
                let mut answered = data(store, Some(revision), min_revision).await;
                if matches!(answered, Err(CallError::Refused(EngineError::Future { .. }))) {
                    if self.raise_since(&sources[store.0], revision, None).await?.is_none() {
                        return Ok((Event::CannotFollow { store }, None));
                    }
                    answered = data(store, Some(revision), min_revision).await;
                }
                match answered {
                    Ok(page) => Ok((Event::Answered { store, header: page.header }, Some(page))),
                    Err(CallError::Refused(EngineError::Compacted { .. })) => {
                        Ok((Event::Compacted { store }, None))
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Command::Current { store, min_revision } => {
                let source = &sources[store.0];
                let raised = match self.raise_since(source, min_revision, None).await? {
                    Some(raised) => Some(raised),
                    None => self.raise_since(source, Revision::ZERO, None).await?,
                };
                let (current, _) = raised.ok_or(Fail::Unavailable)?;
                Ok((Event::Raised { store, current }, None))
            }
            Command::Raise { store, to } => Ok(match self.raise_since(&sources[store.0], to, None).await? {
                Some((current, _)) => (Event::Raised { store, current }, None),
                None => (Event::CannotFollow { store }, None),
            }),
            Command::Confirm { store, since, to } => {
                Ok(match self.raise_since(&sources[store.0], to, Some(since)).await? {
                    Some((_, true)) => (Event::Changed { store, to }, None),
                    Some((_, false)) => (Event::Unchanged { store, to }, None),
                    None => (Event::CannotFollow { store }, None),
                })
            }
            Command::Done { .. } => Err(Fail::Unavailable),
        }
    }
}

fn failed(error: ReadError) -> Fail {
    match error {
        ReadError::Future { .. } => Fail::Future,
        ReadError::Compacted(_) => Fail::Compacted,
        ReadError::CannotFollow { .. } | ReadError::Unexpected(_) => Fail::Unavailable,
    }
}
