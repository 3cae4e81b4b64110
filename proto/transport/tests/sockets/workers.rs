//! Connections served by threads other than the accepting one.

use std::collections::BTreeMap;
use std::time::Duration;

use kindred_proto::etcdserverpb::cluster_server::{Cluster, ClusterServer};
use kindred_proto::etcdserverpb::{Member, MemberListRequest, MemberListResponse};
use kindred_transport::auto_tls;
use kindred_transport::tls::{ClientTls, ServerTls};
use kindred_transport::unread::Unread;
use kindred_transport::{Drain, Endpoint, ListenAddr, ListenOptions, Listener, Workers, server};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::support::{channel, who};

const THREADS: usize = 3;

/// Answers with the name of the thread that it runs on.
struct Where;

#[tonic::async_trait]
impl Cluster for Where {
    async fn member_list(
        &self,
        _: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let members = vec![Member { name, ..Member::default() }];
        Ok(Response::new(MemberListResponse { members, ..MemberListResponse::default() }))
    }
}

async fn start(address: &ListenAddr, options: ListenOptions) -> (Endpoint, Drain) {
    let listener = Listener::bind(address, options).await.unwrap();
    let endpoint = listener.local_endpoint().clone();
    let drain = Drain::new(Duration::from_secs(10));
    let workers = Workers::start(THREADS, &drain.killed()).unwrap();
    let services = Routes::new(ClusterServer::new(Where));
    workers.serve(listener.incoming(&drain), &drain, |incoming| {
        let served = server::Served::grpc((), services.clone());
        server::serve(incoming, served, server::STREAMS_MAX, Unread::default(), drain.stopping())
    });
    (endpoint, drain)
}

/// The number of these connections that each thread serves.
async fn served(endpoint: &Endpoint, tls: Option<ClientTls>, connections: usize) -> BTreeMap<String, usize> {
    let (mut open, mut by_thread) = (Vec::new(), BTreeMap::new());
    for _ in 0..connections {
        let channel = channel(endpoint, tls.clone());
        let thread = who(&channel).await.unwrap();
        assert_eq!(who(&channel).await.unwrap(), thread, "a connection stays where it is");
        *by_thread.entry(thread).or_default() += 1;
        open.push(channel);
    }
    by_thread
}

fn in_turns(connections: usize) -> BTreeMap<String, usize> {
    (1..=THREADS).map(|index| (format!("worker-{index}"), connections / THREADS)).collect()
}

#[tokio::test]
async fn connections_go_to_the_threads_in_turns() {
    let directory = tempfile::tempdir().unwrap();
    let ours = auto_tls::create(directory.path(), &[]).unwrap();
    let tls = ListenOptions::with_tls(Some(ServerTls::load(ours.server_settings()).unwrap()));
    let with_tls = Some(ClientTls::load(ours.client_settings()).unwrap());
    let unix = ListenAddr::unix(directory.path().join("socket"));
    for (address, options, client) in [
        (ListenAddr::any_local_port(), ListenOptions::default(), None),
        (ListenAddr::any_local_port(), tls, with_tls),
        (unix, ListenOptions::default(), None),
    ] {
        let (endpoint, drain) = start(&address, options).await;
        assert_eq!(served(&endpoint, client, 6).await, in_turns(6), "{endpoint}");
        drain.kill();
        drain.finish().await;
    }
}

#[tokio::test]
async fn a_stop_closes_the_port_and_ends_the_connections() {
    let (endpoint, drain) = start(&ListenAddr::any_local_port(), ListenOptions::default()).await;
    let open = channel(&endpoint, None);
    who(&open).await.unwrap();
    drain.begin();
    // The client closes its connection after GOAWAY, so nothing is left to kill.
    assert_eq!(drain.finish().await, kindred_transport::serve::Drained::Cleanly);
    who(&open).await.unwrap_err();
    let again: ListenAddr = endpoint.to_string().parse().unwrap();
    let (_, drain) = start(&again, ListenOptions::default()).await;
    who(&open).await.unwrap();
    drain.kill();
}
