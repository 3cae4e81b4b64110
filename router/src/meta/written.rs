//! Whether a transaction was made that several members were asked for.
//!
//! A member that says nothing may still make it. Then the condition fails at the next member, although this router's
//! own transaction is the reason. So a transaction that fails looks at the keys that it would have written.

use bytes::Bytes;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::etcdserverpb::{request_op, response_op};

use super::client::{Expect, Write};

/// What the keys say.
#[derive(Debug, PartialEq, Eq)]
pub enum Standing {
    /// They are as the transaction leaves them, since this revision.
    Made(i64),
    /// A key is as it was before.
    NotMade,
    /// A key was expected at one mod revision, and now is at another one, with what somebody else wrote.
    Replaced { key: String, expected: i64, found: i64 },
}

/// The look at a key, for a transaction that fails.
pub fn look(write: &Write) -> pb::RequestOp {
    let range = pb::RangeRequest { key: Bytes::from(write.key.clone().into_bytes()), ..Default::default() };
    pb::RequestOp { request: Some(request_op::Request::RequestRange(range)) }
}

/// What these answers to [`look`] say at a revision of meta. Where two routers write the same in the same place, each
/// may take it for its own: a claim has the router's lease, and all else is the same change whoever makes it.
pub fn standing(expects: &[Expect], writes: &[Write], found: &[pb::ResponseOp], revision: i64) -> Standing {
    let found: Vec<_> = found.iter().map(key_value).collect();
    let mut made_at = None;
    let mut all = found.len() == writes.len();
    for (write, found) in writes.iter().zip(&found) {
        match (&write.value, found) {
            (None, None) => {}
            (Some(value), Some(kv)) if kv.value == *value && kv.lease == write.lease => {
                all &= *made_at.get_or_insert(kv.mod_revision) == kv.mod_revision;
            }
            _ => all = false,
        }
    }
    // Keys that had the same value before do not count.
    let version = |key: &str| {
        let at = writes.iter().position(|write| write.key == key)?;
        Some(found.get(at)?.map_or(0, |kv| kv.mod_revision))
    };
    let mut replaced = None;
    for expect in expects {
        match version(&expect.key) {
            Some(found) if found == expect.mod_revision => return Standing::NotMade,
            Some(found) if replaced.is_none() => {
                replaced = Some(Standing::Replaced {
                    key: expect.key.clone(),
                    expected: expect.mod_revision,
                    found,
                });
            }
            _ => {}
        }
    }
    if all {
        return Standing::Made(made_at.unwrap_or(revision));
    }
    replaced.unwrap_or(Standing::NotMade)
}

fn key_value(op: &pb::ResponseOp) -> Option<&kindred_proto::mvccpb::KeyValue> {
    match &op.response {
        Some(response_op::Response::ResponseRange(range)) => range.kvs.first(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use kindred_proto::mvccpb::KeyValue;

    use super::*;

    fn at(value: &'static str, mod_revision: i64, lease: i64) -> pb::ResponseOp {
        let kv = KeyValue { value: value.into(), mod_revision, lease, ..KeyValue::default() };
        let range = pb::RangeResponse { kvs: vec![kv], ..pb::RangeResponse::default() };
        pb::ResponseOp { response: Some(response_op::Response::ResponseRange(range)) }
    }

    fn absent() -> pb::ResponseOp {
        let range = pb::RangeResponse::default();
        pb::ResponseOp { response: Some(response_op::Response::ResponseRange(range)) }
    }

    fn expect(key: &str, mod_revision: i64) -> Expect {
        Expect { key: key.to_owned(), mod_revision }
    }

    fn replaced(key: &str, expected: i64, found: i64) -> Standing {
        Standing::Replaced { key: key.to_owned(), expected, found }
    }

    #[test]
    fn what_was_made_is_told_from_what_others_made() {
        let writes = [Write::put("state", "new"), Write::put("record", "r")];
        let expects = [expect("state", 5)];
        let says = |found: &[pb::ResponseOp]| standing(&expects, &writes, found, 9);
        assert_eq!(says(&[at("new", 7, 0), at("r", 7, 0)]), Standing::Made(7));
        // The state is as before, so another condition has failed.
        assert_eq!(says(&[at("old", 5, 0), at("r", 7, 0)]), Standing::NotMade);
        assert_eq!(says(&[at("new", 5, 0), at("r", 5, 0)]), Standing::NotMade);
        // Others have written it, or have written over it.
        assert_eq!(says(&[at("other", 7, 0), at("r", 7, 0)]), replaced("state", 5, 7));
        assert_eq!(says(&[at("new", 7, 0), at("r", 8, 0)]), replaced("state", 5, 7));
        assert_eq!(says(&[absent(), at("r", 7, 0)]), replaced("state", 5, 0));
    }

    #[test]
    fn a_claim_is_this_routers_by_its_lease_and_a_deletion_by_nothing_left() {
        let claim = [Write { lease: 3, ..Write::put("claim", "kindred-router") }];
        let says = |found| standing(&[expect("claim", 0)], &claim, &[found], 9);
        assert_eq!(says(at("kindred-router", 7, 3)), Standing::Made(7));
        assert_eq!(says(at("kindred-router", 7, 4)), replaced("claim", 0, 7));
        assert_eq!(says(absent()), Standing::NotMade);
        let gone = [Write { value: None, ..Write::put("claim", "") }];
        assert_eq!(standing(&[], &gone, &[absent()], 9), Standing::Made(9));
        assert_eq!(standing(&[], &gone, &[at("x", 7, 4)], 9), Standing::NotMade);
    }
}
