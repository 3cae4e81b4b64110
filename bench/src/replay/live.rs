//! This table gives, for each recorded lease and revision, the one that the other store has in its place.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use kindred_proto::etcdserverpb::{self as pb, compare, request_op};

use super::line::{Recorded, Request};

/// The parts of an answer that later requests need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// In its header; 0 if there is none.
    pub revision: i64,
    /// It tells whether the compares of a transaction held.
    pub succeeded: Option<bool>,
    /// The lease that was granted.
    pub lease: i64,
    /// Keys that were read, with the revisions of their last changes.
    pub seen: Vec<(Bytes, i64)>,
}

/// What is known of the store to which the trace is replayed.
#[derive(Debug)]
pub struct Live {
    /// Whether requests get the store's own revisions.
    revisions: bool,
    /// By the recorded leases.
    leases: HashMap<i64, i64>,
    /// The keys whose revisions requests need, with the revision of the last change that was seen; `None` while the key
    /// does not exist.
    keys: HashMap<Bytes, (i64, Option<i64>)>,
    /// Revisions in answers here, by those in the recorded answers to the same requests.
    shown: BTreeMap<i64, i64>,
}

/// The key of a transaction in the form of a kube-apiserver, which puts or deletes one key if its last change is the one
/// that the client knows.
#[must_use]
pub fn optimistic(txn: &pb::TxnRequest) -> Option<&Bytes> {
    let [pb::Compare { result: 0, target: 2, key, range_end, target_union }] = &txn.compare[..] else {
        return None;
    };
    let [pb::RequestOp { request: Some(op) }] = &txn.success[..] else { return None };
    let changed = match op {
        request_op::Request::RequestPut(put) => &put.key,
        request_op::Request::RequestDeleteRange(delete) if delete.range_end.is_empty() => &delete.key,
        _ => return None,
    };
    let known = matches!(target_union, Some(compare::TargetUnion::ModRevision(known)) if *known > 0);
    (known && range_end.is_empty() && changed == key).then_some(key)
}

/// Lets such a transaction compare with another revision.
pub fn compare_with(txn: &mut pb::TxnRequest, revision: i64) {
    for compare in &mut txn.compare {
        compare.target_union = Some(compare::TargetUnion::ModRevision(revision));
    }
}

/// A request that is to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Ready {
    pub request: Request,
    /// The key whose revision must be read first, as nothing has shown it.
    pub read_first: Option<Bytes>,
}

impl Live {
    /// For this trace; with `revisions` requests get the store's own ones.
    pub fn of(trace: &[Recorded], revisions: bool) -> Self {
        let txns = trace.iter().filter_map(|recorded| match &recorded.request {
            Ok(Request::Txn(txn)) => optimistic(txn),
            _ => None,
        });
        let keys = txns.filter(|_| revisions).map(|key| (key.clone(), (0, None))).collect();
        Self { revisions, leases: HashMap::new(), keys, shown: BTreeMap::new() }
    }

    /// The request as it is to be sent now.
    pub fn ready(&self, recorded: &Recorded, request: &Request) -> Ready {
        let (mut request, mut read_first) = (request.clone(), None);
        match &mut request {
            Request::Put(put) => put.lease = self.lease(put.lease),
            Request::Txn(txn) => {
                self.leases_of(txn);
                // What failed its compare in the trace fails here as well.
                if recorded.succeeded != Some(false)
                    && let Some((key, known)) = optimistic(txn).and_then(|key| self.keys.get_key_value(key))
                {
                    match known.1 {
                        Some(revision) => compare_with(txn, revision),
                        None => read_first = Some(key.clone()),
                    }
                }
            }
            Request::LeaseRevoke(revoke) => revoke.id = self.lease(revoke.id),
            Request::LeaseKeepAlive(renew) => renew.id = self.lease(renew.id),
            Request::Range(range) | Request::RangeStream(range) if self.revisions && range.revision > 0 => {
                range.revision = self.revision(range.revision).unwrap_or_default();
            }
            Request::Watch(watch) if self.revisions && watch.start_revision > 0 => {
                let last = self.revision(watch.start_revision - 1);
                watch.start_revision = last.map_or(0, |last| last + 1);
            }
            _ => {}
        }
        // Ids are chosen by the stream; each watch has its own.
        if let Request::Watch(watch) = &mut request {
            watch.watch_id = 0;
        }
        Ready { request, read_first }
    }

    fn lease(&self, recorded: i64) -> i64 {
        self.leases.get(&recorded).copied().unwrap_or(recorded)
    }

    fn leases_of(&self, txn: &mut pb::TxnRequest) {
        for op in txn.success.iter_mut().chain(&mut txn.failure) {
            match &mut op.request {
                Some(request_op::Request::RequestPut(put)) => put.lease = self.lease(put.lease),
                Some(request_op::Request::RequestTxn(txn)) => self.leases_of(txn),
                _ => {}
            }
        }
    }

