//! What a home says of leases whose ends are not on disk (R12).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use kindred_engine::{error::EngineError, ops::Op, trust::ClockTrust};
use kindred_partition_config::ids::{LeaseId, Slot};
use kindred_proto::etcdserverpb::{self as pb, lease_server::Lease as _};
use kindred_transport::who::Routers;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

use super::{
    disk::LifeDisk,
    life::{new_disk, open, put},
};
use crate::{
    apply_loop::call,
    clock::{Clock, WallClock},
    encode::ServerIds,
    etcd::{
        Member, MemberInner,
        door::Door,
        lease::{self, LeaseService},
    },
    etcd_status::KvError,
    handle::{self, Handle},
    read_hints::ReadHints,
    standby::{membership::Membership, role::Role, shipping::Shipping},
};

const LEASE: LeaseId = LeaseId(7);
/// Longer than the loop needs for anything that does not wait for the disk.
const LONG: Duration = Duration::from_millis(200);

fn other() -> Slot {
    Slot::new(9).unwrap()
}

async fn attach(handle: &Handle) -> Result<i64, KvError> {
    handle.find_lease(handle.call(call::AttachLease { id: LEASE, store: other() })).await
}

/// The services of a shard without its network.
fn member(handle: &Handle) -> Member {
    Member::new(MemberInner {
        membership: Arc::new(Membership::new(1, None, Role::alone(), 1, None)),
        handle: handle.clone(),
        ids: ServerIds { cluster_id: 1, member_id: 1, raft_term: 1 },
        name: String::new(),
        client_urls: Vec::new(),
        request_bytes_max: 1 << 20,
        txn_ops_max: 128,
        quota_bytes: 0,
        serves: AtomicBool::new(true),
        door: Door::new(Routers::default(), false),
        stopping: CancellationToken::new(),
    })
}

async fn keep_alive(member: &Member) -> Result<i64, Status> {
    let (to, mut answers) = mpsc::channel(1);
    let mut requests = tokio_stream::once(Ok(pb::LeaseKeepAliveRequest { id: LEASE.get() }));
    lease::keep_alive(member, &mut requests, &to).await?;
    Ok(answers.recv().await.unwrap()?.ttl)
}

async fn time_to_live(member: &Member) -> Result<i64, Status> {
    let request = pb::LeaseTimeToLiveRequest { id: LEASE.get(), keys: false };
    let answer = LeaseService(member.clone()).lease_time_to_live(Request::new(request)).await?;
    Ok(answer.into_inner().ttl)
}

async fn list(member: &Member) -> Result<usize, Status> {
    let request = Request::new(pb::LeaseLeasesRequest {});
    Ok(LeaseService(member.clone()).lease_leases(request).await?.into_inner().leases.len())
}

/// Whether it still has no answer after a while.
async fn waits<T>(answer: impl Future<Output = T>) -> bool {
    tokio::time::timeout(LONG, answer).await.is_err()
}

#[tokio::test]
async fn r12_a_home_says_that_a_lease_is_over_when_a_restart_would_know_it() {
    let (disk, wall) = new_disk(1);
    let (core, logs) = open(LifeDisk::new(&disk), &wall).await.unwrap();
    let (handle, _loop) =
        handle::spawn(core, logs, Shipping::alone(), Duration::from_millis(20), CancellationToken::new());
    let member = member(&handle);
    handle.call(call::GrantLease { id: Some(LEASE), ttl_s: 60 }).await.unwrap().unwrap();
    let granted = attach(&handle).await;
    let mut watched = handle.watch_ended().await.unwrap();
    let mut write = put("/registry/secrets/a", "of the lease");
    if let Op::Put(put) = &mut write {
        put.lease = Some(LEASE);
    }
    disk.hold_syncs();
    let live = [keep_alive(&member).await, time_to_live(&member).await];
    let revoke = waits(handle.call_durable(call::RevokeLease { id: LEASE })).await;
    let again = waits(attach(&handle)).await;
    let write = waits(handle.apply(write, ReadHints::default())).await;
    let ended = waits(watched.recv()).await;
    let mut late = handle.watch_ended().await.unwrap();
    let late = waits(late.recv()).await;
    let asked = tokio::join!(keep_alive(&member), time_to_live(&member), list(&member));
    // A loop that ends waits for the disk, also when this test fails.
    disk.release_syncs();
    assert_eq!(granted.unwrap(), 60);
    assert!(live.iter().all(|ttl| ttl.as_ref().is_ok_and(|ttl| *ttl >= 59)), "no disk is needed: {live:?}");
    assert!(revoke, "the disk does nothing");
    assert!(again && ended && late, "a router would end the lease at the other store");
    assert!(write, "a client would take the lease for over");
    assert!(asked.0.is_err() && asked.1.is_err() && asked.2.is_err(), "and so it would: {asked:?}");
    let none = Err(KvError::Engine(EngineError::LeaseNotFound(LEASE)));
    assert_eq!(attach(&handle).await, none);
    assert_eq!(watched.recv().await, Some((LEASE, vec![other()])));
    let asked = tokio::join!(keep_alive(&member), time_to_live(&member), list(&member));
    assert_eq!((asked.0.unwrap(), asked.1.unwrap(), asked.2.unwrap()), (0, -1, 0));
}

#[tokio::test]
async fn r12_an_expired_lease_that_is_not_kept_alive_ends_before_its_client_hears_of_it() {
    let (disk, wall) = new_disk(1);
    let (mut core, _logs) = open(LifeDisk::new(&disk), &wall).await.unwrap();
    core.lease_grant(Some(LEASE), 60).unwrap();
    assert_eq!(core.lease_keep_alive(LEASE), Ok(60));
    // The loop has not come to it: one lease expires in a turn.
    let now = UNIX_EPOCH + Duration::from_micros(wall.load(Ordering::Relaxed));
    let (wall, later) = (WallClock::Other(Arc::new(move || now)), Arc::new(|| Duration::from_secs(90)));
    core.clock = Clock::simulated(wall, later, ClockTrust::alone());
    let logged = core.engine.logged_fsync();
    assert_eq!(core.lease_keep_alive(LEASE), Err(EngineError::LeaseNotFound(LEASE)));
    assert!(core.engine.logged_fsync() > logged, "a restart would find it with its whole TTL");
    assert_eq!(core.engine.leases(), []);
}
