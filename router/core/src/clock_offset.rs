//! Determines the reference time of a cluster from several clocks of which some are wrong (R3).
//!
//! The *reference* is the median of the shards' clocks and the router's own. As long as most clocks are right it lies
//! among the right ones, whatever the others show, the router's own included. With an even number of clocks, the router
//! takes the one of the middle two that is nearer to its own. So with one shard it trusts itself, and of two equal
//! camps it trusts its own.

/// The largest offset from the reference, in microseconds, at which a shard is routed to (R3).
pub const MAX_OFFSET_MICROS: u64 = 10_000_000;

/// The reference time. All clocks are in microseconds since the Unix epoch, read at the same moment.
#[must_use]
pub fn reference(own: u64, stores: &[u64]) -> u64 {
    let mut clocks: Vec<u64> = stores.iter().copied().chain([own]).collect();
    clocks.sort_unstable();
    let (low, high) = (clocks[(clocks.len() - 1) / 2], clocks[clocks.len() / 2]);
    if own.abs_diff(low) <= own.abs_diff(high) { low } else { high }
}

/// The offset of a clock from the reference in microseconds; positive if the clock is ahead.
#[must_use]
pub fn offset(clock: u64, reference: u64) -> i64 {
    let apart = i64::try_from(clock.abs_diff(reference)).unwrap_or(i64::MAX);
    if clock >= reference { apart } else { -apart }
}

/// Whether a clock with this offset is too far from the reference.
#[must_use]
pub fn is_skewed(offset_micros: i64) -> bool {
    offset_micros.unsigned_abs() > MAX_OFFSET_MICROS
}

/// Slack for a raise: time passes meanwhile, and the target's clock runs ahead under a burst.
const RAISE_MARGIN_MICROS: i64 = 1_000_000;

/// Whether a store whose clock has `offset_micros` may be unable to reach a revision of one that has `to_micros`: a
/// shard refuses raises by more than the maximum offset.
#[must_use]
pub fn is_too_far_behind(offset_micros: i64, to_micros: i64) -> bool {
    let allowed = i64::try_from(MAX_OFFSET_MICROS).unwrap_or(i64::MAX) - RAISE_MARGIN_MICROS;
    to_micros.saturating_sub(offset_micros) > allowed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn f21_some_seconds_behind_can_be_made_up_for_and_more_cannot() {
        for (target, source, too_far) in [
            (-3_000_000, 0, false),
            (-8_900_000, 0, false),
            (-9_100_000, 0, true),
            (-8_000_000, 8_000_000, true),
            (8_000_000, -8_000_000, false),
            (i64::MIN, i64::MAX, true),
        ] {
            assert_eq!(is_too_far_behind(target, source), too_far, "{target} {source}");
        }
    }

    const HOUR: u64 = 3_600_000_000;
    const T: u64 = 1_767_225_600_000_000;

    #[test]
    fn r3_the_reference_is_the_median_and_the_routers_own_in_doubt() {
        for (own, stores, expected) in [
            (T, vec![], T),
            (T, vec![T + HOUR], T),
            (T, vec![T - HOUR], T),
            (T, vec![T + HOUR, T + 3], T + 3),
            (T, vec![T + HOUR, T + HOUR, T + 5], T + 5),
            (T + 5, vec![T + HOUR, T + HOUR, T], T + 5),
            // The router's own clock is the wrong one.
            (T + HOUR, vec![T, T + 1], T + 1),
            (T + HOUR, vec![T, T + 1, T + 2], T + 2),
            (0, vec![T, T + 1, T + 2, T + 3], T + 1),
        ] {
            assert_eq!(reference(own, &stores), expected, "{own} {stores:?}");
        }
        assert_eq!((offset(T + 7, T), offset(T, T + 7)), (7, -7));
        assert_eq!(offset(u64::MAX, 0), i64::MAX);
        assert!(is_skewed(-10_000_001) && !is_skewed(10_000_000) && is_skewed(i64::MIN));
    }

    proptest! {
        #[test]
        fn r3_while_most_clocks_are_right_the_reference_is_and_only_wrong_ones_are_left_out(
            right in prop::collection::vec(0u64..2_000_000, 1..8),
            wrong in prop::collection::vec(any::<u64>(), 0..7),
            own_is_wrong in any::<bool>(),
        ) {
            let wrong = &wrong[..wrong.len().min(right.len() - 1)];
            let right: Vec<u64> = right.iter().map(|late| T + late).collect();
            let own = match wrong.first() {
                Some(wrong) if own_is_wrong => *wrong,
                _ => right[0],
            };
            let mut stores: Vec<u64> = right.iter().chain(wrong).copied().collect();
            let at = stores.iter().position(|clock| *clock == own).expect("one of them");
            stores.remove(at);
            let reference = reference(own, &stores);
            let (first, last) = (right.iter().min().expect("some"), right.iter().max().expect("some"));
            prop_assert!((*first..=*last).contains(&reference), "{reference} outside {first}..={last}");
            for clock in &right {
                prop_assert!(!is_skewed(offset(*clock, reference)));
            }
            for clock in wrong.iter().filter(|clock| clock.abs_diff(T) > MAX_OFFSET_MICROS + 2_000_000) {
                prop_assert!(is_skewed(offset(*clock, reference)));
            }
        }
    }
}