    /// The revision here when the recorded store was at this one.
    fn revision(&self, recorded: i64) -> Option<i64> {
        self.shown.range(..=recorded).next_back().map(|(_, here)| *here)
    }

    /// Notes an answer to a request that was sent.
    pub fn learn(&mut self, recorded: &Recorded, sent: &Request, answer: &Answer) {
        if let Some(lease) = recorded.lease.filter(|_| matches!(sent, Request::LeaseGrant(_))) {
            self.leases.insert(lease, answer.lease);
        }
        if !self.revisions {
            return;
        }
        if let Some(revision) = recorded.revision.filter(|_| answer.revision > 0) {
            let here = self.shown.entry(revision).or_default();
            *here = (*here).max(answer.revision);
        }
        for (key, revision) in &answer.seen {
            self.saw(key, *revision, true);
        }
        match sent {
            Request::Put(put) => self.saw(&put.key, answer.revision, true),
            Request::DeleteRange(delete) if delete.range_end.is_empty() => {
                self.saw(&delete.key, answer.revision, false);
            }
            Request::Txn(txn) => {
                let ops = if answer.succeeded == Some(true) { &txn.success } else { &txn.failure };
                for op in ops {
                    match &op.request {
                        Some(request_op::Request::RequestPut(put)) => {
                            self.saw(&put.key, answer.revision, true);
                        }
                        Some(request_op::Request::RequestDeleteRange(delete)) => {
                            self.saw(&delete.key, answer.revision, false);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn saw(&mut self, key: &Bytes, revision: i64, exists: bool) {
        if let Some((at, known)) = self.keys.get_mut(key).filter(|(at, _)| *at <= revision) {
            (*at, *known) = (revision, exists.then_some(revision));
        }
    }
}

/// The leases that the trace uses and does not grant before.
pub fn leases_from_before(trace: &[Recorded]) -> BTreeSet<i64> {
    fn of_txn(txn: &pb::TxnRequest, used: &mut Vec<i64>) {
        for op in txn.success.iter().chain(&txn.failure) {
            match &op.request {
                Some(request_op::Request::RequestPut(put)) => used.push(put.lease),
                Some(request_op::Request::RequestTxn(txn)) => of_txn(txn, used),
                _ => {}
            }
        }
    }
    let (mut granted, mut before) = (BTreeSet::from([0]), BTreeSet::new());
    let mut in_order: Vec<&Recorded> = trace.iter().collect();
    in_order.sort_by_key(|recorded| recorded.begins);
    for recorded in in_order {
        let mut used = Vec::new();
        match &recorded.request {
            Ok(Request::Put(put)) => used.push(put.lease),
            Ok(Request::Txn(txn)) => of_txn(txn, &mut used),
            Ok(Request::LeaseKeepAlive(renew)) => used.push(renew.id),
            Ok(Request::LeaseRevoke(revoke)) => used.push(revoke.id),
            Ok(Request::LeaseGrant(_)) => granted.extend(recorded.lease),
            _ => {}
        }
        before.extend(used.into_iter().filter(|lease| !granted.contains(lease)));
    }
    before
}

#[cfg(test)]
mod tests {
    use super::super::line::tests::put;
    use super::*;

    fn txn(key: &'static str, known: i64, lease: i64) -> pb::TxnRequest {
        let compare = pb::Compare {
            target: 2,
            key: key.into(),
            target_union: Some(compare::TargetUnion::ModRevision(known)),
            ..Default::default()
        };
        let put = pb::PutRequest { lease, ..put(key, "v") };
        let op = pb::RequestOp { request: Some(request_op::Request::RequestPut(put)) };
        pb::TxnRequest { compare: vec![compare], success: vec![op], failure: Vec::new() }
    }

    fn recorded(request: Request) -> Recorded {
        Recorded {
            line: 1,
            connection: "a".to_owned(),
            kind: "pods".into(),
            method: "Txn".into(),
            begins: 1,
            ends: 2,
            code: "OK".to_owned(),
            succeeded: Some(true),
            revision: Some(70),
            lease: None,
            request: Ok(request),
            lost: 0,
        }
    }

    fn known(ready: &Ready) -> Option<i64> {
        let Request::Txn(txn) = &ready.request else { panic!("{ready:?}") };
        match txn.compare[0].target_union {
            Some(compare::TargetUnion::ModRevision(known)) => Some(known),
            _ => None,
        }
    }

    #[test]
    fn a_transaction_of_a_kube_apiserver_is_told_apart() {
        assert_eq!(optimistic(&txn("k", 7, 0)).map(|key| &key[..]), Some(&b"k"[..]));
        assert_eq!(optimistic(&txn("k", 0, 0)), None, "a create needs no revision");
        let mut other = txn("k", 7, 0);
        other.compare[0].key = "other".into();
        assert_eq!(optimistic(&other), None);
        let mut two = txn("k", 7, 0);
        two.compare.push(two.compare[0].clone());
        assert_eq!(optimistic(&two), None);
    }

    #[test]
    fn a_transaction_compares_with_what_replay_last_saw() {
        let update = Request::Txn(txn("k", 7, 0));
        let trace = [recorded(update.clone())];
        let as_recorded = Live::of(&trace, false);
        assert_eq!(
            as_recorded.ready(&trace[0], &update),
            Ready { request: update.clone(), read_first: None }
        );

        let mut live = Live::of(&trace, true);
        assert_eq!(live.ready(&trace[0], &update).read_first.as_deref(), Some(&b"k"[..]));
        let seen = |revision| Answer { seen: vec![("k".into(), revision)], ..Answer::default() };
        live.learn(&trace[0], &Request::Range(pb::RangeRequest::default()), &seen(3));
        assert_eq!(known(&live.ready(&trace[0], &update)), Some(3));
        let answer = Answer { revision: 5, succeeded: Some(true), ..Answer::default() };
        live.learn(&trace[0], &update, &answer);
        live.learn(&trace[0], &Request::Range(pb::RangeRequest::default()), &seen(4));
        assert_eq!(known(&live.ready(&trace[0], &update)), Some(5), "an older answer came later");
        let failed = Recorded { succeeded: Some(false), ..trace[0].clone() };
        assert_eq!(known(&live.ready(&failed, &update)), Some(7), "it fails as it did");
        let delete = pb::DeleteRangeRequest { key: "k".into(), ..Default::default() };
        live.learn(&trace[0], &Request::DeleteRange(delete), &Answer { revision: 6, ..Answer::default() });
        assert!(live.ready(&trace[0], &update).read_first.is_some());
    }

    #[test]
    fn reads_of_the_past_read_what_was_shown_here() {
        let mut live = Live::of(&[], true);
        let range =
            |revision| Request::Range(pb::RangeRequest { key: "k".into(), revision, ..Default::default() });
        let watch = |start_revision| {
            Request::Watch(pb::WatchCreateRequest { key: "k".into(), start_revision, ..Default::default() })
        };
        let of = recorded(range(0));
        assert_eq!(live.ready(&of, &range(70)).request, range(0), "nothing is known yet");
        live.learn(&of, &range(0), &Answer { revision: 9, ..Answer::default() });
        assert_eq!(live.ready(&of, &range(70)).request, range(9));
        assert_eq!(live.ready(&of, &range(75)).request, range(9));
        assert_eq!(live.ready(&of, &range(69)).request, range(0));
        assert_eq!(live.ready(&of, &watch(71)).request, watch(10));
        assert_eq!(live.ready(&of, &watch(70)).request, watch(0));
        assert_eq!(Live::of(&[], false).ready(&of, &watch(71)).request, watch(71));
    }

    #[test]
    fn leases_have_the_numbers_of_the_store() {
        let grant = Request::LeaseGrant(pb::LeaseGrantRequest { ttl: 60, id: 0 });
        let granted = Recorded { lease: Some(4711), ..recorded(grant.clone()) };
        let mut live = Live::of(&[], false);
        live.learn(&granted, &grant, &Answer { lease: 12, ..Answer::default() });
        let leased = |lease| Request::Put(pb::PutRequest { lease, ..put("k", "v") });
        let of = recorded(leased(4711));
        assert_eq!(live.ready(&of, &leased(4711)).request, leased(12));
        assert_eq!(live.ready(&of, &leased(5)).request, leased(5));
        let in_txn = live.ready(&of, &Request::Txn(txn("k", 7, 4711))).request;
        assert_eq!(in_txn, Request::Txn(txn("k", 7, 12)));
        let revoke = |id| Request::LeaseRevoke(pb::LeaseRevokeRequest { id });
        assert_eq!(live.ready(&of, &revoke(4711)).request, revoke(12));
    }

    #[test]
    fn leases_from_before_the_trace_are_found() {
        let leased = |lease| recorded(Request::Put(pb::PutRequest { lease, ..put("k", "v") }));
        let grant = Request::LeaseGrant(pb::LeaseGrantRequest { ttl: 60, id: 0 });
        let granted = Recorded { lease: Some(1), begins: 0, ..recorded(grant) };
        let in_txn = recorded(Request::Txn(txn("k", 7, 3)));
        let found = leases_from_before(&[leased(1), leased(2), leased(0), in_txn, granted]);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [2, 3]);
    }
}
