use std::time::Duration;

use kindred_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RangeStreamResponse, ResponseHeader, TxnRequest, TxnResponse,
    kv_server::{Kv, KvServer},
};
use tokio::{net::TcpListener, sync::Mutex};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status};

use super::*;
use crate::load::{self, Shape};

#[test]
fn every_key_is_one_workers_own() {
    let mut all: Vec<usize> = (0..3).flat_map(|worker| own(worker, 3, 10)).collect();
    all.sort_unstable();
    assert_eq!(all, (0..10).collect::<Vec<_>>());
    assert_eq!(own(1, 3, 10), [1, 4, 7]);
    assert_eq!(own(5, 64, 4), [1], "more workers than keys share them");
}

/// A server that answers puts one by one and stalls once.
struct Stalls {
    puts: Mutex<u64>,
}

const STALLED_AT: u64 = 100;
const STALL: Duration = Duration::from_secs(2);

#[tonic::async_trait]
impl Kv for Stalls {
    type RangeStreamStream = ReceiverStream<Result<RangeStreamResponse, Status>>;

    async fn put(&self, _: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let mut puts = self.puts.lock().await;
        *puts += 1;
        if *puts == STALLED_AT {
            tokio::time::sleep(STALL).await;
        }
        let header = ResponseHeader { revision: puts.cast_signed(), ..Default::default() };
        Ok(Response::new(PutResponse { header: Some(header), ..Default::default() }))
    }

    async fn range(&self, _: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        Err(Status::unimplemented("only puts"))
    }

    async fn range_stream(
        &self,
        _: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(Status::unimplemented("only puts"))
    }

    async fn delete_range(
        &self,
        _: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        Err(Status::unimplemented("only puts"))
    }

    async fn txn(&self, _: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        Err(Status::unimplemented("only puts"))
    }

    async fn compact(&self, _: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        Err(Status::unimplemented("only puts"))
    }
}

/// A stalling server with connections to it.
async fn stalling() -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = KvServer::new(Stalls { puts: Mutex::new(0) });
    let serve = tonic::transport::Server::builder().add_service(server);
    tokio::spawn(serve.serve_with_incoming(TcpListenerStream::new(listener)));
    let shape = Shape { connections: 2, in_flight: 1, keys: 10, value_bytes: 8 };
    Target::new(load::connect(&address.to_string(), shape).await.unwrap(), shape)
}

/// The number of operations that took longer than a sixth of the stall.
fn late(outcome: &Outcome) -> usize {
    outcome.nanos.iter().filter(|nanos| u128::from(**nanos) > STALL.as_nanos() / 6).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_is_charged_to_all_that_it_kept_waiting() {
    // At 500 per second, all remaining 200 operations are due long before the stall ends.
    let open = stalling().await.open(Kind::Put, 300, 500).await.unwrap();
    assert_eq!(open.ops(), 300);
    assert!(late(&open) >= 100, "{} were late", late(&open));
    // A closed loop notices the stall only in the call in flight.
    let closed = stalling().await.closed(Kind::Put, 300).await.unwrap();
    assert_eq!(closed.ops(), 300);
    assert!((1..20).contains(&late(&closed)), "{} were late", late(&closed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_ends_either_loop() {
    let target = stalling().await;
    assert!(target.closed(Kind::Get, 10).await.is_err());
    assert!(target.open(Kind::Get, 10, 1_000).await.is_err());
    assert!(target.open(Kind::Put, 10, 0).await.is_err(), "nothing would ever be due");
}
