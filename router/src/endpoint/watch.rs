//! `etcdserverpb.Watch`: one session a client stream.

use std::sync::Arc;

use bytes::Bytes;
use kindred_proto::raw::watch::watch_server;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::app::App;
use crate::watch::session::Session;

/// Messages between a session and the client's connection.
const TO_CLIENT_MAX: usize = 16;

/// The service.
#[derive(Debug, Clone)]
pub struct Watch {
    app: Arc<App>,
}

impl Watch {
    /// The service of a router.
    #[must_use]
    pub fn new(app: Arc<App>) -> Self {
        Self { app }
    }
}

#[tonic::async_trait]
impl watch_server::Watch for Watch {
    type WatchStream = ReceiverStream<Result<Bytes, Status>>;

    async fn watch(&self, request: Request<Streaming<Bytes>>) -> Result<Response<Self::WatchStream>, Status> {
        let (to, messages) = mpsc::channel(TO_CLIENT_MAX);
        self.app.drain.spawn(Session::serve(self.app.clone(), request.into_inner(), to));
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}
