//! What every request needs: the map, the stores, who this router is.

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use kindred_router_core::compaction::Owed;
use kindred_router_core::consistent_read::RevisionScope;
use kindred_router_core::plan::Refusal;
use kindred_router_core::revision_pairs::RevisionPairs;
use kindred_transport::{Drain, grpc};
use kindred_wire::patch::HeaderPatch;
use kindred_wire::peek::ResponseHeader;
use kindred_wire::rope::Rope;
use tokio::sync::watch;
use tonic::Status;

use crate::execute::fan_out::shared::SharedReads;
use crate::feeds::{self, Feeds};
use crate::hold::Hold;
use crate::leases::Leases;
use crate::meta::Cluster;
use crate::metrics::Metrics;
use crate::moves::rate::CopySpeed;
use crate::shown::Taken;
use crate::stores::Stores;
use crate::stores::releases::PinNames;
use kindred_router_core::routes::Routes;
use kindred_router_core::shown::ShownRevisions;

/// Who this router says it is, in every header.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The same for all routers of a cluster.
    pub cluster_id: u64,
    /// This router's.
    pub member_id: u64,
    /// Its name.
    pub name: String,
    /// Where clients find it.
    pub client_urls: Vec<String>,
}

/// Stores have terms of their own, or none: clients see one.
pub const RAFT_TERM: u64 = 1;

impl Identity {
    /// The bytes that, appended to an answer, make its header this router's. The revision stays the store's.
    #[must_use]
    pub fn patch(&self) -> HeaderPatch {
        HeaderPatch {
            cluster_id: Some(self.cluster_id),
            member_id: Some(self.member_id),
            revision: None,
            raft_term: Some(RAFT_TERM),
        }
    }

    /// A header of this router's at a revision.
    #[must_use]
    pub fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision,
            raft_term: RAFT_TERM,
        }
    }

    /// The same, for typed answers.
    #[must_use]
    pub fn typed_header(&self, revision: i64) -> Option<kindred_proto::etcdserverpb::ResponseHeader> {
        Some(kindred_proto::etcdserverpb::ResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.member_id,
            revision,
            raft_term: RAFT_TERM,
        })
    }
}

/// The shared state of a router. Holds nothing whose loss matters.
#[derive(Debug)]
pub struct App {
    /// Which store serves which key. A request loads it once. Only [`App::swap`] replaces it.
    pub routes: ArcSwap<Routes>,
    /// The generation of `routes`, for those who wait for a newer one.
    generation: watch::Sender<u64>,
    /// Requests whose keys are moving.
    pub hold: Hold,
    /// The stores.
    pub stores: Stores,
    /// The state of the cluster and where it comes from.
    pub cluster: Cluster,
    /// Who this router is.
    pub identity: Identity,
    /// The header patch of this router, encoded.
    pub header_tail: Bytes,
    /// Merged events of ranges, for all watches.
    pub feeds: Arc<Feeds>,
    /// Leases on stores other than their homes.
    pub leases: Leases,
    /// Compactions that stores which were away owe. Never locked across an await.
    pub owed: Mutex<Owed>,
    /// The highest revision that a client compacted through this router: watches do not begin below it, though a feed
    /// may still hold what came before.
    pub compacted: AtomicI64,
    /// What the revisions of a stock etcd that is the default store mean to shards. Never locked across an await.
    pub revision_pairs: Mutex<RevisionPairs>,
    /// Names for the pins of reads over several stores.
    pub pins: PinNames,
    /// Small reads over several stores that are under way.
    pub shared_reads: SharedReads,
    /// What was shown of Kinds on several stores.
    pub shown: ShownRevisions,
    /// How fast it copies what moves.
    pub copy_speed: CopySpeed,
    pub(crate) taken: Taken,
    /// What it counts.
    pub metrics: Metrics,
    /// How it stops.
    pub drain: Drain,
}

