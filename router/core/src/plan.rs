//! Where a request goes: its raw bytes and the placement of keys in, a [`Plan`] out.
//!
//! A request belongs to the one store that holds all keys that it touches: one key, a range inside one Kind, or a range
//! over several Kinds that live together. What touches several stores is refused with the keys and stores by name. The
//! pseudo-key `/registry/<kind>` is placed with its Kind by [`Placement`], and `<prefix>/health` is answered here, so
//! that a dead store does not make every kube-apiserver think that etcd is gone.

use std::fmt;
use std::ops::ControlFlow;

use bytes::Bytes;
use kindred_partition_config::{ids::LeaseId, key::KeyRange};
use kindred_wire::error::Code;
use kindred_wire::peek::{self, TxnPart, WireError};
use kindred_wire::refusal::{KeyOnStore, KindredError};

use crate::store::StoreIx;

/// Which store serves which key, for the length of one request: one whole map.
pub trait Placement {
    /// The store of one key; every key has one.
    fn store_of(&self, key: &[u8]) -> StoreIx;
    /// The stores that serve some part of the range, each once, in key order of their first part, with its first key.
    fn stores_of(&self, range: &KeyRange) -> Vec<(Vec<u8>, StoreIx)>;
    /// The store of what has no key.
    fn default_store(&self) -> StoreIx;
    /// A store's name in the configuration.
    fn name(&self, store: StoreIx) -> &str;
    /// Whether this is `<prefix>/health`.
    fn is_health(&self, key: &[u8]) -> bool;
}

/// The KV calls that have keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// `KV/Range`
    Range,
    /// `KV/RangeStream`
    RangeStream,
    /// `KV/Put`
    Put,
    /// `KV/DeleteRange`
    DeleteRange,
    /// `KV/Txn`
    Txn,
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Send it to this store as it is.
    One {
        /// The store.
        store: StoreIx,
        /// The leases that its puts carry, each once: the store must know them.
        leases: Vec<LeaseId>,
    },
    /// The health key: not found, as long as any store can be reached.
    Health,
}

/// Why a request has no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// One of kindred's errors.
    Kindred(KindredError),
    /// A range, delete or watch whose keys live on several stores.
    OverStores {
        /// The call.
        what: &'static str,
        /// The first key.
        key: Vec<u8>,
        /// The stores, by name.
        stores: Vec<String>,
    },
}

/// Most stores that a refusal names.
const STORES_NAMED: usize = 8;
/// Most bytes of a key that a refusal shows.
const KEY_SHOWN: usize = 256;

impl Refusal {
    /// The gRPC status code: what the map forbids depends on the state of the system, and etcd clients do not retry it.
    #[must_use]
    pub fn grpc_code(&self) -> Code {
        match self {
            Self::Kindred(error) => error.grpc_code(),
            Self::OverStores { .. } => Code::FailedPrecondition,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kindred(error) => error.fmt(f),
            Self::OverStores { what, key, stores } => {
                let shown = &key[..key.len().min(KEY_SHOWN)];
                let named = stores.iter().take(STORES_NAMED).map(|store| format!("{store:?}"));
                let named = named.collect::<Vec<_>>().join(", ");
                let key = shown.escape_ascii();
                write!(
                    f,
                    "kindred: {what} from \"{key}\" touches {} stores ({named}), which this version does not serve; \
                     ask for the keys of each store alone",
                    stores.len()
                )
            }
        }
    }
}

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Self {
        Self::Kindred(KindredError::Malformed { reason: error.to_string() })
    }
}

