//! Service `Units`: the calls of a live move's coordinator (R13-R16). Each is one engine call or many small ones: work
//! on every key of a unit is done in slices, one per turn of the loop, so that other requests are not delayed.
//!
//! Calls run between batches, after everything applied is published: the engine refuses to freeze or open otherwise.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kindred_engine::units::{UnitError, UnitMove};
use kindred_partition_config::{ids::Revision, key::Key, unit::Unit};
use kindred_proto::shard_v1::{self as pb, unit_answer::Answer, unit_call::Call, units_server::Units};
use kindred_transport::ending;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::{
    apply_loop::call::{self, CoreCall},
    convert::units as convert,
    core::jobs::{CHUNK_BYTES, CHUNK_KEYS},
    etcd::Member,
    etcd_status::{KvError, status},
    handle::Handle,
    metrics::UnitMetrics,
};

mod together;

/// Units whose tails are read in one turn.
const TAILS_AT_ONCE: usize = 64;
/// Approximate bytes of an answer with the tails of many units.
const TAILS_BYTES: usize = 1 << 20;
/// Messages of a stream that may wait for the connection.
const STREAM_MAX: usize = 2;
/// Approximate bytes of one message of a copy, which is imported as it is.
const COPY_BYTES: usize = 1 << 20;
/// The longest message that is read. Shards of earlier versions send a key with its whole history in one message.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// The calls over a loop of this incarnation, without a network.
#[derive(Clone)]
pub struct UnitService {
    handle: Handle,
    stopping: CancellationToken,
    incarnation: Arc<AtomicU64>,
    metrics: &'static UnitMetrics,
}

