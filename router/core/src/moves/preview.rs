//! Predicts the cost of a move from what the stores say of its units and of themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use kindred_partition_config::kind::KindPrefix;
use kindred_partition_config::map::StoreIdx;

/// The size of a unit at its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitSize {
    /// Live keys.
    pub keys: u64,
    /// Approximate bytes of keys and values with their history, as they are sent.
    pub bytes: u64,
}

/// What is known of a leg before it moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegSize {
    /// The new owner.
    pub to: StoreIdx,
    /// The sum over its units.
    pub size: UnitSize,
    /// Bytes per second that clients write into its units.
    pub written_per_second: u64,
    /// The slowest round trip to either store.
    pub round_trip: Duration,
    /// How long the disks of both stores delay one switch.
    pub syncs: Duration,
    /// The limits of the new owner that it counts against; empty if there are none.
    pub limits: Vec<Limit>,
}

/// A limit of a store, and how much of it a leg needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The Kind whose quota it is; `None` for the store's own.
    pub of: Option<KindPrefix>,
    /// Bytes that the leg's units will occupy.
    pub takes: u64,
    /// Bytes that are left.
    pub room: u64,
}

/// A limit that would be exceeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The store with the limit.
    pub to: StoreIdx,
    /// See [`Limit::of`].
    pub of: Option<KindPrefix>,
    /// Bytes that all legs to the store will occupy.
    pub takes: u64,
    /// Bytes that are left.
    pub room: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    pub keys: u64,
    /// Bytes that move, history included.
    pub bytes: u64,
    /// Bytes per second that clients write into what moves.
    pub written_per_second: u64,
    /// Time to copy and catch up; `None` if more is written than the rate allows, so that it would never end.
    pub duration: Option<Duration>,
    /// The longest time that a write waits: that of one switch, because legs are switched one after another.
    pub pause: Duration,
}

/// The rate of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRate {
    /// Never 0.
    pub bytes_per_second: u64,
    pub from: RateFrom,
}

/// The source of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateFrom {
    /// It is the configured limit.
    Limit,
    /// It was measured in the last copy.
    Measured,
    /// Nothing was copied yet, so it is a constant.
    Assumed,
}

impl RateFrom {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Measured => "measured",
            Self::Assumed => "assumed",
        }
    }
}

/// The rate assumed before any copy was made: approximately the one measured for keys of 1 KiB between two processes of
/// one machine.
const ASSUMED: u64 = 64 << 20;

impl CopyRate {
    /// The rate to expect of the next copy. 0 means no limit, or nothing measured.
    #[must_use]
    pub fn expected(limit: u64, measured: u64) -> Self {
        let known = [(limit, RateFrom::Limit), (measured, RateFrom::Measured)];
        let (bytes_per_second, from) =
            known.into_iter().find(|(rate, _)| *rate > 0).unwrap_or((ASSUMED, RateFrom::Assumed));
        Self { bytes_per_second, from }
    }
}

/// Rounds of calls between the first freeze and the opening of the target: freeze, import, seal, decide, open.
pub const ROUNDS_OF_A_SWITCH: u32 = 5;

/// Predicts the cost of a move with these legs.
#[must_use]
pub fn preview(legs: &[LegSize], rate: CopyRate) -> Preview {
    let sum = |of: fn(&LegSize) -> u64| legs.iter().fold(0_u64, |sum, leg| sum.saturating_add(of(leg)));
    let bytes = sum(|leg| leg.size.bytes);
    let written_per_second = sum(|leg| leg.written_per_second);
    // Writes during the copy must be sent too, as must those during that, and so on.
    let net = rate.bytes_per_second.checked_sub(written_per_second).filter(|net| *net > 0);
    let duration = net.map(|net| {
        let millis = u128::from(bytes) * 1000 / u128::from(net);
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    });
    let pause = legs.iter().map(|leg| leg.round_trip * ROUNDS_OF_A_SWITCH + leg.syncs).max();
    Preview {
        keys: sum(|leg| leg.size.keys),
        bytes,
        written_per_second,
        duration,
        pause: pause.unwrap_or_default(),
    }
}

