//! etcd's services. They decode requests, call the apply loop, and encode answers.

pub mod auth;
pub mod cluster;
pub mod door;
pub mod front;
pub mod kv;
pub mod lease;
pub mod maintenance;
pub(crate) mod request;
pub mod snapshot;
pub mod watch;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio_util::sync::CancellationToken;
use tonic::Status;

use self::door::Door;
use crate::{encode::ServerIds, etcd_status::KvError, handle::Handle, standby::membership::Membership};

/// The state that all services of this member share.
#[derive(Clone)]
pub struct Member(Arc<MemberInner>);

/// The fields of [`Member`].
pub struct MemberInner {
    pub handle: Handle,
    /// The ids in headers.
    pub ids: ServerIds,
    pub name: String,
    /// The URLs that clients are told to connect to.
    pub client_urls: Vec<String>,
    /// `--max-request-bytes`.
    pub request_bytes_max: usize,
    /// `--max-txn-ops`.
    pub txn_ops_max: usize,
    /// `--quota-backend-bytes`; 0 = none.
    pub quota_bytes: u64,
    /// In a cluster, false until a handshake has confirmed the clock (R3); then true for good.
    pub serves: AtomicBool,
    /// This process as a member of its store.
    pub membership: Arc<Membership>,
    /// Decides who may make which calls.
    pub door: Door,
    /// Cancelled when the process stops; streams then end as Unavailable.
    pub stopping: CancellationToken,
}

/// How much longer a gRPC message may be than a request, as in etcd.
pub const OVERHEAD_BYTES: usize = 512 << 10;

/// Bytes that etcd's envelope adds to a request before comparing it with the limit: a header with a ten-byte number,
/// and the request's tag. The request's length field comes on top.
const ENVELOPE_BYTES: usize = 15;

impl Member {
    #[must_use]
    pub fn new(inner: MemberInner) -> Self {
        Self(Arc::new(inner))
    }

    /// Whether calls other than the handshake and those about roles are answered (R3, R19).
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.serves.load(Ordering::Acquire) && self.membership.serves()
    }

    /// Why it serves nothing.
    #[must_use]
    pub fn serves_not(&self) -> KvError {
        if self.membership.serves() { KvError::AwaitsClock } else { KvError::NotPrimary }
    }

    /// The largest gRPC message that is read.
    #[must_use]
    pub fn receive_bytes_max(&self) -> usize {
        self.request_bytes_max.saturating_add(OVERHEAD_BYTES)
    }

    /// Enforces etcd's limit on what goes through its log.
    pub fn check_size(&self, request_bytes: usize) -> Result<(), Status> {
        let length_bytes = (usize::BITS - (request_bytes | 1).leading_zeros()).div_ceil(7) as usize;
        if request_bytes.saturating_add(ENVELOPE_BYTES + length_bytes) > self.request_bytes_max {
            return Err(KvError::Invalid(kindred_wire::error::EtcdError::RequestTooLarge).into());
        }
        Ok(())
    }
}

impl std::ops::Deref for Member {
    type Target = MemberInner;

    fn deref(&self) -> &MemberInner {
        &self.0
    }
}
