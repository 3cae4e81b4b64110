//! Where a request goes: its raw bytes and the placement of keys in, a [`Plan`] out.
//!
//! A request goes whole to the one store that holds all keys that it touches: one key, a range inside one store. A read
//! or delete of a range over several stores is split into [`Part`]s. A txn over several stores is refused with the keys
//! and stores by name, and so is a range that joins a stock etcd with another store: an etcd can neither be raised to
//! another store's revision nor read at it. The pseudo-key `/registry/<kind>` is read from all stores of its Kind, and
//! `<prefix>/health` is answered here, so that a dead store does not make every kube-apiserver think that etcd is gone.
//!
//! With each plan come the Kinds that it concerns and that are spread over several stores: what their keys show, and
//! what they were shown at least, must agree among stores (R8).

use std::fmt;
use std::ops::ControlFlow;

use bytes::Bytes;
use kindred_partition_config::{ids::LeaseId, key::KeyRange, kind::KindPrefix};
use kindred_wire::peek::{self, TxnPart, WireError};
use kindred_wire::refusal::{KeyOnStore, KindredError};

use crate::parts::Part;
use crate::store::StoreIx;

/// Which store serves which key, for the length of one request: one whole map.
pub trait Placement {
    /// The store of one key; every key has one.
    fn store_of(&self, key: &[u8]) -> StoreIx;
    /// What a read of the range asks of whom, in key order; of one key one part. None for an empty range.
    fn parts_of(&self, range: &KeyRange) -> Vec<Part>;
    /// The Kind of the key, if it is spread over several stores.
    fn spread_of(&self, key: &[u8]) -> Option<KindPrefix>;
    /// The Kinds spread over several stores that have keys in the range.
    fn spread_in(&self, range: &KeyRange) -> Vec<KindPrefix>;
    /// Whether the store is a stock etcd.
    fn is_etcd(&self, store: StoreIx) -> bool;
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
        /// The spread Kinds that it shows a revision of.
        spread: Vec<KindPrefix>,
    },
    /// A range of keys on several stores.
    FanOut(FanOut),
    /// The health key: not found, as long as any store can be reached.
    Health,
}

impl Plan {
    /// The spread Kinds that it shows a revision of.
    #[must_use]
    pub fn into_spread(self) -> Vec<KindPrefix> {
        match self {
            Self::One { spread, .. } | Self::FanOut(FanOut { spread, .. }) => spread,
            Self::Health => Vec::new(),
        }
    }
}

/// A range over several stores, all of them shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FanOut {
    /// What each store is asked for, in key order.
    pub parts: Vec<Part>,
    /// The spread Kinds that it shows a revision of.
    pub spread: Vec<KindPrefix>,
}

impl FanOut {
    /// All stores, in order, each once.
    #[must_use]
    pub fn stores(&self) -> Vec<StoreIx> {
        let mut stores: Vec<StoreIx> = self.parts.iter().flat_map(|part| part.stores.clone()).collect();
        stores.sort_unstable();
        stores.dedup();
        stores
    }
}

/// Why a request has no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal(pub KindredError);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<WireError> for Refusal {
    fn from(error: WireError) -> Self {
        Self(KindredError::Malformed { reason: error.to_string() })
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
            span(range.key, range.range_end, placement)
        }
        Call::DeleteRange => {
            let delete = peek::DeleteRangeRequest::parse(request)?;
            if delete.range_end.is_empty() {
                return Ok(one(delete.key, Vec::new(), placement));
            }
            span(delete.key, delete.range_end, placement)
        }
        Call::Put => {
            let put = peek::PutRequest::parse(request)?;
            let leases = LeaseId::from_wire(put.lease).into_iter().collect();
            Ok(one(put.key, leases, placement))
        }
        Call::Txn => txn(request, placement),
    }
}

