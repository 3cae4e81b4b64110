//! What a move will cost, from what the stores say of its units and of themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use kindred_partition_config::kind::KindPrefix;
use kindred_partition_config::map::StoreIdx;

/// How much of a unit there is at its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitSize {
    /// Live keys.
    pub keys: u64,
    /// Of keys and values with their history, as they are sent, about.
    pub bytes: u64,
}

/// What is known of a leg before it moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegSize {
    /// The new owner.
    pub to: StoreIdx,
    /// Of all its units.
    pub size: UnitSize,
    /// Bytes that its owner's clients write into the units in a second.
    pub written_per_second: u64,
    /// The slowest answer of either store, there and back.
    pub round_trip: Duration,
    /// For as long the disks of both stores hold up one switch.
    pub syncs: Duration,
    /// What of the new owner's limits it needs; empty when there are none.
    pub limits: Vec<Limit>,
}

/// Room that a leg needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The Kind whose quota it is; `None`: the store's.
    pub of: Option<KindPrefix>,
    /// Bytes that its units will take there.
    pub takes: u64,
    /// Bytes that are left.
    pub room: u64,
}

/// Room that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// Where.
    pub to: StoreIdx,
    /// See [`Limit::of`].
    pub of: Option<KindPrefix>,
    /// Bytes that all legs to the store will take.
    pub takes: u64,
    /// Bytes that are left.
    pub room: u64,
}

/// The prediction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// Live keys that move.
    pub keys: u64,
    /// Bytes that move.
    pub bytes: u64,
    /// Bytes that clients write into what moves, in a second.
    pub written_per_second: u64,
    /// To copy and catch up; `None` when it never would, as more is written than the rate lets through.
    pub duration: Option<Duration>,
    /// The longest that a write waits: one switch, as legs are switched one after the other.
    pub pause: Duration,
}

/// How fast a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRate {
    /// Never 0.
    pub bytes_per_second: u64,
    /// How it is known.
    pub from: RateFrom,
}

/// How a rate is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateFrom {
    /// It is set.
    Limit,
    /// The last copies were made at it.
    Measured,
    /// Nothing was copied yet.
    Assumed,
}

impl RateFrom {
    /// One word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Measured => "measured",
            Self::Assumed => "assumed",
        }
    }
}

/// Bytes in a second that a copy is taken to make before any was made: what was measured, about, for keys of 1 KiB between
/// two processes of one machine.
const ASSUMED: u64 = 64 << 20;

impl CopyRate {
    /// The rate of the next copy. 0 is no limit, and nothing copied.
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

/// What a move of these legs will cost.
#[must_use]
pub fn preview(legs: &[LegSize], rate: CopyRate) -> Preview {
    let sum = |of: fn(&LegSize) -> u64| legs.iter().fold(0_u64, |sum, leg| sum.saturating_add(of(leg)));
    let bytes = sum(|leg| leg.size.bytes);
    let written_per_second = sum(|leg| leg.written_per_second);
    // What is written during the copy has to be sent, too, and what is written during that.
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

/// Where there is no room for all the legs of a change together.
#[must_use]
pub fn no_room<'l>(legs: impl IntoIterator<Item = &'l LegSize>) -> Vec<Lack> {
    let mut needed: BTreeMap<(StoreIdx, Option<&KindPrefix>), (u64, u64)> = BTreeMap::new();
    for leg in legs {
        for Limit { of, takes, room } in &leg.limits {
            let (all, left) = needed.entry((leg.to, of.as_ref())).or_insert((0, *room));
            *all = all.saturating_add(*takes);
            // Asked at different times.
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
