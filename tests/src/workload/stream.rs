//! One watch stream on the wire. It sends requests, and records the responses of each watch in order.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use kindred_checker::history::{
    ClientId, Event, KeyRange, Nanos, Revision, StreamId, Watch, WatchBody, WatchId, WatchOptions,
    WatchResponse,
};
use kindred_proto::etcdserverpb::{
    self as pb, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    watch_create_request::FilterType, watch_request::RequestUnion,
};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{caller::Caller, keys::kind_of, recorder::Recorder, wire};

const REQUESTS_MAX: usize = 64;
/// A server that restarts refuses connections at once. One that does not answer for this long is stuck.
const OPEN_LIMIT: Duration = Duration::from_secs(20);

/// The range and options of a watch to create.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub range: KeyRange,
    pub options: WatchOptions,
    pub resumes: Option<WatchId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Pending,
    Live,
    /// The client has sent a cancel that the server has not confirmed.
    Canceling,
    Ended,
}

/// A watch of a stream.
#[derive(Debug)]
pub struct Tracked {
    record: Watch,
    phase: Phase,
    wire_id: i64,
    /// The revision before the first one that the watch delivers.
    begin: Option<Revision>,
    /// Every event at or below this revision has come in.
    pub position: Option<Revision>,
    /// The last event of a whole response.
    last_event: Option<Revision>,
    fragments: Option<Revision>,
}

impl Tracked {
    pub fn range(&self) -> &KeyRange {
        &self.record.range
    }

    /// Describes the watch and its position, for error messages.
    pub fn shown(&self) -> String {
        let Self { record, phase, position, .. } = self;
        format!("{} over {:?} is {phase:?} at {position:?}, {:?}", record.id, record.range, record.options)
    }

    /// The range and the options of the watch, without its start.
    pub fn wanted(&self) -> (KeyRange, WatchOptions) {
        (self.record.range.clone(), WatchOptions { start: None, ..self.record.options.clone() })
    }

    /// The watch that continues this one at its position. With `events_only` the position does not count progress, as
    /// for a client that asked for none.
    pub fn resumed(&self, events_only: bool) -> Wanted {
        let position = if events_only { self.last_event.or(self.begin) } else { self.position };
        let mut options = self.record.options.clone();
        options.start = position.map(Revision::next).or(options.start);
        Wanted { range: self.record.range.clone(), options, resumes: Some(self.record.id) }
    }
}

/// The effect of a response.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    Other,
    /// The server canceled the watch with this index because of a compaction.
    Compacted(usize),
    /// The stream is broken, so nothing more comes.
    Broken,
}

/// An open stream. It records its watches when it is dropped.
#[derive(Debug)]
pub struct WatchStream {
    recorder: Arc<Recorder>,
    client: ClientId,
    id: StreamId,
    requests: mpsc::Sender<WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
    sequence: u64,
    pub watches: Vec<Tracked>,
    by_wire_id: BTreeMap<i64, usize>,
    /// The time of each request for manual progress, and the number of answers. The nth answer is to the nth request or
    /// a later one.
    asked: Vec<Nanos>,
    answered: usize,
}

impl WatchStream {
    /// Opens a stream with its first watch, because etcd answers the call only with the first message. `None` if there
    /// is no server.
    ///
    /// # Errors
    /// If there is a server that does not answer.
    pub async fn open(caller: &Caller, first: Wanted) -> anyhow::Result<Option<Self>> {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let recorder = caller.recorder.clone();
        let mut watches = Vec::new();
        let create = prepare(&recorder, caller.id, recorder.stream_id(), first, &mut watches);
        requests.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
        let mut service = caller.client.watch.clone();
        let call = service.watch(ReceiverStream::new(receiver));
        let answered =
            tokio::time::timeout(OPEN_LIMIT, call).await.context("a watch stream does not open")?;
        let Ok(answers) = answered else { return Ok(None) };
        Ok(Some(Self {
            recorder,
            client: caller.id,
            id: watches[0].record.stream,
            requests,
            answers: answers.into_inner(),
            sequence: 0,
            watches,
            by_wire_id: BTreeMap::new(),
            asked: Vec::new(),
            answered: 0,
        }))
    }

