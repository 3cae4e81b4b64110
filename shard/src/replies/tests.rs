use std::task::Waker;

use futures_util::FutureExt as _;
use kindred_partition_config::ids::Revision;
use kindred_transport::metrics::calls;
use kindred_wire::batch::{Answer, read_response};

use super::*;

const IDS: ServerIds = ServerIds { cluster_id: 1, member_id: 2, raft_term: 3 };

fn reply(replies: &Arc<Replies>, id: u64) -> Reply {
    Reply::new(replies, id, 10, None, calls::of("/etcdserverpb.KV/Put"))
}

/// Operations from 1 to `last`.
fn replies_to(last: usize) -> (Arc<Replies>, Answers, Vec<Reply>) {
    let replies = Arc::new(Replies::default());
    replies.begun(last, 10 * last);
    let given = (1..=last as u64).map(|id| reply(&replies, id)).collect();
    (replies.clone(), Answers::new(replies, IDS), given)
}

fn put(revision: i64) -> Result<OpAnswer, KvError> {
    Ok(OpAnswer::Put { header: Revision(revision), prev: None })
}

#[derive(Debug, PartialEq)]
enum Next {
    /// The content of one message: operations with their status codes, and the last operation read.
    Said(Vec<(u64, i32)>, Option<u64>),
    Nothing,
    End(Option<Code>),
}

fn next(answers: &mut Answers) -> Next {
    let polled = Pin::new(answers).poll_next(&mut Context::from_waker(Waker::noop()));
    match polled {
        Poll::Pending => Next::Nothing,
        Poll::Ready(None) => Next::End(None),
        Poll::Ready(Some(Err(status))) => Next::End(Some(status.code())),
        Poll::Ready(Some(Ok(message))) => {
            let (mut said, mut read_up_to) = (Vec::new(), None);
            read_response(&message, |answer| match answer {
                Answer::Response(id, _) => said.push((id, 0)),
                Answer::Refused(id, refusal) => said.push((id, refusal.code)),
                Answer::Last(last) => read_up_to = Some(last),
            })
            .unwrap();
            Next::Said(said, read_up_to)
        }
    }
}

#[test]
fn what_is_ready_is_one_message_in_the_order_in_which_it_became_so() {
    let (_, mut answers, replies) = replies_to(4);
    assert_eq!(next(&mut answers), Next::Nothing);
    let [one, two, three, four] = <[Reply; 4]>::try_from(replies).ok().unwrap();
    three.send(put(7));
    one.send(Err(KvError::NoSpace));
    assert_eq!(next(&mut answers), Next::Said(vec![(3, 0), (1, Code::ResourceExhausted as i32)], None));
    assert_eq!(next(&mut answers), Next::Nothing, "an answer that takes long holds up none");
    four.send(put(8));
    drop(two);
    let stopped = Code::Unavailable as i32;
    assert_eq!(
        next(&mut answers),
        Next::Said(vec![(4, 0), (2, stopped)], None),
        "who is dropped has answered"
    );
}

#[test]
fn a_refusal_is_carried_whole() {
    let (_, mut answers, mut replies) = replies_to(1);
    let mut status = Status::with_details(Code::Aborted, "why \"not\"", Bytes::from_static(b"details"));
    status.metadata_mut().insert("kindred-not-owned", "17".parse().unwrap());
    replies.remove(0).refuse(status);
    let Poll::Ready(Some(Ok(message))) =
        Pin::new(&mut answers).poll_next(&mut Context::from_waker(Waker::noop()))
    else {
        panic!("an answer is ready")
    };
    let expected = Refusal {
        code: Code::Aborted as i32,
        message: b"why \"not\"",
        details: b"details",
        metadata: vec![(b"kindred-not-owned", b"17")],
    };
    read_response(&message, |answer| assert_eq!(answer, Answer::Refused(1, expected.clone()))).unwrap();
}

#[test]
fn a_stream_that_stops_says_what_it_read_and_ends_when_that_is_answered() {
    let (all, mut answers, mut replies) = replies_to(2);
    replies.pop().unwrap().send(put(7));
    all.end(Some(2), Err(Status::unavailable("stopping")));
    assert_eq!(next(&mut answers), Next::Said(vec![(2, 0)], Some(2)));
    assert_eq!(next(&mut answers), Next::Nothing);
    replies.pop().unwrap().send(put(8));
    assert_eq!(next(&mut answers), Next::Said(vec![(1, 0)], None));
    assert_eq!(next(&mut answers), Next::End(Some(Code::Unavailable)));
    let (all, mut answers, _) = replies_to(0);
    all.end(Some(0), Ok(()));
    assert_eq!(next(&mut answers), Next::Said(vec![], Some(0)), "nothing was read");
    assert_eq!(next(&mut answers), Next::End(None));
}

#[test]
fn large_answers_are_cut_into_messages() {
    let (_, mut answers, replies) = replies_to(3);
    let long = "x".repeat(MESSAGE_BYTES);
    replies.into_iter().for_each(|reply| reply.refuse(Status::internal(long.clone())));
    for id in 1..=3 {
        assert_eq!(next(&mut answers), Next::Said(vec![(id, Code::Internal as i32)], None));
    }
    assert_eq!(next(&mut answers), Next::Nothing);
}

#[tokio::test]
async fn an_operation_is_not_wanted_once_it_is_cancelled_or_late() {
    let (all, mut answers, mut replies) = replies_to(3);
    let now = Instant::now();
    all.cancel(2);
    assert_eq!(replies.iter().map(|reply| reply.is_wanted(now)).collect::<Vec<_>>(), [true, false, true]);
    replies[0].until = Some(now);
    assert!(!replies[0].is_wanted(now) && replies[2].is_wanted(now));
    drop(replies.remove(1));
    assert!(!all.unwanted.load(Ordering::Acquire), "a cancellation is forgotten with its operation");
    assert_ne!(next(&mut answers), Next::Nothing);
    drop(answers);
    assert!(!replies[1].is_wanted(now), "the router is gone");
    assert_eq!(all.room().now_or_never(), Some(false));
    drop(replies);
    assert_eq!(all.state().open_ops, 0);
}

#[tokio::test]
async fn no_more_is_read_than_there_is_room_for_answers() {
    let (all, mut answers, replies) = replies_to(OPS_MAX);
    let waiting = all.room();
    tokio::pin!(waiting);
    assert_eq!(waiting.as_mut().now_or_never(), None);
    replies.into_iter().for_each(|reply| reply.send(put(7)));
    assert_eq!(waiting.as_mut().now_or_never(), None, "the connection has not taken them");
    assert_ne!(next(&mut answers), Next::Nothing);
    assert_eq!(waiting.as_mut().now_or_never(), Some(true));
    all.begun(1, BYTES_MAX);
    let waiting = all.room();
    tokio::pin!(waiting);
    assert_eq!(waiting.as_mut().now_or_never(), None);
    Reply::new(&all, 9999, BYTES_MAX, None, None).send(put(8));
    assert_eq!(waiting.as_mut().now_or_never(), Some(true), "bytes are given back with the answer");
}
