//! A fake shard within the test process. Its clock moves only by the test, by a raise or by an advance.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use kindred_proto::mvccpb;
use kindred_proto::shard_v1 as pb;
use pb::{feed_request::Request as Asked, feeds_server, shard_server};
use prost::Message;
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// The number of events of a message of a feed, but for the rest of a revision.
const EVENTS_MAX: usize = 1000;

#[derive(Debug, Default)]
struct Log {
    current: i64,
    floor: i64,
    events: Vec<(i64, bytes::Bytes)>,
    feeds_opened: usize,
    advances: usize,
    raises: usize,
    /// It answers nothing.
    hangs: bool,
    /// It answers no handshakes.
    silent: bool,
    /// Its feeds send nothing.
    mute: bool,
    wall_offset_micros: i64,
    reference_micros: u64,
    /// Its keys are moving.
    frozen: bool,
    handshakes: usize,
    /// What it lost in crashes, as (after, until).
    gaps: Vec<(i64, i64)>,
    /// Its incarnation; feeds of earlier ones end.
    incarnation: usize,
    /// The durability modes that it was told.
    modes: Vec<pb::SetModesRequest>,
    /// It answers that it can keep no Kind.
    keeps_nothing: bool,
    /// Its UUID; empty at first, as with stores of earlier versions.
    uuid: String,
    /// It reports that it has no disk.
    in_memory: bool,
    trouble: String,
    /// The lineage and the UUID in the last handshake.
    meant: (String, String),
}

fn not_owned() -> Status {
    let mut status = Status::unavailable("kindred: \"k\" is changing its store; ask again by the newest map");
    status.metadata_mut().insert("kindred-not-owned", "0".parse().unwrap());
    status
}

pub type Server = tonic::transport::server::Router;

#[derive(Debug, Clone)]
pub struct Fake {
    slot: u32,
    features: u64,
    log: Arc<Mutex<Log>>,
    version: watch::Sender<u64>,
    pub url: String,
}

impl Fake {
    pub async fn start(slot: u32) -> Self {
        Self::with(slot, 0, |server| server).await
    }

