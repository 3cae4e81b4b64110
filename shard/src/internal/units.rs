//! Service `Units`: what a coordinator of a live move asks of a shard (R13-R16). Each call is one question to the engine, or
//! many small ones: what touches every key of a unit is done a slice in each turn of the loop, so that nobody waits for it.
//!
//! Calls run between batches, after what was applied is published: the engine refuses to freeze or open in the middle.

use std::{collections::BTreeSet, pin::Pin, time::Duration};

use kindred_engine::units::{UnitError, UnitMove};
use kindred_partition_config::{ids::Revision, key::Key};
use kindred_proto::shard_v1::{self as pb, units_server::Units};
use kindred_transport::ending;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

use crate::{
    apply_loop::Raise,
    core::Core,
    etcd::Member,
    etcd_status::{KvError, status},
    metrics::UnitMetrics,
};

pub(super) mod convert;

/// Keys of a slice of a track, or of a look for leases.
const SLICE_KEYS: usize = 512;
/// A track answers after about this long, and is asked again.
const TRACK_TIME: Duration = Duration::from_millis(200);
/// Keys, or events, of one slice of a copy or an import.
const CHUNK_KEYS: usize = 256;
/// Bytes of one slice of a copy or an import, about: a single key with its history may be more.
const CHUNK_BYTES: usize = 256 << 10;
/// Messages of a stream that wait for the connection to take them.
const STREAM_MAX: usize = 2;
/// The longest message that is read. A key is imported with all of its history in one.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// The service.
#[derive(Clone)]
pub struct UnitService {
    member: Member,
    incarnation: u64,
    metrics: &'static UnitMetrics,
}

type Outbound<T> = mpsc::Sender<Result<T, Status>>;
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl UnitService {
    /// The service of a member that started for this time.
    #[must_use]
    pub fn new(member: Member, incarnation: u64) -> Self {
        Self { member, incarnation, metrics: UnitMetrics::get() }
    }

    /// One call to the engine, between batches.
    async fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Core) -> Result<T, UnitError> + Send + 'static,
    ) -> Result<T, KvError> {
        Ok(self.member.handle.call_visible(move |core| core.unit_call(call)).await??)
    }

    /// The same when everything applied is published and on disk, and before anything else is (R15).
    async fn ask_flushed<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Core) -> Result<T, UnitError> + Send + 'static,
    ) -> Result<T, KvError> {
        Ok(self.member.handle.call_flushed(move |core| core.unit_call(call)).await??)
    }

    /// Runs a stream in a task of its own, which ends with it, with its reader, or with the process.
    fn stream<T, F>(&self, run: impl FnOnce(Self, Outbound<T>) -> F) -> Messages<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<(), KvError>> + Send + 'static,
    {
        let (to, messages) = mpsc::channel(STREAM_MAX);
        let (good_end, messages) = ending::produced(ReceiverStream::new(messages));
        let (stopping, running) = (self.member.stopping.clone(), run(self.clone(), to.clone()));
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

    async fn copy_to(
        self,
        by: UnitMove,
        mut after: Option<Key>,
        at: Option<Revision>,
        to: Outbound<pb::CopyResponse>,
    ) -> Result<(), KvError> {
        let at = match at {
            Some(at) => at,
            None => {
                let by = by.clone();
                self.ask(move |core| core.engine.unit_copy_begin(&by)).await?
            }
        };
        loop {
            let by = by.clone();
            let next =
                move |core: &mut Core| core.engine.unit_copy(&by, after.as_ref(), CHUNK_KEYS, CHUNK_BYTES);
            let chunk = self.ask(next).await?;
            self.metrics.copied(chunk.keys.len());
            // A reader that is gone ends the stream.
            if to.send(Ok(convert::copied(at, &chunk))).await.is_err() || chunk.after.is_none() {
                return Ok(());
            }
            after = chunk.after;
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
            let unit = by.unit.clone();
            let next = move |core: &mut Core| core.engine.unit_verify(&unit, floor, at, after.as_ref());
            let Some(digest) = self.ask(next).await? else { return Ok(()) };
            after = Some(digest.last_key.clone());
            if to.send(Ok(convert::digest(digest))).await.is_err() {
                return Ok(());
            }
        }
    }
}

