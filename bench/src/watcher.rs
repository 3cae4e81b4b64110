//! Watch streams that record when each event came.

use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    WatchCreateRequest, WatchRequest, watch_client::WatchClient, watch_request::RequestUnion,
};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// The maximum wait for the next event.
const EVENT_MAX: Duration = Duration::from_secs(20);

/// When the event of each numbered write came.
pub type Seen = JoinHandle<anyhow::Result<Vec<Instant>>>;

/// Opens a stream with one watch of the prefix, and reads the `count` events of [`crate::pace::write`] from it.
pub async fn start(channel: &Channel, prefix: &str, count: u64) -> anyhow::Result<Seen> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().context("an empty prefix")? += 1;
    let create = WatchCreateRequest {
        key: Bytes::from(prefix.to_owned()),
        range_end: end.into(),
        ..Default::default()
    };
    let (requests, receiver) = mpsc::channel(1);
    requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
    let mut client = WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
    let mut answers = client.watch(ReceiverStream::new(receiver)).await?.into_inner();
    let created = answers.message().await?.context("the watch stream ended")?;
    anyhow::ensure!(created.created && !created.canceled, "{created:?}");
    Ok(tokio::spawn(async move {
        // The stream lives as long as its requests.
        let _requests = requests;
        let mut seen = vec![None; usize::try_from(count)?];
        let (mut events, mut last) = (0, 0);
        while events < count {
            let answer = tokio::time::timeout(EVENT_MAX, answers.message()).await;
            let answer = answer.with_context(|| format!("{events} of {count} events came"))??;
            let answer = answer.context("the watch stream ended")?;
            let now = Instant::now();
            for event in answer.events {
                let kv = event.kv.context("an event without kv")?;
                anyhow::ensure!(kv.mod_revision > last, "event {} after {last}", kv.mod_revision);
                last = kv.mod_revision;
                let number = kv.value.first_chunk().map(|first| u64::from_be_bytes(*first));
                let number = number.context("a value that this bench did not write")?;
                let at = seen.get_mut(usize::try_from(number)?).context("an event of another run")?;
                anyhow::ensure!(at.replace(now).is_none(), "write {number} came twice");
                events += 1;
            }
        }
        seen.into_iter().map(|at| at.context("a write was not seen")).collect()
    }))
}
