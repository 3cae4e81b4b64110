//! Decides where a request goes: turns what it says and the placement of keys into a [`Plan`].
//!
//! A request goes whole to the store that holds all keys that it touches: one key, or a range inside one store. A read
//! or delete of a range over several stores is split into [`Part`]s. A txn over several stores is refused with its keys
//! and stores. So is a range that joins a stock etcd with another store, because an etcd can neither be raised to
//! another store's revision nor read at it. The pseudo-key `/registry/<kind>` is read from all stores of its Kind. The
//! router answers `<prefix>/health` itself, so that a dead store does not make every kube-apiserver consider etcd down.
//!
//! A plan also names the spread Kinds that it concerns, those on several stores: the revisions shown of their keys must
//! agree among the stores (R8).

use std::fmt;
use std::ops::ControlFlow;

use bytes::Bytes;
use kindred_partition_config::{ids::LeaseId, key::KeyRange, kind::KindPrefix};
use kindred_wire::optimistic::{Change, Optimistic};
use kindred_wire::peek::{self, PutRequest, TxnPart, WireError};
use kindred_wire::refusal::{KeyOnStore, KindredError};

pub use crate::parsed::Call;
use crate::parsed::{Form, Parsed};
use crate::parts::Part;
use crate::store::StoreIx;

/// Which store serves which key; one whole map for the length of a request.
pub trait Placement {
    /// The store of a key; every key has one.
    fn store_of(&self, key: &[u8]) -> StoreIx;
    /// The parts of a range in key order, one part for a single key. Empty for an empty range.
    fn parts_of(&self, range: &KeyRange) -> Vec<Part>;
    /// The Kind of the key, if it is on several stores.
    fn spread_of(&self, key: &[u8]) -> Option<KindPrefix>;
    /// The Kinds on several stores that have keys in the range.
    fn spread_in(&self, range: &KeyRange) -> Vec<KindPrefix>;
    fn is_etcd(&self, store: StoreIx) -> bool;
    /// The store for requests without a key.
    fn default_store(&self) -> StoreIx;
    /// The store's name in the configuration.
    fn name(&self, store: StoreIx) -> &str;
    /// Whether the key is `<prefix>/health`.
    fn is_health(&self, key: &[u8]) -> bool;
}

/// How to carry out a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Send it unchanged to one store.
    One {
        store: StoreIx,
        /// The leases of its puts, each once; the store must know them.
        leases: Vec<LeaseId>,
        /// The spread Kinds whose revision it shows.
        spread: Vec<KindPrefix>,
    },
    /// Split it over several stores.
    FanOut(FanOut),
    /// Answer the health probe: its key does not exist, as long as any store can be reached.
    Health,
}

impl Plan {
    /// The spread Kinds whose revision it shows.
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
    /// The parts in key order.
    pub parts: Vec<Part>,
    /// The spread Kinds whose revision it shows.
    pub spread: Vec<KindPrefix>,
}

impl FanOut {
    /// All stores of the parts, sorted, each once.
    #[must_use]
    pub fn stores(&self) -> Vec<StoreIx> {
        let mut stores: Vec<StoreIx> = self.parts.iter().flat_map(|part| part.stores.clone()).collect();
        stores.sort_unstable();
        stores.dedup();
        stores
    }
}

/// Why a request is refused.
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

/// The plan of a KV request.
///
/// # Errors
/// When its bytes do not parse, or its keys are on stores that it may not join.
pub fn plan(request: &Parsed<'_>, placement: &impl Placement) -> Result<Plan, Refusal> {
    let leases = |put: &PutRequest<'_>| LeaseId::from_wire(put.lease).into_iter().collect();
    match &request.form {
        Form::Range(range) => {
            if range.range_end.is_empty() && placement.is_health(range.key) {
                return Ok(Plan::Health);
            }
            span(range.key, range.range_end, placement)
        }
        Form::Delete(delete) => {
            if delete.range_end.is_empty() {
                return Ok(one(delete.key, Vec::new(), placement));
            }
            span(delete.key, delete.range_end, placement)
        }
        Form::Put(put) => Ok(one(put.key, leases(put), placement)),
        Form::Optimistic(Optimistic { key, change, .. }) => {
            let leases = match change {
                Change::Put(put) => leases(put),
                Change::Delete(_) => Vec::new(),
            };
            Ok(one(key, leases, placement))
        }
        Form::Txn => txn(request.bytes, placement),
        Form::Malformed(error) => Err((*error).into()),
    }
}

/// The parts of a watch, with their stores.
///
/// # Errors
/// When its keys join a stock etcd with another store.
pub fn plan_watch_parts(key: &[u8], range_end: &[u8], placement: &impl Placement) -> Result<FanOut, Refusal> {
    let range = wire_range(key, range_end);
    let mut parts = placement.parts_of(&range);
    if parts.is_empty() {
        // No key can ever lie there; the store of its first key answers as etcd does.
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
        // An empty range touches nothing; the store of its first key answers or refuses it as etcd does.
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

/// The stores that serve keys of the range, each with the start of its part.
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
    // Most txns name one key repeatedly, so the last answer is kept and keys are compared first.
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
