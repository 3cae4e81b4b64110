//! What a process knows of itself as a member of a store: its role, and at a standby the connection to its primary.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use kindred_partition_config::ids::Term;
use kindred_transport::random::bits as random;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{
    MemberId, Position,
    follower::{Follower, NotDone, Taking},
    member::{At, MemberMachine, Standby},
    role::{Role, RoleError},
};

/// A member.
#[derive(Debug)]
pub struct Membership {
    pub id: MemberId,
    /// Identifies this process.
    pub run: u64,
    /// Where the role is kept; a store without a directory has no standbys.
    directory: Option<PathBuf>,
    /// Whoever makes a call holds the lock until it has come to its end.
    pub machine: tokio::sync::Mutex<MemberMachine>,
    /// What others see of the machine.
    serves: AtomicBool,
    in_doubt: AtomicBool,
    incarnation: Arc<AtomicU64>,
    /// Cancelled when another member is the primary: this process is to end, and follows when it is started again.
    pub superseded: CancellationToken,
    /// At a standby.
    pub following: Option<Arc<Following>>,
}

impl Membership {
    /// A member with the role that its directory keeps.
    #[must_use]
    pub fn new(
        member_id: u64,
        directory: Option<PathBuf>,
        role: Role,
        incarnation: u64,
        following: Option<Arc<Following>>,
    ) -> Self {
        let machine = MemberMachine::start(id_of(member_id), role, incarnation);
        Self {
            id: machine.id().clone(),
            run: random().max(1),
            directory,
            serves: AtomicBool::new(machine.serves()),
            in_doubt: AtomicBool::new(machine.in_doubt()),
            incarnation: Arc::new(AtomicU64::new(incarnation)),
            machine: tokio::sync::Mutex::new(machine),
            superseded: CancellationToken::new(),
            following,
        }
    }

    /// Whether this member may serve, as far as its role goes.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.serves.load(Ordering::Acquire)
    }

    /// Whether another member may have been promoted since this one was the primary.
    #[must_use]
    pub fn in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Acquire)
    }

    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    /// The incarnation, which changes with a promotion.
    #[must_use]
    pub fn shared_incarnation(&self) -> Arc<AtomicU64> {
        self.incarnation.clone()
    }

    /// Cancelled when a standby can only begin anew.
    #[must_use]
    pub fn failed(&self) -> CancellationToken {
        self.following.as_ref().map_or_else(CancellationToken::new, |following| following.failed.clone())
    }

    /// Where it keeps things, if it does.
    #[must_use]
    pub fn directory(&self) -> Option<&PathBuf> {
        self.directory.as_ref()
    }

    /// Keeps a role on disk.
    ///
    /// # Errors
    /// When the disk refuses.
    pub async fn keep(&self, role: Role) -> Result<(), RoleError> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        let written = tokio::task::spawn_blocking(move || role.write(&directory)).await;
        written.unwrap_or_else(|lost| std::panic::resume_unwind(lost.into_panic()))
    }

    /// Has the machine decide something as of now.
    pub fn decide<T>(
        &self,
        machine: &mut MemberMachine,
        decide: impl FnOnce(&mut MemberMachine, &mut At<'_>) -> T,
    ) -> T {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros());
        let wall_micros = u64::try_from(wall).unwrap_or(u64::MAX);
        let decided = match &self.following {
            None => decide(machine, &mut At { wall_micros, standby: None }),
            Some(following) => following.with(|follower, now| {
                let whole = following.is_whole();
                decide(machine, &mut At { wall_micros, standby: Some(Standby { follower, whole, now }) })
            }),
        };
        self.serves.store(machine.serves(), Ordering::Release);
        self.in_doubt.store(machine.in_doubt(), Ordering::Release);
        self.incarnation.store(machine.incarnation(), Ordering::Release);
        decided
    }
}

/// The id of a member, from the number that its directory was given.
#[must_use]
pub fn id_of(member_id: u64) -> MemberId {
    MemberId(format!("{member_id:016x}"))
}

/// The connection of a standby, shared by its thread and the calls about it.
#[derive(Debug)]
pub struct Following {
    began: Instant,
    follower: Mutex<Follower>,
    whole: AtomicBool,
    connected: AtomicBool,
    disk: Mutex<Taking>,
    /// Cancelled when nothing is taken over any more.
    pub stop: CancellationToken,
    /// Cancelled when it can only begin anew, with the reason.
    pub failed: CancellationToken,
    reason: Mutex<Option<String>>,
    /// Hands what was received to the loop; ends when all of it is handed over.
    pub handing: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Following {
    /// A standby that starts, in a term.
    #[must_use]
    pub fn new(term: Term) -> Self {
        Self {
            began: Instant::now(),
            follower: Mutex::new(Follower::new(term, Duration::ZERO)),
            whole: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            disk: Mutex::default(),
            stop: CancellationToken::new(),
            failed: CancellationToken::new(),
            reason: Mutex::new(None),
            handing: tokio::sync::Mutex::new(None),
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Follower, Duration) -> T) -> T {
        let mut follower = self.follower.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that no acknowledgement is older than it seems.
        act(&mut follower, self.began.elapsed())
    }

    /// See [`Follower::follow`].
    ///
    /// # Errors
    /// When the term is over.
    pub fn follow(&self, term: Term, from: Position) -> Result<(), NotDone> {
        self.with(|follower, _| follower.follow(term, from))
    }

    /// See [`Follower::received`].
    ///
    /// # Errors
    /// When nothing is acknowledged any more.
    pub fn received(&self, term: Term, batch: Position) -> Result<Position, NotDone> {
        self.with(|follower, now| follower.received(term, batch, now))
    }

    /// See [`Follower::may_be_promoted`].
    ///
    /// # Errors
    /// While the former primary may still answer.
    pub fn may_be_promoted(&self, term: Term) -> Result<(), NotDone> {
        self.with(|follower, now| follower.may_be_promoted(term, now))
    }

    #[must_use]
    pub fn term(&self) -> Term {
        self.with(|follower, _| follower.term())
    }

    #[must_use]
    pub fn is_prepared(&self) -> bool {
        self.with(|follower, _| follower.is_prepared())
    }

    /// How long ago it last acknowledged something.
    #[must_use]
    pub fn silent(&self) -> Duration {
        self.with(|follower, now| follower.silent(now))
    }

    #[must_use]
    pub fn position(&self) -> Position {
        self.with(|follower, _| follower.position())
    }

    /// Whether a whole copy is on disk.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    pub(super) fn set_whole(&self) {
        self.whole.store(true, Ordering::Release);
    }

    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    pub(super) fn set_connected(&self, connected: bool) {
        if connected {
            self.disk().connected();
        }
        self.connected.store(connected, Ordering::Release);
    }

    /// Notes whether the disk takes what is received, or why not.
    pub(super) fn note_disk(&self, stalls: Option<String>) {
        self.disk().note(stalls, self.began.elapsed());
    }

    /// See [`Taking::leaves`].
    pub(super) fn leaves(&self) -> Option<String> {
        self.disk().leaves().map(str::to_owned)
    }

    /// See [`Taking::trouble`].
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.disk().trouble().map(str::to_owned)
    }

    fn disk(&self) -> MutexGuard<'_, Taking> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It can only begin anew.
    pub(super) fn fail(&self, reason: String) {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.failed.cancel();
    }

    /// Why it can only begin anew.
    #[must_use]
    pub fn reason(&self) -> String {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }
}
