use super::*;

const LIMIT: BatchLimit = BatchLimit { ops: 3, bytes: 10 };

fn take(outbox: &mut Outbox<&'static str, char>) -> Option<(Vec<OpId>, Vec<OpId>)> {
    let batch = outbox.take(LIMIT, |op| op.len())?;
    Some((batch.ops.iter().map(|(id, _)| *id).collect(), batch.cancelled))
}

fn with(ops: &[(&'static str, char)]) -> Outbox<&'static str, char> {
    let mut outbox = Outbox::default();
    for (op, waiter) in ops {
        outbox.push(*op, *waiter);
    }
    outbox
}

#[test]
fn what_waits_leaves_together_in_its_order_within_the_limits() {
    let mut outbox = with(&[("a", 'a'), ("b", 'b'), ("c", 'c'), ("d", 'd')]);
    assert_eq!(take(&mut outbox), Some((vec![1, 2, 3], vec![])), "not more operations than the limit");
    outbox.push("123456789", 'e');
    outbox.push("f", 'f');
    assert_eq!(take(&mut outbox), Some((vec![4, 5], vec![])), "not more bytes");
    outbox.push("longer than any message", 'g');
    assert_eq!(
        take(&mut outbox),
        Some((vec![6], vec![])),
        "a large one does not hold up the small ones before it"
    );
    assert_eq!(take(&mut outbox), Some((vec![7], vec![])), "it goes alone");
    assert_eq!(take(&mut outbox), None);
    assert!(!outbox.has_news());
}

#[test]
fn answers_find_who_waits_in_any_order_and_once() {
    let mut outbox = with(&[("a", 'a'), ("b", 'b'), ("c", 'c')]);
    assert_eq!(outbox.answered(1), None, "it was not sent");
    take(&mut outbox);
    assert_eq!([3, 1, 3, 2, 9].map(|id| outbox.answered(id)), [Some('c'), Some('a'), None, Some('b'), None]);
}

#[test]
fn a_cancelled_operation_is_not_sent_or_the_store_is_told_and_nobody_else_notices() {
    let mut outbox = with(&[("a", 'a'), ("b", 'b'), ("c", 'c')]);
    assert!(!outbox.cancel(2), "it is still here");
    assert_eq!(take(&mut outbox), Some((vec![1, 3], vec![])));
    assert!(outbox.cancel(1));
    assert!(!outbox.cancel(1) && !outbox.cancel(2) && !outbox.cancel(99));
    assert!(outbox.has_news());
    outbox.push("d", 'd');
    assert_eq!(take(&mut outbox), Some((vec![4], vec![1])));
    assert_eq!((outbox.answered(1), outbox.answered(3)), (None, Some('c')));
    assert_eq!(take(&mut outbox), None, "it is told once");
}

#[test]
fn when_the_stream_ends_what_left_is_told_from_what_did_not() {
    let mut outbox = with(&[("a", 'a'), ("b", 'b'), ("c", 'c'), ("d", 'd'), ("e", 'e')]);
    take(&mut outbox);
    outbox.answered(2);
    assert_eq!(outbox.unanswered(2, OpId::MAX), ['c'], "behind the last that was read");
    assert_eq!(outbox.unanswered(0, 2), ['a'], "read, and lost");
    assert_eq!(outbox.unanswered(0, OpId::MAX), []);
    assert_eq!(outbox.unsent(), ['d', 'e']);
    assert!(!outbox.has_news());
    assert_eq!(outbox.push("f", 'f'), 6, "a late answer to another stream's operation is nobody's");
}

#[test]
fn no_ids_are_nobodys() {
    let mut outbox = with(&[("a", 'a')]);
    take(&mut outbox);
    assert_eq!(outbox.unanswered(7, 3), []);
    assert_eq!(outbox.unanswered(1, OpId::MAX), []);
    outbox.cancel(1);
    outbox.forget_cancelled();
    assert!(!outbox.has_news());
}
