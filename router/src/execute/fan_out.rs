//! Ranges over several stores, answered as one store would (R5). `snapshot` finds the revision T, `pages` merges the data
//! read at T; `delete` has deletes over several stores.

mod ask;
mod delete;
mod live;
mod pages;
pub mod shared;
mod snapshot;
mod stream;

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::consistent_read::Mode;
use kindred_router_core::plan::FanOut;
use kindred_wire::kv::put_range_end;
use kindred_wire::peek::ResponseHeader;
use kindred_wire::rope::Rope;
use kindred_wire::splice::Splice;
use prost::Message as _;
use tonic::Status;

use ask::{Ask, KeyValue, Resort, Source};
use pages::{Ending, Layout, Sink, merge};
use snapshot::{Shards, Snapshot, malformed};

use super::{Deadline, is_future};
use crate::app::App;

/// Items of a source's first page: as many as kube-apiserver asks for at once. Fewer in a stream, where nothing yet
/// tells how large the items are.
const FIRST_ITEMS: u64 = 500;
const FIRST_ITEMS_STREAMED: u64 = 128;
/// Parts that are read before their turn; 0 with a limit, which may make them useless.
const AHEAD: usize = 2;

/// How often a range is read in all if its revision is compacted while it is read.
const READS_MAX: usize = 3;

fn sources(fan_out: &FanOut) -> (Vec<Source>, Vec<usize>) {
    let of_part = |part: &kindred_router_core::parts::Part| {
        let range = part.range.clone();
        part.stores.clone().into_iter().map(move |store| Source { store, range: range.clone() })
    };
    let sources = fan_out.parts.iter().flat_map(of_part).collect();
    (sources, fan_out.parts.iter().map(|part| part.stores.len()).collect())
}

fn layout(fan_out: &FanOut, ask: &Ask, first_items: u64) -> Layout {
    let (sources, groups) = sources(fan_out);
    let ahead = if ask.spec.limit.is_some() { 0 } else { AHEAD };
    Layout { sources, groups, ahead, first_items }
}

/// Finds the revision of the range, and fetches the first pages.
async fn open<S: Shards>(
    shards: &S,
    layout: &Layout,
    ask: &Ask,
    shown: Revision,
) -> Result<Snapshot, Status> {
    let mode = ask.revision().map_or(Mode::Now, Mode::At);
    snapshot::take(shards, &layout.sources, mode, shown, |index, at| {
        let source = &layout.sources[index];
        if ask.spec.count_only || !layout.is_first(index, ask) {
            return ask.count(source, at);
        }
        ask.page(source, None, at, layout.items(ask, layout.first_items, ask.spec.limit))
    })
    .await
}

/// The whole answer as one message, and its revision.
async fn range<S: Shards>(
    shards: &S,
    fan_out: &FanOut,
    ask: &Ask,
    shown: Revision,
) -> Result<(Rope, Revision), Status> {
    let layout = layout(fan_out, ask, FIRST_ITEMS);
    let snapshot = open(shards, &layout, ask, shown).await?;
    let header = snapshot.header;
    let mut whole = Whole { body: Splice::default(), drop_values: ask.part.drop_values };
    ResponseHeader { revision: header.get(), ..Default::default() }.put(whole.body.end());
    let ending = match ask.resort {
        None => merge(shards, &layout, ask, snapshot, &mut whole).await?,
        Some(Resort { order, limit }) => {
            let mut all = Vec::new();
            let Ending { count, .. } = merge(shards, &layout, ask, snapshot, &mut all).await?;
            all.sort_by(|a, b| order.compare(a, b));
            let more = all.len() > limit;
            all.truncate(limit);
            whole.take(all).await?;
            Ending { count, more }
        }
    };
    end(whole.body.end(), ending);
    Ok((whole.body.finish(), header))
}

fn end(response: &mut Vec<u8>, Ending { count, more }: Ending) {
    put_range_end(response, more, i64::try_from(count).unwrap_or(i64::MAX));
}

/// An answer that becomes one message.
struct Whole {
    body: Splice,
    drop_values: bool,
}

impl Sink for Whole {
    async fn take(&mut self, items: Vec<KeyValue>) -> Result<(), Status> {
        items.iter().try_for_each(|item| item.splice_to(&mut self.body, self.drop_values)).map_err(malformed)
    }
}

/// Collects items that are still to be sorted.
impl Sink for Vec<KeyValue> {
    async fn take(&mut self, items: Vec<KeyValue>) -> Result<(), Status> {
        self.extend(items);
        Ok(())
    }
}

impl App {
    /// Answers a `Range` over several stores as one message.
    ///
    /// # Errors
    /// etcd's own; `Unavailable` naming a store that is away.
    pub async fn range_over(
        &self,
        fan_out: &FanOut,
        generation: u64,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Rope, Status> {
        let shards = self.live(generation, deadline);
        let request = pb::RangeRequest::decode(body.clone()).map_err(|error| undecodable(&error))?;
        let Some(ask) = Ask::of(request) else {
            // etcd refuses this request, so one store may answer with etcd's error.
            return shards.range(fan_out.parts[0].stores[0], body, Revision::ZERO, false).await;
        };
        let mut attempts = 1;
        let mut follows = ask.revision();
        loop {
            match range(&shards, fan_out, &ask, self.min_revision(&fan_out.spread)).await {
                Ok((answer, revision)) => {
                    self.shown.show(&fan_out.spread, revision);
                    return Ok(answer);
                }
                // The pin was lost while reading. A Range without a revision must never answer compacted (R5), so it is
                // read again.
                Err(status) if attempts < READS_MAX && ask.revision().is_none() && is_compacted(&status) => {
                    attempts += 1;
                }
                // A store outside of this range may have assigned the revision, and another router shown it (R4).
                Err(status) if is_future(&status) && follows.is_some() => {
                    let Some(wanted) = follows.take() else { return Err(status) };
                    self.kind_at(&fan_out.spread, wanted, generation, deadline).await?.ok_or(status)?;
                }
                Err(status) => return Err(status),
            }
        }
    }

    /// The current revision of a range over several stores, to which all of them are raised: a watch without a start
    /// begins there (R8).
    ///
    /// # Errors
    /// `Unavailable` naming a store that is away or cannot follow.
    pub async fn current_over(
        &self,
        fan_out: &FanOut,
        generation: u64,
        deadline: Deadline,
    ) -> Result<Revision, Status> {
        let (sources, _) = sources(fan_out);
        let shown = self.min_revision(&fan_out.spread);
        let no_data = |_, _| pb::RangeRequest::default();
        let snapshot =
            snapshot::take(&self.live(generation, deadline), &sources, Mode::Current, shown, no_data).await?;
        self.shown.show(&fan_out.spread, snapshot.header);
        Ok(snapshot.header)
    }
}

fn is_compacted(status: &Status) -> bool {
    kindred_transport::grpc::etcd_error(status) == Some(kindred_wire::error::EtcdError::Compacted)
}

fn undecodable(error: &prost::DecodeError) -> Status {
    let reason = error.to_string();
    kindred_transport::grpc::refusal(&kindred_wire::refusal::KindredError::Malformed { reason })
}

#[cfg(test)]
mod tests;
