//! The watch streams of one side. They collect what each watch receives, and check etcd's promises at every response.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use kindred_proto::{
    etcdserverpb::{
        WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
        watch_request::RequestUnion,
    },
    mvccpb::Event,
};
use kindred_tests::client::Client;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use crate::differential::{revision::Scope, side::NOISE};

const ANSWER_LIMIT: Duration = Duration::from_secs(60);
const PROGRESS_EVERY: Duration = Duration::from_millis(20);
const REQUESTS_MAX: usize = 64;

/// Something that a watch received.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A `created` or `canceled` response.
    Control(WatchResponse),
    Event(Event),
}

#[derive(Debug)]
pub struct Watch {
    pub scope: Scope,
    pub items: Vec<Item>,
    /// The first revision to deliver, as this side numbers it.
    pub start: i64,
    /// The watch was created without a start.
    pub from_now: bool,
    pub live: bool,
    fragment: bool,
    last_event: i64,
    /// The last response was a fragment, so the next one may continue its revision.
    inside: bool,
    /// No event at or below this revision may still come.
    promised: i64,
}

/// The responses of the stream. etcd opens them only with its first response.
enum Answers {
    Opening(BoxFuture<'static, Result<Response<Streaming<WatchResponse>>, Status>>),
    Open(Box<Streaming<WatchResponse>>),
}

pub struct WatchStream {
    is_etcd: bool,
    requests: mpsc::Sender<WatchRequest>,
    answers: Answers,
    /// In the order of their creation.
    pub watches: Vec<Watch>,
    by_id: BTreeMap<i64, usize>,
    /// The ids of compacted watches whose second cancel may still be answered.
    forgotten: BTreeSet<i64>,
    progress: i64,
    pub events: usize,
}

impl WatchStream {
    pub fn open(client: &Client, is_etcd: bool) -> Self {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let mut watch = client.watch.clone();
        let call = async move { watch.watch(ReceiverStream::new(receiver)).await };
        Self {
            is_etcd,
            requests,
            answers: Answers::Opening(Box::pin(call)),
            watches: Vec::new(),
            by_id: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            progress: 0,
            events: 0,
        }
    }

    async fn send(&self, request: RequestUnion) -> anyhow::Result<()> {
        self.requests
            .send(WatchRequest { request_union: Some(request) })
            .await
            .context("watch stream is closed")
    }

    /// Creates a watch and waits for its `created` answer.
    pub async fn create(
        &mut self,
        scope: Scope,
        request: &WatchCreateRequest,
    ) -> anyhow::Result<Vec<WatchResponse>> {
        let fragment = request.fragment;
        self.send(RequestUnion::CreateRequest(request.clone())).await?;
        let deadline = Instant::now() + ANSWER_LIMIT;
        loop {
            let Some(answer) = self.next(deadline).await? else { bail!("no created answer") };
            if !answer.created {
                self.take(answer)?;
                continue;
            }
            let live = !answer.canceled;
            if live {
                // Responses come in order, so no response to an earlier watch with this id is still to come.
                self.forgotten.remove(&answer.watch_id);
            }
            let now = answer.header.as_ref().map_or(0, |header| header.revision);
            let start = if request.start_revision == 0 { now + 1 } else { request.start_revision };
            self.watches.push(Watch {
                scope,
                items: vec![Item::Control(answer.clone())],
                start,
                from_now: request.start_revision == 0,
                live,
                fragment,
                last_event: 0,
                inside: false,
                promised: 0,
            });
            if live {
                self.by_id.insert(answer.watch_id, self.watches.len() - 1);
            }
            return Ok(vec![answer]);
        }
    }

