//! Reads the transactions by which a kube-apiserver creates, updates and deletes objects: `OptimisticPut` and
//! `OptimisticDelete` of etcd's package `client/v3/kubernetes`. Nearly every write of a Kubernetes cluster is one of
//! these, so they are read in one pass and without a visitor.
//!
//! Only the usual encoding is read. [`Optimistic::parse`] knows nothing of any other bytes, whether they are another
//! transaction or none at all; the caller then uses [`visit_txn`](crate::peek::visit_txn) or a decoder.

use crate::{
    peek::{DeleteRangeRequest, PutRequest, RangeRequest},
    scan::{Field, Fields, Value},
};

/// The fields of a `TxnRequest`.
const COMPARE: u32 = 1;
const SUCCESS: u32 = 2;
const FAILURE: u32 = 3;

/// The variants of a `RequestOp`.
const RANGE: u32 = 1;
const PUT: u32 = 2;
const DELETE_RANGE: u32 = 3;

/// `Compare.CompareResult.EQUAL` and `Compare.CompareTarget.MOD`.
const EQUAL: i32 = 0;
const MOD: i32 = 2;

/// A txn that changes one key if it has a certain mod revision, and else may read it. It names no other key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Optimistic<'a> {
    /// The key that it names in all its parts.
    pub key: &'a [u8],
    /// The mod revision that the key must have; 0 if the key must not exist.
    pub mod_revision: i64,
    /// The only operation on success.
    pub change: Change<'a>,
    /// The only operation on failure, if there is one.
    pub read: Option<RangeRequest<'a>>,
}

/// A change of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    Put(PutRequest<'a>),
    Delete(DeleteRangeRequest<'a>),
}

impl<'a> Optimistic<'a> {
    /// Parses a `TxnRequest`; `None` if it is another one, is encoded in an unusual way, or is malformed.
    #[must_use]
    pub fn parse(txn: &'a [u8]) -> Option<Self> {
        let mut fields = Fields::new(txn);
        let (key, mod_revision) = compared(next(&mut fields, COMPARE)?)?;
        let change = match only(next(&mut fields, SUCCESS)?)? {
            (PUT, put) => Change::Put(PutRequest::parse(put).ok().filter(|put| put.key == key)?),
            (DELETE_RANGE, delete) => {
                let delete = DeleteRangeRequest::parse(delete).ok();
                Change::Delete(delete.filter(|delete| delete.key == key && delete.range_end.is_empty())?)
            }
            _ => return None,
        };
        if fields.offset() == txn.len() {
            return Some(Self { key, mod_revision, change, read: None });
        }
        let (RANGE, read) = only(next(&mut fields, FAILURE)?)? else { return None };
        let read = RangeRequest::parse(read).ok();
        let read = read.filter(|read| read.key == key && read.range_end.is_empty())?;
        (fields.offset() == txn.len()).then_some(Self { key, mod_revision, change, read: Some(read) })
    }
}

/// The content of the next field, if that has this number.
fn next<'a>(fields: &mut Fields<'a>, number: u32) -> Option<&'a [u8]> {
    let field = fields.next()?.ok()?;
    if field.number == number { field.bytes().ok() } else { None }
}

/// The number and the content of the only field.
fn only(message: &[u8]) -> Option<(u32, &[u8])> {
    let mut fields = Fields::new(message);
    let field = fields.next()?.ok()?;
    if fields.offset() == message.len() { Some((field.number, field.bytes().ok()?)) } else { None }
}

/// The key and the mod revision of a `Compare` that these are equal.
fn compared(compare: &[u8]) -> Option<(&[u8], i64)> {
    let (mut result, mut target, mut key, mut mod_revision) = (0, 0, &[][..], 0);
    for field in Fields::new(compare) {
        let Field { number, value } = field.ok()?;
        match (number, value) {
            (1, Value::Varint(number)) => result = number as i32,
            (2, Value::Varint(number)) => target = number as i32,
            (3, Value::Len(bytes)) => key = bytes,
            (6, Value::Varint(number)) => mod_revision = number.cast_signed(),
            // Another number to compare with would replace this one, and an end would make it a range.
            _ => return None,
        }
    }
    (result == EQUAL && target == MOD).then_some((key, mod_revision))
}
