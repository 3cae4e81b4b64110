//! `historyMax`: how much history shards keep of one Kind.

use std::{fmt, str::FromStr};

use crate::duration::parse_duration;

/// The shortest history that can be asked for, in seconds: a list at a revision must be readable to its end (R5).
pub const HISTORY_SECONDS_MIN: u64 = 10;

/// The most history of a Kind at one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryMax {
    /// Bytes of all versions that are not current.
    Bytes(u64),
    /// Age in seconds, at least [`HISTORY_SECONDS_MIN`].
    Seconds(u64),
}

/// Units of sizes, in bytes.
const UNITS: [(&str, u64); 9] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
];

impl FromStr for HistoryMax {
    type Err = String;

    /// An age such as `10m` or `1h30m`, or a size: a whole number with a unit, such as `512Mi` or `500M`.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        if unit.is_empty() {
            return Err(format!("{text:?} has no unit"));
        }
        let Some((_, unit)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            let age = parse_duration(text).map_err(|_| format!("{text:?} is neither an age nor a size"))?;
            return match age.as_secs() {
                seconds if seconds < HISTORY_SECONDS_MIN => {
                    Err(format!("{text:?} is less than the {HISTORY_SECONDS_MIN} seconds that readers need"))
                }
                seconds => Ok(Self::Seconds(seconds)),
            };
        };
        if number.is_empty() {
            return Err(format!("{text:?} has no number"));
        }
        match number.parse::<u64>().ok().and_then(|number| number.checked_mul(*unit)) {
            Some(0) => Err("a Kind without any room for history cannot be watched".to_owned()),
            Some(bytes) => Ok(Self::Bytes(bytes)),
            None => Err(format!("{text:?} is too large")),
        }
    }
}

impl fmt::Display for HistoryMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
            Self::Seconds(seconds) => write!(f, "{seconds}s"),
        }
    }
}

/// The bounds of a Kind's history; a shard keeps to both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HistoryBounds {
    pub bytes: Option<u64>,
    pub seconds: Option<u64>,
}

impl HistoryBounds {
    /// The bounds that several configs of a Kind set together: where they differ, the largest of each sort counts, and
    /// a config without one says nothing.
    #[must_use]
    pub fn of(said: impl IntoIterator<Item = HistoryMax>) -> Self {
        let mut bounds = Self::default();
        for max in said {
            match max {
                HistoryMax::Bytes(bytes) => bounds.bytes = bounds.bytes.max(Some(bytes)),
                HistoryMax::Seconds(seconds) => bounds.seconds = bounds.seconds.max(Some(seconds)),
            }
        }
        bounds
    }

    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_sizes_have_units() {
        let parsed = |text: &str| text.parse::<HistoryMax>().unwrap();
        assert_eq!(parsed("10m"), HistoryMax::Seconds(600));
        assert_eq!(parsed("90s"), HistoryMax::Seconds(90));
        assert_eq!(parsed("1h30m"), HistoryMax::Seconds(5400));
        assert_eq!(parsed("512Mi"), HistoryMax::Bytes(512 << 20));
        assert_eq!(parsed("2GiB"), HistoryMax::Bytes(2 << 30));
        assert_eq!(parsed("500M"), HistoryMax::Bytes(500_000_000));
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        let refused = |text: &str| text.parse::<HistoryMax>().unwrap_err();
        for text in ["m", "ten minutes", "1.5h", "-1m", "10 m", "5x"] {
            assert!(refused(text).contains("neither an age nor a size"), "{text}");
        }
        assert!(refused("10").contains("no unit") && refused("").contains("no unit"));
        assert!(refused("9s").contains("less than the 10 seconds"));
        assert!(refused("0Mi").contains("cannot be watched"));
        assert!(refused("Mi").contains("no number"));
        assert!(refused("9999999999999999999G").contains("too large"));
    }

    #[test]
    fn the_largest_bound_of_each_sort_counts() {
        let bounds = HistoryBounds::of([
            HistoryMax::Bytes(5),
            HistoryMax::Seconds(20),
            HistoryMax::Bytes(7),
            HistoryMax::Seconds(10),
        ]);
        assert_eq!(bounds, HistoryBounds { bytes: Some(7), seconds: Some(20) });
        assert!(HistoryBounds::of([]).is_none());
    }
}
