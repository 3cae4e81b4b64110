//! Compares the backup's and the cluster's keys in key order, and decides what a restore does with each.

use std::collections::BTreeSet;

use kindred_proto::etcdserverpb::{
    self as pb, compare::CompareResult, compare::CompareTarget, compare::TargetUnion, request_op::Request,
};
use kindred_proto::mvccpb::KeyValue;

/// The result for one key.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Only the backup has the key.
    Create(KeyValue),
    /// Both have the key, with the same value and lease.
    Same(KeyValue),
    /// Both have the key, but they differ: the backup's version, then the cluster's.
    Change(KeyValue, KeyValue),
    /// Only the cluster has the key.
    Extra(KeyValue),
}

/// The next step, from the next keys of both sides. Takes the keys that it uses.
#[must_use]
pub fn step(backup: &mut Option<KeyValue>, cluster: &mut Option<KeyValue>) -> Option<Step> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match (&backup, &cluster) {
        (None, None) => return None,
        (Some(_), None) => Less,
        (None, Some(_)) => Greater,
        (Some(wanted), Some(found)) => wanted.key.cmp(&found.key),
    };
    Some(match order {
        Less => Step::Create(backup.take()?),
        Greater => Step::Extra(cluster.take()?),
        Equal => {
            let (wanted, found) = (backup.take()?, cluster.take()?);
            if is_as(&found, &wanted) { Step::Same(found) } else { Step::Change(wanted, found) }
        }
    })
}

/// Whether the cluster's key equals the backup's. Revisions and version do not count, because every store assigns
/// its own.
#[must_use]
pub fn is_as(found: &KeyValue, wanted: &KeyValue) -> bool {
    found.value == wanted.value && found.lease == wanted.lease
}

/// The transaction of a step. It does nothing if the key has changed since it was read.
#[must_use]
pub fn txn(step: &Step) -> Option<pb::TxnRequest> {
    let (key, compare, write) = match step {
        Step::Same(_) => return None,
        Step::Create(wanted) => (&wanted.key, compare(0), put(wanted)),
        Step::Change(wanted, found) => (&wanted.key, compare(found.mod_revision), put(wanted)),
        Step::Extra(found) => {
            let delete = pb::DeleteRangeRequest { key: found.key.clone(), ..Default::default() };
            (&found.key, compare(found.mod_revision), Request::RequestDeleteRange(delete))
        }
    };
    let compare = pb::Compare { key: key.clone(), ..compare };
    let success = vec![pb::RequestOp { request: Some(write) }];
    Some(pb::TxnRequest { compare: vec![compare], success, failure: Vec::new() })
}

fn compare(mod_revision: i64) -> pb::Compare {
    pb::Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Mod as i32,
        target_union: Some(TargetUnion::ModRevision(mod_revision)),
        ..Default::default()
    }
}

fn put(wanted: &KeyValue) -> Request {
    Request::RequestPut(pb::PutRequest {
        key: wanted.key.clone(),
        value: wanted.value.clone(),
        lease: wanted.lease,
        ..Default::default()
    })
}

/// The counts of one Kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys only in the backup.
    pub created: u64,
    /// Keys that differ.
    pub changed: u64,
    /// Keys that are equal.
    pub same: u64,
    /// Keys only in the cluster.
    pub extra: u64,
    /// The leases of created and changed keys.
    pub leases: BTreeSet<i64>,
}

impl Step {
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Create(kv) | Self::Same(kv) | Self::Change(kv, _) | Self::Extra(kv) => &kv.key,
        }
    }
}

impl Counts {
    pub fn note(&mut self, step: &Step) {
        match step {
            Step::Create(wanted) => {
                self.created += 1;
                self.lease(wanted);
            }
            Step::Change(wanted, _) => {
                self.changed += 1;
                self.lease(wanted);
            }
            Step::Same(_) => self.same += 1,
            Step::Extra(_) => self.extra += 1,
        }
    }

    fn lease(&mut self, kv: &KeyValue) {
        if kv.lease != 0 {
            self.leases.insert(kv.lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn kv(key: u8, value: u8, revision: i64) -> KeyValue {
        KeyValue {
            key: vec![key].into(),
            value: vec![value].into(),
            mod_revision: revision,
            ..Default::default()
        }
    }

    /// The keys after the transactions of all steps.
    fn applied(
        backup: &BTreeMap<u8, u8>,
        cluster: &BTreeMap<u8, u8>,
        overwrite: bool,
        delete: bool,
    ) -> BTreeMap<u8, u8> {
        let mut left = cluster.clone();
        let mut ours = backup.iter().map(|(key, value)| kv(*key, *value, 1));
        let mut theirs = cluster.iter().map(|(key, value)| kv(*key, *value, 2));
        let (mut wanted, mut found) = (ours.next(), theirs.next());
        while let Some(step) = step(&mut wanted, &mut found) {
            wanted = wanted.or_else(|| ours.next());
            found = found.or_else(|| theirs.next());
            let wants = match step {
                Step::Same(_) => false,
                Step::Create(_) => true,
                Step::Change(..) => overwrite,
                Step::Extra(_) => delete,
            };
            for op in txn(&step).filter(|_| wants).into_iter().flat_map(|txn| txn.success) {
                match op.request.unwrap() {
                    Request::RequestPut(put) => drop(left.insert(put.key[0], put.value[0])),
                    Request::RequestDeleteRange(delete) => drop(left.remove(&delete.key[0])),
                    other => panic!("{other:?}"),
                }
            }
        }
        left
    }

    proptest! {
        #[test]
        fn a_restore_leaves_what_was_asked_for(
            backup in prop::collection::btree_map(0..20_u8, 0..3_u8, 0..12),
            cluster in prop::collection::btree_map(0..20_u8, 0..3_u8, 0..12),
        ) {
            prop_assert_eq!(&applied(&backup, &cluster, true, true), &backup);
            let mut both = cluster.clone();
            both.extend(backup.clone());
            prop_assert_eq!(applied(&backup, &cluster, true, false), both);
            let mut kept = backup.clone();
            kept.extend(cluster.clone());
            prop_assert_eq!(applied(&backup, &cluster, false, false), kept);
        }
    }

    #[test]
    fn a_write_holds_only_for_what_was_looked_at() {
        let found = kv(1, 1, 77);
        for (step, revision) in [
            (Step::Create(kv(1, 1, 5)), 0),
            (Step::Change(kv(1, 2, 5), found.clone()), 77),
            (Step::Extra(found), 77),
        ] {
            let txn = txn(&step).unwrap();
            assert_eq!(txn.compare[0].target_union, Some(TargetUnion::ModRevision(revision)));
            assert_eq!(txn.compare[0].key, vec![1]);
        }
        assert_eq!(txn(&Step::Same(kv(1, 1, 1))), None);
    }
}
