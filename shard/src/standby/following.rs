//! The connection of a standby to its primary. It has a thread of its own: what comes is acknowledged when it is received,
//! whatever the loop is doing (R18, R20).

use std::{path::PathBuf, sync::Arc, time::Duration};

use kindred_engine::{durability::Logged, recover::Recovered};
use kindred_partition_config::ids::{Revision, Slot, Term};
use kindred_proto::shard_v1::{
    self as pb, follow_request, follow_response, shipment::Copy, standbys_client::StandbysClient,
};
use kindred_transport::{address::Endpoint, connect::Connector};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::{MemberId, Position, follower::NotDone, membership::Following, reclaim};
use crate::{apply_loop::call, durability::recovery::shipped, handle::Handle};

/// How long a standby waits before it connects again.
const AGAIN: Duration = Duration::from_millis(100);
/// Messages that may wait to be taken over, so that acknowledgements do not wait for the loop.
const WAITING_MAX: usize = 4096;
/// The largest message.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// How often a new standby looks whether its copy is on disk.
const LOOK: Duration = Duration::from_millis(100);
/// How often it looks whether its disk takes what comes.
const LOOK_AT_DISK: Duration = Duration::from_millis(500);
/// How long messages come together before the loop takes them over and logs them in one turn. Nobody waits for either: a
/// message is acknowledged before.
const TOGETHER: Duration = Duration::from_millis(5);

/// In the refusal of a member that does not serve: the address of the primary, if it was told.
pub const PRIMARY: &str = "kindred-primary";

/// Whom a standby follows, and as whom.
#[derive(Debug, Clone)]
pub struct Target {
    pub primary: Endpoint,
    pub connector: Connector,
    pub id: MemberId,
    /// The former life of this process, if that was a standby that was never promoted.
    pub former: Option<MemberId>,
    pub name: String,
    pub slot: Slot,
}

/// What came from the primary, to be taken over.
#[derive(Debug)]
pub struct Incoming {
    records: Vec<Logged>,
    ceiling: Revision,
}

/// A standby that has a copy: who the store is, the copy, and what comes behind it.
#[derive(Debug)]
pub struct Copied {
    /// Where the primary is.
    pub primary: Endpoint,
    pub welcome: pb::Welcome,
    pub recovered: Recovered,
    pub incoming: mpsc::Receiver<Incoming>,
}

/// Follows the primary from a thread of its own. The first answer comes when a copy is whole.
///
/// # Errors
/// When the thread cannot be started.
pub fn start(target: Target, following: Arc<Following>) -> std::io::Result<oneshot::Receiver<Copied>> {
    let (copied, answer) = oneshot::channel();
    std::thread::Builder::new().name("standby".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let stop = following.stop.clone();
        match runtime {
            Ok(runtime) => {
                let follows = Follows {
                    target,
                    following,
                    copied: Some(copied),
                    incoming: None,
                    told: None,
                    run: 0,
                    store: String::new(),
                };
                runtime.block_on(stop.run_until_cancelled_owned(follows.run()));
            }
            Err(error) => following.fail(format!("cannot start the standby's runtime: {error}")),
        }
    })?;
    Ok(answer)
}

/// The state of the thread.
struct Follows {
    target: Target,
    following: Arc<Following>,
    /// Where the copy goes, until it is there.
    copied: Option<oneshot::Sender<Copied>>,
    /// Where everything behind it goes.
    incoming: Option<mpsc::Sender<Incoming>>,
    /// Another member that is said to be the primary, to be asked next.
    told: Option<Endpoint>,
    /// The process of the primary from which everything is, and its store.
    run: u64,
    store: String,
}

/// Why a connection ended.
enum Ended {
    /// It is tried again.
    Lost(Status),
    /// What is here cannot be continued.
    Anew(String),
}

impl From<Status> for Ended {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::OutOfRange | Code::FailedPrecondition | Code::InvalidArgument => {
                Self::Anew(status.message().to_owned())
            }
            _ => Self::Lost(status),
        }
    }
}

/// It is about to be promoted, or the primary's term is over. If neither was for good, a primary of a later term takes it
/// on.
impl From<NotDone> for Ended {
    fn from(over: NotDone) -> Self {
        Self::Lost(Status::failed_precondition(over.to_string()))
    }
}