    /// Requests a watch. No other create may be pending, because a `created` response does not say which request it
    /// answers.
    pub fn create(&mut self, wanted: Wanted) {
        let create = prepare(&self.recorder, self.client, self.id, wanted, &mut self.watches);
        self.send(RequestUnion::CreateRequest(create));
    }

    /// Whether a create is pending.
    pub fn is_creating(&self) -> bool {
        self.watches.iter().any(|watch| watch.phase == Phase::Pending)
    }

    /// Sends a cancel of a live watch.
    pub fn cancel(&mut self, index: usize) {
        self.watches[index].phase = Phase::Canceling;
        let watch_id = self.watches[index].wire_id;
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
    }

    /// Whether a cancel is not confirmed yet. A progress that is requested meanwhile does not cover that watch.
    pub fn is_canceling(&self) -> bool {
        self.watches.iter().any(|watch| watch.phase == Phase::Canceling)
    }

    /// Requests a manual progress.
    pub fn ask_progress(&mut self) {
        self.asked.push(self.recorder.now());
        self.send(RequestUnion::ProgressRequest(WatchProgressRequest {}));
    }

    /// The time of the last request for progress, if it may be unanswered.
    pub fn progress_outstanding(&self) -> Option<Nanos> {
        self.asked.last().copied().filter(|_| self.answered < self.asked.len())
    }

    /// The indexes of live watches.
    pub fn live(&self) -> Vec<usize> {
        (0..self.watches.len()).filter(|&index| self.watches[index].phase == Phase::Live).collect()
    }

    /// The watches that a client would continue on another stream.
    pub fn unfinished(&self) -> impl Iterator<Item = &Tracked> {
        self.watches.iter().filter(|watch| matches!(watch.phase, Phase::Live | Phase::Pending))
    }

    fn send(&self, request: RequestUnion) {
        let sent = self.requests.try_send(WatchRequest { request_union: Some(request) });
        // The reader of the responses notices a closed stream, so only a full queue is reported here.
        if let Err(TrySendError::Full(request)) = sent {
            self.recorder
                .oddity(format!("{REQUESTS_MAX} requests of a watch stream are not read: {request:?}"));
        }
    }

    /// Reads and records the next response. This is cancel safe: a response that was not read is read by the next call.
    ///
    /// # Errors
    /// If the server sends a response that it must not send.
    pub async fn hear(&mut self) -> anyhow::Result<Heard> {
        let Ok(Some(answer)) = self.answers.message().await else {
            for index in self.live() {
                self.note(index, Revision(0), WatchBody::Broken);
            }
            return Ok(Heard::Broken);
        };
        self.sequence += 1;
        self.take(answer)
    }

    fn take(&mut self, answer: pb::WatchResponse) -> anyhow::Result<Heard> {
        let header = wire::revision(answer.header.as_ref());
        if answer.created {
            return self.take_created(&answer, header);
        }
        if answer.watch_id == -1 && answer.events.is_empty() && !answer.canceled {
            self.take_manual_progress(header);
            return Ok(Heard::Other);
        }
        let Some(&index) = self.by_wire_id.get(&answer.watch_id) else {
            // A watch that had ended before its cancel gets a second `canceled` response, which is no oddity.
            if !answer.canceled {
                self.recorder.oddity(format!("an answer to a watch that does not exist: {answer:?}"));
            }
            return Ok(Heard::Other);
        };
        if answer.canceled {
            return Ok(self.take_canceled(index, &answer, header));
        }
        if answer.events.is_empty() {
            self.note(index, header, WatchBody::Progress { manual: false, requested: None });
            self.promise(index, header);
            return Ok(Heard::Other);
        }
        let events: Vec<Event> = answer.events.iter().filter_map(wire::event).collect();
        if events.len() != answer.events.len() {
            bail!("an event without kv: {answer:?}");
        }
        self.take_events(index, header, events, answer.fragment);
        Ok(Heard::Other)
    }

