//! What a request of KV needs (`server/etcdserver/apply/auth.go`). Every compare and every operation of a transaction
//! counts, in both branches and at every depth, whether or not it would be executed.

use std::ops::ControlFlow;

use kindred_partition_config::ids::LeaseId;
use kindred_wire::error::EtcdError;
use kindred_wire::peek::{self, DeleteRangeRequest, PutRequest, RangeRequest, TxnPart, WireError};

use super::rules::{Caller, Rules};
use crate::plan::Call;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// With an error of etcd's.
    #[error("{0}")]
    Etcd(#[from] EtcdError),
    /// Nobody can say what it needs.
    #[error("{0}")]
    Malformed(#[from] WireError),
}

/// What is left to check of a request that is permitted otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Leases that keys are attached to: the caller must be able to write all other keys of these, too, as they end
    /// together.
    pub leases: Vec<LeaseId>,
    /// Whether it may write.
    pub writes: bool,
}

/// Checks a request.
///
/// # Errors
/// When it is not permitted, or cannot be read.
pub fn check(rules: &Rules, caller: Option<&Caller>, call: Call, request: &[u8]) -> Result<Asked, Denied> {
    let mut asked = Asked::default();
    match call {
        Call::Range | Call::RangeStream => range(rules, caller, &RangeRequest::parse(request)?)?,
        Call::Put => put(rules, caller, &PutRequest::parse(request)?, &mut asked)?,
        Call::DeleteRange => delete(rules, caller, &DeleteRangeRequest::parse(request)?, &mut asked)?,
        Call::Txn => {
            let parts = peek::visit_txn(request, &mut |part: TxnPart<'_>| match self::part(
                rules, caller, &part, &mut asked,
            ) {
                Ok(()) => ControlFlow::Continue(()),
                Err(denied) => ControlFlow::Break(denied),
            })?;
            if let ControlFlow::Break(denied) = parts {
                return Err(denied.into());
            }
            // A transaction without any parts needs a caller as well.
            rules.is_user(caller)?;
        }
    }
    // Root may write every key, so also those of any lease.
    if rules.is_root(caller).is_ok() {
        asked.leases.clear();
    }
    Ok(asked)
}

fn part(
    rules: &Rules,
    caller: Option<&Caller>,
    part: &TxnPart<'_>,
    asked: &mut Asked,
) -> Result<(), EtcdError> {
    match part {
        TxnPart::Compare(compare) => rules.may_read(caller, compare.key, compare.range_end),
        TxnPart::Range(request) => range(rules, caller, request),
        TxnPart::Put(request) => put(rules, caller, request, asked),
        TxnPart::DeleteRange(request) => delete(rules, caller, request, asked),
        TxnPart::Empty => Ok(()),
    }
}

fn range(rules: &Rules, caller: Option<&Caller>, range: &RangeRequest<'_>) -> Result<(), EtcdError> {
    rules.may_read(caller, range.key, range.range_end)
}

fn put(
    rules: &Rules,
    caller: Option<&Caller>,
    put: &PutRequest<'_>,
    asked: &mut Asked,
) -> Result<(), EtcdError> {
    rules.may_write(caller, put.key, &[])?;
    if put.prev_kv {
        rules.may_read(caller, put.key, &[])?;
    }
    asked.writes = true;
    if let Some(lease) = LeaseId::from_wire(put.lease).filter(|lease| !asked.leases.contains(lease)) {
        asked.leases.push(lease);
    }
    Ok(())
}

fn delete(
    rules: &Rules,
    caller: Option<&Caller>,
    delete: &DeleteRangeRequest<'_>,
    asked: &mut Asked,
) -> Result<(), EtcdError> {
    rules.may_write(caller, delete.key, delete.range_end)?;
    if delete.prev_kv {
        rules.may_read(caller, delete.key, delete.range_end)?;
    }
    asked.writes = true;
    Ok(())
}
