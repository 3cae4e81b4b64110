//! Compares the messages of batches with prost's.

use kindred_proto::shard_v1 as pb;
use kindred_wire::batch::{
    Answer, BatchOp, Refusal, put_answer, put_cancel, put_last, read_request, read_response,
};
use proptest::prelude::*;
use prost::Message;

prop_compose! {
    fn op()(id in 1..u64::MAX, method in 0..8i32, min_revision in prop_oneof![Just(0), any::<i64>()],
            generation in prop_oneof![Just(0), any::<u64>()], timeout_micros in 0..3u64,
            pin in prop_oneof![Just(0), any::<u64>()], request in prop::collection::vec(any::<u8>(), 0..300)) -> pb::BatchOp {
        pb::BatchOp { id, method, min_revision, generation, timeout_micros, request: request.into(), pin }
    }
}

fn by_hand(op: &pb::BatchOp) -> BatchOp<'_> {
    BatchOp {
        id: op.id,
        method: op.method,
        min_revision: op.min_revision,
        generation: op.generation,
        timeout_micros: op.timeout_micros,
        request: &op.request,
        pin: op.pin,
    }
}

prop_compose! {
    fn refusal()(code in 1..17i32, message in "[a-z \"é]{0,40}", details in prop::collection::vec(any::<u8>(), 0..9),
                 metadata in prop::collection::vec(("[a-z]{1,9}", prop::collection::vec(any::<u8>(), 0..200)), 0..3))
        -> pb::BatchRefusal {
        let metadata = metadata.into_iter().map(|(name, value)| pb::BatchMetadata { name, value: value.into() });
        pb::BatchRefusal { code, message, details: details.into(), metadata: metadata.collect() }
    }
}

prop_compose! {
    fn answer()(id in 1..u64::MAX, response in prop::collection::vec(any::<u8>(), 0..300),
                refused in prop::option::of(refusal())) -> pb::BatchAnswer {
        let response = if refused.is_some() { Vec::new() } else { response };
        pb::BatchAnswer { id, response: response.into(), refused }
    }
}

proptest! {
    #[test]
    fn requests_are_what_prost_writes_and_reads(
        ops in prop::collection::vec(op(), 0..5),
        cancelled in prop::collection::vec(any::<u64>(), 0..4),
    ) {
        let mut written = Vec::new();
        for op in &ops {
            let before = written.len();
            by_hand(op).put(&mut written);
            prop_assert_eq!(written.len() - before, by_hand(op).field_len());
        }
        cancelled.iter().for_each(|id| put_cancel(&mut written, *id));
        let message = pb::BatchRequest { ops, cancelled };
        prop_assert_eq!(&pb::BatchRequest::decode(written.as_slice()).unwrap(), &message);
        for bytes in [written, message.encode_to_vec()] {
            let (mut read, mut gone) = (Vec::new(), Vec::new());
            read_request(&bytes, |op| read.push(op), |id| gone.push(id)).unwrap();
            prop_assert_eq!(read, message.ops.iter().map(by_hand).collect::<Vec<_>>());
            prop_assert_eq!(&gone, &message.cancelled);
        }
    }

    #[test]
    fn responses_are_what_prost_writes_and_reads(
        answers in prop::collection::vec(answer(), 0..5),
        last in prop::option::of(any::<u64>()),
    ) {
        let mut written = Vec::new();
        let mut expected = Vec::new();
        for pb::BatchAnswer { id, response, refused } in &answers {
            match refused {
                None => {
                    put_answer(&mut written, *id, |out| out.extend_from_slice(response));
                    expected.push(Answer::Response(*id, response));
                }
                Some(refused) => {
                    let metadata = refused.metadata.iter().map(|entry| (entry.name.as_bytes(), entry.value.as_ref()));
                    let refusal = Refusal {
                        code: refused.code,
                        message: refused.message.as_bytes(),
                        details: &refused.details,
                        metadata: metadata.collect(),
                    };
                    refusal.put(&mut written, *id);
                    expected.push(Answer::Refused(*id, refusal));
                }
            }
        }
        last.iter().for_each(|last| put_last(&mut written, *last));
        expected.extend(last.map(Answer::Last));
        let message = pb::BatchResponse { answers: answers.clone(), last };
        prop_assert_eq!(&pb::BatchResponse::decode(written.as_slice()).unwrap(), &message);
        for bytes in [written, message.encode_to_vec()] {
            let mut read = Vec::new();
            read_response(&bytes, |answer| read.push(answer)).unwrap();
            prop_assert_eq!(&read, &expected);
        }
    }

    #[test]
    fn what_prost_refuses_to_read_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if pb::BatchRequest::decode(bytes.as_slice()).is_err() {
            let refused = read_request(&bytes, |_| (), |_| ()).is_err();
            prop_assert!(refused);
        }
        // A text that is not UTF-8 must not fail.
        let _ = read_response(&bytes, |_| {});
    }
}
