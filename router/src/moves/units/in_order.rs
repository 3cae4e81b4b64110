//! The order in which keys are created at an etcd that takes a unit.
//!
//! Elections, locks and queues of etcd's clients go by create revisions (etcd's `client/v3/concurrency` and
//! `client/v3/experimental/recipes`): whoever has the lowest one leads. Kubernetes reads none. So keys outside of its prefix are
//! created in the order in which they were created at the source. A key with a lease gets a transaction of its own, because keys
//! of one transaction have the same create revision; the others are grouped.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use kindred_proto::etcdserverpb::{self as etcd, request_op, response_op};
use kindred_proto::mvccpb::KeyValue;
use prost::Message as _;

use super::live::bounded;
use super::to_etcd::Changes;
use super::{Failed, UnitSteps};
use crate::moves::mover::Mover;
use crate::stores::fence::Known;

/// Keys that are read at a time, of which each may be as large as a request.
const READ_AT_ONCE: usize = 32;

/// What happened to a key at the source.
pub(super) struct Change {
    pub key: Bytes,
    /// Its value and lease; `None` if it was deleted.
    pub now: Option<(Bytes, i64)>,
    /// There was no such key before.
    pub creates: bool,
}

/// The keys of a unit whose order counts, with their create revisions.
#[derive(Default)]
pub(super) struct Later(Vec<(i64, Bytes)>);

