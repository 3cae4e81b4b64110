//! Ranges over several stores, answered as one store would (R5). `snapshot` finds the revision T, `pages` merges the data
//! read at T, `read` tries again where that is safe; `delete` has deletes over several stores. Reads are generic over
//! [`Shards`]: the simulation runs them, too.

mod ask;
pub mod delete;
pub mod live;
mod pages;
pub mod read;
pub mod shared;
mod snapshot;
mod stream;

pub use ask::Source;
pub use snapshot::{PageSizes, Raised, Shards};

use kindred_partition_config::ids::Revision;
use kindred_router_core::consistent_read::Mode;
use kindred_router_core::plan::FanOut;
use kindred_wire::kv::put_range_end;
use kindred_wire::peek::ResponseHeader;
use kindred_wire::rope::Rope;
use kindred_wire::splice::Splice;
use tonic::Status;

use ask::{Ask, KeyValue, Resort};
use pages::{Ending, Layout, Sink, merge};
use snapshot::{Snapshot, malformed};

/// Items of a source's first page in a stream, where nothing yet tells how large the items are.
const FIRST_ITEMS_STREAMED: u64 = 128;
/// Parts that are read before their turn; 0 with a limit, which may make them useless.
const AHEAD: usize = 2;

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
    let layout = layout(fan_out, ask, shards.page_sizes().first_items);
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

fn undecodable(error: &prost::DecodeError) -> Status {
    let reason = error.to_string();
    kindred_transport::grpc::refusal(&kindred_wire::refusal::KindredError::Malformed { reason })
}

#[cfg(test)]
mod tests;