#[tonic::async_trait]
impl Units for UnitService {
    async fn list(
        &self,
        _request: Request<pb::UnitsListRequest>,
    ) -> Result<Response<pb::UnitsListResponse>, Status> {
        let listed = self.ask(|core| Ok((core.engine.unit_records(), core.engine.highest_move())));
        let (records, highest) = listed.await?;
        let records = records.into_iter().map(convert::record).collect();
        let highest_move = highest.map_or(0, |id| id.0);
        Ok(Response::new(pb::UnitsListResponse { records, incarnation: self.incarnation, highest_move }))
    }

    async fn track(&self, request: Request<pb::TrackRequest>) -> Result<Response<pb::TrackResponse>, Status> {
        let by = convert::unit_move(request.into_inner().r#move)?;
        let began = Instant::now();
        loop {
            let asked = by.clone();
            let tracking = self.ask(move |core| core.engine.unit_track(&asked, SLICE_KEYS)).await?;
            if tracking.ready || began.elapsed() > TRACK_TIME {
                return Ok(Response::new(convert::tracking(tracking)));
            }
        }
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
        let pb::FreezeRequest { r#move, generation } = request.into_inner();
        let by = convert::unit_move(r#move)?;
        let freeze = move |core: &mut Core| {
            core.engine.unit_undecided(&by, generation)?;
            core.engine.unit_freeze(core.clock.wall(), &by)
        };
        let last = self.ask_flushed(freeze).await?;
        let final_revision = last.get();
        Ok(Response::new(pb::FreezeResponse { final_revision, incarnation: self.incarnation }))
    }

    async fn unfreeze(
        &self,
        request: Request<pb::UnfreezeRequest>,
    ) -> Result<Response<pb::UnfreezeResponse>, Status> {
        let by = convert::unit_move(request.into_inner().r#move)?;
        self.ask(move |core| core.engine.unit_unfreeze(&by)).await?;
        Ok(Response::new(pb::UnfreezeResponse {}))
    }

    async fn release(
        &self,
        request: Request<pb::ReleaseRequest>,
    ) -> Result<Response<pb::ReleaseResponse>, Status> {
        let pb::ReleaseRequest { r#move, epoch } = request.into_inner();
        let (by, epoch) = (convert::unit_move(r#move)?, convert::epoch(epoch)?);
        self.ask(move |core| core.engine.unit_release(&by, epoch)).await?;
        Ok(Response::new(pb::ReleaseResponse {}))
    }

    async fn import(
        &self,
        request: Request<pb::ImportRequest>,
    ) -> Result<Response<pb::ImportResponse>, Status> {
        let mut request = request.into_inner();
        let by = convert::unit_move(request.r#move.take())?;
        let mut through = Revision::ZERO;
        for piece in convert::import(request, CHUNK_KEYS, CHUNK_BYTES)? {
            let (by, keys, events) = (by.clone(), piece.keys.len(), piece.events.len());
            through = self.ask(move |core| core.engine.unit_import(&by, piece)).await?;
            self.metrics.imported(keys, events);
        }
        Ok(Response::new(pb::ImportResponse { through: through.get() }))
    }

    async fn seal(&self, request: Request<pb::SealRequest>) -> Result<Response<pb::SealResponse>, Status> {
        let pb::SealRequest { r#move, final_revision, generation, imported } = request.into_inner();
        let by = convert::unit_move(r#move)?;
        let last = convert::revision(final_revision, "final_revision")?;
        let last = last.ok_or_else(|| Status::invalid_argument("kindred: final_revision is missing"))?;
        let imported = convert::revision(imported, "imported")?;
        // The clock comes there only below its ceiling (R2), which is not yet above a source whose clock is ahead of this one's.
        let raise = Raise { ranges: Vec::new(), to: last, generation: None };
        self.member.handle.call_raised(raise, |_| ()).await?;
        let seal = move |core: &mut Core| {
            core.engine.unit_undecided(&by, generation)?;
            match imported {
                None => core.engine.unit_seal(core.clock.wall(), &by, last),
                Some(imported) => core.engine.unit_seal_renumbered(core.clock.wall(), &by, last, imported),
            }
        };
        self.ask_flushed(seal).await?;
        Ok(Response::new(pb::SealResponse { incarnation: self.incarnation }))
    }

    async fn open(&self, request: Request<pb::OpenRequest>) -> Result<Response<pb::OpenResponse>, Status> {
        let pb::OpenRequest { r#move, epoch } = request.into_inner();
        let (by, epoch) = (convert::unit_move(r#move)?, convert::epoch(epoch)?);
        self.ask_flushed(move |core| core.engine.unit_open(&by, epoch)).await?;
        Ok(Response::new(pb::OpenResponse {}))
    }

    async fn drop(&self, request: Request<pb::DropRequest>) -> Result<Response<pb::DropResponse>, Status> {
        let pb::DropRequest { r#move, epoch } = request.into_inner();
        let by = convert::unit_move(r#move)?;
        self.ask(move |core| core.unit_drop(&by, epoch)).await?;
        Ok(Response::new(pb::DropResponse {}))
    }

    async fn forget(
        &self,
        request: Request<pb::ForgetRequest>,
    ) -> Result<Response<pb::ForgetResponse>, Status> {
        let by = convert::unit_move(request.into_inner().r#move)?;
        let began = Instant::now();
        loop {
            let asked = by.clone();
            let slice = began.elapsed() < TRACK_TIME;
            let forgotten = self.ask(move |core| match core.engine.unit_forget(&asked) {
                // What is half done is finished first, and nobody tracks a unit whose move was given up.
                Err(UnitError::NotReady(_)) if slice => {
                    core.engine.unit_track(&asked, SLICE_KEYS).map(|_| false)
                }
                done => done.map(|()| true),
            });
            if forgotten.await? {
                return Ok(Response::new(pb::ForgetResponse {}));
            }
        }
    }

    type VerifyStream = Messages<pb::VerifyResponse>;

    async fn verify(
        &self,
        request: Request<pb::VerifyRequest>,
    ) -> Result<Response<Self::VerifyStream>, Status> {
        let pb::VerifyRequest { r#move, floor, at, after } = request.into_inner();
        let by = convert::unit_move(r#move)?;
        let (floor, at) = (convert::revision(floor, "floor")?, convert::revision(at, "at")?);
        let at = at.ok_or_else(|| Status::invalid_argument("kindred: at is missing"))?;
        let between = (floor.unwrap_or(Revision::ZERO), at);
        let after = convert::after(after);
        Ok(Response::new(self.stream(|service, to| service.verify_to(by, between, after, to))))
    }

    async fn leases(
        &self,
        request: Request<pb::UnitLeasesRequest>,
    ) -> Result<Response<pb::UnitLeasesResponse>, Status> {
        let by = convert::unit_move(request.into_inner().r#move)?;
        let (mut ids, mut after) = (BTreeSet::new(), None::<Key>);
        loop {
            let unit = by.unit.clone();
            let next = move |core: &mut Core| core.engine.unit_leases(&unit, after.as_ref(), SLICE_KEYS);
            let (found, rest) = self.ask(next).await?;
            ids.extend(found.into_iter().map(|id| id.get()));
            after = rest;
            if after.is_none() {
                return Ok(Response::new(pb::UnitLeasesResponse { ids: ids.into_iter().collect() }));
            }
        }
    }
}