/// Where the messages of a stream go.
pub type Outbound<T> = mpsc::Sender<Result<T, Status>>;
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl UnitService {
    /// The service of a member whose incarnation this is.
    #[must_use]
    pub fn new(member: &Member, incarnation: Arc<AtomicU64>) -> Self {
        let (handle, stopping) = (member.handle.clone(), member.stopping.clone());
        Self { handle, stopping, incarnation, metrics: UnitMetrics::get() }
    }

    fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    /// The service of a loop of this incarnation, until `stopping`.
    #[must_use]
    pub fn over(handle: Handle, stopping: CancellationToken, incarnation: u64) -> Self {
        let incarnation = Arc::new(AtomicU64::new(incarnation));
        Self { handle, stopping, incarnation, metrics: UnitMetrics::get() }
    }

    /// Makes one engine call between batches.
    async fn ask<T: Send + 'static>(
        &self,
        call: impl CoreCall<Answer = Result<T, UnitError>>,
    ) -> Result<T, KvError> {
        Ok(self.handle.call_visible(call).await??)
    }

    /// Runs a stream in its own task, which ends with the stream, its reader or the process.
    fn stream<T, F>(&self, run: impl FnOnce(Self, Outbound<T>) -> F) -> Messages<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<(), KvError>> + Send + 'static,
    {
        let (to, messages) = mpsc::channel(STREAM_MAX);
        let (good_end, messages) = ending::produced(ReceiverStream::new(messages));
        let (stopping, running) = (self.stopping.clone(), run(self.clone(), to.clone()));
        tokio::spawn(async move {
            let ended = tokio::select! {
                () = stopping.cancelled() => Err(KvError::Stopped),
                () = to.closed() => return,
                ended = running => ended,
            };
            match ended {
                Ok(()) => good_end.reached(),
                Err(error) => drop(to.send(Err(status(&error))).await),
            }
        });
        Box::pin(messages)
    }

    /// Sends a copy as it was asked for.
    ///
    /// # Errors
    /// The loop's.
    pub async fn send_copy(
        self,
        request: pb::CopyRequest,
        to: Outbound<pb::CopyResponse>,
    ) -> Result<(), Status> {
        let pb::CopyRequest { r#move, after, at } = request;
        let (by, at) = (convert::unit_move(r#move)?, convert::revision(at, "at")?);
        self.copy_to(by, convert::after(after), at, to).await.map_err(|error| status(&error))
    }

    /// Sends digests as they were asked for.
    ///
    /// # Errors
    /// The loop's.
    pub async fn send_digests(
        self,
        request: pb::VerifyRequest,
        to: Outbound<pb::VerifyResponse>,
    ) -> Result<(), Status> {
        let (by, between, after) = digests(request)?;
        self.verify_to(by, between, after, to).await.map_err(|error| status(&error))
    }

    async fn copy_to(
        self,
        by: UnitMove,
        mut after: Option<Key>,
        at: Option<Revision>,
        to: Outbound<pb::CopyResponse>,
    ) -> Result<(), KvError> {
        let at = match at {
            Some(at) => at,
            None => self.ask(call::BeginCopy { by: by.clone() }).await?,
        };
        loop {
            let next = call::CopyUnit { by: by.clone(), after, keys: CHUNK_KEYS, bytes: CHUNK_BYTES };
            let mut chunk = self.ask(next).await?;
            self.metrics.copied(chunk.keys.len());
            after = chunk.after.take();
            for message in convert::copied(at, chunk, COPY_BYTES) {
                // If the reader is gone, the stream ends.
                if to.send(Ok(message)).await.is_err() {
                    return Ok(());
                }
            }
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn verify_to(
        self,
        by: UnitMove,
        (floor, at): (Revision, Revision),
        mut after: Option<Key>,
        to: Outbound<pb::VerifyResponse>,
    ) -> Result<(), KvError> {
        loop {
            let next = call::VerifyUnit { unit: by.unit.clone(), floor, at, after };
            let Some(digest) = self.ask(next).await? else { return Ok(()) };
            after = Some(digest.last_key.clone());
            if to.send(Ok(convert::digest(digest))).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Makes a single call.
macro_rules! alone {
    ($service:expr, $request:expr, $call:ident) => {
        match $service.alone(Call::$call($request.into_inner())).await? {
            Answer::$call(answer) => Ok(Response::new(answer)),
            _ => Err(Status::internal("kindred: a call about a unit has the answer of another")),
        }
    };
}

#[tonic::async_trait]
impl Units for UnitService {
    async fn list(
        &self,
        _request: Request<pb::UnitsListRequest>,
    ) -> Result<Response<pb::UnitsListResponse>, Status> {
        let (records, highest) = self.handle.call_visible(call::ListUnits {}).await?;
        let records = records.into_iter().map(convert::record).collect();
        let highest_move = highest.map_or(0, |id| id.0);
        Ok(Response::new(pb::UnitsListResponse { records, incarnation: self.incarnation(), highest_move }))
    }

    async fn track(&self, request: Request<pb::TrackRequest>) -> Result<Response<pb::TrackResponse>, Status> {
        alone!(self, request, Track)
    }

    type CopyStream = Messages<pb::CopyResponse>;

    async fn copy(&self, request: Request<pb::CopyRequest>) -> Result<Response<Self::CopyStream>, Status> {
        let pb::CopyRequest { r#move, after, at } = request.into_inner();
        let (by, at) = (convert::unit_move(r#move)?, convert::revision(at, "at")?);
        let after = convert::after(after);
        Ok(Response::new(self.stream(|service, to| service.copy_to(by, after, at, to))))
    }

    async fn freeze(
        &self,
        request: Request<pb::FreezeRequest>,
    ) -> Result<Response<pb::FreezeResponse>, Status> {
        alone!(self, request, Freeze)
    }

    async fn unfreeze(
        &self,
        request: Request<pb::UnfreezeRequest>,
    ) -> Result<Response<pb::UnfreezeResponse>, Status> {
        alone!(self, request, Unfreeze)
    }

    async fn release(
        &self,
        request: Request<pb::ReleaseRequest>,
    ) -> Result<Response<pb::ReleaseResponse>, Status> {
        alone!(self, request, Release)
    }

    async fn import(
        &self,
        request: Request<pb::ImportRequest>,
    ) -> Result<Response<pb::ImportResponse>, Status> {
        alone!(self, request, Import)
    }

    async fn seal(&self, request: Request<pb::SealRequest>) -> Result<Response<pb::SealResponse>, Status> {
        alone!(self, request, Seal)
    }

    async fn open(&self, request: Request<pb::OpenRequest>) -> Result<Response<pb::OpenResponse>, Status> {
        alone!(self, request, Open)
    }

    async fn drop(&self, request: Request<pb::DropRequest>) -> Result<Response<pb::DropResponse>, Status> {
        alone!(self, request, Drop)
    }

    async fn forget(
        &self,
        request: Request<pb::ForgetRequest>,
    ) -> Result<Response<pb::ForgetResponse>, Status> {
        alone!(self, request, Forget)
    }

    type VerifyStream = Messages<pb::VerifyResponse>;

    async fn verify(
        &self,
        request: Request<pb::VerifyRequest>,
    ) -> Result<Response<Self::VerifyStream>, Status> {
        let (by, between, after) = digests(request.into_inner())?;
        Ok(Response::new(self.stream(|service, to| service.verify_to(by, between, after, to))))
    }

    async fn leases(
        &self,
        request: Request<pb::UnitLeasesRequest>,
    ) -> Result<Response<pb::UnitLeasesResponse>, Status> {
        alone!(self, request, Leases)
    }

    async fn together(&self, request: Request<pb::UnitCalls>) -> Result<Response<pb::UnitAnswers>, Status> {
        let calls = request.into_inner().calls.into_iter().map(|call| call.call);
        let named = |call: Option<Call>| {
            call.ok_or_else(|| Status::invalid_argument("kindred: calls: one of them says nothing"))
        };
        let answers = self.made(calls.map(named).collect::<Result<_, _>>()?).await?.into_iter();
        let answers =
            answers.map(|answer| answer.unwrap_or_else(|refused| Answer::Refused(refusal(refused))));
        let answers = answers.map(|answer| pb::UnitAnswer { answer: Some(answer) }).collect();
        Ok(Response::new(pb::UnitAnswers { answers, incarnation: self.incarnation() }))
    }

    async fn tails(&self, request: Request<pb::TailsRequest>) -> Result<Response<pb::TailsResponse>, Status> {
        let asked = request.into_inner().tails;
        let (mut tails, mut left) = (Vec::with_capacity(asked.len()), TAILS_BYTES);
        for some in asked.chunks(TAILS_AT_ONCE) {
            let units: Vec<_> = some.iter().map(tail).collect::<Result<_, _>>()?;
            let (told, rest) = self.handle.call_visible(call::Tails { units, left }).await?;
            left = rest;
            tails.extend(told);
        }
        let tails = tails.into_iter().map(|said| match said {
            Ok(said) => {
                let said = pb::FeedResponse::decode(said).map_err(KvError::from)?;
                Ok(pb::TailResponse { said: Some(said), refused: None })
            }
            Err(refused) => Ok(pb::TailResponse { said: None, refused: Some(refusal(refused)) }),
        });
        Ok(Response::new(pb::TailsResponse { tails: tails.collect::<Result<_, KvError>>()? }))
    }
}

/// A unit, the revisions between which it is compared, and the key to begin behind.
type Digests = (UnitMove, (Revision, Revision), Option<Key>);

fn digests(request: pb::VerifyRequest) -> Result<Digests, Status> {
    let pb::VerifyRequest { r#move, floor, at, after } = request;
    let by = convert::unit_move(r#move)?;
    let (floor, at) = (convert::revision(floor, "floor")?, convert::revision(at, "at")?);
    let at = at.ok_or_else(|| Status::invalid_argument("kindred: at is missing"))?;
    Ok((by, (floor.unwrap_or(Revision::ZERO), at), convert::after(after)))
}

fn tail(tail: &pb::TailRequest) -> Result<(Unit, Revision), Status> {
    let unit = tail.unit.clone().ok_or_else(|| Status::invalid_argument("kindred: tails.unit is missing"))?;
    let start = convert::revision(tail.start, "tails.start")?;
    let start = start.ok_or_else(|| Status::invalid_argument("kindred: tails.start is missing"))?;
    Ok((convert::unit(unit)?, start))
}

/// A refusal as one of several answers.
fn refusal(refused: UnitError) -> pb::UnitRefusal {
    let stale_term = match &refused {
        UnitError::StaleTerm { seen, .. } => Some(seen.0),
        _ => None,
    };
    let status = status(&KvError::Unit(refused));
    pb::UnitRefusal {
        code: i32::from(status.code()).cast_unsigned(),
        message: status.message().to_owned(),
        stale_term,
    }
}
