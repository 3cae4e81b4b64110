//! Finds who writes directly to a stock etcd that is being adopted, so that an operator knows when nobody does any more.
//!
//! While the etcd is adopted, all its keys are watched, as Calico, Cilium or Patroni write theirs outside of kube-apiserver's
//! prefix, and this router notes the revisions of its own changes there. A change at another revision was made by someone
//! else: another router, or a client of the etcd. So `kindred adopt` asks all routers. Each kube-apiserver writes something
//! every ten seconds, at least its identity Lease.
//!
//! The etcd deletes keys itself when leases end: the deletion of a key whose lease is gone is nobody's.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kindred_proto::etcdserverpb as pb;
use kindred_wire::answer::{WatchResponse, watch_events};
use kindred_wire::kv::{EventRef, EventType, KeyValueRef};
use kindred_wire::peek::{self, WatchCreateRequest};
use kindred_wire::watch_request;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use crate::execute::Deadline;
use crate::meta::take::StateKeeper;
use crate::stores::Store;

/// How often the cluster's state is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The time limit of a read.
const LIMIT: Duration = Duration::from_secs(2);

/// Sees the changes of an etcd whenever it is being adopted, for ever.
pub async fn follow(keeper: Arc<StateKeeper>, store: Arc<Store>) {
    let ticks = keeper.stores.ticks();
    let adopting = || keeper.cluster.state().stores.get(store.index.0).is_some_and(|known| known.adopting);
    loop {
        if adopting() {
            store.state().wait_up().await;
            let watched = async {
                while adopting() {
                    ticks.sleep(LOOK).await;
                }
            };
            tokio::select! {
                () = watched => {}
                ended = watch(&store) => {
                    if let Err(error) = ended {
                        tracing::debug!(store = store.name(), %error, "direct writes are not seen");
                    }
                }
            }
            store.writes().end();
        }
        ticks.sleep(LOOK).await;
    }
}

/// Sees changes until the watch ends.
async fn watch(store: &Store) -> Result<(), Status> {
    let writes = store.writes();
    // Whatever this router writes from here on is noted, and has a revision above the one that is read now.
    writes.note();
    let start_revision = current(store).await? + 1;
    let create = WatchCreateRequest {
        key: b"\0",
        range_end: b"\0",
        start_revision,
        prev_kv: true,
        fragment: true,
        ..Default::default()
    };
    let (asks, requests) = mpsc::channel(1);
    // The channel has room for it.
    drop(asks.try_send(watch_request::create_behind_fence(&create).into()));
    let mut watch = store.watch().watch(Request::new(ReceiverStream::new(requests))).await?.into_inner();
    while let Some(said) = watch.message().await? {
        let unreadable = |error: &dyn std::fmt::Display| store.unavailable(&error.to_string());
        let head = WatchResponse::parse(&said).map_err(|error| unreadable(&error))?;
        if head.canceled {
            return Err(store.unavailable("the watch was canceled"));
        }
        if head.created {
            writes.begin();
        }
        let mut leases = HashMap::new();
        for event in watch_events(&said) {
            let parsed = event.and_then(EventRef::parse);
            let event = parsed.map_err(|error| unreadable(&error))?;
            let kv = KeyValueRef::parse(event.kv).map_err(|error| unreadable(&error))?;
            let lease = match event.prev_kv.filter(|_| event.event_type == EventType::Delete) {
                Some(prev_kv) => KeyValueRef::parse(prev_kv).map_err(|error| unreadable(&error))?.lease,
                None => 0,
            };
            if lease == 0 || is_alive(store, lease, &mut leases).await? {
                writes.saw(kv.mod_revision, kv.key);
            }
        }
    }
    Ok(())
}

/// Whether a lease has not ended.
async fn is_alive(store: &Store, id: i64, known: &mut HashMap<i64, bool>) -> Result<bool, Status> {
    if let Some(alive) = known.get(&id) {
        return Ok(*alive);
    }
    let request = Deadline::within(LIMIT).request(pb::LeaseTimeToLiveRequest { id, keys: false });
    let alive = store.lease().lease_time_to_live(request).await?.into_inner().ttl >= 0;
    known.insert(id, alive);
    Ok(alive)
}

/// The current revision, of an answer that no other request shares.
async fn current(store: &Store) -> Result<i64, Status> {
    let request = pb::RangeRequest { key: Bytes::from_static(b"\0"), count_only: true, ..Default::default() };
    let request = Bytes::from(request.encode_to_vec());
    let deadline = Deadline::within(LIMIT);
    let answer = store.kv().range(deadline.request(request)).await?.into_inner();
    peek::header_revision(&answer).map_err(|error| store.unavailable(&error.to_string()))
}