    /// A store that reports these features in handshakes and serves additional services.
    pub async fn with(slot: u32, features: u64, also: impl FnOnce(Server) -> Server) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = listener.local_addr().unwrap().to_string();
        let log = Log { current: 1000 << 10, ..Log::default() };
        let (log, version) = (Arc::new(Mutex::new(log)), watch::Sender::new(0));
        let fake = Self { slot, features, log, version, url };
        let server = tonic::transport::Server::builder()
            .add_service(shard_server::ShardServer::new(fake.clone()))
            .add_service(feeds_server::FeedsServer::new(fake.clone()));
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        tokio::spawn(also(server).serve_with_incoming(incoming));
        fake
    }

    fn change<R>(&self, change: impl FnOnce(&mut Log) -> R) -> R {
        let result = change(&mut self.log.lock().unwrap());
        self.version.send_modify(|version| *version += 1);
        result
    }

    /// Writes keys in one revision.
    pub fn write(&self, keys: &[&str]) -> i64 {
        self.write_sized(keys, 100)
    }

    /// Like [`Self::write`], with values of this length.
    pub fn write_sized(&self, keys: &[&str], bytes: usize) -> i64 {
        let slot = i64::from(self.slot);
        self.change(|log| {
            let revision = ((log.current >> 10) + 1) << 10 | slot;
            log.current = revision;
            for key in keys {
                let kv = mvccpb::KeyValue {
                    key: (*key).to_owned().into(),
                    mod_revision: revision,
                    value: vec![b'v'; bytes].into(),
                    ..Default::default()
                };
                let prev_kv = Some(mvccpb::KeyValue { mod_revision: 1, ..kv.clone() });
                let event = mvccpb::Event { r#type: 0, kv: Some(kv), prev_kv };
                log.events.push((revision, event.encode_to_vec().into()));
            }
            revision
        })
    }

    /// Moves its clock forward to this time.
    pub fn at(&self, micros: i64) {
        self.change(|log| log.current = log.current.max(micros << 10));
    }

    /// Behaves as after a restart without its data.
    pub fn lose_everything(&self, floor_micros: i64) -> i64 {
        self.change(|log| {
            log.events.clear();
            log.floor = floor_micros << 10;
            log.current = log.current.max(log.floor);
            log.floor
        })
    }

    /// Behaves as after a kill and a restart that kept everything up to `after`: feeds break, and later events are
    /// lost. Returns the first revision of the new incarnation.
    pub fn crash(&self, after: i64) -> i64 {
        self.change(|log| {
            log.events.retain(|(revision, _)| *revision <= after);
            log.current = ((log.current >> 10) + 100) << 10;
            log.gaps.push((after, log.current));
            log.incarnation += 1;
            log.current
        })
    }

    /// The durability modes that it was told, each time.
    pub fn modes(&self) -> Vec<pb::SetModesRequest> {
        self.log.lock().unwrap().modes.clone()
    }

    /// Sets whether it answers that it can keep no Kind.
    pub fn keep_nothing(&self, nothing: bool) {
        self.log.lock().unwrap().keeps_nothing = nothing;
    }

    /// Sets the identity that it reports: the UUID, and whether it has a disk.
    pub fn be(&self, uuid: &str, in_memory: bool) {
        let mut log = self.log.lock().unwrap();
        (log.uuid, log.in_memory) = (uuid.to_owned(), in_memory);
    }

    /// Sets the trouble that it reports.
    pub fn say_trouble(&self, trouble: &str) {
        trouble.clone_into(&mut self.log.lock().unwrap().trouble);
    }

    /// The lineage and the UUID in the last handshake.
    pub fn meant(&self) -> (String, String) {
        self.log.lock().unwrap().meant.clone()
    }

    pub fn current(&self) -> i64 {
        self.log.lock().unwrap().current
    }

    /// Sets the error of the wall clock that its handshakes report.
    pub fn set_wall_offset(&self, micros: i64) {
        self.log.lock().unwrap().wall_offset_micros = micros;
    }

    pub fn handshakes(&self) -> usize {
        self.log.lock().unwrap().handshakes
    }

    /// The reference time in the last handshake.
    pub fn reference(&self) -> u64 {
        self.log.lock().unwrap().reference_micros
    }

    /// Sets whether its keys are moving: then feeds end with all that there is, and all else is refused.
    pub fn freeze(&self, frozen: bool) {
        self.change(|log| log.frozen = frozen);
    }

    /// Takes over the history of another store.
    pub fn take_over(&self, from: &Self) {
        let (events, current) = from.change(|log| (log.events.clone(), log.current));
        self.change(|log| {
            log.events.extend(events);
            log.events.sort();
            log.current = log.current.max(current);
        });
    }

    pub fn hang(&self, hangs: bool) {
        self.change(|log| log.hangs = hangs);
    }

    /// Sets whether it answers handshakes.
    pub fn silence(&self, silent: bool) {
        self.change(|log| log.silent = silent);
    }

    /// Sets whether its feeds are silent.
    pub fn mute(&self, mute: bool) {
        self.change(|log| log.mute = mute);
    }

    /// The numbers of feeds opened, advances and raises so far.
    pub fn asked(&self) -> (usize, usize, usize) {
        let log = self.log.lock().unwrap();
        (log.feeds_opened, log.advances, log.raises)
    }

    /// What a feed sends next, from revision `next` on, with a watermark if it was asked for one.
    fn more(&self, next: &mut i64, asked: &mut bool) -> Option<Result<pb::FeedResponse, i64>> {
        let log = self.log.lock().unwrap();
        if log.hangs || log.mute {
            return None;
        }
        if *next < log.floor {
            return Some(Err(log.floor));
        }
        let mut due = log.events.iter().filter(|(revision, _)| revision >= next).peekable();
        let mut events: Vec<pb::FeedEvent> = Vec::new();
        while let Some((revision, event)) = due.peek() {
            // A shard's messages are bounded too, and have whole revisions.
            let last = events.last().map(|last| last.revision);
            if !log.frozen && events.len() >= EVENTS_MAX && last != Some(*revision) {
                *next = *revision;
                return Some(Ok(pb::FeedResponse { events, ..Default::default() }));
            }
            events.push(pb::FeedEvent { revision: *revision, event: event.clone() });
            due.next();
        }
        if log.frozen {
            return Some(Ok(pb::FeedResponse { events, moved: log.current, ..Default::default() }));
        }
        if events.is_empty() && !std::mem::take(asked) {
            return None;
        }
        *next = (*next).max(log.current + 1);
        Some(Ok(pb::FeedResponse { events, watermark: log.current, ..Default::default() }))
    }
}