    fn take_created(&mut self, answer: &pb::WatchResponse, header: Revision) -> anyhow::Result<Heard> {
        let pending = self.watches.iter().position(|watch| watch.phase == Phase::Pending);
        let index = pending.context("created, and nothing was asked for")?;
        if answer.canceled {
            self.recorder.oddity(format!("a watch is refused: {}", answer.cancel_reason));
            self.watches[index].phase = Phase::Ended;
            return Ok(Heard::Other);
        }
        self.note(index, header, WatchBody::Created);
        self.by_wire_id.insert(answer.watch_id, index);
        let watch = &mut self.watches[index];
        watch.phase = Phase::Live;
        watch.wire_id = answer.watch_id;
        watch.begin = Some(watch.record.options.start.map_or(header, Revision::previous));
        watch.position = watch.begin;
        Ok(Heard::Other)
    }

    fn take_manual_progress(&mut self, header: Revision) {
        let requested = self.asked.get(self.answered).copied();
        if requested.is_none() {
            self.recorder.oddity("a manual progress without a request".to_owned());
        }
        self.answered += 1;
        let speaks_for = self.live();
        if let Some(&first) = speaks_for.first() {
            self.note(first, header, WatchBody::Progress { manual: true, requested });
        }
        for index in speaks_for {
            self.promise(index, header);
        }
    }

    fn take_canceled(&mut self, index: usize, answer: &pb::WatchResponse, header: Revision) -> Heard {
        let compact_revision = Revision(answer.compact_revision);
        let reason = answer.cancel_reason.clone();
        let asked_for = self.watches[index].phase == Phase::Canceling;
        if !asked_for && compact_revision.0 == 0 {
            self.recorder.oddity(format!("the server canceled a watch without a request: {reason:?}"));
        }
        self.note(index, header, WatchBody::Canceled { compact_revision, reason });
        self.watches[index].phase = Phase::Ended;
        self.by_wire_id.remove(&answer.watch_id);
        if compact_revision.0 == 0 {
            return Heard::Other;
        }
        // etcd's client does the same: etcd leaves a compacted watch in its stream, where it prevents progress.
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: answer.watch_id }));
        if asked_for { Heard::Other } else { Heard::Compacted(index) }
    }

    fn take_events(&mut self, index: usize, header: Revision, events: Vec<Event>, fragment: bool) {
        self.recorder.received(events.len());
        let highest = events.iter().map(|event| event.kv.modified).max();
        if let (Some(kind), Some(highest)) = (kind_of(&self.watches[index].record.range.key), highest) {
            self.recorder.show(kind, highest);
        }
        self.note(index, header, WatchBody::Events { events, fragment });
        let watch = &mut self.watches[index];
        watch.fragments = watch.fragments.max(highest);
        if !fragment {
            watch.last_event = watch.last_event.max(watch.fragments.take());
            watch.position = watch.position.max(watch.last_event);
        }
    }

    fn promise(&mut self, index: usize, revision: Revision) {
        let watch = &mut self.watches[index];
        watch.position = watch.position.max(Some(revision));
        if let Some(kind) = kind_of(&watch.record.range.key) {
            self.recorder.show(kind, revision);
        }
    }

    fn note(&mut self, index: usize, header: Revision, body: WatchBody) {
        let response = WatchResponse { at: self.recorder.now(), sequence: self.sequence, header, body };
        self.watches[index].record.responses.push(response);
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        for watch in self.watches.drain(..) {
            self.recorder.watch(watch.record);
        }
    }
}

fn prepare(
    recorder: &Recorder,
    client: ClientId,
    stream: StreamId,
    wanted: Wanted,
    watches: &mut Vec<Tracked>,
) -> WatchCreateRequest {
    let Wanted { range, options, resumes } = wanted;
    let filters =
        [(options.no_put, FilterType::Noput), (options.no_delete, FilterType::Nodelete)].into_iter();
    let create = WatchCreateRequest {
        key: wire::bytes(&range.key),
        range_end: wire::bytes(&range.end),
        start_revision: options.start.map_or(0, |start| start.0),
        progress_notify: options.progress_notify,
        filters: filters.filter(|(on, _)| *on).map(|(_, filter)| filter.into()).collect(),
        prev_kv: options.prev_kv,
        watch_id: 0,
        fragment: options.fragment,
    };
    let (id, call) = (recorder.watch_id(), recorder.now());
    let record = Watch { id, client, stream, call, range, options, resumes, responses: Vec::new() };
    watches.push(Tracked {
        record,
        phase: Phase::Pending,
        wire_id: 0,
        begin: None,
        position: None,
        last_event: None,
        fragments: None,
    });
    create
}
