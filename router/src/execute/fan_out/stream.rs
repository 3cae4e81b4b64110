//! `RangeStream` over several stores. Messages are slices in key order; only the last has header, `more` and `count`.

use std::sync::Arc;

use bytes::Bytes;
use kindred_partition_config::ids::Epoch;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::plan::FanOut;
use kindred_transport::ending::{self, Produced};
use kindred_wire::kv::put_range_stream;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::ask::{Ask, KeyValue};
use super::live::ReadPath;
use super::pages::{Sink, merge};
use super::read::{Reading as _, kind_at};
use super::{FIRST_ITEMS_STREAMED, end, layout, open, undecodable};
use crate::execute::{Deadline, is_future};

/// Size in bytes at which a message is sent; a single larger item makes a larger message.
const CHUNK_BYTES: usize = 256 << 10;
/// Messages that may wait for the client.
const CHUNKS_MAX: usize = 2;

pub type Chunks = Produced<ReceiverStream<Result<Bytes, Status>>>;

/// Cuts the answer into messages. The last one is sent when the fields that end the answer are known.
struct Chunked {
    to: mpsc::Sender<Result<Bytes, Status>>,
    pending: Vec<u8>,
}

impl Chunked {
    async fn send(&mut self) -> Result<(), Status> {
        let response = std::mem::take(&mut self.pending);
        let mut message = Vec::with_capacity(response.len() + 8);
        put_range_stream(&mut message, &response);
        // The client has gone, so this status is read by nobody.
        self.to.send(Ok(message.into())).await.map_err(|_| Status::cancelled("the client has gone"))
    }
}

impl Sink for Chunked {
    async fn take(&mut self, items: Vec<KeyValue>) -> Result<(), Status> {
        for item in items {
            if !self.pending.is_empty() && self.pending.len() + item.weight() > CHUNK_BYTES {
                self.send().await?;
            }
            item.append_to(&mut self.pending);
        }
        Ok(())
    }
}

impl ReadPath {
    /// A `RangeStream` over several stores. `None` for a request that cannot be streamed, or that etcd refuses; any
    /// store gives etcd's error for it.
    ///
    /// # Errors
    /// etcd's own; `Unavailable` naming a store that is away.
    pub async fn range_stream_over(
        self: &Arc<Self>,
        fan_out: FanOut,
        generation: Epoch,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Option<Chunks>, Status> {
        let request = pb::RangeRequest::decode(body).map_err(|error| undecodable(&error))?;
        let Some(ask) = Ask::of(request).filter(|ask| ask.streams()) else { return Ok(None) };
        let shards = self.live(generation, deadline);
        let layout = layout(&fan_out, &ask, FIRST_ITEMS_STREAMED);
        let mut follows = ask.revision();
        let snapshot = loop {
            match open(&shards, &layout, &ask, self.routing.min_revision(&fan_out.spread)).await {
                // Handled as in [`super::read::range_over`] (R4).
                Err(status) if is_future(&status) && follows.is_some() => {
                    let Some(wanted) = follows.take() else { return Err(status) };
                    kind_at(&shards, &fan_out.spread, wanted).await?.ok_or(status)?;
                }
                opened => break opened?,
            }
        };
        shards.show(&fan_out, snapshot.header).await;
        let (to, chunks) = mpsc::channel(CHUNKS_MAX);
        let (good_end, chunks) = ending::produced(ReceiverStream::new(chunks));
        let header = self.ids.header(snapshot.header.get());
        // Ends with the last message, or when the client goes away and its receiver is dropped.
        self.drain.spawn(async move {
            let mut chunked = Chunked { to, pending: Vec::new() };
            let whole = async {
                let ending = merge(&shards, &layout, &ask, snapshot, &mut chunked).await?;
                header.put(&mut chunked.pending);
                end(&mut chunked.pending, ending);
                chunked.send().await
            };
            match whole.await {
                Ok(()) => good_end.reached(),
                // If the client has gone, the status is lost with it.
                Err(status) => drop(chunked.to.send(Err(status)).await),
            }
        });
        Ok(Some(chunks))
    }
}
