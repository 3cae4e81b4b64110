//! Ranges over several stores, as `router/src/execute/fan_out.rs` and `pages.rs`: a snapshot, then pages merged by a
//! [`RangeMerge`].

use std::collections::VecDeque;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use kindred_engine::ops::{RangeAnswer, RangeQuery, Sort, SortTarget};
use kindred_engine::version::Version;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::{Key, KeyRange};
use kindred_router_core::consistent_read::Mode;
use kindred_router_core::parts::Part;
use kindred_router_core::plan::Placement;
use kindred_router_core::range_merge::{Command, End, Event, RangeMerge};
use kindred_router_core::range_split::{Item, Order, RangeSpec, SortTarget as By};
use kindred_router_core::watch_merge::SourceIx;

use super::snapshot::{Snapshot, Source, query};
use super::{Fail, Router};

/// Items of a first page; the product's are more.
const FIRST_ITEMS: u64 = 3;
/// Parts read before their turn, where there is no limit.
const AHEAD: usize = 2;
/// How often a range whose revision is compacted under it is begun.
const READS_MAX: usize = 3;

/// What a client asks of a range.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Of which Kind.
    pub kind: usize,
    /// The keys.
    pub range: KeyRange,
    /// As of when.
    pub revision: Option<Revision>,
    /// At most this many keys; zero for all.
    pub limit: usize,
    /// From the last key down.
    pub descending: bool,
}

/// A key-value of an answer.
#[derive(Debug, Clone)]
pub struct Kv(pub Version);

impl Item for Kv {
    fn key(&self) -> &[u8] {
        self.0.key()
    }
    fn create(&self) -> Revision {
        self.0.create_revision()
    }
    fn modified(&self) -> Revision {
        self.0.mod_revision()
    }
    fn version(&self) -> i64 {
        self.0.version()
    }
    fn value(&self) -> &[u8] {
        // A simulated value is short, and so in one piece.
        let [value, rest] = self.0.value_pieces();
        assert!(rest.is_empty());
        value
    }
}

/// The sources of parts in key order, and how many each part has.
#[must_use]
pub fn sources(parts: &[Part]) -> (Vec<Source>, Vec<usize>) {
    let of_part = |part: &Part| {
        let range = part.range.clone();
        part.stores.clone().into_iter().map(move |store| Source { store, range: range.clone() })
    };
    (parts.iter().flat_map(of_part).collect(), parts.iter().map(|part| part.stores.len()).collect())
}

struct Layout {
    sources: Vec<Source>,
    groups: Vec<usize>,
    ahead: usize,
}

impl Layout {
    fn is_first(&self, index: usize, ask: &Ask) -> bool {
        let mut left = index;
        let group = self.groups.iter().position(|size| {
            let found = left < *size;
            left = left.saturating_sub(*size);
            found
        });
        let group = group.unwrap_or_default();
        let turn = if ask.descending { self.groups.len() - 1 - group } else { group };
        turn <= self.ahead
    }
}

impl Ask {
    fn page(&self, source: &Source, after: Option<&Key>, at: Option<Revision>, items: u64) -> RangeQuery {
        let mut range = source.range.clone();
        if let (Some(after), KeyRange::Span { start, end }) = (after, &mut range) {
            if self.descending {
                *end = Some(after.clone());
            } else {
                *start = after.successor();
            }
        }
        let limit = usize::try_from(items).unwrap_or(usize::MAX);
        let sort = Sort { target: SortTarget::Key, descending: true, late: false };
        RangeQuery { sort: self.descending.then_some(sort), ..query(range, at, limit) }
    }

    fn useful(&self) -> u64 {
        if self.limit > 0 { (self.limit as u64).min(FIRST_ITEMS) } else { FIRST_ITEMS }
    }
}