impl UnitSteps<'_, Arc<Mover>> {
    /// Whether clients may read the order in which a key was created.
    fn has_order(&self) -> impl Fn(&[u8]) -> bool + use<> {
        let prefix = self.stores.keeper.cluster.state().etcd_prefix.clone() + "/";
        move |key| !key.starts_with(prefix.as_bytes())
    }

    /// Applies the keys of a part of a copy, but puts off those whose order counts.
    pub(super) async fn apply_copied(
        &self,
        known: &Known,
        kvs: impl IntoIterator<Item = KeyValue>,
        later: &mut Later,
    ) -> Result<(), Failed> {
        let has_order = self.has_order();
        let mut now = Changes::new();
        for kv in kvs {
            match has_order(&kv.key) {
                true => later.0.push((kv.create_revision, kv.key)),
                false => now.push((kv.key, Some((kv.value, kv.lease)))),
            }
        }
        self.apply(known, now).await
    }

    /// Applies the keys that were put off, as they are now. What has changed since the copy at revision `at` comes with
    /// the source's news.
    pub(super) async fn apply_later(&self, known: &Known, later: Later, at: i64) -> Result<(), Failed> {
        let Later(mut keys) = later;
        keys.sort_unstable();
        for some in keys.chunks(READ_AT_ONCE) {
            let mut kvs = self.read_each(some.iter().map(|(_, key)| key.clone())).await?;
            // A key that was deleted and created again is younger than all of these.
            kvs.retain(|kv| kv.create_revision <= at);
            let created =
                |kv: KeyValue| Change { key: kv.key, now: Some((kv.value, kv.lease)), creates: true };
            self.apply_in_order(known, kvs.into_iter().map(created)).await?;
        }
        Ok(())
    }

    /// Reads keys of the unit at its owner; those that are gone are left out.
    async fn read_each(&self, keys: impl Iterator<Item = Bytes>) -> Result<Vec<KeyValue>, Failed> {
        let range = |key| etcd::RangeRequest { key, ..Default::default() };
        let op = |key| etcd::RequestOp { request: Some(request_op::Request::RequestRange(range(key))) };
        let txn = etcd::TxnRequest { success: keys.map(op).collect(), ..Default::default() };
        let body = Bytes::from(txn.encode_to_vec());
        let owner = self.owner();
        let answer =
            bounded(owner, |store, deadline| async move { store.kv().txn(deadline.request(body)).await })
                .await?;
        let answer =
            etcd::TxnResponse::decode(answer).map_err(|error| owner.unavailable(&error.to_string()))?;
        let read = answer.responses.into_iter().filter_map(|op| match op.response {
            Some(response_op::Response::ResponseRange(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        Ok(read.collect())
    }

    /// Applies changes in the order of the source, as far as that counts.
    pub(super) async fn apply_in_order(
        &self,
        known: &Known,
        changes: impl IntoIterator<Item = Change>,
    ) -> Result<(), Failed> {
        for group in grouped(changes, self.has_order()) {
            self.apply(known, group).await?;
        }
        Ok(())
    }
}

/// Groups changes such that each group may be applied at a time: no key twice, and every key with a lease whose order counts is
/// created alone. Of a key whose order does not count only the last change is kept.
fn grouped(changes: impl IntoIterator<Item = Change>, has_order: impl Fn(&[u8]) -> bool) -> Vec<Changes> {
    let (mut groups, mut group, mut places) = (Vec::new(), Changes::new(), HashMap::new());
    for Change { key, now, creates } in changes {
        let counts = has_order(&key);
        let is_alone = counts && creates && now.as_ref().is_some_and(|(_, lease)| *lease != 0);
        match places.get(&key) {
            Some(at) if !counts => {
                let (_, before): &mut (Bytes, _) = &mut group[*at];
                *before = now;
                continue;
            }
            None if !is_alone => {}
            _ => {
                groups.push(std::mem::take(&mut group));
                places.clear();
            }
        }
        places.insert(key.clone(), group.len());
        group.push((key, now));
        if is_alone {
            groups.push(std::mem::take(&mut group));
            places.clear();
        }
    }
    groups.push(group);
    groups.retain(|group| !group.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &'static str, value: &'static str, lease: i64, creates: bool) -> Change {
        Change { key: key.into(), now: Some((value.into(), lease)), creates }
    }

    fn deleted(key: &'static str) -> Change {
        Change { key: key.into(), now: None, creates: false }
    }

    /// `key=value` or `-key`; groups are divided by `|`.
    fn words(changes: Vec<Change>) -> String {
        let groups = grouped(changes, |key| !key.starts_with(b"/registry/"));
        let word = |(key, now): &(Bytes, Option<(Bytes, i64)>)| {
            let key = String::from_utf8_lossy(key);
            match now {
                Some((value, _)) => format!("{key}={}", String::from_utf8_lossy(value)),
                None => format!("-{key}"),
            }
        };
        let group = |group: &Changes| group.iter().map(word).collect::<Vec<_>>().join(" ");
        groups.iter().map(group).collect::<Vec<_>>().join(" | ")
    }

    /// Row 85 of the findings: copies got their create revisions in the order of keys, so whoever waited led.
    #[test]
    fn f85_keys_with_leases_are_created_one_by_one_in_the_order_of_the_source() {
        let election = vec![
            change("el/9", "leader", 9, true),
            change("queue/b", "1", 0, true),
            change("queue/a", "2", 0, true),
            change("el/3", "waiter", 3, true),
            change("el/9", "leader still", 9, false),
        ];
        assert_eq!(words(election), "el/9=leader | queue/b=1 queue/a=2 | el/3=waiter | el/9=leader still");
        // The waiter gives up and comes again, behind all others.
        let again = vec![deleted("el/3"), change("queue/c", "3", 0, true), change("el/3", "waiter", 3, true)];
        assert_eq!(words(again), "-el/3 queue/c=3 | el/3=waiter");
        let again = vec![change("q", "1", 0, true), deleted("q"), change("q", "2", 0, true)];
        assert_eq!(words(again), "q=1 | -q | q=2");
    }

    #[test]
    fn of_what_kubernetes_writes_only_the_last_change_counts() {
        let events = vec![
            change("/registry/leases/a", "1", 7, true),
            change("/registry/pods/b", "2", 0, true),
            deleted("/registry/pods/b"),
            change("/registry/leases/a", "3", 7, false),
        ];
        assert_eq!(words(events), "/registry/leases/a=3 -/registry/pods/b");
        assert_eq!(words(vec![]), "");
    }
}
