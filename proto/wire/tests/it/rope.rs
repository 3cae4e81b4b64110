//! Compares messages in pieces and spliced answers with a single piece and a plain copy.

use bytes::{Buf as _, Bytes};
use kindred_proto::{etcdserverpb as pb, mvccpb};
use kindred_wire::peek;
use kindred_wire::rope::Rope;
use kindred_wire::scan::{Fields, WireError};
use kindred_wire::splice::Splice;
use proptest::prelude::*;
use prost::Message;

fn cut(whole: &Bytes, cuts: &[prop::sample::Index]) -> Rope {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
    at.extend([0, whole.len()]);
    at.sort_unstable();
    let mut rope = Rope::default();
    at.windows(2).for_each(|pair| rope.push(whole.slice(pair[0]..pair[1])));
    rope
}

fn bytes(most: usize) -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..most).prop_map(Bytes::from)
}

prop_compose! {
    fn key_value()(
        key in bytes(40),
        value in prop_oneof![4 => bytes(300), 1 => (3_000..9_000usize).prop_map(|len| vec![7; len].into())],
        numbers in any::<[i64; 4]>(),
    ) -> mvccpb::KeyValue {
        let [create_revision, mod_revision, version, lease] = numbers;
        mvccpb::KeyValue { key, value, create_revision, mod_revision, version, lease }
    }
}

prop_compose! {
    fn response()(
        kvs in prop::collection::vec(key_value(), 0..8),
        revision in any::<i64>(),
        count in any::<i64>(),
        more in any::<bool>(),
    ) -> pb::RangeResponse {
        let header = Some(pb::ResponseHeader { revision, member_id: u64::MAX, ..Default::default() });
        pb::RangeResponse { header, kvs, more, count }
    }
}

fn cuts() -> impl Strategy<Value = Vec<prop::sample::Index>> {
    prop::collection::vec(any::<prop::sample::Index>(), 0..12)
}

fn fields(message: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut fields = Fields::new(message);
    let mut found = Vec::new();
    let mut begins = 0;
    while let Some(field) = fields.next() {
        field.expect("a message");
        found.push(begins..fields.offset());
        begins = fields.offset();
    }
    found
}

