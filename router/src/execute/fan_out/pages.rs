//! Reads the data of a read over several stores page by page, in the order of the answer: runs a [`RangeMerge`].
//!
//! The pages that came with the search for T are used first. Later pages are read at T. Each is sized by the one
//! before, so that about [`PageSizes::bytes`](super::snapshot::PageSizes) are buffered for each source.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::Key;
use kindred_router_core::range_merge::{Command, End, Event, RangeMerge};
use kindred_router_core::range_split::Item as _;
use kindred_router_core::watch_merge::SourceIx;
use prost::Message as _;
use tonic::Status;

use super::ask::{Ask, KeyValue, Page, Source};
use super::snapshot::{Shards, Snapshot, malformed};

/// Receives the items of an answer.
pub trait Sink {
    /// Takes the next items of the answer; waits while the reader is slow.
    fn take(&mut self, items: Vec<KeyValue>) -> impl Future<Output = Result<(), Status>> + Send;
}

/// The fields that follow an answer's items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// The number of keys in the range.
    pub count: u64,
    /// Whether there are items behind the last one.
    pub more: bool,
}

/// The sources of a read in key order, and how they are read.
#[derive(Debug)]
pub struct Layout {
    /// All sources, grouped by part.
    pub sources: Vec<Source>,
    /// The number of sources of each part.
    pub groups: Vec<usize>,
    /// How many parts are read before their turn.
    pub ahead: usize,
    /// The number of items of a source's first page.
    pub first_items: u64,
}

impl Layout {
    /// Whether the source belongs to the parts that are read from the beginning.
    #[must_use]
    pub fn is_first(&self, index: usize, ask: &Ask) -> bool {
        if !ask.pages() {
            return true;
        }
        let mut left = index;
        let group = self.groups.iter().position(|size| {
            let found = left < *size;
            left = left.saturating_sub(*size);
            found
        });
        let group = group.unwrap_or_default();
        let turn = if ask.spec.order.descending { self.groups.len() - 1 - group } else { group };
        turn <= self.ahead
    }

    /// The number of items to ask a source for; `None` for all.
    #[must_use]
    pub fn items(&self, ask: &Ask, page: u64, useful: Option<u64>) -> Option<u64> {
        if ask.pages() { Some(useful.map_or(page, |useful| useful.min(page))) } else { ask.spec.limit }
    }
}

/// What was read of a source, and how to go on.
#[derive(Debug)]
struct Progress {
    first: Option<Page>,
    count: Option<u64>,
    last: Option<Key>,
    page_items: u64,
}

struct Merging<'a, S> {
    shards: &'a S,
    layout: &'a Layout,
    ask: &'a Ask,
    at: Revision,
}

/// Merges the sources and gives the answer's items to `sink` in order.
///
/// # Errors
/// The first error of a store or of the sink; the items given so far are then useless.
pub async fn merge<S: Shards>(
    shards: &S,
    layout: &Layout,
    ask: &Ask,
    snapshot: Snapshot,
    sink: &mut impl Sink,
) -> Result<Ending, Status> {
    let merging = Merging { shards, layout, ask, at: snapshot.at };
    let mut sources: Vec<Progress> = Vec::with_capacity(snapshot.firsts.len());
    for (index, first) in snapshot.firsts.into_iter().enumerate() {
        let count = first.as_ref().map(|page| page.count);
        // A source that was asked for its count alone has no page yet.
        let first = first.filter(|_| layout.is_first(index, ask) && !ask.spec.count_only);
        sources.push(Progress { first, count, last: None, page_items: layout.first_items });
    }
    let mut merge = RangeMerge::new(ask.spec, &layout.groups, layout.ahead);
    let mut commands: VecDeque<_> = merge.start().map_err(broken)?.into();
    let mut pending = FuturesUnordered::new();
    loop {
        let event = match commands.pop_front() {
            Some(Command::Fetch { source, limit }) => {
                let progress = &mut sources[source.0];
                match progress.first.take() {
                    Some(page) => merging.chunk(source, page, progress),
                    None => {
                        let items = layout.items(ask, progress.page_items, limit);
                        pending.push(merging.fetch(source, progress.last.clone(), items));
                        continue;
                    }
                }
            }
            Some(Command::Count { source }) => {
                let count = sources[source.0].count;
                let count = count.ok_or_else(|| Status::internal("kindred: a source without a count"))?;
                Event::Counted { source, count }
            }
            // A page that is still under way is ignored when it comes.
            Some(Command::Close { .. }) => continue,
            Some(Command::Emit(items)) => {
                sink.take(items).await?;
                continue;
            }
            Some(Command::Done { count, more }) => return Ok(Ending { count, more }),
            None => {
                let fetched = pending.next().await;
                let (source, page) = fetched.ok_or_else(|| Status::internal("kindred: a merge stands"))??;
                merging.chunk(source, page, &mut sources[source.0])
            }
        };
        commands.extend(merge.step(event).map_err(broken)?);
    }
}

impl<S: Shards> Merging<'_, S> {
    async fn fetch(
        &self,
        source: SourceIx,
        after: Option<Key>,
        items: Option<u64>,
    ) -> Result<(SourceIx, Page), Status> {
        let from = &self.layout.sources[source.0];
        let request = self.ask.page(from, after.as_ref(), Some(self.at), items);
        let answer =
            self.shards.range(from.store, Bytes::from(request.encode_to_vec()), self.at, false).await?;
        Ok((source, Page::parse(answer).map_err(malformed)?))
    }

    fn chunk(&self, source: SourceIx, page: Page, progress: &mut Progress) -> Event<KeyValue> {
        if let Some(last) = page.items.last() {
            progress.last = Some(Key(Bytes::copy_from_slice(last.key())));
            let weight = (page.bytes / page.items.len()).max(1);
            let sizes = self.shards.page_sizes();
            let (least, most) = sizes.items;
            progress.page_items = u64::try_from(sizes.bytes / weight).unwrap_or(u64::MAX).clamp(least, most);
        }
        // Only the first page counts the whole range; the count of a later page begins at that page.
        let count = *progress.count.get_or_insert(page.count);
        let end = if self.ask.pages() {
            (!page.more).then_some(End { more: false })
        } else {
            Some(End { more: page.more })
        };
        Event::Chunk { source, items: page.items, count: Some(count), end }
    }
}

fn broken(error: kindred_router_core::range_merge::RangeError) -> Status {
    Status::internal(format!("kindred: a range over stores: {error}"))
}
