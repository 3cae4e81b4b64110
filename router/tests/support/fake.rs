//! A shard in this process that does what a test says: the clock moves only when the test, a raise or an advance moves it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use kindred_proto::mvccpb;
use kindred_proto::shard_v1 as pb;
use pb::{feed_request::Request as Asked, feeds_server, shard_server};
use prost::Message;
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

#[derive(Debug, Default)]
struct Log {
    current: i64,
    floor: i64,
    events: Vec<(i64, bytes::Bytes)>,
    feeds_opened: usize,
    advances: usize,
    raises: usize,
    /// It says nothing any more.
    hangs: bool,
    /// Its handshakes are not answered any more.
    silent: bool,
    /// Its feeds say nothing any more.
    mute: bool,
    wall_offset_micros: i64,
    reference_micros: u64,
    /// Its keys are moving.
    frozen: bool,
    handshakes: usize,
    /// What it lost in crashes: after, until.
    gaps: Vec<(i64, i64)>,
    /// Feeds of an earlier life are over.
    life: usize,
    /// The durability modes that it was told.
    modes: Vec<pb::SetModesRequest>,
    /// It answers that no Kind can be kept.
    keeps_nothing: bool,
    /// Who it says it is; nobody at first, as stores of earlier versions.
    uuid: String,
    /// Without a disk.
    in_memory: bool,
    trouble: String,
    /// The last handshake's lineage, and whom it meant.
    meant: (String, String),
}

fn not_owned() -> Status {
    let mut status = Status::unavailable("kindred: \"k\" is changing its store; ask again by the newest map");
    status.metadata_mut().insert("kindred-not-owned", "0".parse().unwrap());
    status
}

/// What serves.
pub type Server = tonic::transport::server::Router;

/// One store.
#[derive(Debug, Clone)]
pub struct Fake {
    slot: u32,
    features: u64,
    log: Arc<Mutex<Log>>,
    version: watch::Sender<u64>,
    /// Where it listens.
    pub url: String,
}

impl Fake {
    pub async fn start(slot: u32) -> Self {
        Self::with(slot, 0, |server| server).await
    }

    /// One that says in handshakes that it has these features, and serves more than others.
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

    /// The same with values of this length.
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

    /// Moves its clock.
    pub fn at(&self, micros: i64) {
        self.change(|log| log.current = log.current.max(micros << 10));
    }

    /// As after a restart without its data.
    pub fn lose_everything(&self, floor_micros: i64) -> i64 {
        self.change(|log| {
            log.events.clear();
            log.floor = floor_micros << 10;
            log.current = log.current.max(log.floor);
            log.floor
        })
    }

    /// As a kill and a restart after which all up to `after` is there: feeds break, and what was above is lost. The first
    /// revision of the new life.
    pub fn crash(&self, after: i64) -> i64 {
        self.change(|log| {
            log.events.retain(|(revision, _)| *revision <= after);
            log.current = ((log.current >> 10) + 100) << 10;
            log.gaps.push((after, log.current));
            log.life += 1;
            log.current
        })
    }

    /// The durability modes that it was told, each time.
    pub fn modes(&self) -> Vec<pb::SetModesRequest> {
        self.log.lock().unwrap().modes.clone()
    }

    /// It answers that no Kind can be kept, or that all can.
    pub fn keep_nothing(&self, nothing: bool) {
        self.log.lock().unwrap().keeps_nothing = nothing;
    }

    /// It says that it is this store, with a disk or without one.
    pub fn be(&self, uuid: &str, in_memory: bool) {
        let mut log = self.log.lock().unwrap();
        (log.uuid, log.in_memory) = (uuid.to_owned(), in_memory);
    }

    /// It says that this is wrong with it.
    pub fn say_trouble(&self, trouble: &str) {
        trouble.clone_into(&mut self.log.lock().unwrap().trouble);
    }

    /// The last handshake's lineage, and whom it meant.
    pub fn meant(&self) -> (String, String) {
        self.log.lock().unwrap().meant.clone()
    }

    /// Its current revision.
    pub fn current(&self) -> i64 {
        self.log.lock().unwrap().current
    }

    /// Sets the wall clock that handshakes show wrong by this much.
    pub fn set_wall_offset(&self, micros: i64) {
        self.log.lock().unwrap().wall_offset_micros = micros;
    }

    /// Handshakes so far.
    pub fn handshakes(&self) -> usize {
        self.log.lock().unwrap().handshakes
    }

    /// What the last handshake said is now.
    pub fn reference(&self) -> u64 {
        self.log.lock().unwrap().reference_micros
    }

    /// Its keys are moving, or not any more: feeds end with all that there is, and nothing else is answered.
    pub fn freeze(&self, frozen: bool) {
        self.change(|log| log.frozen = frozen);
    }

    /// Takes the history of another store over.
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

    /// Handshakes are not answered any more, or again.
    pub fn silence(&self, silent: bool) {
        self.change(|log| log.silent = silent);
    }

    /// Silences its feeds alone.
    pub fn mute(&self, mute: bool) {
        self.change(|log| log.mute = mute);
    }

    /// Feeds opened, advances and raises asked so far.
    pub fn asked(&self) -> (usize, usize, usize) {
        let log = self.log.lock().unwrap();
        (log.feeds_opened, log.advances, log.raises)
    }

    /// What a feed gets next, from behind `sent`; with a watermark when it asked.
    fn more(&self, next: &mut i64, asked: &mut bool) -> Option<Result<pb::FeedResponse, i64>> {
        let log = self.log.lock().unwrap();
        if log.hangs || log.mute {
            return None;
        }
        if *next < log.floor {
            return Some(Err(log.floor));
        }
        let due = log.events.iter().filter(|(revision, _)| revision >= next);
        let events: Vec<_> = due
            .map(|(revision, event)| pb::FeedEvent { revision: *revision, event: event.clone() })
            .collect();
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
        let (mut next, life, gaps) = fake.change(|log| {
            log.feeds_opened += 1;
            let next = if open.start > 0 { open.start } else { log.current + 1 };
            let above: Vec<_> = log.gaps.iter().copied().filter(|(_, until)| *until > next).collect();
            (next, log.life, above)
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
                if fake.log.lock().unwrap().life != life {
                    let _ = to.send(Err(Status::unavailable("killed"))).await;
                    return;
                }
                match fake.more(&mut next, &mut asked) {
                    Some(Ok(more)) => {
                        let moved = more.moved > 0;
                        let sent = to.send(Ok(more)).await;
                        if sent.is_err() || moved {
                            return;
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
            incarnation: self.log.lock().unwrap().life as u64 + 1,
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
        keep(KeepRequest) -> KeepResponse,
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
