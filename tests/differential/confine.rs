//! On which store the right side has each key. A txn over several stores is refused, so each generated txn is confined
//! to one.

use bytes::Bytes;
use kindred_partition_config::{
    key::{Key, KeyRange},
    map::{PartitionMap, StoreIdx},
    parse,
    validate::validate,
};
use kindred_proto::etcdserverpb::{Compare, RequestOp, TxnRequest, request_op::Request};
use kindred_tests::layouts::Place;

use crate::differential::keys;

/// The store of each key. Without a map, one store has all keys.
#[derive(Debug, Default)]
pub struct Stores {
    map: Option<PartitionMap>,
}

impl Stores {
    /// The stores of a place.
    pub fn of(place: Place) -> anyhow::Result<Self> {
        if place.routers == 0 {
            return Ok(Self::default());
        }
        let mut config = parse::parse_config(&place.layout.config(&keys::placed())?.to_string())?;
        for store in &mut config.stores {
            // Validation needs endpoints, but this test uses only the map, so any address serves.
            store.endpoints = vec!["127.0.0.1:1".to_owned()];
        }
        let config = validate(&config).map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
        Ok(Self { map: Some(config.map) })
    }

    /// Replaces all keys of a txn of one kind by keys on the store of the first key that it names. A range becomes the
    /// part of it that is on that store, or one key if that store has no range of it.
    pub fn confine(&self, txn: &mut TxnRequest, kind: usize) {
        let Some(map) = &self.map else { return };
        let names = keys::names(kind);
        let first = first_key(txn, &names).unwrap_or_else(|| names[0].clone());
        Confined { map, kind, to: map.store_of(&first) }.txn(txn);
    }
}

fn first_key(txn: &TxnRequest, names: &[Bytes]) -> Option<Bytes> {
    let of_op = |op: &RequestOp| match op.request.as_ref()? {
        Request::RequestRange(range) => Some(range.key.clone()),
        Request::RequestPut(put) => Some(put.key.clone()),
        Request::RequestDeleteRange(delete) => Some(delete.key.clone()),
        Request::RequestTxn(txn) => first_key(txn, names),
    };
    let compared = txn.compare.iter().map(|compare| compare.key.clone());
    let ops = txn.success.iter().chain(&txn.failure).filter_map(of_op);
    compared.chain(ops).find(|key| names.contains(key))
}

struct Confined<'a> {
    map: &'a PartitionMap,
    kind: usize,
    to: StoreIdx,
}

impl Confined<'_> {
    fn txn(&self, txn: &mut TxnRequest) {
        for Compare { key, range_end, .. } in &mut txn.compare {
            self.span(key, range_end);
        }
        for op in txn.success.iter_mut().chain(&mut txn.failure) {
            match &mut op.request {
                Some(Request::RequestRange(range)) => self.span(&mut range.key, &mut range.range_end),
                Some(Request::RequestPut(put)) => self.span(&mut put.key, &mut Bytes::new()),
                Some(Request::RequestDeleteRange(delete)) => {
                    self.span(&mut delete.key, &mut delete.range_end);
                }
                Some(Request::RequestTxn(nested)) => self.txn(nested),
                None => {}
            }
        }
    }

    fn span(&self, key: &mut Bytes, range_end: &mut Bytes) {
        if key.is_empty() {
            return;
        }
        let range = KeyRange::from_wire(key.clone(), range_end.clone());
        if self.map.stores_of(&range).iter().all(|store| *store == self.to) {
            return;
        }
        let own = self.map.units_of(&range).into_iter().find(|unit| unit.stores == [self.to]);
        match own.map(|unit| unit.range) {
            Some(KeyRange::Span { start, end: Some(Key(end)) }) => (*key, *range_end) = (start.0, end),
            _ => {
                let names = keys::names(self.kind);
                let here: Vec<_> = names.iter().filter(|name| self.map.store_of(name) == self.to).collect();
                // Any of the names will do, but equal keys must become equal names.
                let which = key.iter().map(|&byte| usize::from(byte)).sum::<usize>() % here.len().max(1);
                if let Some(name) = here.get(which) {
                    (*key, *range_end) = ((*name).clone(), Bytes::new());
                }
            }
        }
    }
}