type FeedStream = Pin<Box<dyn Stream<Item = Result<pb::FeedResponse, Status>> + Send>>;

#[tonic::async_trait]
impl feeds_server::Feeds for Fake {
    type FeedStream = FeedStream;

    async fn feed(
        &self,
        request: Request<Streaming<pb::FeedRequest>>,
    ) -> Result<Response<FeedStream>, Status> {
        let mut requests = request.into_inner();
        let Some(pb::FeedRequest { request: Some(Asked::Open(open)) }) = requests.message().await? else {
            return Err(Status::invalid_argument("no open"));
        };
        let fake = self.clone();
        if fake.log.lock().unwrap().frozen {
            return Err(not_owned());
        }
        let (mut next, incarnation, gaps) = fake.change(|log| {
            log.feeds_opened += 1;
            let next = if open.start > 0 { open.start } else { log.current + 1 };
            let above: Vec<_> = log.gaps.iter().copied().filter(|(_, until)| *until > next).collect();
            (next, log.incarnation, above)
        });
        let (to, responses) = tokio::sync::mpsc::channel(16);
        tokio::spawn(async move {
            let mut version = fake.version.subscribe();
            let inside = gaps.iter().find(|(after, until)| after + 1 < next && next < *until);
            let compacted = inside.map_or(0, |(_, until)| *until);
            let opened = if compacted > 0 { 0 } else { next - 1 };
            let gaps = gaps.iter().map(|(after, until)| pb::Gap { after: *after, until: *until }).collect();
            let _ = to.send(Ok(pb::FeedResponse { opened, compacted, gaps, ..Default::default() })).await;
            if compacted > 0 {
                return;
            }
            let mut asked = false;
            loop {
                version.mark_unchanged();
                if fake.log.lock().unwrap().incarnation != incarnation {
                    let _ = to.send(Err(Status::unavailable("killed"))).await;
                    return;
                }
                match fake.more(&mut next, &mut asked) {
                    Some(Ok(more)) => {
                        let (moved, goes_on) = (more.moved > 0, more.moved == 0 && more.watermark == 0);
                        let sent = to.send(Ok(more)).await;
                        if sent.is_err() || moved {
                            return;
                        }
                        if goes_on {
                            continue;
                        }
                    }
                    Some(Err(floor)) => {
                        let _ =
                            to.send(Ok(pb::FeedResponse { compacted: floor, ..Default::default() })).await;
                        return;
                    }
                    None => {}
                }
                tokio::select! {
                    _ = version.changed() => {}
                    () = to.closed() => return,
                    Some(Ok(request)) = requests.next() => {
                        if let Some(Asked::Advance(advance)) = request.request {
                            asked = true;
                            fake.change(|log| {
                                log.advances += 1;
                                log.current = log.current.max(advance.to);
                            });
                        }
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(responses))))
    }
}

macro_rules! unused {
    ($($name:ident($request:ident) -> $response:ident),* $(,)?) => {
        $(fn $name<'life0, 'async_trait>(
            &'life0 self,
            _: Request<pb::$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<pb::$response>, Status>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { Err(Status::unimplemented("not in this test")) })
        })*
    };
}

#[tonic::async_trait]
impl shard_server::Shard for Fake {
    async fn hello(&self, hello: Request<pb::HelloRequest>) -> Result<Response<pb::HelloResponse>, Status> {
        let hello = hello.into_inner();
        let (uuid, in_memory, trouble) = {
            let mut log = self.log.lock().unwrap();
            log.reference_micros = hello.reference_micros;
            log.handshakes += 1;
            log.meant = (hello.lineage, hello.store_uuid);
            (log.uuid.clone(), log.in_memory, log.trouble.clone())
        };
        // The sender lives as long as this borrow of it, so there is no error.
        let _ = self.version.subscribe().wait_for(|_| !self.log.lock().unwrap().silent).await;
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros();
        let now_micros =
            u64::try_from(now).unwrap().saturating_add_signed(self.log.lock().unwrap().wall_offset_micros);
        let hello = pb::HelloResponse {
            protocol_version: 1,
            slot: self.slot,
            features: self.features,
            now_micros,
            revisions: "hlc".to_owned(),
            incarnation: self.log.lock().unwrap().incarnation as u64 + 1,
            store_uuid: uuid,
            in_memory,
            trouble,
            ..Default::default()
        };
        Ok(Response::new(hello))
    }