/// The limits that all legs of a change together would exceed.
#[must_use]
pub fn no_room<'l>(legs: impl IntoIterator<Item = &'l LegSize>) -> Vec<Lack> {
    let mut needed: BTreeMap<(StoreIdx, Option<&KindPrefix>), (u64, u64)> = BTreeMap::new();
    for leg in legs {
        for Limit { of, takes, room } in &leg.limits {
            let (all, left) = needed.entry((leg.to, of.as_ref())).or_insert((0, *room));
            *all = all.saturating_add(*takes);
            // The legs asked at different times.
            *left = (*left).min(*room);
        }
    }
    let lacks = needed.into_iter().filter(|(_, (takes, room))| takes > room);
    lacks.map(|((to, of), (takes, room))| Lack { to, of: of.cloned(), takes, room }).collect()
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::kind::KindScheme;

    use super::*;

    fn leg(bytes: u64, written_per_second: u64) -> LegSize {
        LegSize {
            to: StoreIdx(7),
            size: UnitSize { keys: bytes / 100, bytes },
            written_per_second,
            round_trip: Duration::from_millis(bytes / 1000),
            syncs: Duration::ZERO,
            limits: Vec::new(),
        }
    }

    fn at(bytes_per_second: u64) -> CopyRate {
        CopyRate { bytes_per_second, from: RateFrom::Limit }
    }

    #[test]
    fn sums_and_the_longest_pause() {
        let both = preview(&[leg(1000, 50), leg(3000, 50)], at(200));
        assert_eq!((both.keys, both.bytes, both.written_per_second), (40, 4000, 100));
        assert_eq!(
            both.duration,
            Some(Duration::from_secs(40)),
            "a hundred bytes a second are left for the copy"
        );
        assert_eq!(both.pause, Duration::from_millis(15), "the slower leg's, not both");
        let slow_disk = LegSize { syncs: Duration::from_millis(11), ..leg(1000, 0) };
        assert_eq!(preview(&[slow_disk, leg(3000, 0)], at(200)).pause, Duration::from_millis(16));
    }

    #[test]
    fn more_is_written_than_goes_through() {
        assert_eq!(preview(&[leg(1000, 200)], at(200)).duration, None);
        assert_eq!(preview(&[leg(1000, 0)], at(1)).duration, Some(Duration::from_secs(1000)));
        assert_eq!(preview(&[], at(10)).duration, Some(Duration::ZERO));
    }

    #[test]
    fn the_rate_is_what_is_set_else_what_was_made_else_what_is_usual() {
        assert_eq!(CopyRate::expected(5, 9), CopyRate { bytes_per_second: 5, from: RateFrom::Limit });
        assert_eq!(CopyRate::expected(0, 9), CopyRate { bytes_per_second: 9, from: RateFrom::Measured });
        assert_eq!(CopyRate::expected(0, 0), CopyRate { bytes_per_second: ASSUMED, from: RateFrom::Assumed });
    }

    #[test]
    fn room_is_for_all_legs_together() {
        let pods = KindScheme::default().resolve("pods").unwrap();
        let of = |of: Option<&KindPrefix>, takes, room| Limit { of: of.cloned(), takes, room };
        let to = |to, limits| LegSize { to: StoreIdx(to), limits, ..leg(1, 0) };
        let one = to(1, vec![of(None, 60, 100), of(Some(&pods), 60, 60)]);
        assert_eq!(no_room([&one]), []);
        let lack =
            |of: Option<&KindPrefix>, takes, room| Lack { to: StoreIdx(1), of: of.cloned(), takes, room };
        let (other, elsewhere) = (to(1, vec![of(None, 41, 100)]), to(2, vec![of(None, 41, 41)]));
        assert_eq!(no_room([&one, &other, &elsewhere]), [lack(None, 101, 100)]);
        let more = to(1, vec![of(None, 1, 100), of(Some(&pods), 1, 59)]);
        assert_eq!(no_room([&one, &more]), [lack(Some(&pods), 61, 59)]);
    }
}