    /// Waits until the new watch has been canceled as compacted, and cancels it a second time. Until then etcd has the
    /// watch in its stream, where it occupies its id and prevents progress responses.
    pub async fn forget_compacted(&mut self, id: i64) -> anyhow::Result<()> {
        self.canceled(id).await.context("no canceled answer to a watch from a compacted revision")?;
        self.forgotten.insert(id);
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id })).await?;
        let deadline = Instant::now() + ANSWER_LIMIT;
        while self.is_etcd && self.forgotten.contains(&id) {
            let Some(answer) = self.next(deadline).await? else { bail!("no second canceled answer") };
            self.take(answer)?;
        }
        Ok(())
    }

    /// Whether a new watch from this revision is canceled as compacted at once.
    pub async fn is_refused(client: &Client, start_revision: i64) -> anyhow::Result<bool> {
        let mut stream = Self::open(client, false);
        let key = Bytes::from_static(NOISE);
        let request = WatchCreateRequest { key, start_revision, ..Default::default() };
        stream.create(Scope::All, &request).await?;
        let deadline = Instant::now() + PROGRESS_EVERY;
        while !stream.by_id.is_empty() {
            let Some(answer) = stream.next(deadline).await? else { return Ok(false) };
            stream.take(answer)?;
        }
        Ok(true)
    }

    /// The ids of the live watches.
    pub fn live(&self) -> Vec<i64> {
        self.by_id.keys().copied().collect()
    }

    /// Cancels a live watch and waits for the confirmation.
    pub async fn cancel(&mut self, id: i64) -> anyhow::Result<()> {
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id })).await?;
        self.canceled(id).await
    }

    async fn canceled(&mut self, id: i64) -> anyhow::Result<()> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        while self.by_id.contains_key(&id) {
            let Some(answer) = self.next(deadline).await? else { bail!("no canceled answer for watch {id}") };
            self.take(answer)?;
        }
        Ok(())
    }

    /// Reads until a progress response at or above `target` proves that all events up to it have come, or until no
    /// watch is left.
    pub async fn flush(&mut self, target: i64) -> anyhow::Result<()> {
        let start = Instant::now();
        while !self.by_id.is_empty() {
            if self.progress >= target
                && self.by_id.values().all(|&index| self.watches[index].promised >= target)
            {
                return Ok(());
            }
            if start.elapsed() > ANSWER_LIMIT {
                bail!(
                    "no progress answer at or above {target} within {ANSWER_LIMIT:?} (last {}) on a stream with \
                     watches {:?} of starts {:?}",
                    self.progress,
                    self.live(),
                    self.by_id.values().map(|&index| self.watches[index].start).collect::<Vec<_>>()
                );
            }
            self.send(RequestUnion::ProgressRequest(WatchProgressRequest {})).await?;
            let deadline = Instant::now() + PROGRESS_EVERY;
            while let Some(answer) = self.next(deadline).await? {
                let is_progress = answer.watch_id == -1;
                self.take(answer)?;
                if is_progress {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes the responses that have arrived, without waiting for more.
    pub async fn poll(&mut self) -> anyhow::Result<()> {
        if matches!(self.answers, Answers::Opening(_)) {
            return Ok(());
        }
        let deadline = Instant::now() + Duration::from_millis(2);
        while let Some(answer) = self.next(deadline).await? {
            self.take(answer)?;
        }
        Ok(())
    }

    /// Reads until `enough` is true of the items of watch `index`.
    pub async fn until(&mut self, index: usize, enough: impl Fn(&[Item]) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        while !enough(&self.watches[index].items) {
            match self.next(deadline).await? {
                Some(answer) => self.take(answer)?,
                None => bail!("an event did not arrive within {ANSWER_LIMIT:?}"),
            }
        }
        Ok(())
    }

    async fn next(&mut self, deadline: Instant) -> anyhow::Result<Option<WatchResponse>> {
        if let Answers::Opening(call) = &mut self.answers {
            match tokio::time::timeout_at(deadline.into(), call).await {
                Ok(Ok(response)) => self.answers = Answers::Open(Box::new(response.into_inner())),
                Ok(Err(status)) => bail!("the watch stream was refused: {status:?}"),
                Err(_) => return Ok(None),
            }
        }
        let Answers::Open(answers) = &mut self.answers else { return Ok(None) };
        match tokio::time::timeout_at(deadline.into(), answers.message()).await {
            Ok(Ok(Some(answer))) => Ok(Some(answer)),
            Ok(Ok(None)) => bail!("the server ended the watch stream"),
            Ok(Err(status)) => bail!("the watch stream failed: {status:?}"),
            Err(_) => Ok(None),
        }
    }

    /// Adds a response to its watch and checks it against earlier promises.
    fn take(&mut self, answer: WatchResponse) -> anyhow::Result<()> {
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        if answer.watch_id == -1 {
            if revision < self.progress {
                bail!("progress went back from {} to {revision}", self.progress);
            }
            self.progress = revision;
            for &index in self.by_id.values() {
                let watch = &mut self.watches[index];
                if watch.last_event > revision {
                    bail!("progress {revision} is below an event sent before, {}", watch.last_event);
                }
                watch.promised = watch.promised.max(revision);
            }
            return Ok(());
        }
        if answer.canceled && self.forgotten.remove(&answer.watch_id) {
            return Ok(());
        }
        let Some(&index) = self.by_id.get(&answer.watch_id) else {
            bail!("an answer for a watch that is not live: {answer:?}");
        };
        let watch = &mut self.watches[index];
        if answer.canceled {
            watch.live = false;
            self.by_id.remove(&answer.watch_id);
            watch.items.push(Item::Control(answer));
            return Ok(());
        }
        if answer.events.is_empty() {
            // This is periodic progress of one watch.
            watch.promised = watch.promised.max(revision);
            return Ok(());
        }
        self.events += answer.events.len();
        watch.take_events(answer, revision)
    }
}

impl Watch {
    /// The header's revision of the `created` response.
    pub fn created(&self) -> i64 {
        match self.items.first() {
            Some(Item::Control(WatchResponse { header: Some(header), .. })) => header.revision,
            _ => 0,
        }
    }

    fn take_events(&mut self, answer: WatchResponse, header: i64) -> anyhow::Result<()> {
        if answer.fragment && !self.fragment {
            bail!("a fragment on a watch that did not ask for it");
        }
        let first = answer.events.first().and_then(|event| event.kv.as_ref()).map_or(0, |kv| kv.mod_revision);
        if first == self.last_event && !self.inside {
            bail!("the events of revision {first} came in two answers that are not fragments");
        }
        for event in answer.events {
            let revision = event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
            if revision < self.last_event {
                bail!("event {revision} after {}", self.last_event);
            }
            if revision <= self.promised {
                bail!("event {revision} after progress promised {}", self.promised);
            }
            if revision < self.start {
                bail!("event {revision} on a watch from {}", self.start);
            }
            self.last_event = revision;
            if event.kv.as_ref().is_none_or(|kv| kv.key != NOISE) {
                self.items.push(Item::Event(event));
            }
        }
        self.inside = answer.fragment;
        if header < self.last_event {
            bail!("event {} under a header of {header}", self.last_event);
        }
        Ok(())
    }
}