proptest! {
    #[test]
    fn what_is_taken_off_and_what_is_left_are_the_whole(
        whole in bytes(200),
        at in cuts(),
        counts in prop::collection::vec(0..60_usize, 0..8),
    ) {
        let mut rope = cut(&whole, &at);
        let mut taken = Vec::new();
        for count in counts {
            let first = rope.split_to(count);
            prop_assert_eq!(first.len(), count.min(whole.len() - taken.len()));
            taken.extend_from_slice(&first.into_bytes());
            prop_assert_eq!(rope.len() + taken.len(), whole.len());
        }
        taken.extend_from_slice(&rope.into_bytes());
        prop_assert_eq!(taken, whole);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_of_whole_fields_are_the_same_message(response in response(), cuts in cuts()) {
        let whole = Bytes::from(response.encode_to_vec());
        let rope = cut(&whole, &cuts);
        prop_assert_eq!(rope.len(), whole.len());
        prop_assert_eq!(&rope.clone().into_bytes(), &whole);
        let fields_of = rope.into_whole_fields().unwrap();
        for piece in fields_of.pieces() {
            prop_assert!(!piece.is_empty());
            prop_assert!(Fields::new(piece).all(|field| field.is_ok()));
        }
        prop_assert_eq!(fields_of.into_bytes(), whole);
    }

    #[test]
    fn a_message_that_ends_too_early_is_told(response in response(), cuts in cuts(), at in any::<prop::sample::Index>()) {
        let whole = Bytes::from(response.encode_to_vec());
        let begun = whole.slice(..at.index(whole.len()));
        let is_whole = Fields::new(&begun).all(|field| field.is_ok());
        let rope = cut(&begun, &cuts);
        match rope.clone().into_whole_fields() {
            Ok(_) => prop_assert!(is_whole || !rope.is_in_pieces()),
            Err(error) => prop_assert!(!is_whole && error == WireError::Truncated),
        }
    }

    #[test]
    fn any_bytes_are_cut_into_fields_or_refused(bytes in bytes(60), cuts in cuts()) {
        let rope = cut(&bytes, &cuts);
        let is_message = Fields::new(&bytes).all(|field| field.is_ok());
        let in_pieces = rope.is_in_pieces();
        match rope.into_whole_fields() {
            Ok(whole) => {
                prop_assert!(is_message || !in_pieces);
                prop_assert_eq!(whole.into_bytes(), bytes);
            }
            Err(_) => prop_assert!(!is_message),
        }
    }

    #[test]
    fn a_rope_is_taken_as_its_bytes(whole in bytes(200), cuts in cuts(), steps in prop::collection::vec(1usize..50, 1..9)) {
        let mut rope = cut(&whole, &cuts);
        let mut taken = Vec::new();
        for turn in 0.. {
            let mut slices = [std::io::IoSlice::new(&[]); 20];
            let filled = rope.chunks_vectored(&mut slices);
            let left: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
            prop_assert_eq!(&left[..], &whole[taken.len()..]);
            prop_assert_eq!(rope.remaining(), left.len());
            prop_assert_eq!(rope.chunk().is_empty(), left.is_empty());
            if left.is_empty() {
                break;
            }
            let step = steps[turn % steps.len()].min(left.len());
            taken.extend_from_slice(&rope.copy_to_bytes(step));
        }
        prop_assert_eq!(&taken[..], &whole[..]);
    }

    #[test]
    fn a_tail_is_behind_all_and_overrides(response in response(), cuts in cuts(), revision in any::<i64>()) {
        let whole = Bytes::from(response.encode_to_vec());
        let mut rope = cut(&whole, &cuts);
        let mut tail = Vec::new();
        kindred_wire::patch::HeaderPatch::revision(revision).append_to(&mut tail);
        rope.append(&tail.into());
        let patched = pb::RangeResponse::decode(rope).unwrap();
        let mut expected = response;
        expected.header.as_mut().unwrap().revision = revision;
        prop_assert_eq!(patched, expected);
    }

    #[test]
    fn the_leading_header_has_the_revision(response in response(), end in any::<prop::sample::Index>()) {
        let whole = response.encode_to_vec();
        let revision = response.header.as_ref().unwrap().revision;
        prop_assert_eq!(peek::leading_revision(&whole), Some(revision));
        let header = fields(&whole)[0].clone();
        let begun = &whole[..end.index(whole.len() + 1)];
        prop_assert_eq!(peek::leading_revision(begun).is_some(), begun.len() >= header.end);
        prop_assert_eq!(peek::leading_revision(&whole[header.end..]), None);
    }

    #[test]
    fn a_transaction_says_at_its_beginning_whether_it_succeeded(
        succeeded: bool,
        revision in any::<i64>(),
        answers in 0usize..3,
    ) {
        let header = Some(pb::ResponseHeader { revision, ..Default::default() });
        let responses = vec![pb::ResponseOp::default(); answers];
        let whole = pb::TxnResponse { header, succeeded, responses }.encode_to_vec();
        prop_assert_eq!(peek::leading_succeeded(&whole), Some(succeeded));
        let header = fields(&whole)[0].clone();
        prop_assert_eq!(peek::leading_succeeded(&whole[..header.end - 1]), None);
        prop_assert_eq!(peek::leading_succeeded(&[]), None);
    }

    /// Fields of two pages in any order, some of them adjacent, mixed with written fields.
    #[test]
    fn a_splice_is_what_a_copy_would_be(
        pages in prop::collection::vec(response(), 2),
        order in prop::collection::vec((0..2usize, any::<prop::sample::Index>(), 1..6usize, bytes(20)), 0..12),
    ) {
        let pages: Vec<Bytes> = pages.iter().map(|page| page.encode_to_vec().into()).collect();
        let (mut splice, mut copy) = (Splice::default(), Vec::new());
        for (page, from, run, written) in order {
            let page = &pages[page];
            let fields = fields(page);
            let from = from.index(fields.len());
            for field in fields.into_iter().skip(from).take(run) {
                copy.extend_from_slice(&page[field.clone()]);
                splice.field(page, field);
            }
            splice.end().extend_from_slice(&written);
            copy.extend_from_slice(&written);
            prop_assert_eq!(splice.len(), copy.len());
        }
        let whole = splice.finish();
        prop_assert_eq!(whole.len(), copy.len());
        prop_assert_eq!(&whole.into_bytes()[..], &copy[..]);
    }
}

#[test]
fn a_long_run_is_not_copied() {
    let kvs = vec![mvccpb::KeyValue { value: vec![1; 1000].into(), ..Default::default() }; 100];
    let page = Bytes::from(pb::RangeResponse { kvs, ..Default::default() }.encode_to_vec());
    let mut splice = Splice::default();
    splice.end().extend_from_slice(b"begin");
    fields(&page).into_iter().for_each(|field| splice.field(&page, field));
    splice.end().extend_from_slice(b"end");
    let whole = splice.finish();
    let pieces: Vec<_> = whole.pieces().collect();
    assert_eq!(pieces.iter().map(|piece| piece.len()).collect::<Vec<_>>(), [5, page.len(), 3]);
    assert_eq!(pieces[1].as_ptr(), page.as_ptr());
}
