//! `etcdserverpb.Watch`: one session for each client stream.

use std::sync::Arc;

use bytes::Bytes;
use kindred_proto::raw::watch::watch_server;
use kindred_transport::direct::{self, Joined};
use kindred_transport::ending;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::auth::Credentials;
use crate::watch::around::WatchPath;
use crate::watch::session;

/// Messages queued between a session and the client's connection.
const TO_CLIENT_MAX: usize = 16;

#[derive(Debug, Clone)]
pub struct Watch {
    path: Arc<WatchPath>,
}

impl Watch {
    #[must_use]
    pub fn new(path: Arc<WatchPath>) -> Self {
        Self { path }
    }
}

#[tonic::async_trait]
impl watch_server::Watch for Watch {
    type WatchStream = Joined;

    async fn watch(&self, request: Request<Streaming<Bytes>>) -> Result<Response<Self::WatchStream>, Status> {
        let (to, messages) = mpsc::channel(TO_CLIENT_MAX);
        let (good_end, messages) = ending::produced(ReceiverStream::new(messages));
        let credentials = Credentials::of(&request);
        let client = self.path.traffic.clients.of_call(request.extensions());
        // Creates are checked one by one, by the rules of their time.
        self.path.gate.settle(&credentials).await;
        let session =
            session::serve(self.path.clone(), credentials, client, request.into_inner(), to.clone());
        self.path.drain.spawn(async move {
            session.await;
            good_end.reached();
            // Dropped last, so that the end of the channel comes after the mark of a good end.
            drop(to);
        });
        Ok(direct::response(messages))
    }
}
