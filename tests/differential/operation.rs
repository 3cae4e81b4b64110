//! One operation of a sequence, and the requests that it becomes on each side.

use std::collections::HashMap;

use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, HashKvRequest, LeaseGrantRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest,
    compare::TargetUnion, request_op::Request,
};

use crate::differential::revision::{History, KeyRevisions, Scope, Symbol, Use};

/// What an operation does. Its revision fields may hold symbols.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Range(RangeRequest),
    RangeStream(RangeRequest),
    Put(PutRequest),
    DeleteRange(DeleteRangeRequest),
    Txn(TxnRequest),
    Compact(CompactionRequest),
    LeaseGrant(LeaseGrantRequest),
    LeaseRevoke(LeaseRevokeRequest),
    LeaseKeepAlive(i64),
    LeaseTimeToLive(LeaseTimeToLiveRequest),
    LeaseLeases,
    HashKv(HashKvRequest),
    WatchCreate {
        stream: usize,
        request: WatchCreateRequest,
    },
    /// Cancels one of the live watches. Their number reduces `position`.
    WatchCancel {
        stream: usize,
        position: usize,
    },
    /// Waits until all watches have delivered everything, and compares them.
    Drain,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    pub scope: Scope,
    pub action: Action,
}

/// The revisions that the compared keys have now, left and right.
pub type KeyTable = HashMap<Bytes, [KeyRevisions; 2]>;

impl Operation {
    /// The keys whose own revisions the compares of a txn name by symbol.
    pub fn compared_keys(&self) -> Vec<Bytes> {
        let mut keys = Vec::new();
        if let Action::Txn(txn) = &self.action {
            collect(txn, &mut keys);
        }
        keys
    }

    /// Whether the operation creates a watch that starts above the current revision.
    pub fn waits(&self) -> bool {
        match &self.action {
            Action::WatchCreate { request, .. } => {
                matches!(Symbol::of(request.start_revision), Some(Symbol::Next(_)))
            }
            _ => false,
        }
    }

    /// The action for the left and the right side, with numbers for its symbols.
    pub fn resolve(&self, history: &History, keys: &KeyTable) -> [Action; 2] {
        let mut sides = [self.action.clone(), self.action.clone()];
        for (side, action) in sides.iter_mut().enumerate() {
            let of = if matches!(action, Action::WatchCreate { .. }) { Use::Start } else { Use::Read };
            let resolve = |code: i64, key: Option<&Bytes>| {
                let key = key.and_then(|key| keys.get(key)).copied();
                history.resolve(self.scope, code, key, of)[side]
            };
            match action {
                Action::Range(request) | Action::RangeStream(request) => range(request, &resolve),
                Action::Txn(request) => txn(request, &resolve),
                Action::Compact(request) => request.revision = resolve(request.revision, None),
                Action::HashKv(request) => request.revision = resolve(request.revision, None),
                Action::WatchCreate { request, .. } => {
                    request.start_revision = resolve(request.start_revision, None);
                }
                _ => {}
            }
        }
        sides
    }
}

fn collect(txn: &TxnRequest, keys: &mut Vec<Bytes>) {
    for compare in &txn.compare {
        let code = match compare.target_union {
            Some(TargetUnion::ModRevision(code) | TargetUnion::CreateRevision(code)) => code,
            _ => continue,
        };
        if matches!(Symbol::of(code), Some(Symbol::KeyMod | Symbol::KeyCreate)) {
            keys.push(compare.key.clone());
        }
    }
    for op in txn.success.iter().chain(&txn.failure) {
        if let Some(Request::RequestTxn(nested)) = &op.request {
            collect(nested, keys);
        }
    }
}

fn range(request: &mut RangeRequest, resolve: &impl Fn(i64, Option<&Bytes>) -> i64) {
    for field in [
        &mut request.revision,
        &mut request.min_mod_revision,
        &mut request.max_mod_revision,
        &mut request.min_create_revision,
        &mut request.max_create_revision,
    ] {
        *field = resolve(*field, None);
    }
}

fn txn(request: &mut TxnRequest, resolve: &impl Fn(i64, Option<&Bytes>) -> i64) {
    for Compare { key, target_union, .. } in &mut request.compare {
        if let Some(TargetUnion::ModRevision(code) | TargetUnion::CreateRevision(code)) = target_union {
            *code = resolve(*code, Some(key));
        }
    }
    for RequestOp { request } in request.success.iter_mut().chain(&mut request.failure) {
        match request {
            Some(Request::RequestRange(nested)) => range(nested, resolve),
            Some(Request::RequestTxn(nested)) => txn(nested, resolve),
            _ => {}
        }
    }
}
