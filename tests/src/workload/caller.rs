//! One client. It sends requests, and records each with its outcome.

use std::{error::Error as _, sync::Arc, time::Duration};

use crate::client::Client;
use kindred_checker::history::{
    ClientId, Current, DefiniteError, KeyRange, LeaseId, List, Outcome, ReadResult, Request, Revision, TxnOp,
    TxnResult,
};
use kindred_proto::etcdserverpb::{
    CompactionRequest, RangeResponse, TxnRequest, TxnResponse, compare::TargetUnion,
};
use rand::{Rng as _, rngs::StdRng};
use tonic::{Code, ConnectError, Status};

use super::{recorder::Recorder, wire};

/// Without an answer within this time the outcome is unknown.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The longest pause of a client that lost its connection, before it connects again.
const BACKOFF_MILLIS: u64 = 60;

/// The addresses of the servers, and how clients connect to them.
#[derive(Debug)]
pub struct Endpoints {
    pub addresses: Vec<String>,
    /// Makes a client of one address, which connects when it is first used.
    pub connect: fn(&str) -> anyhow::Result<Client>,
}

impl Endpoints {
    /// Clients connect over the machine's sockets.
    #[must_use]
    pub fn over_tcp(addresses: Vec<String>) -> Arc<Self> {
        Arc::new(Self { addresses, connect: Client::lazy })
    }
}

/// A client of one endpoint at a time. It takes a random endpoint when it loses its connection, and on request.
#[derive(Debug)]
pub struct Caller {
    pub recorder: Arc<Recorder>,
    endpoints: Arc<Endpoints>,
    pub client: Client,
    pub id: ClientId,
}

/// What is known of a request that was not answered.
enum Unanswered {
    Failed(DefiniteError),
    Unknown,
}

impl Caller {
    /// A client of a random endpoint.
    ///
    /// # Errors
    /// If the endpoint is no valid address.
    pub fn new(recorder: Arc<Recorder>, endpoints: Arc<Endpoints>, rng: &mut StdRng) -> anyhow::Result<Self> {
        let address = &endpoints.addresses[rng.random_range(0..endpoints.addresses.len())];
        let client = (endpoints.connect)(address)?;
        let id = recorder.client();
        Ok(Self { recorder, endpoints, client, id })
    }

    /// Connects again, perhaps to another endpoint. For the checker this is a new client.
    ///
    /// # Errors
    /// If the endpoint is no valid address.
    pub fn reconnect(&mut self, rng: &mut StdRng) -> anyhow::Result<()> {
        *self = Self::new(self.recorder.clone(), self.endpoints.clone(), rng)?;
        Ok(())
    }

