//! Reads over several stores, tried again where a store or another router has gone on meanwhile.

use std::sync::Arc;

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::consistent_read::Mode;
use kindred_router_core::plan::{FanOut, plan_watch_parts};
use kindred_router_core::routes::Routes;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::rope::Rope;
use prost::Message as _;
use tonic::Status;

use super::ask::Ask;
use super::snapshot::{self, Shards};
use super::{range, sources, undecodable};
use crate::execute::{is_future, refused};

/// How often a range is read in all if its revision is compacted while it is read.
const READS_MAX: usize = 3;

/// A router's stores for one read, with the map and what the router has shown.
pub trait Reading: Shards {
    /// The map that requests see.
    fn routes(&self) -> Arc<Routes>;
    /// The revision that answers of a read of these Kinds must have at least; zero for none.
    fn min_revision(&self, spread: &[KindPrefix]) -> Revision;
    /// Notes that the client sees this revision, which all stores of the read have promised, and returns when all stores of
    /// its Kinds stand there (R22).
    fn show(&self, read: &FanOut, revision: Revision) -> impl Future<Output = ()>;
}

/// Answers a `Range` over several stores as one message.
///
/// # Errors
/// etcd's own; `Unavailable` naming a store that is away.
pub async fn range_over<S: Reading>(stores: &S, fan_out: &FanOut, body: Bytes) -> Result<Rope, Status> {
    let request = pb::RangeRequest::decode(body.clone()).map_err(|error| undecodable(&error))?;
    let Some(ask) = Ask::of(request) else {
        // etcd refuses this request, so one store may answer with etcd's error.
        return stores.range(fan_out.parts[0].stores[0], body, Revision::ZERO, false).await;
    };
    let mut attempts = 1;
    let mut follows = ask.revision();
    loop {
        match range(stores, fan_out, &ask, stores.min_revision(&fan_out.spread)).await {
            Ok((answer, revision)) => {
                stores.show(fan_out, revision).await;
                return Ok(answer);
            }
            // The pin was lost while reading. A Range without a revision must never answer compacted (R5), so it is
            // read again.
            Err(status) if attempts < READS_MAX && ask.revision().is_none() && is_compacted(&status) => {
                attempts += 1;
            }
            // A store outside of this range may have assigned the revision, and another router shown it (R4).
            Err(status) if is_future(&status) && follows.is_some() => {
                let Some(wanted) = follows.take() else { return Err(status) };
                kind_at(stores, &fan_out.spread, wanted).await?.ok_or(status)?;
            }
            Err(status) => return Err(status),
        }
    }
}

/// The current revision of a range over several stores, to which all of them are raised: a watch without a start
/// begins there (R8).
///
/// # Errors
/// `Unavailable` naming a store that is away or cannot follow.
pub async fn current_over<S: Reading>(stores: &S, fan_out: &FanOut) -> Result<Revision, Status> {
    let (sources, _) = sources(fan_out);
    let shown = stores.min_revision(&fan_out.spread);
    let no_data = |_, _| pb::RangeRequest::default();
    let snapshot = snapshot::take(stores, &sources, Mode::Current, shown, no_data).await?;
    stores.show(fan_out, snapshot.header).await;
    Ok(snapshot.header)
}

/// The Kind of which some store has reached this revision, if there is one. All its stores are raised, and the
/// revision counts as shown (R4).
///
/// # Errors
/// `Unavailable` naming a store that is away or cannot follow.
pub async fn kind_at<S: Reading>(
    stores: &S,
    spread: &[KindPrefix],
    wanted: Revision,
) -> Result<Option<KeyRange>, Status> {
    for kind in spread {
        let range = kind.range();
        let (key, range_end) = range.to_wire();
        let whole = plan_watch_parts(&key, &range_end, &*stores.routes());
        let whole = whole.map_err(|refusal| refused(&refusal))?;
        if current_over(stores, &whole).await? >= wanted {
            return Ok(Some(range));
        }
    }
    Ok(None)
}

/// Asks one store. If it says that the revision of the read is in the future, another store of the Kind may have assigned
/// it and another router may have shown it: then this store is raised to it and asked again (R4). If no store of the Kind
/// has reached the revision, the first answer stands.
///
/// # Errors
/// The error of the store; `Unavailable` naming another store that is away or cannot follow.
pub async fn at_future<S: Reading, T, A, R>(
    stores: impl FnOnce() -> S,
    spread: &[KindPrefix],
    wanted: impl FnOnce() -> Option<Revision>,
    ask: impl Fn() -> A,
    raise: impl FnOnce(KeyRange, Revision) -> R,
) -> Result<T, Status>
where
    A: Future<Output = Result<T, Status>>,
    R: Future<Output = Result<(), Status>>,
{
    match ask().await {
        Err(status) if is_future(&status) => {
            let Some(wanted) = wanted() else { return Err(status) };
            let kind = kind_at(&stores(), spread, wanted).await?.ok_or(status)?;
            raise(kind, wanted).await?;
            ask().await
        }
        answered => answered,
    }
}

fn is_compacted(status: &Status) -> bool {
    grpc::etcd_error(status) == Some(EtcdError::Compacted)
}
