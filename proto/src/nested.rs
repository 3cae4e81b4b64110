//! Decodes txns that are nested deeper than prost allows. prost stops at 100 nested messages, which are 50 txns;
//! etcd accepts as many levels as `--max-txn-ops` permits, 128 by default.

use bytes::Bytes;
use kindred_wire::{
    peek::TXN_DEPTH_MAX,
    scan::{Fields, WireError},
};
use prost::Message;

use crate::etcdserverpb::{Compare, RequestOp, TxnRequest, request_op::Request};

/// Why bytes are not a valid txn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotATxn {
    /// The txn is nested deeper than [`TXN_DEPTH_MAX`]. Each level has at least one operation, so etcd reports too
    /// many operations.
    TooDeep,
    /// The decoder's error.
    Malformed(String),
}

impl From<WireError> for NotATxn {
    fn from(error: WireError) -> Self {
        match error {
            WireError::TooDeep => Self::TooDeep,
            error => Self::Malformed(error.to_string()),
        }
    }
}

impl From<prost::DecodeError> for NotATxn {
    fn from(error: prost::DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// Decodes a `TxnRequest`.
///
/// # Errors
/// When the bytes are not a txn, or it is nested too deep.
pub fn txn(request: Bytes) -> Result<TxnRequest, NotATxn> {
    // Nearly every txn is flat, and prost decodes it fastest.
    TxnRequest::decode(request.clone()).or_else(|_| {
        let mut txn = TxnRequest::default();
        merge(&mut txn, &request, 0)?;
        Ok(txn)
    })
}

/// Merges another piece into the txn.
fn merge(txn: &mut TxnRequest, piece: &Bytes, depth: usize) -> Result<(), NotATxn> {
    if depth > TXN_DEPTH_MAX {
        return Err(NotATxn::TooDeep);
    }
    for field in Fields::new(piece) {
        let field = field?;
        match field.number {
            1 => txn.compare.push(Compare::decode(piece.slice_ref(field.bytes()?))?),
            2 => txn.success.push(op(&piece.slice_ref(field.bytes()?), depth)?),
            3 => txn.failure.push(op(&piece.slice_ref(field.bytes()?), depth)?),
            _ => {}
        }
    }
    Ok(())
}

/// Decodes a oneof: another variant replaces the earlier one, and the same variant merges.
fn op(bytes: &Bytes, depth: usize) -> Result<RequestOp, NotATxn> {
    let mut op = RequestOp::default();
    for field in Fields::new(bytes) {
        let field = field?;
        if !(1..=4).contains(&field.number) {
            continue;
        }
        let piece = bytes.slice_ref(field.bytes()?);
        let request = op.request.take();
        op.request = Some(match (field.number, request) {
            (1, Some(Request::RequestRange(range))) => Request::RequestRange(merged(range, piece)?),
            (1, _) => Request::RequestRange(merged(Default::default(), piece)?),
            (2, Some(Request::RequestPut(put))) => Request::RequestPut(merged(put, piece)?),
            (2, _) => Request::RequestPut(merged(Default::default(), piece)?),
            (3, Some(Request::RequestDeleteRange(delete))) => {
                Request::RequestDeleteRange(merged(delete, piece)?)
            }
            (3, _) => Request::RequestDeleteRange(merged(Default::default(), piece)?),
            (_, before) => {
                let mut txn = match before {
                    Some(Request::RequestTxn(txn)) => txn,
                    _ => TxnRequest::default(),
                };
                merge(&mut txn, &piece, depth + 1)?;
                Request::RequestTxn(txn)
            }
        });
    }
    Ok(op)
}

fn merged<M: Message>(mut message: M, piece: Bytes) -> Result<M, prost::DecodeError> {
    message.merge(piece)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest};

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        prost::encoding::encode_varint(bytes.len() as u64, &mut out);
        out.extend_from_slice(bytes);
        out
    }

    /// A put nested in this many txns.
    fn nested(depth: usize) -> Vec<u8> {
        let put = PutRequest { key: "k".into(), value: "v".into(), ..Default::default() }.encode_to_vec();
        let mut txn = field(2, &field(2, &put));
        // Built backwards, from its end.
        txn.reverse();
        for _ in 0..depth {
            for number in [4, 3] {
                let mut head = vec![number << 3 | 2];
                prost::encoding::encode_varint(txn.len() as u64, &mut head);
                txn.extend(head.iter().rev());
            }
        }
        txn.reverse();
        txn
    }

    #[test]
    fn f38_txns_are_decoded_as_deep_as_etcd_takes_them() {
        for depth in [0, 1, 40, 49, 50, 100, 127, 128, TXN_DEPTH_MAX] {
            let mut read = &txn(nested(depth).into()).unwrap();
            for _ in 0..depth {
                let Some(Request::RequestTxn(inner)) = &read.failure[0].request else { panic!("{read:?}") };
                read = inner;
            }
            let Some(Request::RequestPut(put)) = &read.success[0].request else { panic!("{read:?}") };
            assert_eq!((&put.key[..], &put.value[..]), (&b"k"[..], &b"v"[..]));
        }
        assert_eq!(txn(nested(TXN_DEPTH_MAX + 1).into()), Err(NotATxn::TooDeep));
        // At the depth of the largest possible request, the depth limit must act before the stack overflows.
        assert_eq!(txn(nested(150_000).into()), Err(NotATxn::TooDeep));
    }

    /// Both decoders read the same, including messages in pieces and oneofs with several variants.
    #[test]
    fn f38_what_prost_decodes_is_decoded_the_same() {
        let range =
            |key: &'static str| RangeRequest { key: key.into(), ..Default::default() }.encode_to_vec();
        let put = |key: &'static str| PutRequest { key: key.into(), ..Default::default() }.encode_to_vec();
        let delete = DeleteRangeRequest { key: "d".into(), ..Default::default() }.encode_to_vec();
        let lease = PutRequest { lease: 7, ..Default::default() }.encode_to_vec();
        let compare = Compare { key: "c".into(), ..Default::default() }.encode_to_vec();
        let inner = [field(1, &compare), field(2, &field(3, &delete))].concat();
        let more = field(3, &field(1, &range("r")));
        for message in [
            vec![],
            field(2, &[]),
            field(2, &[field(2, &put("a")), field(2, &lease)].concat()),
            field(2, &[field(2, &put("a")), field(1, &range("b"))].concat()),
            field(3, &[field(4, &inner), field(4, &more)].concat()),
            field(3, &[field(4, &inner), field(3, &delete), field(4, &more)].concat()),
            [field(1, &compare), field(2, &field(3, &delete)), vec![0x78, 1], field(2, &field(4, &inner))]
                .concat(),
        ] {
            let mut read = TxnRequest::default();
            merge(&mut read, &message.clone().into(), 0).unwrap();
            assert_eq!(read, TxnRequest::decode(&message[..]).unwrap());
        }
        for wrong in [&[0x12, 5, 1][..], &[0x10, 1], &[0x12, 2, 0x10, 1]] {
            assert!(matches!(txn(Bytes::copy_from_slice(wrong)), Err(NotATxn::Malformed(_))), "{wrong:?}");
        }
    }
}
