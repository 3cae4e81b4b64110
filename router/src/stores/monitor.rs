//! One task a store: the handshake (R1, R3), again every second, and with backoff while the store is away.

use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::ids::Slot;
use kindred_proto::etcdserverpb::StatusRequest;
use kindred_proto::shard_v1::{HelloRequest, HelloResponse};
use kindred_proto::{FEATURE_BATCHED_CUTS, FEATURE_BATCHES};
use kindred_router_core::clock_offset;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Response, Status};

use super::clocks::{Clocks, words};
use super::failure::Failure;
use super::modes::{Modes, tell};
use super::state::{Identity, Phase};
use super::{Store, StoreSpec};

/// The protocol that this router speaks with shards.
pub const PROTOCOL_VERSION: u32 = 1;

const PERIOD: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(3);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Keeps the state of the store true, for ever.
pub async fn run(
    store: Arc<Store>,
    clocks: Arc<Clocks>,
    mut modes: watch::Receiver<Arc<Modes>>,
    cluster_id: u64,
) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let asked = store.spec();
        let phase = handshake(&store, &asked, &clocks, cluster_id).await;
        if let (Phase::Up(identity), true) = (&phase, store.is_shard()) {
            // Before it is up: nothing is to be acknowledged by another mode than is meant.
            let modes = modes.borrow_and_update().clone();
            tell(&store, identity.incarnation, &modes).await;
        }
        let up = matches!(phase, Phase::Up(_));
        let problem = phase.problem().unwrap_or_default().to_owned();
        let word = phase.word();
        if store.settle(&asked, phase) {
            match up {
                true => tracing::info!(store = store.name(), "store is up"),
                false => tracing::warn!(
                    store = store.name(),
                    state = word,
                    reason = problem,
                    "store is unavailable"
                ),
            }
        }
        if up {
            backoff = BACKOFF_MIN;
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                // The sender lives as long as the router.
                Ok(()) = modes.changed() => {}
                // Not at once: the calls of one broken connection all ask for this.
                () = store.state().kicked() => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        } else {
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }
}

async fn handshake(store: &Store, spec: &StoreSpec, clocks: &Clocks, cluster_id: u64) -> Phase {
    let met = if store.is_shard() {
        meet_shard(store, spec, clocks, cluster_id).await
    } else {
        meet_etcd(store).await
    };
    match met {
        Ok(identity) => {
            if !store.is_shard() {
                clocks.leave_out(store.index);
            }
            Phase::Up(identity)
        }
        Err(phase) => {
            // Its clock still has a voice: where most are wrong, the others are.
            if !matches!(phase, Phase::Skewed(_)) {
                clocks.leave_out(store.index);
            }
            phase
        }
    }
}

async fn meet_etcd(store: &Store) -> Result<Identity, Phase> {
    let mut maintenance = store.maintenance();
    let status = answer(store, maintenance.status(StatusRequest {})).await?;
    Ok(Identity { uuid: None, slot: None, version: status.version, incarnation: 0, features: 0 })
}

async fn meet_shard(
    store: &Store,
    spec: &StoreSpec,
    clocks: &Clocks,
    cluster_id: u64,
) -> Result<Identity, Phase> {
    let mut hello = ask(store, spec, clocks, cluster_id).await?;
    let identity = check(spec, cluster_id, &hello).map_err(Phase::Refused)?;
    clocks.settled().await;
    if hello.awaits_clock {
        // The first handshake showed its clock; this one brings it what the cluster calls now.
        hello = ask(store, spec, clocks, cluster_id).await?;
    }
    match clocks.offset(store.index) {
        Some(offset) if clock_offset::is_skewed(offset) => Err(Phase::Skewed(format!(
            "its clock is {} the other stores' and this router's, more than 10 s: set the time there (R3)",
            words(offset)
        ))),
        _ if hello.awaits_clock && waits_for(spec, &hello) > 0 => Err(Phase::Down(format!(
            "it is in the place of a store that was lost, and opens in {:.1} s (R14)",
            waits_for(spec, &hello) as f64 / 1e6
        ))),
        _ if hello.awaits_clock => Err(Phase::Skewed(
            "its clock does not agree with what this router calls now, and it serves nothing until it does (R3)"
                .to_owned(),
        )),
        _ => Ok(identity),
    }
}

