//! Identifies stores (R1). The UUID of a store's first handshake is written to the cluster's state by compare-and-swap;
//! from then on no other UUID is accepted under its name. An emptied or exchanged disk answers with another UUID, and
//! so does every start of a shard without a data directory.
//!
//! Without a meta store, or while it is away, a router goes by the UUIDs that it has met itself.

use std::sync::Arc;

use kindred_partition_config::map::StoreIdx;
use kindred_partition_config::state::ClusterState;
use kindred_partition_config::validate::FieldError;
use kindred_proto::shard_v1::HelloResponse;

use super::state::Phase;
use super::{Store, StoreSpec};
use crate::meta::take::StateKeeper;
use crate::meta::{ChangeError, Cluster, Next};

/// The judgement of a handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// It is the expected store.
    Known,
    /// It is the first store met under this name.
    New,
    /// It is another store, which keeps all in memory, in place of one that holds only Kinds of mode none.
    Anew,
    /// It is another store; with the reason why it is not used and what to do.
    Foreign(String),
}

/// Judges a handshake. `known` is the expected UUID; `holds_only_none` says that the store has to keep nothing.
fn judge(name: &str, known: Option<&str>, hello: &HelloResponse, holds_only_none: bool) -> Verdict {
    let uuid = &hello.store_uuid;
    match known {
        // An earlier version reports no UUID.
        _ if uuid.is_empty() => Verdict::Known,
        None => Verdict::New,
        Some(known) if known == uuid => Verdict::Known,
        Some(_) if hello.in_memory && holds_only_none => Verdict::Anew,
        Some(known) => Verdict::Foreign(foreign(name, known, hello)),
    }
}

fn foreign(name: &str, known: &str, hello: &HelloResponse) -> String {
    let uuid = &hello.store_uuid;
    let what = match hello.in_memory {
        true => {
            "it has no --data-dir, so that every start of it is another, empty store, and it is to keep Kinds"
        }
        false => "its disk was emptied or exchanged, or this is another store's address",
    };
    format!(
        "store {name} is {known}, and {uuid} answers in its place: {what}; nothing is sent there. Start it with its old data \
         folder; if its data is lost, start an empty one and run kindred store replace {name} --endpoint URL --force (R1, R14)"
    )
}

/// Whether by the cluster's state the store holds only Kinds of mode none.
fn holds_only_none(cluster: &Cluster, store: &Store) -> bool {
    let place = u16::try_from(store.index.0).map(StoreIdx);
    place.is_ok_and(|place| cluster.state().holds_only_none(place))
}

/// What is wrong with a store that serves: what it reports, or that it has no disk although it must keep Kinds.
pub(super) fn trouble(cluster: &Cluster, store: &Store, hello: &HelloResponse) -> String {
    let forgets = hello.in_memory && !holds_only_none(cluster, store);
    match (hello.trouble.as_str(), forgets) {
        ("", true) => {
            "has no --data-dir: what it is to keep is lost when its process ends, and then it is refused"
                .to_owned()
        }
        (said, _) => said.to_owned(),
    }
}

/// The UUID that this router expects: the cluster's, or else the one that it has met. For a store that keeps nothing it
/// is the one met last, even if the cluster's state still has another.
pub(super) fn expected(cluster: &Cluster, store: &Store, spec: &StoreSpec) -> Option<String> {
    let met = store.met();
    match (&spec.uuid, &met) {
        (Some(known), Some(met)) if known != met && !holds_only_none(cluster, store) => Some(known.clone()),
        (Some(known), None) => Some(known.clone()),
        _ => met,
    }
}

/// Checks the identity that a shard reported. `false` if something was learnt by which the shard must be asked again.
///
/// # Errors
/// `Foreign` when it is another store.
pub(super) async fn identified(
    keeper: &Arc<StateKeeper>,
    store: &Store,
    spec: &StoreSpec,
    hello: &HelloResponse,
) -> Result<bool, Phase> {
    let (known, uuid) = (expected(&keeper.cluster, store, spec), hello.store_uuid.as_str());
    match judge(store.name(), known.as_deref(), hello, holds_only_none(&keeper.cluster, store)) {
        // The UUID is not in the state because meta was away when the store was first met.
        Verdict::Known if spec.uuid.is_none() && !uuid.is_empty() && meta_is_followed(&keeper.cluster) => {
            write(keeper, store, None, uuid).await?;
            Ok(true)
        }
        Verdict::Known => Ok(true),
        Verdict::New => {
            write(keeper, store, None, uuid).await?;
            store.meet(uuid);
            Ok(keeper.cluster.meta.is_none())
        }
        Verdict::Anew => {
            tracing::warn!(
                store = store.name(),
                uuid,
                "the store has begun anew with nothing, as it keeps everything in memory; all its Kinds are of mode none"
            );
            write(keeper, store, spec.uuid.as_deref(), uuid).await?;
            store.meet(uuid);
            Ok(false)
        }
        Verdict::Foreign(why) => Err(Phase::Foreign(why)),
    }
}

fn meta_is_followed(cluster: &Cluster) -> bool {
    cluster.meta.as_ref().is_some_and(|meta| meta.problem().is_none())
}

/// Writes the store's UUID to the cluster's state. If meta is away, a later handshake writes it.
async fn write(
    keeper: &Arc<StateKeeper>,
    store: &Store,
    before: Option<&str>,
    uuid: &str,
) -> Result<(), Phase> {
    if keeper.cluster.meta.is_none() {
        return Ok(());
    }
    let name = &store.spec().name;
    let change = |state: &ClusterState| -> Result<Next, Vec<FieldError>> {
        match before {
            Some(before) => state.renew_store(name, before, uuid),
            None => state.identify_store(name, uuid),
        }
        .map(Next::from)
    };
    match keeper.change(change).await {
        Ok(_) => Ok(()),
        Err(ChangeError::Refused(errors)) => {
            let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
            Err(Phase::Foreign(texts.join("; ")))
        }
        Err(ChangeError::Meta(error)) => {
            tracing::debug!(store = store.name(), %error, "who the store is was not written yet");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(uuid: &str, in_memory: bool) -> HelloResponse {
        HelloResponse { store_uuid: uuid.to_owned(), in_memory, ..HelloResponse::default() }
    }

    #[test]
    fn f02_another_uuid_under_a_name_is_foreign_unless_it_was_to_keep_nothing() {
        let judge = |known, hello, only_none| super::judge("pods", known, &hello, only_none);
        assert_eq!(judge(None, hello("u", false), false), Verdict::New);
        assert_eq!(judge(Some("u"), hello("u", false), false), Verdict::Known);
        assert_eq!(judge(Some("u"), hello("", false), false), Verdict::Known, "an earlier version");
        assert_eq!(judge(Some("u"), hello("v", true), true), Verdict::Anew);
        // A store with a disk has lost more than its Kinds; one without a disk must not hold durable Kinds.
        for (in_memory, only_none, part) in
            [(false, true, "emptied"), (false, false, "emptied"), (true, false, "--data-dir")]
        {
            let Verdict::Foreign(why) = judge(Some("u"), hello("v", in_memory), only_none) else {
                panic!("{in_memory} {only_none}")
            };
            for part in [part, "store pods is u, and v", "old data folder", "kindred store replace pods"] {
                assert!(why.contains(part), "{part}: {why}");
            }
        }
    }
}
