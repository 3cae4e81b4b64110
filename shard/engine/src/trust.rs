//! Decides which readings of the wall clock a shard follows (R3).
//!
//! A shard alone trusts its own clock. A shard in a cluster assigns and promises nothing until its clock agrees with a
//! *reference* from a handshake: the median of the clocks of shards and routers. From then on its present stays within
//! the maximum offset of the last agreed reference, advanced by the monotonic clock. A wall clock that steps away is
//! not followed, so no wrong time becomes a revision. It is followed again when it is back, or when the reference has
//! moved there as well.

use crate::types::{MonoMillis, WallMicros};

/// The trust in one shard's wall clock.
#[derive(Debug, Clone)]
pub struct ClockTrust(Trust);

#[derive(Debug, Clone)]
enum Trust {
    Alone,
    InCluster { max_offset_micros: u64, agreed: Option<(MonoMillis, WallMicros)> },
}

impl ClockTrust {
    /// Follows every reading, for a shard alone.
    #[must_use]
    pub fn alone() -> Self {
        Self(Trust::Alone)
    }

    /// Follows readings within this offset of the reference, and none before the first agreement.
    #[must_use]
    pub fn in_cluster(max_offset_micros: u64) -> Self {
        Self(Trust::InCluster { max_offset_micros, agreed: None })
    }

    /// Takes a handshake's reference. Returns whether the wall clock agrees with it; if not, the last agreement stands,
    /// so a router with a wrong clock does no harm.
    pub fn confirm(&mut self, mono: MonoMillis, wall: WallMicros, reference: WallMicros) -> bool {
        match &mut self.0 {
            Trust::Alone => true,
            Trust::InCluster { max_offset_micros, agreed } => {
                let agrees = wall.0.abs_diff(reference.0) <= *max_offset_micros;
                if agrees {
                    *agreed = Some((mono, reference));
                }
                agrees
            }
        }
    }

    /// Whether revisions may be assigned: there was an agreement, or none is needed.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        !matches!(self.0, Trust::InCluster { agreed: None, .. })
    }

    /// The present according to these readings; `None` before the first agreement.
    #[must_use]
    pub fn now(&self, mono: MonoMillis, wall: WallMicros) -> Option<WallMicros> {
        match &self.0 {
            Trust::Alone => Some(wall),
            Trust::InCluster { agreed: None, .. } => None,
            Trust::InCluster { max_offset_micros, agreed: Some((at, reference)) } => {
                let passed = mono.0.saturating_sub(at.0).saturating_mul(1000);
                let expected = WallMicros(reference.0.saturating_add(passed));
                let follows = wall.0.abs_diff(expected.0) <= *max_offset_micros;
                Some(if follows { wall } else { expected })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OFFSET: u64 = 10_000_000;
    const HOUR: u64 = 3_600_000_000;
    const T0: u64 = 1_767_225_600_000_000;

    #[test]
    fn r3_nothing_before_a_handshake_agrees() {
        let mut trust = ClockTrust::in_cluster(OFFSET);
        let (mono, wall) = (MonoMillis(5), WallMicros(T0 + HOUR));
        assert_eq!(trust.now(mono, wall), None);
        assert!(!trust.confirm(mono, wall, WallMicros(T0)));
        assert!(!trust.is_confirmed() && trust.now(mono, wall).is_none());
        assert!(trust.confirm(mono, WallMicros(T0 + OFFSET), WallMicros(T0)));
        assert_eq!(trust.now(mono, WallMicros(T0 + OFFSET)), Some(WallMicros(T0 + OFFSET)));
        assert_eq!(ClockTrust::alone().now(mono, wall), Some(wall));
    }

    #[test]
    fn r3_a_clock_that_steps_away_is_not_followed_until_it_or_the_cluster_comes_along() {
        let mut trust = ClockTrust::in_cluster(OFFSET);
        trust.confirm(MonoMillis(0), WallMicros(T0), WallMicros(T0));
        let later = MonoMillis(2000);
        assert_eq!(trust.now(later, WallMicros(T0 + HOUR)), Some(WallMicros(T0 + 2_000_000)));
        assert_eq!(trust.now(later, WallMicros(T0 - HOUR)), Some(WallMicros(T0 + 2_000_000)));
        // The wall clock shows the right time again.
        assert_eq!(trust.now(later, WallMicros(T0 + 2_000_001)), Some(WallMicros(T0 + 2_000_001)));
        // A router that disagrees changes nothing; an hour's step of all clocks is followed.
        assert!(!trust.confirm(later, WallMicros(T0 + 2_000_000), WallMicros(T0 + HOUR)));
        assert_eq!(trust.now(later, WallMicros(T0 + 2_000_001)), Some(WallMicros(T0 + 2_000_001)));
        assert!(trust.confirm(later, WallMicros(T0 + HOUR), WallMicros(T0 + HOUR)));
        assert_eq!(trust.now(later, WallMicros(T0 + HOUR)), Some(WallMicros(T0 + HOUR)));
    }

    proptest! {
        #[test]
        fn r3_the_present_is_never_far_from_the_last_agreement(
            steps in prop::collection::vec((0u64..5_000, any::<i64>(), prop::option::of(-20_000_000i64..20_000_000)), 1..60),
        ) {
            let mut trust = ClockTrust::in_cluster(OFFSET);
            let (mut mono, mut agreed) = (0, None);
            for (passed, skew, handshake) in steps {
                mono += passed;
                let truth = T0 + mono * 1000;
                // Skews from microseconds to ages, in both directions.
                let wall = WallMicros(truth.saturating_add_signed(skew >> (skew & 63)));
                if let Some(error) = handshake {
                    let reference = WallMicros(truth.saturating_add_signed(error));
                    let near = wall.0.abs_diff(reference.0) <= OFFSET;
                    prop_assert_eq!(trust.confirm(MonoMillis(mono), wall, reference), near);
                    agreed = if near { Some((mono, reference.0)) } else { agreed };
                }
                let now = trust.now(MonoMillis(mono), wall);
                prop_assert_eq!(now.is_some(), agreed.is_some());
                if let (Some(now), Some((at, reference))) = (now, agreed) {
                    prop_assert!(now.0.abs_diff(reference + (mono - at) * 1000) <= OFFSET);
                }
            }
        }
    }
}
