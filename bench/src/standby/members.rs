//! A store with standbys, and an etcd cluster. Each member is a process of its own, which ends when it is dropped.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use kindred_proto::{
    etcdserverpb::{StatusRequest, maintenance_client::MaintenanceClient},
    shard_v1::{CountRequest, MemberRequest, MemberResponse, standbys_client::StandbysClient},
};
use tonic::transport::{Channel, Endpoint};

use crate::servers::{self, Server};

/// How long members may take to get a copy, or to elect a leader.
const READY_MAX: Duration = Duration::from_secs(60);
/// How long a call may take.
const CALL_MAX: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
/// The term of the first primary of every store.
const TERM: u64 = 1;

/// How durable writes are, on the disk of each member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// On disk before a write is answered.
    Fsync,
    /// Never on disk.
    None,
}

impl Mode {
    pub const ALL: [Self; 2] = [Self::Fsync, Self::None];

    pub fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::None => "none",
        }
    }

    /// A folder for a member: on the disk, or in memory if nothing waits for the disk.
    fn dir(self, disk: &Path) -> anyhow::Result<tempfile::TempDir> {
        match self {
            Self::Fsync => Ok(tempfile::tempdir_in(disk)?),
            Self::None => servers::dir_in_memory(),
        }
    }
}

/// A shard of a store.
pub struct Member {
    pub server: Server,
    client: StandbysClient<Channel>,
}

impl Member {
    /// Starts a member, and waits until it serves or, as a standby, has a copy of its primary.
    fn start(mode: Mode, disk: &Path, standby_of: Option<&Self>) -> anyhow::Result<Self> {
        let (default, of_leases) =
            (format!("--durability={}", mode.name()), format!("--durability-of=leases={}", mode.name()));
        let follows = standby_of.map(|primary| format!("--standby-of=http://{}", primary.server.endpoint));
        let mut flags = vec!["--name=bench", "--slot=1", default.as_str(), of_leases.as_str()];
        flags.extend(follows.as_deref());
        let server = servers::shard_in(mode.dir(disk)?, &flags)?;
        let channel = lazy(&server.endpoint)?;
        Ok(Self { server, client: StandbysClient::new(channel) })
    }

    pub async fn shown(&self) -> anyhow::Result<MemberResponse> {
        Ok(self.client.clone().member(MemberRequest::default()).await?.into_inner())
    }

    fn pid(&self, role: &str) -> impl Iterator<Item = (String, u32)> {
        self.server.pids.iter().map(move |(_, pid)| (role.to_owned(), *pid))
    }
}

/// A channel that connects when it is used.
fn lazy(endpoint: &str) -> anyhow::Result<Channel> {
    Ok(Endpoint::from_shared(format!("http://{endpoint}"))?.timeout(CALL_MAX).connect_lazy())
}

/// A store: its primary, and standbys that have a whole copy.
pub struct Store {
    pub primary: Member,
    pub standbys: Vec<Member>,
    /// Whether the primary waits for the standbys.
    counts: bool,
}

impl Store {
    /// Starts a store. The data is on the given disk if the mode requires one.
    pub async fn start(mode: Mode, disk: &Path, standbys: usize, counts: bool) -> anyhow::Result<Self> {
        let primary = Member::start(mode, disk, None).context("starting a primary")?;
        let mut store = Self { primary, standbys: Vec::new(), counts };
        for _ in 0..standbys {
            let standby = Member::start(mode, disk, Some(&store.primary)).context("starting a standby")?;
            store.standbys.push(standby);
        }
        let deadline = Instant::now() + READY_MAX;
        while !store.is_whole().await? {
            anyhow::ensure!(Instant::now() < deadline, "a standby had no whole copy within {READY_MAX:?}");
            tokio::time::sleep(LOOK).await;
        }
        if counts {
            let shown = store.primary.shown().await?;
            let members = shown.standbys.into_iter().map(|standby| standby.member).collect();
            let request = CountRequest { term: TERM, members, recorded: true, meant: None };
            store.primary.client.clone().count(request).await.context("Count")?;
        }
        Ok(store)
    }

    /// Whether the primary knows that every standby follows and has a whole copy.
    async fn is_whole(&self) -> anyhow::Result<bool> {
        let shown = self.primary.shown().await?.standbys;
        Ok(shown.iter().filter(|standby| standby.follows && standby.whole).count() == self.standbys.len())
    }

    /// Fails unless every standby follows, and counts as it should.
    pub async fn check(&self) -> anyhow::Result<()> {
        let shown = self.primary.shown().await?;
        let follow = shown.standbys.iter().filter(|standby| standby.follows && standby.whole).count();
        let counted = if self.counts { self.standbys.len() } else { 0 };
        anyhow::ensure!(
            (follow, shown.counted.len()) == (self.standbys.len(), counted),
            "a standby was lost: {shown:?}"
        );
        Ok(())
    }

    /// The role and pid of each process.
    pub fn pids(&self) -> Vec<(String, u32)> {
        let standbys = self.standbys.iter().flat_map(|standby| standby.pid("standby"));
        self.primary.pid("primary").chain(standbys).collect()
    }
}

/// A stock etcd cluster on this machine.
pub struct Etcd {
    members: Vec<Server>,
    leader: usize,
}

impl Etcd {
    pub async fn start(mode: Mode, disk: &Path, program: &Path, members: usize) -> anyhow::Result<Self> {
        let dirs = (0..members).map(|_| mode.dir(disk)).collect::<Result<_, _>>()?;
        let flags: &[&str] = match mode {
            Mode::Fsync => &[],
            Mode::None => &["--unsafe-no-fsync"],
        };
        let members = servers::etcd_cluster(program, dirs, flags)?;
        let deadline = Instant::now() + READY_MAX;
        loop {
            if let Some(leader) = leader(&members).await {
                return Ok(Self { members, leader });
            }
            anyhow::ensure!(Instant::now() < deadline, "etcd elected no leader within {READY_MAX:?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The member to which clients connect: the others would send it every write.
    pub fn leader(&self) -> &Server {
        &self.members[self.leader]
    }

    /// Fails unless it has the leader that it had at the start.
    pub async fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(leader(&self.members).await == Some(self.leader), "etcd elected another leader");
        Ok(())
    }

    pub fn members(&self) -> &[Server] {
        &self.members
    }

    pub fn pids(&self) -> Vec<(String, u32)> {
        self.members.iter().flat_map(|member| member.pids.clone()).collect()
    }
}

/// Which member all members take for the leader; `None` if they do not agree, or one does not answer.
async fn leader(members: &[Server]) -> Option<usize> {
    let (mut ids, mut leaders) = (Vec::new(), Vec::new());
    for member in members {
        let mut client = MaintenanceClient::new(lazy(&member.endpoint).ok()?);
        let status = client.status(StatusRequest::default()).await.ok()?.into_inner();
        ids.push(status.header?.member_id);
        leaders.push(status.leader);
    }
    let first = *leaders.first()?;
    let agree = leaders.iter().all(|leader| *leader == first);
    ids.iter().position(|id| agree && *id == first)
}
