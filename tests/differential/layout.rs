//! Which store the right side has each key on: a txn stays within one, since one over several is refused.

use bytes::Bytes;
use kindred_partition_config::{
    key::{Key, KeyRange},
    map::{PartitionMap, StoreIdx},
    parse,
    validate::validate,
};
use kindred_proto::etcdserverpb::{Compare, RequestOp, TxnRequest, request_op::Request};

use crate::keys;

/// Where keys are; everything in one place where there is no map.
#[derive(Debug, Default)]
pub struct Layout {
    map: Option<PartitionMap>,
}

impl Layout {
    /// Of a configuration of kindred.
    pub fn of(config: &str) -> anyhow::Result<Self> {
        let mut config = parse::parse_config(config)?;
        for store in &mut config.stores {
            // Whoever starts them says where they listen; what counts here is their keys.
            store.endpoints = vec!["127.0.0.1:1".to_owned()];
        }
        let config = validate(&config).map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
        Ok(Self { map: Some(config.map) })
    }

    /// Brings all keys of a txn about one kind to the store of the first one that it names. Ranges become the part of
    /// them that is there, or one key where the store has no range of its own.
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
                // Any of them, the same for the same key.
                let which = key.iter().map(|&byte| usize::from(byte)).sum::<usize>() % here.len().max(1);
                if let Some(name) = here.get(which) {
                    (*key, *range_end) = ((*name).clone(), Bytes::new());
                }
            }
        }
    }
}