/// For how many microseconds the store is not to open yet, by its own clock.
fn waits_for(spec: &StoreSpec, hello: &HelloResponse) -> u64 {
    spec.opens_at.unwrap_or_default().saturating_sub(hello.now_micros)
}

/// One handshake; notes what the shard's clock showed in the middle of it.
async fn ask(
    store: &Store,
    spec: &StoreSpec,
    clocks: &Clocks,
    cluster_id: u64,
) -> Result<HelloResponse, Phase> {
    let reference_micros = clocks.reference().unwrap_or_default();
    let request = HelloRequest {
        protocol_version: PROTOCOL_VERSION,
        features: FEATURE_BATCHES | FEATURE_BATCHED_CUTS,
        cluster_id,
        reference_micros,
        opens_at_micros: spec.opens_at.unwrap_or_default(),
    };
    let mut shard = store.shard();
    let sent = Instant::now();
    let hello = answer(store, shard.hello(request)).await?;
    if hello.revisions == "hlc" {
        clocks.set(store.index, hello.now_micros, sent + sent.elapsed() / 2);
    } else {
        // It counts: no revision of its comes from a clock.
        clocks.leave_out(store.index);
    }
    Ok(hello)
}

/// The answer in time, or why there is none.
async fn answer<T>(
    store: &Store,
    asked: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Phase> {
    match tokio::time::timeout(TIMEOUT, asked).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        // The shard's own refusal: it belongs to another cluster.
        Ok(Err(status)) if status.code() == tonic::Code::FailedPrecondition => {
            Err(Phase::Refused(status.message().to_owned()))
        }
        Ok(Err(status)) => Err(Phase::Down(why(store, status))),
        Err(_) => Err(Phase::Down(format!("no answer to the handshake within {TIMEOUT:?}"))),
    }
}

fn why(store: &Store, status: Status) -> String {
    if status.code() == tonic::Code::Unimplemented && store.is_shard() {
        return "it does not speak kindred.shard.v1: is it a stock etcd? give the store `type: etcd`"
            .to_owned();
    }
    Failure::of(status).reason().to_owned()
}

/// Who a shard is, when it is the one that the configuration means (R1); else why not.
fn check(spec: &StoreSpec, cluster_id: u64, hello: &HelloResponse) -> Result<Identity, String> {
    if hello.protocol_version.abs_diff(PROTOCOL_VERSION) > 1 {
        return Err(format!(
            "it speaks protocol {}, this router speaks {PROTOCOL_VERSION}: versions may differ by one",
            hello.protocol_version
        ));
    }
    // A shard that was not told of a cluster belongs to whoever has its address.
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
    if let Some(expected) = spec.uuid.as_ref().filter(|expected| **expected != hello.store_uuid) {
        return Err(format!(
            "it is store {}, the configuration says {expected}: is this another store's address, or an emptied disk?",
            hello.store_uuid
        ));
    }
    Ok(Identity {
        uuid: Some(hello.store_uuid.clone()),
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

    #[test]
    fn a_store_that_is_another_one_is_refused() {
        let spec = StoreSpec {
            name: StoreName("pods".into()),
            kind: StoreKind::Shard,
            slot: Slot::new(3),
            uuid: Some("u".into()),
            opens_at: None,
            endpoints: vec![],
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
        refused(HelloResponse { store_uuid: "w".into(), ..good.clone() }, "store w");
        refused(HelloResponse { protocol_version: 9, ..good }, "protocol 9");
    }
}