/// The stores of a watch, and what each is watched for.
///
/// # Errors
/// When its keys join a stock etcd with another store.
pub fn plan_watch_parts(key: &[u8], range_end: &[u8], placement: &impl Placement) -> Result<FanOut, Refusal> {
    let range = wire_range(key, range_end);
    let mut parts = placement.parts_of(&range);
    if parts.is_empty() {
        // No key can ever lie there; some store watches it as etcd does.
        parts.push(Part { range: range.clone(), stores: vec![placement.store_of(key)] });
    }
    let fan_out = FanOut { parts, spread: placement.spread_in(&range) };
    no_etcd_among(&fan_out.stores(), key, placement)?;
    Ok(fan_out)
}

fn one(key: &[u8], leases: Vec<LeaseId>, placement: &impl Placement) -> Plan {
    let spread = placement.spread_of(key).into_iter().collect();
    Plan::One { store: placement.store_of(key), leases, spread }
}

fn span(key: &[u8], range_end: &[u8], placement: &impl Placement) -> Result<Plan, Refusal> {
    let range = wire_range(key, range_end);
    let parts = placement.parts_of(&range);
    let fan_out = FanOut { parts, spread: placement.spread_in(&range) };
    match fan_out.stores().as_slice() {
        // An empty range touches nothing; the store of its first key refuses or answers it as etcd does.
        [] => Ok(one(key, Vec::new(), placement)),
        [store] => Ok(Plan::One { store: *store, leases: Vec::new(), spread: fan_out.spread }),
        several => {
            no_etcd_among(several, key, placement)?;
            Ok(Plan::FanOut(fan_out))
        }
    }
}

fn no_etcd_among(stores: &[StoreIx], key: &[u8], placement: &impl Placement) -> Result<(), Refusal> {
    if stores.len() < 2 || !stores.iter().any(|store| placement.is_etcd(*store)) {
        return Ok(());
    }
    let stores = stores.iter().map(|store| placement.name(*store).to_owned()).collect();
    Err(Refusal(KindredError::RangeJoinsEtcd { key: key.to_vec(), stores }))
}

fn wire_range(key: &[u8], range_end: &[u8]) -> KeyRange {
    KeyRange::from_wire(Bytes::copy_from_slice(key), Bytes::copy_from_slice(range_end))
}

/// Each store that serves keys of the range, with the first key that it may serve.
fn touched(key: &[u8], range_end: &[u8], placement: &impl Placement) -> Vec<(Vec<u8>, StoreIx)> {
    if range_end.is_empty() {
        return vec![(key.to_vec(), placement.store_of(key))];
    }
    let parts = placement.parts_of(&wire_range(key, range_end));
    let on_stores =
        |part: Part| part.stores.into_iter().map(move |store| (part.range.start().to_vec(), store));
    parts.into_iter().flat_map(on_stores).collect()
}

fn txn(request: &[u8], placement: &impl Placement) -> Result<Plan, Refusal> {
    // The common txn has one key, again and again: remember the last answer and compare the key's bytes.
    let mut only: Option<(&[u8], StoreIx)> = None;
    let mut stores: Vec<(Vec<u8>, StoreIx)> = Vec::new();
    let mut leases: Vec<LeaseId> = Vec::new();
    let mut spread: Vec<KindPrefix> = Vec::new();
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
        if !range_end.is_empty() {
            let kinds = placement.spread_in(&wire_range(key, range_end));
            spread.extend(kinds.into_iter().filter(|kind| !spread.contains(kind)).collect::<Vec<_>>());
        }
        for (first, store) in touched(key, range_end, placement) {
            if range_end.is_empty() {
                only = Some((key, store));
                spread.extend(placement.spread_of(key).filter(|kind| !spread.contains(kind)));
            }
            if !stores.iter().any(|(_, seen)| *seen == store) {
                stores.push((first, store));
            }
        }
        ControlFlow::Continue(())
    })?;
    match stores.as_slice() {
        [] => Ok(Plan::One { store: placement.default_store(), leases, spread }),
        [(_, store)] => Ok(Plan::One { store: *store, leases, spread }),
        _ => {
            let on = |(key, store): (Vec<u8>, StoreIx)| KeyOnStore {
                key,
                store: placement.name(store).to_owned(),
            };
            Err(Refusal(KindredError::CrossStoreTxn { keys: stores.into_iter().map(on).collect() }))
        }
    }
}

#[cfg(test)]
#[path = "plan_test.rs"]
mod tests;
