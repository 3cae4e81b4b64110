//! What a move will cost, from what the owners say of its units.

use std::time::Duration;

/// What an owner says of a unit (`Track`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitSize {
    /// Live keys.
    pub keys: u64,
    /// Of keys and values with their history, about.
    pub bytes: u64,
    /// Events of the history.
    pub events: u64,
}

/// What is known of a leg before it moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegSize {
    /// Of all its units.
    pub size: UnitSize,
    /// Bytes that its owner's clients write into the units in a second; 0 when nobody has measured.
    pub written_per_second: u64,
    /// The slowest answer of either store, there and back.
    pub round_trip: Duration,
    /// Bytes that the new owner can still take; `None` when it has no limit.
    pub room: Option<u64>,
}

/// The prediction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// Live keys that move.
    pub keys: u64,
    /// Bytes that move.
    pub bytes: u64,
    /// Events of the history that move.
    pub events: u64,
    /// To copy and catch up; `None` when it never would, as more is written than the rate lets through.
    pub duration: Option<Duration>,
    /// The longest that a write waits: one switch, as legs are switched one after the other.
    pub pause: Duration,
    /// How many switches there are.
    pub switches: usize,
    /// Legs whose new owner has no room, and how many bytes it lacks.
    pub no_room: Vec<(usize, u64)>,
}

/// Rounds of calls between the first freeze and the opening of the target: freeze, import, seal, decide, open.
pub const ROUNDS_OF_A_SWITCH: u32 = 5;

/// What a move of these legs will cost at `rate` bytes in a second; a rate of 0 is taken as 1.
#[must_use]
pub fn preview(legs: &[LegSize], rate: u64) -> Preview {
    let sum =
        |of: fn(&UnitSize) -> u64| legs.iter().fold(0_u64, |sum, leg| sum.saturating_add(of(&leg.size)));
    let bytes = sum(|size| size.bytes);
    let written = legs.iter().fold(0_u64, |sum, leg| sum.saturating_add(leg.written_per_second));
    // What is written during the copy has to be sent, too, and what is written during that.
    let duration = rate.max(1).checked_sub(written).filter(|net| *net > 0).map(|net| {
        let millis = u128::from(bytes) * 1000 / u128::from(net);
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    });
    let pause = legs.iter().map(|leg| leg.round_trip * ROUNDS_OF_A_SWITCH).max().unwrap_or_default();
    let lacks = |leg: &LegSize| leg.room.map_or(0, |room| leg.size.bytes.saturating_sub(room));
    Preview {
        keys: sum(|size| size.keys),
        bytes,
        events: sum(|size| size.events),
        duration,
        pause,
        switches: legs.len(),
        no_room: legs.iter().map(lacks).enumerate().filter(|(_, lacks)| *lacks > 0).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leg(bytes: u64, written_per_second: u64, room: Option<u64>) -> LegSize {
        let size = UnitSize { keys: bytes / 100, bytes, events: 1 };
        LegSize { size, written_per_second, round_trip: Duration::from_millis(bytes / 1000), room }
    }

    #[test]
    fn sums_and_the_longest_pause() {
        let both = preview(&[leg(1000, 50, None), leg(3000, 50, Some(2900))], 200);
        assert_eq!((both.keys, both.bytes, both.events, both.switches), (40, 4000, 2, 2));
        assert_eq!(
            both.duration,
            Some(Duration::from_secs(40)),
            "a hundred bytes a second are left for the copy"
        );
        assert_eq!(both.pause, Duration::from_millis(15), "the slower leg's, not both");
        assert_eq!(both.no_room, [(1, 100)]);
    }

    #[test]
    fn more_is_written_than_goes_through() {
        assert_eq!(preview(&[leg(1000, 200, None)], 200).duration, None);
        assert_eq!(preview(&[leg(1000, 0, Some(1000))], 0).duration, Some(Duration::from_secs(1000)));
        assert_eq!(preview(&[], 10).duration, Some(Duration::ZERO));
    }
}
