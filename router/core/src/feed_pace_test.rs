//! When readers are woken, for news at chosen and at random times.

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Runs a pace over news that come at these times after each other; returns when readers were woken.
fn wakes(readers: usize, gaps: &[Duration], bytes: impl Fn(usize) -> usize) -> Vec<Duration> {
    let origin = Instant::now();
    let (mut pace, mut now, mut woken) = (Pace::default(), origin, Vec::new());
    for (at, gap) in gaps.iter().enumerate() {
        let next = now + *gap;
        if let Some(due) = pace.due().filter(|due| *due <= next) {
            assert!(pace.take_due(due) && pace.due().is_none());
            woken.push(due - origin);
        }
        now = next;
        if pace.news(now, readers, bytes(at)) {
            woken.push(now - origin);
        }
    }
    if let Some(due) = pace.due() {
        assert!(!pace.take_due(due.checked_sub(Duration::from_nanos(1)).expect("after the origin")));
        assert!(pace.take_due(due));
        woken.push(due - origin);
    }
    woken
}

#[test]
fn few_readers_and_rare_news_are_never_put_off() {
    let often = vec![MS / 10; 1_000];
    assert_eq!(wakes(3, &often, |_| 100).len(), 1_000);
    let rare = vec![REST_MAX; 100];
    assert_eq!(wakes(1_000, &rare, |_| 100).len(), 100);
    assert_eq!(wakes(1_000, &[Duration::ZERO; BURST as usize], |_| 100), [Duration::ZERO; BURST as usize]);
}

#[test]
fn many_readers_are_woken_at_even_times_when_news_are_frequent() {
    let often = vec![MS / 2; 2_000];
    let woken = wakes(50, &often, |_| 100);
    let expected = 1_000 / REST_MAX.as_millis() as usize + BURST as usize;
    assert!((expected - 2..=expected + 2).contains(&woken.len()), "{}", woken.len());
}

#[test]
fn a_full_message_is_not_put_off() {
    let often = vec![MS / 10; 100];
    assert_eq!(wakes(50, &often, |_| BYTES_MAX).len(), 100);
    assert_eq!(wakes(50, &often, |_| BYTES_MAX / 2).len(), 50 + BURST as usize / 2);
}

proptest! {
    /// Whatever comes when, nobody waits longer than the longest rest, and wakes are no more than the schedule has.
    #[test]
    fn no_news_wait_longer_than_a_rest(
        readers in 0..100_usize,
        gaps in proptest::collection::vec((0..20_000_u64, 0..2 * BYTES_MAX), 1..200),
        are_small in any::<bool>(),
    ) {
        let (gaps, bytes): (Vec<_>, Vec<_>) = gaps.into_iter().unzip();
        let gaps: Vec<_> = gaps.into_iter().map(Duration::from_micros).collect();
        let woken = wakes(readers, &gaps, |at| if are_small { 10 } else { bytes[at] });
        let mut at = Duration::ZERO;
        for gap in &gaps {
            at += *gap;
            prop_assert!(woken.iter().any(|woken| *woken >= at && *woken <= at + REST_MAX), "news at {at:?}");
        }
        let rest = rest(readers);
        if !rest.is_zero() && are_small {
            let most = at.as_micros() / rest.as_micros() + 2 + u128::from(BURST);
            prop_assert!(woken.len() as u128 <= most, "{} wakes in {at:?}", woken.len());
        }
    }
}