    /// Sends a request and records it with its outcome. After an unknown outcome the client connects again.
    ///
    /// # Errors
    /// If the answer does not fit the request.
    pub async fn call(&mut self, rng: &mut StdRng, request: Request) -> anyhow::Result<Outcome> {
        let streamed = rng.random_bool(0.5);
        let call = self.recorder.now();
        let answered = tokio::time::timeout(ANSWER_LIMIT, self.send(&request, streamed)).await;
        let outcome = match answered {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(status)) => match unanswered(&status) {
                Unanswered::Failed(error) => Outcome::Failed(error),
                Unanswered::Unknown => {
                    self.recorder.unknown(format!("{:?}: {}", status.code(), status.message()));
                    Outcome::Unknown
                }
            },
            Err(_) => {
                self.recorder.unknown(format!("no answer after {ANSWER_LIMIT:?}"));
                Outcome::Unknown
            }
        };
        self.recorder.operation(self.id, call, request, outcome.clone());
        if outcome == Outcome::Unknown {
            tokio::time::sleep(Duration::from_millis(rng.random_range(1..=BACKOFF_MILLIS))).await;
            self.reconnect(rng)?;
        }
        Ok(outcome)
    }

    async fn send(&mut self, request: &Request, streamed: bool) -> Result<Outcome, Status> {
        let kv = &mut self.client.kv;
        match request {
            Request::List(list) if streamed && list.limit == 0 && !list.count_only => self.stream(list).await,
            Request::List(list) => {
                let answer = kv.range(wire::range_request(list)).await?.into_inner();
                Ok(read(&answer))
            }
            Request::Put { key, value, lease } => {
                let answer = kv.put(wire::put_request(key, value, *lease)).await?.into_inner();
                Ok(Outcome::Written { header: wire::revision(answer.header.as_ref()) })
            }
            Request::Delete { key } => self.delete(&KeyRange::one(key.clone())).await,
            Request::DeleteRange { range } => self.delete(range).await,
            Request::Compact { revision } => {
                let request = CompactionRequest { revision: revision.0, physical: false };
                let answer = kv.compact(request).await?.into_inner();
                Ok(Outcome::Compacted { header: wire::revision(answer.header.as_ref()) })
            }
            Request::Create { key, value, lease } => {
                let put = TxnOp::Put { key: key.clone(), value: value.clone(), lease: *lease };
                self.guarded(key, Revision(0), put, false).await
            }
            Request::Update { key, expected, value, lease } => {
                let put = TxnOp::Put { key: key.clone(), value: value.clone(), lease: *lease };
                self.guarded(key, *expected, put, true).await
            }
            Request::DeleteIf { key, expected } => {
                let delete = TxnOp::Delete(KeyRange::one(key.clone()));
                self.guarded(key, *expected, delete, true).await
            }
            Request::Txn { compares, success, failure } => {
                let answer = kv
                    .txn(TxnRequest {
                        compare: compares.iter().filter_map(wire::compare).collect(),
                        success: success.iter().map(wire::txn_op).collect(),
                        failure: failure.iter().map(wire::txn_op).collect(),
                    })
                    .await?
                    .into_inner();
                let header = wire::revision(answer.header.as_ref());
                Ok(Outcome::Txn { header, succeeded: answer.succeeded, results: results(&answer) })
            }
        }
    }

    /// Reads a list by RangeStream, and joins the chunks to one answer.
    async fn stream(&mut self, list: &List) -> Result<Outcome, Status> {
        let mut chunks = self.client.kv.range_stream(wire::range_request(list)).await?.into_inner();
        let mut whole = RangeResponse::default();
        while let Some(chunk) = chunks.message().await? {
            let Some(chunk) = chunk.range_response else { continue };
            whole.kvs.extend(chunk.kvs);
            whole.header = chunk.header.or(whole.header);
            whole.more = chunk.more;
            whole.count = chunk.count;
        }
        Ok(read(&whole))
    }

    async fn delete(&mut self, range: &KeyRange) -> Result<Outcome, Status> {
        let answer = self.client.kv.delete_range(wire::delete_request(range, true)).await?.into_inner();
        Ok(Outcome::Deleted {
            header: wire::revision(answer.header.as_ref()),
            deleted: answer.deleted,
            previous: answer.prev_kvs.iter().map(wire::key_value).collect(),
        })
    }

    /// One write with one compare, as kube-apiserver sends it.
    async fn guarded(
        &mut self,
        key: &kindred_checker::Key,
        expected: Revision,
        write: TxnOp,
        else_read: bool,
    ) -> Result<Outcome, Status> {
        let compare = kindred_checker::history::Compare::Modified(key.clone(), expected);
        let get = TxnOp::Range(List::current(KeyRange::one(key.clone())));
        let request = TxnRequest {
            compare: wire::compare(&compare).into_iter().collect(),
            success: vec![wire::txn_op(&write)],
            failure: if else_read { vec![wire::txn_op(&get)] } else { Vec::new() },
        };
        debug_assert!(matches!(request.compare[0].target_union, Some(TargetUnion::ModRevision(_))));
        let answer = self.client.kv.txn(request).await?.into_inner();
        let header = wire::revision(answer.header.as_ref());
        let result = results(&answer).into_iter().next();
        Ok(match (answer.succeeded, result) {
            (true, Some(TxnResult::Delete(deleted))) => {
                Outcome::Deleted { header, deleted, previous: Vec::new() }
            }
            (true, _) => Outcome::Written { header },
            (false, Some(TxnResult::Range(ReadResult { kvs, .. }))) => {
                let current = kvs.into_iter().next().map_or(Current::Missing, Current::Found);
                Outcome::CompareFailed { header, current }
            }
            (false, _) => Outcome::CompareFailed { header, current: Current::NotRead },
        })
    }
}

fn read(answer: &RangeResponse) -> Outcome {
    Outcome::Read { header: wire::revision(answer.header.as_ref()), result: wire::read_result(answer) }
}

fn results(answer: &TxnResponse) -> Vec<TxnResult> {
    answer.responses.iter().filter_map(wire::txn_result).collect()
}

pub const NO_LEASE: LeaseId = LeaseId(0);

/// Whether a request that failed with this status may have run.
fn unanswered(status: &Status) -> Unanswered {
    let text = status.message();
    if status.code() == Code::OutOfRange && text.contains("has been compacted") {
        return Unanswered::Failed(DefiniteError::Compacted);
    }
    if status.code() == Code::OutOfRange && text.contains("is a future revision") {
        return Unanswered::Failed(DefiniteError::FutureRevision);
    }
    let refused = matches!(
        status.code(),
        Code::InvalidArgument | Code::FailedPrecondition | Code::Unimplemented | Code::NotFound
    );
    // The router answers so when it has no connection to the store, and so has sent nothing (R11).
    let not_routed = status.code() == Code::Unavailable && text.starts_with("kindred: store ");
    if refused || not_routed || never_sent(status) {
        return Unanswered::Failed(DefiniteError::Other(format!("{:?}: {text}", status.code())));
    }
    Unanswered::Unknown
}

/// Whether the request failed because no connection could be made.
pub fn never_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
