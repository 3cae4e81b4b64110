//! Decides which requests to one store are small: their answers are short and ready at once, so they may go in batches.
//! Any request that may read many keys gets a call of its own.

use std::ops::ControlFlow;

use kindred_wire::peek::{self, DeleteRangeRequest, RangeRequest, TxnPart};

use crate::parsed::{Call, Form, Parsed};

/// The longest small request in bytes; a longer one would delay those behind it.
pub const BYTES_MAX: usize = 64 << 10;

/// Whether a request is small. One that does not parse is not; its own call refuses it.
#[must_use]
pub fn is_small(request: &Parsed<'_>) -> bool {
    if request.bytes.len() > BYTES_MAX || request.call == Call::RangeStream {
        return false;
    }
    match &request.form {
        // It names one key.
        Form::Put(_) | Form::Optimistic(_) => true,
        Form::Range(range) => reads_little(range),
        Form::Delete(delete) => gives_little(delete),
        Form::Txn => {
            let large = peek::visit_txn(request.bytes, &mut |part: TxnPart<'_>| {
                let small = match &part {
                    TxnPart::Range(range) => reads_little(range),
                    TxnPart::DeleteRange(delete) => gives_little(delete),
                    TxnPart::Compare(_) | TxnPart::Put(_) | TxnPart::Empty => true,
                };
                if small { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            large.is_ok_and(|large| large.is_continue())
        }
        Form::Malformed(_) => false,
    }
}

/// Whether it reads one key, the first of a range, or a count.
fn reads_little(range: &RangeRequest<'_>) -> bool {
    let filtered = [
        range.min_mod_revision,
        range.max_mod_revision,
        range.min_create_revision,
        range.max_create_revision,
    ];
    let natural = range.sort_order == 0 && range.sort_target == 0 && filtered == [0; 4];
    range.range_end.is_empty() || (natural && (range.count_only || range.limit == 1))
}

/// Whether it returns few keys.
fn gives_little(delete: &DeleteRangeRequest<'_>) -> bool {
    delete.range_end.is_empty() || !delete.prev_kv
}

#[cfg(test)]
mod tests {
    use kindred_proto::etcdserverpb as pb;
    use pb::request_op::Request;
    use prost::Message;

    use super::*;

    fn of(call: Call, request: &[u8]) -> bool {
        is_small(&Parsed::new(call, request))
    }

    fn range(change: impl FnOnce(&mut pb::RangeRequest)) -> pb::RangeRequest {
        let mut range = pb::RangeRequest { key: "a".into(), range_end: "b".into(), ..Default::default() };
        change(&mut range);
        range
    }

    fn txn(success: Request, failure: Request) -> Vec<u8> {
        let op = |request| vec![pb::RequestOp { request: Some(request) }];
        pb::TxnRequest { compare: vec![], success: op(success), failure: op(failure) }.encode_to_vec()
    }

    #[test]
    fn reads_of_one_key_probes_and_counts_are_small() {
        let small = |range: pb::RangeRequest| of(Call::Range, &range.encode_to_vec());
        assert!(small(range(|range| range.range_end.clear())));
        assert!(small(range(|range| range.limit = 1)));
        assert!(small(range(|range| range.count_only = true)));
        assert!(!small(range(|_| ())));
        assert!(!small(range(|range| range.limit = 2)));
        assert!(
            !small(range(|range| (range.limit, range.sort_order) = (1, 2))),
            "it reads all to find the last"
        );
        assert!(!small(range(|range| (range.limit, range.min_mod_revision) = (1, 9))), "it may look at many");
        assert!(!of(Call::RangeStream, &range(|range| range.limit = 1).encode_to_vec()));
        assert!(!of(Call::Range, b"\xff"));
    }

    #[test]
    fn writes_are_small_unless_they_are_long_or_give_many_keys_back() {
        let put =
            |bytes| pb::PutRequest { key: "a".into(), value: vec![0; bytes].into(), ..Default::default() };
        assert!(of(Call::Put, &put(BYTES_MAX - 20).encode_to_vec()));
        assert!(!of(Call::Put, &put(BYTES_MAX).encode_to_vec()));
        let delete = |range_end: &'static str, prev_kv| pb::DeleteRangeRequest {
            key: "a".into(),
            range_end: range_end.into(),
            prev_kv,
        };
        assert!(of(Call::DeleteRange, &delete("", true).encode_to_vec()));
        assert!(of(Call::DeleteRange, &delete("b", false).encode_to_vec()));
        assert!(!of(Call::DeleteRange, &delete("b", true).encode_to_vec()));
    }

    #[test]
    fn a_txn_is_as_small_as_its_parts_on_both_branches() {
        let one = || Request::RequestRange(range(|range| range.range_end.clear()));
        let put = || Request::RequestPut(pb::PutRequest { key: "a".into(), ..Default::default() });
        assert!(of(Call::Txn, &txn(put(), one())));
        assert!(!of(Call::Txn, &txn(put(), Request::RequestRange(range(|_| ())))));
        let all = pb::DeleteRangeRequest { key: "a".into(), range_end: "b".into(), prev_kv: true };
        assert!(!of(Call::Txn, &txn(Request::RequestDeleteRange(all), one())));
    }
}
