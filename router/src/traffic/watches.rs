//! Open watches: counted for their Kinds, and traced when they end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::kind::KindScheme;
use kindred_router_core::verb::{Asked, Verb};
use kindred_wire::peek::{WatchCreateRequest, WatchRequest};
use kindred_wire::watch_request;
use tokio::time::Instant;
use tonic::Code;

use super::Traffic;
use super::clients::OpenConnection;
use super::kinds::Watched;
use super::trace::{Ended, Method};

/// A watch of a client, until this is dropped.
#[derive(Debug)]
pub struct OpenWatch {
    traffic: Arc<Traffic>,
    watched: Watched,
    client: Arc<OpenConnection>,
    /// The client's request.
    request: Bytes,
    began: Instant,
    /// Bytes of messages with events.
    sent: u64,
}

impl Traffic {
    /// A watch that begins.
    #[must_use]
    pub fn watched(
        self: &Arc<Self>,
        scheme: &KindScheme,
        create: &WatchCreateRequest<'_>,
        client: &Arc<OpenConnection>,
    ) -> OpenWatch {
        OpenWatch {
            traffic: self.clone(),
            watched: self.kinds.of(scheme, create.key, create.range_end).watched(),
            client: client.clone(),
            request: watch_request::create(create).into(),
            began: Instant::now(),
            sent: 0,
        }
    }
}

impl OpenWatch {
    /// Counts a message with events; `age` is that of its first event, where it is known.
    pub fn delivered(&mut self, bytes: usize, age: Option<Duration>) {
        self.watched.delivered(bytes, age);
        self.sent += bytes as u64;
    }

    #[cold]
    fn trace(&self) {
        let Ok(WatchRequest::Create(create)) = WatchRequest::parse(&self.request) else { return };
        let WatchCreateRequest { key, range_end, .. } = create;
        self.traffic.tracers.tell(&Ended {
            client: &self.client.client.name,
            connection: self.client.peer,
            kind: self.watched.kind(),
            method: Method::Watch,
            asked: Asked { verb: Verb::Watch, key, range_end, limit: 0, keys_only: false },
            request: &self.request,
            code: Code::Ok,
            message: "",
            took: self.began.elapsed(),
            answer_bytes: self.sent,
            answer_revision: 0,
            succeeded: None,
            lease: 0,
        });
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        if self.traffic.tracers.any() {
            self.trace();
        }
    }
}
