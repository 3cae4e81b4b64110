//! One task a store: the handshake (R1), again every second, and with backoff while the store is away.

use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::ids::Slot;
use kindred_proto::etcdserverpb::StatusRequest;
use kindred_proto::shard_v1::{HelloRequest, HelloResponse};
use tonic::Status;

use super::failure::Failure;
use super::state::{Identity, Phase};
use super::{Store, StoreSpec};

/// The protocol that this router speaks with shards.
pub const PROTOCOL_VERSION: u32 = 1;

const PERIOD: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(3);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Keeps the state of the store true, for ever.
pub async fn run(store: Arc<Store>) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let phase = handshake(&store).await;
        let up = matches!(phase, Phase::Up(_));
        let text = match &phase {
            Phase::Down(reason) | Phase::Refused(reason) => reason.clone(),
            _ => String::new(),
        };
        if store.state().set(phase) {
            match up {
                true => tracing::info!(store = store.name(), "store is up"),
                false => tracing::warn!(store = store.name(), reason = text, "store is unavailable"),
            }
        }
        if up {
            backoff = BACKOFF_MIN;
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                // Not at once: the calls of one broken connection all ask for this.
                () = store.state().kicked() => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        } else {
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }
}

async fn handshake(store: &Store) -> Phase {
    let asked = async {
        if store.is_shard() {
            let request = HelloRequest { protocol_version: PROTOCOL_VERSION, features: 0 };
            let hello = store.shard().hello(request).await?.into_inner();
            Ok(check(&store.spec, &hello))
        } else {
            let status = store.maintenance().status(StatusRequest {}).await?.into_inner();
            let version = status.version;
            Ok(Phase::Up(Identity { uuid: None, slot: None, version, incarnation: 0 }))
        }
    };
    match tokio::time::timeout(TIMEOUT, asked).await {
        Ok(Ok(phase)) => phase,
        Ok(Err(status)) => Phase::Down(why(store, status)),
        Err(_) => Phase::Down(format!("no answer to the handshake within {TIMEOUT:?}")),
    }
}

fn why(store: &Store, status: Status) -> String {
    if status.code() == tonic::Code::Unimplemented && store.is_shard() {
        return "it does not speak kindred.shard.v1: is it a stock etcd? give the store `type: etcd`"
            .to_owned();
    }
    Failure::of(status).reason().to_owned()
}

/// Whether a shard is the one that the configuration means.
fn check(spec: &StoreSpec, hello: &HelloResponse) -> Phase {
    if hello.protocol_version.abs_diff(PROTOCOL_VERSION) > 1 {
        return Phase::Refused(format!(
            "it speaks protocol {}, this router speaks {PROTOCOL_VERSION}: versions may differ by one",
            hello.protocol_version
        ));
    }
    let slot = u16::try_from(hello.slot).ok().and_then(Slot::new);
    if let Some(expected) = spec.slot.filter(|expected| Some(*expected) != slot) {
        return Phase::Refused(format!(
            "it has slot {}, the configuration says {expected}: is this another store's address?",
            hello.slot
        ));
    }
    if let Some(expected) = spec.uuid.as_ref().filter(|expected| **expected != hello.store_uuid) {
        return Phase::Refused(format!(
            "it is store {}, the configuration says {expected}: is this another store's address, or an emptied disk?",
            hello.store_uuid
        ));
    }
    Phase::Up(Identity {
        uuid: Some(hello.store_uuid.clone()),
        slot,
        version: hello.version.clone(),
        incarnation: hello.incarnation,
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
            endpoints: vec![],
        };
        let good =
            HelloResponse { protocol_version: 1, slot: 3, store_uuid: "u".into(), ..Default::default() };
        assert!(matches!(check(&spec, &good), Phase::Up(_)));
        let refused = |hello: HelloResponse, part: &str| match check(&spec, &hello) {
            Phase::Refused(reason) => assert!(reason.contains(part), "{reason}"),
            other => panic!("{other:?}"),
        };
        refused(HelloResponse { slot: 4, ..good.clone() }, "slot 4");
        refused(HelloResponse { store_uuid: "w".into(), ..good.clone() }, "store w");
        refused(HelloResponse { protocol_version: 9, ..good }, "protocol 9");
    }
}