    async fn raise(&self, request: Request<pb::RaiseRequest>) -> Result<Response<pb::RaiseResponse>, Status> {
        if self.log.lock().unwrap().hangs {
            std::future::pending::<()>().await;
        }
        if self.log.lock().unwrap().frozen {
            return Err(not_owned());
        }
        let to = request.into_inner().to;
        let current = self.change(|log| {
            log.raises += 1;
            log.current = log.current.max(to);
            log.current
        });
        Ok(Response::new(pb::RaiseResponse { current }))
    }

    async fn set_modes(
        &self,
        request: Request<pb::SetModesRequest>,
    ) -> Result<Response<pb::SetModesResponse>, Status> {
        let request = request.into_inner();
        let mut log = self.log.lock().unwrap();
        let none = pb::Durability::None as i32;
        let kinds = request.modes.iter().filter(|of| log.keeps_nothing && of.mode != none);
        let unmet = kinds.map(|of| pb::UnmetMode {
            prefix: of.prefix.clone(),
            wanted: of.mode,
            has: none,
            reason: "a fake".to_owned(),
        });
        let answer = pb::SetModesResponse { generation: request.generation, unmet: unmet.collect() };
        log.modes.push(request);
        Ok(Response::new(answer))
    }

    unused! {
        raise_since(RaiseSinceRequest) -> RaiseSinceResponse,
        release_pins(ReleasePinsRequest) -> ReleasePinsResponse,
        lease_attach(LeaseAttachRequest) -> LeaseAttachResponse,
        lease_adopt(LeaseAdoptRequest) -> LeaseAdoptResponse,
        lease_end(LeaseEndRequest) -> LeaseEndResponse,
        lease_revoke(LeaseRevokeRequest) -> LeaseRevokeResponse,
        lease_forget(LeaseForgetRequest) -> LeaseForgetResponse,
        lease_keys(LeaseKeysRequest) -> LeaseKeysResponse,
        retain(RetainRequest) -> RetainResponse,
        load(LoadRequest) -> LoadResponse,
    }

    type LeaseEndedStream = Pin<Box<dyn Stream<Item = Result<pb::LeaseEndedResponse, Status>> + Send>>;

    async fn lease_ended(
        &self,
        _: Request<pb::LeaseEndedRequest>,
    ) -> Result<Response<Self::LeaseEndedStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::pending())))
    }
}