impl Router {
    /// A range, wherever its keys are.
    ///
    /// # Errors
    /// As the client gets them.
    pub async fn range(&self, ask: &Ask) -> Result<RangeAnswer, Fail> {
        let parts = self.topology.routes.parts_of(&ask.range);
        let (sources, groups) = sources(&parts);
        let mut stores: Vec<_> = sources.iter().map(|source| source.store).collect();
        stores.sort_unstable();
        stores.dedup();
        if let [store] = stores.as_slice() {
            return self.range_of_one(*store, ask).await;
        }
        let ahead = if ask.limit > 0 { 0 } else { AHEAD };
        let layout = Layout { sources, groups, ahead };
        let mut attempts = 1;
        let mut follows = ask.revision;
        loop {
            match self.range_over(&layout, ask, self.min_revision(ask.kind)).await {
                Ok(answer) => {
                    self.show(ask.kind, answer.header);
                    return Ok(answer);
                }
                Err(Fail::Compacted) if attempts < READS_MAX && ask.revision.is_none() => attempts += 1,
                Err(Fail::Future) if follows.is_some() => {
                    let Some(wanted) = follows.take() else { return Err(Fail::Future) };
                    if self.current_over(ask.kind).await? < wanted {
                        return Err(Fail::Future);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn range_over(&self, layout: &Layout, ask: &Ask, shown: Revision) -> Result<RangeAnswer, Fail> {
        let mode = ask.revision.map_or(Mode::Now, Mode::At);
        let snapshot = self
            .take_snapshot(&layout.sources, mode, shown, |index, at| {
                layout.is_first(index, ask).then(|| ask.page(&layout.sources[index], None, at, ask.useful()))
            })
            .await?;
        let header = snapshot.header;
        let (items, count, more) = self.merge(layout, ask, snapshot).await?;
        let kvs = items.into_iter().map(|item| item.0).collect();
        Ok(RangeAnswer { header, kvs, more, count, contents: kindred_engine::ops::Contents::Whole })
    }

    async fn merge(
        &self,
        layout: &Layout,
        ask: &Ask,
        snapshot: Snapshot,
    ) -> Result<(Vec<Kv>, u64, bool), Fail> {
        struct Progress {
            first: Option<RangeAnswer>,
            count: Option<u64>,
            last: Option<Key>,
        }
        fn chunk(source: SourceIx, page: RangeAnswer, progress: &mut Progress) -> Event<Kv> {
            if let Some(last) = page.kvs.last() {
                progress.last = Some(Key::copy_from(last.key()));
            }
            let count = *progress.count.get_or_insert(page.count);
            let end = (!page.more).then_some(End { more: false });
            let items = page.kvs.into_iter().map(Kv).collect();
            Event::Chunk { source, items, count: Some(count), end }
        }
        let spec = RangeSpec {
            limit: (ask.limit > 0).then_some(ask.limit as u64),
            order: Order { target: By::Key, descending: ask.descending },
            filtered: false,
            keys_only: false,
            count_only: false,
        };
        let at = snapshot.at;
        let mut progress: Vec<Progress> = Vec::new();
        for (index, first) in snapshot.firsts.into_iter().enumerate() {
            let count = first.as_ref().map(|page| page.count);
            let first = first.filter(|_| layout.is_first(index, ask));
            progress.push(Progress { first, count, last: None });
        }
        let mut merge = RangeMerge::new(spec, &layout.groups, layout.ahead);
        let mut commands: VecDeque<_> = merge.start().map_err(|_| Fail::Unavailable)?.into();
        let mut pending = FuturesUnordered::new();
        let mut all = Vec::new();
        loop {
            let event = match commands.pop_front() {
                Some(Command::Fetch { source, limit }) => {
                    let of = &mut progress[source.0];
                    if let Some(page) = of.first.take() {
                        chunk(source, page, of)
                    } else {
                        let items = limit.map_or(FIRST_ITEMS, |limit| limit.min(FIRST_ITEMS));
                        let from = &layout.sources[source.0];
                        let query = ask.page(from, of.last.as_ref(), Some(at), items);
                        pending.push(async move { (source, self.page(from.store, query, at).await) });
                        continue;
                    }
                }
                Some(Command::Count { source }) => {
                    let count = progress[source.0].count.ok_or(Fail::Unavailable)?;
                    Event::Counted { source, count }
                }
                Some(Command::Close { .. }) => continue,
                Some(Command::Emit(items)) => {
                    all.extend(items);
                    continue;
                }
                Some(Command::Done { count, more }) => return Ok((all, count, more)),
                None => {
                    let (source, page) = pending.next().await.ok_or(Fail::Unavailable)?;
                    chunk(source, page.map_err(Fail::from)?, &mut progress[source.0])
                }
            };
            commands.extend(merge.step(event).map_err(|_| Fail::Unavailable)?);
        }
    }

    /// The revision to which all stores of a Kind are raised: where a watch without a start begins, and the probe's
    /// answer (R8).
    ///
    /// # Errors
    /// When a store is away or cannot follow.
    pub async fn current_over(&self, kind: usize) -> Result<Revision, Fail> {
        let parts = self.topology.routes.parts_of(&self.topology.kind_range(kind));
        let (sources, _) = sources(&parts);
        let snapshot =
            self.take_snapshot(&sources, Mode::Current, self.min_revision(kind), |_, _| None).await?;
        self.show(kind, snapshot.header);
        Ok(snapshot.header)
    }
}
