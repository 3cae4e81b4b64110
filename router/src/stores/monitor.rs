//! The monitor task of a store: repeats the handshake (R1, R3) every second, and with backoff while the store is away.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::{MemberId, Revision, Slot};
use kindred_proto::etcdserverpb::StatusRequest;
use kindred_proto::shard_v1::{HelloRequest, HelloResponse, KeyRange, RaiseRequest};
use kindred_proto::{FEATURE_BATCHED_SNAPSHOTS, FEATURE_BATCHES};
use kindred_router_core::clock_offset;
use tokio::time::Instant;
use tonic::{Response, Status};

use super::clocks::words;
use super::failure::Failure;
use super::identify::{expected, identified, trouble};
use super::modes::{Incarnation, tell};
use super::state::{Identity, Phase};
use super::{Store, StoreSpec};
use crate::feeds::place::wire;
use crate::meta::Cluster;
use crate::meta::take::StateKeeper;
use crate::routing::Routing;

/// The version of the protocol between this router and shards.
pub const PROTOCOL_VERSION: u32 = 1;

const PERIOD: Duration = Duration::from_secs(1);
/// A store that does not answer a handshake for this long is silent, and its calls are cut. Together with [`PERIOD`]
/// that is within R17's three seconds. A shard that is merely busy answers in time.
const SILENCE: Duration = Duration::from_millis(TURN.as_millis() as u64 * TURNS as u64);
/// Silence is counted in turns of this task, so that a delay of the router itself does not count as silence of a store.
const TURN: Duration = Duration::from_millis(100);
const TURNS: u32 = 18;
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Keeps the state of the store up to date, for ever.
pub async fn run(keeper: Arc<StateKeeper>, store: Arc<Store>) {
    let mut modes = keeper.stores.modes();
    let mut backoff = BACKOFF_MIN;
    // The incarnation of the shard whose beginning was noted; `None` when the shard was not up.
    let mut begun = None;
    loop {
        let asked = store.spec();
        let met = handshake(&keeper, &store, &asked).await;
        let silent = matches!(met, Met::Silent);
        let Some(phase) = met.into_phase() else {
            // Ask again with what was learnt. If the configuration does not have it yet, it is still on its way from
            // meta.
            if store.is_current(&asked) {
                tokio::time::sleep(BACKOFF_MIN).await;
            }
            continue;
        };
        if let (Phase::Up(identity), true) = (&phase, store.is_shard()) {
            // Tell the modes before the store counts as up, so that it acknowledges nothing under another mode.
            let modes = modes.borrow_and_update().clone();
            let incarnation = Incarnation { uuid: identity.uuid.clone(), number: identity.incarnation };
            tell(&store, incarnation.clone(), &modes).await;
            if begun.as_ref() != Some(&incarnation)
                && let Some(at) = present(&store).await
            {
                keeper.routing.store_begun(&store, at);
                raise_to_shown(&keeper.routing, &store).await;
                store.stands().heard();
                begun = Some(incarnation);
            } else {
                Routing::ask_again(&store);
            }
        } else {
            begun = None;
        }
        let up = matches!(phase, Phase::Up(_));
        settle(&store, &asked, phase);
        if !store.is_current(&asked) {
            // Its UUID or address has changed meanwhile, so this answer may not count.
            continue;
        }
        if silent {
            // Only after the phase is set, so that a retried read is refused at once.
            store.cut();
        }
        if up {
            backoff = BACKOFF_MIN;
            tokio::select! {
                () = keeper.stores.ticks().sleep(PERIOD) => {}
                // The sender lives as long as the router.
                Ok(()) = modes.changed() => {}
                // A short pause: all calls of one broken connection ask for a handshake.
                () = store.state().kicked() => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        } else {
            tokio::select! {
                () = tokio::time::sleep(backoff) => backoff = (backoff * 2).min(BACKOFF_MAX),
                () = store.relinked().notified() => backoff = BACKOFF_MIN,
            }
        }
    }
}

/// Accepts the result of a handshake, and logs a change.
fn settle(store: &Store, asked: &Arc<StoreSpec>, phase: Phase) {
    let problem = phase.problem().unwrap_or_default().to_owned();
    let word = phase.word();
    if !store.settle(asked, phase) {
        return;
    }
    let name = store.name();
    match word {
        "up" => tracing::info!(store = name, "store is up"),
        "foreign" => {
            tracing::error!(store = name, state = word, reason = problem, "another store is in its place")
        }
        _ => tracing::warn!(store = name, state = word, reason = problem, "store is unavailable"),
    }
}

/// The shard's current revision, which is at or above the first one of its incarnation; `None` if it does not answer.
async fn present(store: &Store) -> Option<Revision> {
    let zero = Bytes::from_static(&[0]);
    let everything = KeyRange { key: zero.clone(), range_end: zero };
    let request = RaiseRequest { ranges: vec![everything], to: 0, generation: 0 };
    let mut shard = store.shard();
    let raised = answer(store, shard.raise(request)).await.ok()?;
    Revision::from_wire(raised.current)
}

/// The result of a handshake.
#[derive(Debug)]
enum Met {
    /// The store is the expected one.
    Well(Identity),
    /// It is not, or cannot be reached.
    Otherwise(Phase),
    /// It is connected and does not answer.
    Silent,
    /// It must be asked again by what was learnt.
    Again,
}

impl From<Phase> for Met {
    fn from(phase: Phase) -> Self {
        Self::Otherwise(phase)
    }
}

impl Met {
    fn into_phase(self) -> Option<Phase> {
        match self {
            Self::Well(identity) => Some(Phase::Up(identity)),
            Self::Otherwise(phase) => Some(phase),
            Self::Silent => Some(Phase::Down(format!("no answer to the handshake within {SILENCE:?}"))),
            Self::Again => None,
        }
    }
}

async fn handshake(keeper: &Arc<StateKeeper>, store: &Store, spec: &StoreSpec) -> Met {
    if let Some(why) = keeper.cluster.meta.as_ref().and_then(|meta| meta.stray()) {
        let why = format!(
            "this router goes by the state of another cluster, restart it: the meta store is not that one's; {why}"
        );
        return Phase::Refused(why).into();
    }
    let met = if store.is_shard() { meet_shard(keeper, store, spec).await } else { meet_etcd(store).await };
    // A skewed store keeps its voice in the median: if most clocks are wrong, the others are the skewed ones.
    let has_a_voice = match &met {
        Ok(_) => store.is_shard(),
        Err(unmet) => matches!(unmet, Met::Otherwise(Phase::Skewed(_)) | Met::Again),
    };
    if !has_a_voice {
        keeper.stores.clocks().leave_out(store.index);
    }
    met.map_or_else(|unmet| unmet, Met::Well)
}

async fn meet_etcd(store: &Store) -> Result<Identity, Met> {
    let mut maintenance = store.maintenance();
    let status = answer(store, maintenance.status(StatusRequest {})).await?;
    Ok(Identity { uuid: None, slot: None, version: status.version, incarnation: 0, features: 0 })
}

async fn meet_shard(keeper: &Arc<StateKeeper>, store: &Store, spec: &StoreSpec) -> Result<Identity, Met> {
    if spec.primary.as_ref().is_some_and(MemberId::is_unknown) {
        // A member that was away since another was promoted may be at its address, or one with an empty disk, which a handshake
        // would make one of this cluster.
        let why = "the record of its members is lost, and nobody has said yet who serves: see kindred status";
        return Err(Phase::Down(why.to_owned()).into());
    }
    let clocks = keeper.stores.clocks();
    let mut hello = ask(keeper, store, spec).await?;
    let identity = check(spec, keeper.identity.cluster_id, &hello).map_err(Phase::Refused)?;
    if !identified(keeper, store, spec, &hello).await? {
        return Err(Met::Again);
    }
    let trouble = trouble(&keeper.cluster, store, &hello);
    if store.set_trouble(&trouble) && !trouble.is_empty() {
        tracing::error!(store = store.name(), trouble, "the store serves, and something is wrong with it");
    }
    clocks.settled().await;
    if hello.awaits_clock {
        // The first handshake reported its clock; this one brings it the reference time.
        hello = ask(keeper, store, spec).await?;
    }
    match clocks.offset(store.index) {
        Some(offset) if clock_offset::is_skewed(offset) => Err(Phase::Skewed(format!(
            "its clock is {} the other stores' and this router's, more than 10 s: set the time there (R3)",
            words(offset)
        ))
        .into()),
        _ if hello.awaits_clock && waits_for(spec, &hello) > 0 => Err(Phase::Down(format!(
            "it is in the place of a store that was lost, and opens in {:.1} s (R14)",
            waits_for(spec, &hello) as f64 / 1e6
        ))
        .into()),
        _ if hello.awaits_clock => Err(Phase::Skewed(
            "its clock does not agree with what this router calls now, and it serves nothing until it does (R3)"
                .to_owned(),
        )
        .into()),
        _ => Ok(identity),
    }
}

/// Microseconds until the store may open, by its own clock.
fn waits_for(spec: &StoreSpec, hello: &HelloResponse) -> u64 {
    spec.opens_at.unwrap_or_default().saturating_sub(hello.now_micros)
}

/// Makes one handshake, and notes what the shard's clock showed halfway through it.
async fn ask(keeper: &StateKeeper, store: &Store, spec: &StoreSpec) -> Result<HelloResponse, Met> {
    let clocks = keeper.stores.clocks();
    let request = HelloRequest {
        features: FEATURE_BATCHES | FEATURE_BATCHED_SNAPSHOTS,
        reference_micros: clocks.reference().unwrap_or_default(),
        ..hello_of(&keeper.cluster, keeper.identity.cluster_id, store, spec)
    };
    let mut shard = store.shard();
    let sent = Instant::now();
    let hello = answer(store, shard.hello(request)).await?;
    if hello.revisions == "hlc" {
        clocks.set(store.index, hello.now_micros, sent + sent.elapsed() / 2);
    } else {
        // The shard counts densely, so its clock does not matter.
        clocks.leave_out(store.index);
    }
    Ok(hello)
}

/// The part of a handshake that is the same in all of them.
pub(crate) fn hello_of(cluster: &Cluster, cluster_id: u64, store: &Store, spec: &StoreSpec) -> HelloRequest {
    HelloRequest {
        protocol_version: PROTOCOL_VERSION,
        cluster_id,
        opens_at_micros: spec.opens_at.unwrap_or_default(),
        lineage: cluster.state().lineage.as_ref().map(ToString::to_string).unwrap_or_default(),
        store_uuid: expected(cluster, store, spec).unwrap_or_default(),
        ..HelloRequest::default()
    }
}

/// Raises a store that is back to what was shown of its Kinds on several stores while it was away (R22).
async fn raise_to_shown(routing: &Routing, store: &Store) {
    for (kind, shown) in routing.shown_of(store) {
        let ranges = vec![wire(&kind.range())];
        let mut shard = store.shard();
        if answer(store, shard.raise(RaiseRequest { ranges, to: shown.get(), generation: 0 })).await.is_err()
        {
            // It refuses, or is away again. Each answer asks it anew.
            return;
        }
    }
}

/// The store's answer, or why there is none.
async fn answer<T>(
    store: &Store,
    asked: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Met> {
    match heard(asked).await {
        Some(Ok(answer)) => Ok(answer.into_inner()),
        // The shard refuses because it belongs to another cluster.
        Some(Err(status)) if status.code() == tonic::Code::FailedPrecondition => {
            Err(Phase::Refused(status.message().to_owned()).into())
        }
        Some(Err(status)) => Err(Phase::Down(why(store, status)).into()),
        None => Err(Met::Silent),
    }
}

/// Awaits the answer for [`TURNS`] turns; `None` if the store stays silent.
async fn heard<T>(asked: impl Future<Output = T>) -> Option<T> {
    let mut asked = std::pin::pin!(asked);
    for _ in 0..TURNS {
        if let Ok(said) = tokio::time::timeout(TURN, asked.as_mut()).await {
            return Some(said);
        }
    }
    None
}

fn why(store: &Store, status: Status) -> String {
    if status.code() == tonic::Code::Unimplemented && store.is_shard() {
        return "it does not speak kindred.shard.v1: is it a stock etcd? give the store `type: etcd`"
            .to_owned();
    }
    Failure::of(status).reason().to_owned()
}

/// Checks that a shard belongs to the cluster and has the expected slot (R1). Its UUID is judged by [`identified`].
fn check(spec: &StoreSpec, cluster_id: u64, hello: &HelloResponse) -> Result<Identity, String> {
    if hello.protocol_version.abs_diff(PROTOCOL_VERSION) > 1 {
        return Err(format!(
            "it speaks protocol {}, this router speaks {PROTOCOL_VERSION}: versions may differ by one",
            hello.protocol_version
        ));
    }
    // A shard without a cluster id belongs to any cluster that has its address.
    if hello.cluster_id != 0 && hello.cluster_id != cluster_id {
        return Err(format!(
            "it belongs to cluster {:#x}, this router to {cluster_id:#x}: is this another cluster's address? See --cluster-id",
            hello.cluster_id
        ));
    }
    let slot = u16::try_from(hello.slot).ok().and_then(Slot::new);
    if let Some(expected) = spec.slot.filter(|expected| Some(*expected) != slot) {
        return Err(format!(
            "it has slot {}, the configuration says {expected}: is this another store's address?",
            hello.slot
        ));
    }
    Ok(Identity {
        uuid: Some(hello.store_uuid.clone()).filter(|uuid| !uuid.is_empty()),
        slot,
        version: hello.version.clone(),
        incarnation: hello.incarnation,
        features: hello.features,
    })
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::ids::StoreName;
    use kindred_router_core::store::StoreKind;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f48_a_router_that_was_held_up_itself_takes_that_for_nobodys_silence() {
        let (say, said) = tokio::sync::oneshot::channel();
        let hearing = tokio::spawn(heard(said));
        tokio::task::yield_now().await;
        tokio::time::advance(10 * SILENCE).await;
        tokio::task::yield_now().await;
        // An answer that came during the delay is still accepted.
        say.send("here").unwrap();
        assert_eq!(hearing.await.unwrap(), Some(Ok("here")));
        assert_eq!(heard(std::future::pending::<()>()).await, None);
        assert!(PERIOD + SILENCE < Duration::from_secs(3), "R17");
    }

    #[test]
    fn a_store_that_is_another_one_is_refused() {
        let spec = StoreSpec {
            name: StoreName("pods".into()),
            kind: StoreKind::Shard,
            slot: Slot::new(3),
            uuid: Some("u".into()),
            opens_at: None,
            endpoints: vec![],
            primary: None,
            has_standbys: false,
        };
        let good =
            HelloResponse { protocol_version: 1, slot: 3, store_uuid: "u".into(), ..Default::default() };
        assert!(check(&spec, 7, &good).is_ok());
        assert!(check(&spec, 7, &HelloResponse { cluster_id: 7, ..good.clone() }).is_ok());
        let refused = |hello: HelloResponse, part: &str| {
            let reason = check(&spec, 7, &hello).unwrap_err();
            assert!(reason.contains(part), "{reason}");
        };
        refused(HelloResponse { cluster_id: 8, ..good.clone() }, "cluster 0x8");
        refused(HelloResponse { slot: 4, ..good.clone() }, "slot 4");
        refused(HelloResponse { protocol_version: 9, ..good }, "protocol 9");
    }
}
