//! A server that answers every Range with a fixed page, to measure the cost of just sending it. It uses kindred's
//! own server code, so that only the work for producing an answer differs.

use std::convert::Infallible;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use kindred_proto::{etcdserverpb as pb, mvccpb};
use kindred_transport::metrics::calls::{self, Calls};
use kindred_transport::unary::UnaryCalls;
use kindred_transport::unary::long::Message;
use kindred_transport::{Drain, ListenAddr, ListenOptions, Listener, server};
use prost::Message as _;
use tonic::{Request, Status};

use crate::load::{PAGE, key};

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Bytes of a value.
    #[arg(long, default_value_t = 512)]
    value_bytes: usize,
}

/// A page of the load's keys, encoded like a shard's answer.
fn page(value_bytes: usize) -> Bytes {
    let kv = |i| mvccpb::KeyValue {
        key: key(i),
        value: vec![b'v'; value_bytes].into(),
        create_revision: 1 << 60,
        mod_revision: 1 << 60,
        version: 1,
        lease: 0,
    };
    let kvs: Vec<_> = (0..PAGE).map(kv).collect();
    let header =
        pb::ResponseHeader { cluster_id: 1 << 63, member_id: 1 << 63, revision: 1 << 60, raft_term: 1 };
    let count = kvs.len() as i64;
    pb::RangeResponse { header: Some(header), kvs, more: false, count }.encode_to_vec().into()
}

/// The answer to any other call: just a header.
fn nothing() -> Bytes {
    let header = Some(pb::ResponseHeader { revision: 1, ..Default::default() });
    pb::PutResponse { header, prev_kv: None }.encode_to_vec().into()
}

#[derive(Clone)]
struct Echo {
    page: Bytes,
    nothing: Bytes,
}

impl UnaryCalls for Echo {
    /// Whether the call gets the page.
    type Method = bool;

    fn method(&self, path: &str) -> Option<bool> {
        Some(path.ends_with("/Range"))
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range"]
    }

    fn message_bytes_max(&self) -> usize {
        usize::MAX
    }

    fn counted(&self, is_range: bool) -> &'static Calls {
        static COUNTED: LazyLock<[&'static Calls; 2]> = LazyLock::new(|| ["Put", "Range"].map(calls::of_kv));
        COUNTED[usize::from(is_range)]
    }

    async fn call(&self, is_range: bool, _: Request<Bytes>) -> Result<Message, Status> {
        Ok(if is_range { self.page.clone() } else { self.nothing.clone() }.into())
    }
}

/// Serves until the process is stopped.
#[allow(clippy::print_stdout, reason = "who started it waits for this line")]
pub async fn run(options: Options) -> anyhow::Result<()> {
    let listener = Listener::bind(&ListenAddr::any_local_port(), ListenOptions::default()).await?;
    println!("kindred-bench echo ready listen={}", listener.local_endpoint().authority());
    let drain = Drain::new(Duration::ZERO);
    let incoming = listener.incoming(&drain);
    let others = tower::service_fn(|_| async { Ok::<_, Infallible>(Status::unimplemented("").into_http()) });
    let calls = Echo { page: page(options.value_bytes), nothing: nothing() };
    let served = server::Served::grpc(calls, others);
    server::serve(
        incoming,
        served,
        server::STREAMS_MAX,
        kindred_transport::unread::Unread::default(),
        drain.stopping(),
    )
    .await;
    Ok(())
}