/// Decides about a KV request.
///
/// # Errors
/// When its bytes do not parse or its keys live on several stores.
pub fn plan(call: Call, request: &[u8], placement: &impl Placement) -> Result<Plan, Refusal> {
    match call {
        Call::Range | Call::RangeStream => {
            let range = peek::RangeRequest::parse(request)?;
            if range.range_end.is_empty() && placement.is_health(range.key) {
                return Ok(Plan::Health);
            }
            let what = if call == Call::Range { "a range" } else { "a range stream" };
            one(span(what, range.key, range.range_end, placement)?)
        }
        Call::DeleteRange => {
            let delete = peek::DeleteRangeRequest::parse(request)?;
            one(span("a delete", delete.key, delete.range_end, placement)?)
        }
        Call::Put => {
            let put = peek::PutRequest::parse(request)?;
            let leases = LeaseId::from_wire(put.lease).into_iter().collect();
            Ok(Plan::One { store: placement.store_of(put.key), leases })
        }
        Call::Txn => txn(request, placement),
    }
}

/// The one store of a watch.
///
/// # Errors
/// When its keys live on several stores.
pub fn plan_watch(key: &[u8], range_end: &[u8], placement: &impl Placement) -> Result<StoreIx, Refusal> {
    span("a watch", key, range_end, placement)
}

fn one(store: StoreIx) -> Result<Plan, Refusal> {
    Ok(Plan::One { store, leases: Vec::new() })
}

fn span(
    what: &'static str,
    key: &[u8],
    range_end: &[u8],
    placement: &impl Placement,
) -> Result<StoreIx, Refusal> {
    if range_end.is_empty() {
        return Ok(placement.store_of(key));
    }
    match touched(key, range_end, placement).as_slice() {
        // An empty range touches nothing; the store of its first key refuses or answers it as etcd does.
        [] => Ok(placement.store_of(key)),
        [(_, store)] => Ok(*store),
        several => {
            let stores = several.iter().map(|(_, store)| placement.name(*store).to_owned()).collect();
            Err(Refusal::OverStores { what, key: key.to_vec(), stores })
        }
    }
}

fn touched(key: &[u8], range_end: &[u8], placement: &impl Placement) -> Vec<(Vec<u8>, StoreIx)> {
    if range_end.is_empty() {
        return vec![(key.to_vec(), placement.store_of(key))];
    }
    let range = KeyRange::from_wire(Bytes::copy_from_slice(key), Bytes::copy_from_slice(range_end));
    placement.stores_of(&range)
}

fn txn(request: &[u8], placement: &impl Placement) -> Result<Plan, Refusal> {
    // The common txn has one key, again and again: remember the last answer and compare the key's bytes.
    let mut only: Option<(&[u8], StoreIx)> = None;
    let mut stores: Vec<(Vec<u8>, StoreIx)> = Vec::new();
    let mut leases: Vec<LeaseId> = Vec::new();
    let _ = peek::visit_txn(request, &mut |part: TxnPart<'_>| {
        if let TxnPart::Put(put) = &part
            && let Some(lease) = LeaseId::from_wire(put.lease)
            && !leases.contains(&lease)
        {
            leases.push(lease);
        }
        let Some((key, range_end)) = part.span() else { return ControlFlow::<()>::Continue(()) };
        if range_end.is_empty() && only.is_some_and(|(last, _)| last == key) {
            return ControlFlow::Continue(());
        }
        for (first, store) in touched(key, range_end, placement) {
            if range_end.is_empty() {
                only = Some((key, store));
            }
            if !stores.iter().any(|(_, seen)| *seen == store) {
                stores.push((first, store));
            }
        }
        ControlFlow::Continue(())
    })?;
    match stores.as_slice() {
        [] => Ok(Plan::One { store: placement.default_store(), leases }),
        [(_, store)] => Ok(Plan::One { store: *store, leases }),
        _ => {
            let on = |(key, store): (Vec<u8>, StoreIx)| KeyOnStore {
                key,
                store: placement.name(store).to_owned(),
            };
            Err(Refusal::Kindred(KindredError::CrossStoreTxn { keys: stores.into_iter().map(on).collect() }))
        }
    }
}

#[cfg(test)]
#[path = "plan_test.rs"]
mod tests;