impl App {
    /// A router over these stores.
    #[must_use]
    pub fn new(
        routes: Routes,
        stores: Stores,
        cluster: Cluster,
        identity: Identity,
        scope: RevisionScope,
        drain: Drain,
        feeds: feeds::Options,
    ) -> Arc<Self> {
        let mut header_tail = Vec::new();
        identity.patch().append_to(&mut header_tail);
        Arc::new(Self {
            generation: watch::Sender::new(routes.generation()),
            taken: Taken::new(routes.generation()),
            hold: Hold::default(),
            routes: ArcSwap::from_pointee(routes),
            metrics: Metrics::new(),
            feeds: Feeds::new(stores.clone(), feeds, drain.killed()),
            stores,
            cluster,
            identity,
            header_tail: header_tail.into(),
            leases: Leases::default(),
            owed: Mutex::default(),
            compacted: AtomicI64::new(0),
            revision_pairs: Mutex::default(),
            pins: PinNames::default(),
            shared_reads: SharedReads::default(),
            shown: ShownRevisions::new(scope),
            copy_speed: CopySpeed::default(),
            drain,
        })
    }

    /// Takes a newer map, whose stores were added before; requests that began by the one before end by it. An older one
    /// is not taken.
    pub fn swap(&self, routes: Routes) {
        let generation = routes.generation();
        self.generation.send_if_modified(|known| {
            let newer = generation > *known;
            if newer {
                // Stored before it is told, and under the channel's lock: two swaps cannot overtake each other.
                self.replace(routes);
                *known = generation;
            }
            newer
        });
    }

    /// The generation of the map, to wait for a newer one.
    #[must_use]
    pub fn generations(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// The answer with this router's header.
    #[must_use]
    pub fn patched(&self, mut answer: Rope) -> Rope {
        answer.append(&self.header_tail);
        answer
    }
}

/// The message with `tail` behind it, without a copy where the buffer is not shared.
#[must_use]
pub fn append(message: Bytes, tail: &[u8]) -> Bytes {
    let mut buffer = message.try_into_mut().unwrap_or_else(|shared| {
        let mut copy = BytesMut::with_capacity(shared.len() + tail.len());
        copy.extend_from_slice(&shared);
        copy
    });
    buffer.extend_from_slice(tail);
    buffer.freeze()
}

/// The status of a plan's refusal.
#[must_use]
pub fn refused(refusal: &Refusal) -> Status {
    grpc::refusal(&refusal.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kindred_partition_config::ids::Epoch;
    use kindred_partition_config::kind::KindScheme;
    use kindred_partition_config::map::{PartitionMap, StoreIdx};
    use kindred_router_core::store::StoreIx;
    use kindred_transport::{Connector, Workers};

    use super::*;

    fn routes(generation: u64) -> Routes {
        let map = PartitionMap::single(StoreIdx(0), Epoch(1));
        Routes::new(map, KindScheme::new("/registry"), Vec::new(), StoreIx(0)).of_generation(generation)
    }

    #[tokio::test]
    async fn who_waits_hears_of_a_newer_map_and_an_older_one_is_not_taken() {
        let stores = Stores::new(
            Connector::default(),
            Workers::default(),
            StoreIx(0),
            kindred_transport::clock::WallClock::System,
        );
        let config =
            kindred_partition_config::parse::parse_config(kindred_partition_config::parse::DEFAULT_CONFIG);
        let state = kindred_partition_config::state::ClusterState::bootstrap(&config.unwrap()).unwrap();
        let cluster = Cluster::new(state, None);
        let identity = Identity { cluster_id: 1, member_id: 1, name: String::new(), client_urls: Vec::new() };
        let drain = Drain::new(Duration::ZERO);
        let app = App::new(
            routes(1),
            stores,
            cluster,
            identity,
            RevisionScope::Kind,
            drain,
            feeds::Options::default(),
        );
        let mut known = app.generations();
        let waiting =
            tokio::spawn(async move { known.wait_for(|known| *known > 1).await.map(|known| *known) });
        tokio::task::yield_now().await;
        app.swap(routes(3));
        assert_eq!(waiting.await.unwrap().ok(), Some(3));
        app.swap(routes(2));
        assert_eq!((app.routes.load().generation(), *app.generations().borrow()), (3, 3));
    }
}
