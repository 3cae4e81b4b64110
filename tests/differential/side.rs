//! One of the two sides. It sends an operation and returns its answer.

use std::time::Duration;

use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, PutRequest,
    RangeRequest, RangeResponse,
};
use kindred_tests::{client::Client, scenario::wait_for};
use tonic::{Response, Status};

use crate::differential::{
    answer::{Answer, merge},
    generate::STREAMS,
    operation::Action,
    revision::{KeyRevisions, Scope},
    watches::WatchStream,
};

/// Within this, each router knows of a compaction that another one made.
const COMPACTION_LIMIT: Duration = Duration::from_secs(10);

/// The key of [`Side::noise`].
pub const NOISE: &[u8] = b"~noise";

pub struct Side {
    /// One for each server, which take turns.
    clients: Vec<Client>,
    turn: usize,
    is_etcd: bool,
    pub streams: Vec<WatchStream>,
}

fn answer<T>(outcome: Result<Response<T>, Status>, make: fn(T) -> Answer) -> Answer {
    match outcome {
        Ok(response) => make(response.into_inner()),
        Err(status) => Answer::error(&status),
    }
}

impl Side {
    pub async fn connect(addresses: &[String], is_etcd: bool) -> anyhow::Result<Self> {
        let clients = addresses.iter().map(|address| Client::connect(address));
        let clients = futures_util::future::try_join_all(clients).await?;
        let turns = clients.iter().cycle().take(STREAMS);
        let streams = turns.map(|client| WatchStream::open(client, is_etcd)).collect();
        Ok(Self { clients, turn: 0, is_etcd, streams })
    }

    /// The client whose turn it is.
    fn client(&mut self) -> &mut Client {
        self.turn = (self.turn + 1) % self.clients.len();
        &mut self.clients[self.turn]
    }

    pub fn open_stream(&self) -> WatchStream {
        WatchStream::open(&self.clients[0], self.is_etcd)
    }

    /// Makes two writes that the other side does not make. They leave no key.
    pub async fn noise(&mut self) -> anyhow::Result<()> {
        let key = Bytes::from_static(NOISE);
        self.client().kv.put(PutRequest { key: key.clone(), ..Default::default() }).await?;
        self.client().kv.delete_range(DeleteRangeRequest { key, ..Default::default() }).await?;
        Ok(())
    }

    /// Writes, deletes and compacts, so that both sides begin compacted. A shard always does, since it has nothing from
    /// before its start. Returns the revision of the compaction.
    pub async fn begin_compacted(&mut self) -> anyhow::Result<i64> {
        let key = Bytes::from_static(b"other/first");
        self.client().kv.put(PutRequest { key: key.clone(), ..Default::default() }).await?;
        let delete = DeleteRangeRequest { key, ..Default::default() };
        let deleted = self.client().kv.delete_range(delete).await?.into_inner();
        let revision = deleted.header.map_or(0, |header| header.revision);
        self.client().kv.compact(CompactionRequest { revision, physical: true }).await?;
        Ok(revision)
    }

    /// Waits until all servers refuse a watch from below a compaction. Another router than that of the compaction hears of it a
    /// moment later, and serves such a watch until then, as a member of an etcd does that is behind.
    pub async fn wait_compacted(&self, revision: i64) -> anyhow::Result<()> {
        for client in self.clients.iter().filter(|_| self.clients.len() > 1) {
            wait_for("a compaction", COMPACTION_LIMIT, || async {
                Ok(WatchStream::is_refused(client, revision - 1).await?.then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// The revision in the header of a read of this key.
    pub async fn current(&mut self, key: &Bytes) -> anyhow::Result<i64> {
        let request = RangeRequest { key: key.clone(), ..Default::default() };
        let answer = self.client().kv.range(request).await?.into_inner();
        Ok(answer.header.map_or(0, |header| header.revision))
    }

    pub async fn key_revisions(&mut self, key: &Bytes) -> anyhow::Result<KeyRevisions> {
        if key.is_empty() {
            return Ok(KeyRevisions::default());
        }
        let request = RangeRequest { key: key.clone(), ..Default::default() };
        let answer = self.client().kv.range(request).await?.into_inner();
        Ok(answer.kvs.first().map_or_else(KeyRevisions::default, |kv| KeyRevisions {
            created: kv.create_revision,
            modified: kv.mod_revision,
        }))
    }

    pub async fn execute(&mut self, scope: Scope, action: Action) -> anyhow::Result<Answer> {
        let client = self.client();
        let Client { kv, lease, maintenance, .. } = client;
        Ok(match action {
            Action::Range(request) => answer(kv.range(request).await, Answer::Range),
            Action::RangeStream(request) => range_stream(client, request).await?,
            Action::Put(request) => answer(kv.put(request).await, Answer::Put),
            Action::DeleteRange(request) => answer(kv.delete_range(request).await, Answer::DeleteRange),
            Action::Txn(request) => answer(kv.txn(request).await, Answer::Txn),
            Action::Compact(request) => answer(kv.compact(request).await, Answer::Compact),
            Action::LeaseGrant(request) => answer(lease.lease_grant(request).await, Answer::LeaseGrant),
            Action::LeaseRevoke(request) => answer(lease.lease_revoke(request).await, Answer::LeaseRevoke),
            Action::LeaseKeepAlive(id) => keep_alive(client, id).await,
            Action::LeaseTimeToLive(request) => {
                answer(lease.lease_time_to_live(request).await, Answer::LeaseTimeToLive)
            }
            Action::LeaseLeases => {
                answer(lease.lease_leases(LeaseLeasesRequest {}).await, Answer::LeaseLeases)
            }
            Action::HashKv(request) => answer(maintenance.hash_kv(request).await, Answer::HashKv),
            Action::WatchCreate { stream, request } => {
                Answer::Watch(self.streams[stream].create(scope, &request).await?)
            }
            Action::WatchCancel { .. } | Action::Drain => Answer::Nothing,
        })
    }
}

async fn keep_alive(client: &mut Client, id: i64) -> Answer {
    let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
    match client.lease.lease_keep_alive(requests).await {
        Ok(response) => match response.into_inner().message().await {
            Ok(kept) => Answer::LeaseKeepAlive(kept),
            Err(status) => Answer::error(&status),
        },
        Err(status) => Answer::error(&status),
    }
}

async fn range_stream(client: &mut Client, request: RangeRequest) -> anyhow::Result<Answer> {
    let mut chunks: Vec<RangeResponse> = Vec::new();
    let mut stream = match client.kv.range_stream(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => return Ok(Answer::error(&status)),
    };
    loop {
        match stream.message().await {
            Ok(Some(chunk)) => chunks.extend(chunk.range_response),
            Ok(None) => break,
            Err(status) => return Ok(Answer::error(&status)),
        }
    }
    merge(chunks).map(Answer::Range).map_err(|why| anyhow::anyhow!("RangeStream: {why}"))
}
