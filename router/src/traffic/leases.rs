//! Calls of etcd's service Lease, which are of no Kind: they are traced, and not counted.

use std::sync::Arc;
use std::time::Duration;

use http::Extensions;
use kindred_partition_config::kind::ALL_ELSE;
use kindred_router_core::verb::{Asked, Verb};
use prost::Message;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::Traffic;
use super::clients::OpenConnection;
use super::trace::{Ended, Method};

/// A call that somebody traces.
#[derive(Debug)]
pub struct LeaseCall {
    traffic: Arc<Traffic>,
    client: Arc<OpenConnection>,
    method: Method,
    request: Vec<u8>,
    began: Instant,
}

impl LeaseCall {
    /// Notes that a call has begun; `None` while nobody traces.
    #[must_use]
    pub fn begin(
        traffic: &Arc<Traffic>,
        extensions: &Extensions,
        method: Method,
        request: &impl Message,
    ) -> Option<Self> {
        let of_call = || traffic.clients.of_call(extensions);
        traffic.tracers.any().then(|| Self::of(traffic, of_call(), method, request))
    }

    /// The same for a call of this client.
    #[must_use]
    pub fn begin_of(
        traffic: &Arc<Traffic>,
        client: &Arc<OpenConnection>,
        method: Method,
        request: &impl Message,
    ) -> Option<Self> {
        traffic.tracers.any().then(|| Self::of(traffic, client.clone(), method, request))
    }

    fn of(
        traffic: &Arc<Traffic>,
        client: Arc<OpenConnection>,
        method: Method,
        request: &impl Message,
    ) -> Self {
        let request = request.encode_to_vec();
        Self { traffic: traffic.clone(), client, method, request, began: Instant::now() }
    }

    /// Notes its end: the lease and the revision in the answer, or why there is none.
    pub fn ended(self, answer: Result<(i64, i64), &Status>) {
        let took: Duration = self.began.elapsed();
        let (code, message) = match answer {
            Ok(_) => (Code::Ok, ""),
            Err(status) => (status.code(), status.message()),
        };
        let (lease, answer_revision) = answer.unwrap_or_default();
        self.traffic.tracers.tell(&Ended {
            client: &self.client.client.name,
            connection: self.client.peer,
            kind: ALL_ELSE,
            method: self.method,
            // What a trace says of a lease's verb depends on the method alone.
            asked: Asked { verb: Verb::Txn, key: b"", range_end: b"", limit: 0, keys_only: false },
            request: &self.request.into(),
            code,
            message,
            took,
            answer_bytes: 0,
            answer_revision,
            succeeded: None,
            lease,
        });
    }
}
