//! A small gRPC server, and a proxy that can fall silent.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kindred_proto::etcdserverpb::cluster_client::ClusterClient;
use kindred_proto::etcdserverpb::cluster_server::{Cluster, ClusterServer};
use kindred_proto::etcdserverpb::{Member, MemberListRequest, MemberListResponse};
use kindred_proto::raw::watch::watch_server::{Watch, WatchServer};
use kindred_transport::tls::{ClientTls, ServerTls};
use kindred_transport::unread::Unread;
use kindred_transport::{
    ConnectionInfo, Connector, Drain, Endpoint, ListenAddr, ListenOptions, Listener, server,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// Answers with the client's name. A linearizable call gets no answer.
#[derive(Clone, Default)]
struct Service {
    /// The number of calls without an answer.
    waiting: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl Cluster for Service {
    async fn member_list(
        &self,
        request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        if request.get_ref().linearizable {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
        let info = ConnectionInfo::of(request.extensions()).ok_or_else(|| Status::internal("no info"))?;
        let name = info.common_name().unwrap_or(if info.tls { "tls" } else { "plain" }).to_owned();
        let members = vec![Member { name, ..Member::default() }];
        Ok(Response::new(MemberListResponse { members, ..MemberListResponse::default() }))
    }
}

/// Echoes every message five times.
#[tonic::async_trait]
impl Watch for Service {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<tonic::Streaming<Bytes>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (send, receive) = tokio::sync::mpsc::channel(16);
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            while let Some(Ok(message)) = requests.next().await {
                for _ in 0..5 {
                    if send.send(Ok(message.clone())).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receive))))
    }
}

pub struct Server {
    pub endpoint: Endpoint,
    pub drain: Drain,
    /// The number of calls that are never answered.
    pub waiting: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub async fn start(address: &ListenAddr, options: ListenOptions) -> Self {
        let listener = Listener::bind(address, options).await.unwrap();
        let endpoint = listener.local_endpoint().clone();
        let drain = Drain::new(Duration::from_millis(200));
        let (stopping, incoming) = (drain.stopping(), listener.incoming(&drain));
        let service = Service::default();
        let waiting = service.waiting.clone();
        let services =
            Routes::new(ClusterServer::new(service.clone())).add_service(WatchServer::new(service));
        let task = drain.spawn(server::serve(
            incoming,
            server::Served::grpc((), services),
            server::STREAMS_MAX,
            Unread::default(),
            stopping,
        ));
        Self { endpoint, drain, waiting, task }
    }

    pub async fn start_tls(tls: ServerTls) -> Self {
        Self::start(&ListenAddr::any_local_port(), ListenOptions::with_tls(Some(tls))).await
    }

    pub async fn stop(self) {
        self.drain.kill();
        self.drain.finish().await;
        self.task.await.unwrap();
    }
}

pub fn channel(endpoint: &Endpoint, tls: Option<ClientTls>) -> Channel {
    Connector::with_tls(tls).channel(endpoint).unwrap()
}

/// Makes one call, with a timeout that only a hang reaches.
pub async fn who(channel: &Channel) -> Result<String, Status> {
    ask(channel, false).await
}

pub async fn ask(channel: &Channel, never_answers: bool) -> Result<String, Status> {
    let mut client = ClusterClient::new(channel.clone());
    let call = client.member_list(MemberListRequest { linearizable: never_answers });
    let answer = tokio::time::timeout(Duration::from_secs(60), call).await.expect("the call hangs")?;
    Ok(answer.into_inner().members.remove(0).name)
}

/// Waits until the condition holds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(tokio::time::Instant::now() < until, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Forwards connections. When `silence` is cancelled, the open ones stay open but carry nothing.
pub async fn proxy(to: SocketAddr) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let silence = CancellationToken::new();
    let silenced = silence.clone();
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let silenced = if silenced.is_cancelled() { CancellationToken::new() } else { silenced.clone() };
            tokio::spawn(async move {
                let mut far = TcpStream::connect(to).await.unwrap();
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                    () = silenced.cancelled() => {}
                }
                std::future::pending::<()>().await;
            });
        }
    });
    (address, silence)
}