impl Follows {
    async fn run(mut self) {
        let mut told = false;
        loop {
            if self.following.leaves().is_some() {
                // The primary keeps what it would send meanwhile, as long as it can.
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            let ended = self.connection().await;
            self.following.set_connected(false);
            match ended {
                Ok(()) => {}
                Err(Ended::Anew(reason)) if self.incoming.is_some() => return self.following.fail(reason),
                Err(Ended::Anew(reason)) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(primary = %self.target.primary, reason, "the primary does not take this standby yet");
                    }
                }
                Err(Ended::Lost(status)) => {
                    self.is_told(&status);
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(primary = %self.target.primary, error = status.message(), "no connection to the primary: tried again");
                    }
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Whoever does not serve may know who does. If that is not so, the former one is asked again.
    fn is_told(&mut self, status: &Status) {
        let told =
            status.metadata().get(PRIMARY).and_then(|told| told.to_str().ok()?.parse::<Endpoint>().ok());
        self.told = told.filter(|primary| *primary != self.target.primary);
    }

    /// Follows until the connection ends.
    async fn connection(&mut self) -> Result<(), Ended> {
        let primary = self.told.take().unwrap_or_else(|| self.target.primary.clone());
        let target = &self.target;
        let channel = target.connector.router_channel(std::slice::from_ref(&primary));
        let channel = channel.map_err(|error| Ended::Lost(Status::unavailable(error.to_string())))?;
        let mut client = StandbysClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let (says, requests) = mpsc::channel(64);
        let has = self.incoming.is_some().then(|| self.following.position());
        let begin = pb::FollowBegin {
            member: target.id.0.clone(),
            name: target.name.clone(),
            slot: u32::from(target.slot.get()),
            run: if has.is_some() { self.run } else { 0 },
            position: has.map_or(0, |has| has.0),
            former: target.former.as_ref().map(|former| former.0.clone()).unwrap_or_default(),
        };
        let begin = pb::FollowRequest { says: Some(follow_request::Says::Begin(begin)) };
        // There is room for the first message.
        let _ = says.send(begin).await;
        let mut stream = client.follow(ReceiverStream::new(requests)).await?.into_inner();
        let welcome = match next(&mut stream).await? {
            follow_response::Says::Welcome(welcome) => welcome,
            follow_response::Says::Shipment(_) => {
                return Err(Ended::Anew("the primary began without a welcome".to_owned()));
            }
        };
        let term = Term(welcome.term);
        // What is here is not given up for a store that lost its disk.
        if has.is_some() && self.store != welcome.store_uuid {
            return Err(Ended::Lost(Status::unavailable(
                "this is another store than the one that was copied",
            )));
        }
        self.following.follow(term, has.unwrap_or_default())?;
        self.following.set_connected(true);
        (self.run, self.store) = (welcome.run, welcome.store_uuid.clone());
        self.target.primary = primary;
        tracing::info!(primary = %self.target.primary, term = term.0, has = ?has, "following the primary");
        let mut copy = has.is_none().then(|| Recovered { copied: true, ..Recovered::default() });
        loop {
            let follow_response::Says::Shipment(shipment) = next(&mut stream).await? else { continue };
            if let Some(why) = self.following.leaves() {
                // It stays unacknowledged, so the primary goes on without this standby, and memory does not take the disk's place.
                tracing::error!(why, "nothing is taken over from the primary until the disk takes it");
                return Err(Ended::Lost(Status::unavailable(why)));
            }
            let position = Position(shipment.position);
            let last = shipment.copy() == Copy::Last;
            let ceiling = Revision(shipment.ceiling);
            let records = shipped(&shipment.records).map_err(|error| Ended::Anew(error.to_string()))?;
            // Before it is taken over: what is not to be acknowledged any more is not taken over either, and comes again
            // if this standby is not promoted after all.
            let position = self.following.received(term, position)?.0;
            match &mut copy {
                Some(recovered) => records.into_iter().for_each(|logged| recovered.push(logged)),
                None => self.hand_over(Incoming { records, ceiling }).await,
            }
            if last && let Some(mut recovered) = copy.take() {
                recovered.start = ceiling;
                self.has_copy(welcome.clone(), recovered);
            }
            let whole = self.following.is_whole();
            let received = follow_request::Says::Received(pb::FollowReceived { position, whole });
            if says.send(pb::FollowRequest { says: Some(received) }).await.is_err() {
                return Ok(());
            }
        }
    }

    fn has_copy(&mut self, welcome: pb::Welcome, recovered: Recovered) {
        let (to, incoming) = mpsc::channel(WAITING_MAX);
        self.incoming = Some(to);
        if let Some(copied) = self.copied.take() {
            // If nobody waits, the process ends.
            let primary = self.target.primary.clone();
            let _ = copied.send(Copied { primary, welcome, recovered, incoming });
        }
    }

    async fn hand_over(&self, incoming: Incoming) {
        if let Some(to) = &self.incoming {
            // If it is closed, the process ends.
            let _ = to.send(incoming).await;
        }
    }
}

async fn next(stream: &mut Streaming<pb::FollowResponse>) -> Result<follow_response::Says, Ended> {
    loop {
        match stream.message().await? {
            Some(pb::FollowResponse { says: Some(says) }) => return Ok(says),
            // A message of a later version.
            Some(pb::FollowResponse { says: None }) => {}
            None => return Err(Ended::Lost(Status::unavailable("the primary has ended the stream"))),
        }
    }
}

/// Hands what was received to the loop, in order, until nothing comes any more.
pub async fn hand_over(
    mut incoming: mpsc::Receiver<Incoming>,
    handle: Handle,
    following: Arc<Following>,
    directory: Option<PathBuf>,
) {
    let mut look_at = tokio::time::Instant::now();
    let mut together = Vec::new();
    loop {
        tokio::select! {
            came = incoming.recv_many(&mut together, WAITING_MAX) => if came == 0 { return },
            // Also while nothing comes because of that.
            () = tokio::time::sleep_until(look_at) => {}
        }
        for Incoming { records, ceiling } in together.drain(..) {
            if !handle.replicate(call::Replicate { records, ceiling }).await {
                return following.fail("the apply loop has ended".to_owned());
            }
        }
        if tokio::time::Instant::now() >= look_at {
            look_at = tokio::time::Instant::now() + if following.is_whole() { LOOK_AT_DISK } else { LOOK };
            if let Ok(stalls) = handle.call(call::Stalls {}).await {
                following.note_disk(stalls);
            }
            if !following.is_whole() && handle.call(call::IsCovered {}).await == Ok(true) {
                following.set_whole();
                tracing::info!("a whole copy is on disk");
                if let Some(directory) = directory.clone() {
                    // The loop is on this thread, and waits for no disk.
                    tokio::task::spawn_blocking(move || {
                        if let Err(error) = reclaim::note_whole(&directory) {
                            tracing::warn!(%error, "a later start will not know that this copy was whole");
                        }
                    });
                }
            }
        }
        tokio::time::sleep(TOGETHER).await;
    }
}
