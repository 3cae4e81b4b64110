//! `historyMax`: how much history a Kind keeps for watches.

use std::{str::FromStr, time::Duration};

/// The most history that a Kind keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryMax {
    /// So many bytes of keys and values.
    Bytes(u64),
    /// Events so old.
    Age(Duration),
}

impl FromStr for HistoryMax {
    type Err = String;

    /// Digits, then one of nothing, `Ki`, `Mi`, `Gi` (bytes) or `s`, `m`, `h` (a time). More than zero.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is neither bytes nor a time");
        let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(unit_at);
        let (factor, is_bytes) = match unit {
            "" => (1, true),
            "Ki" => (1 << 10, true),
            "Mi" => (1 << 20, true),
            "Gi" => (1 << 30, true),
            "s" => (1, false),
            "m" => (60, false),
            "h" => (3600, false),
            _ => return Err(bad()),
        };
        let number: u64 = digits.parse().map_err(|_| bad())?;
        match number.checked_mul(factor) {
            None | Some(0) => Err(bad()),
            Some(bytes) if is_bytes => Ok(Self::Bytes(bytes)),
            Some(seconds) => Ok(Self::Age(Duration::from_secs(seconds))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_times() {
        let parse = |text: &str| text.parse::<HistoryMax>();
        assert_eq!(parse("512Mi"), Ok(HistoryMax::Bytes(512 << 20)));
        assert_eq!(parse("100"), Ok(HistoryMax::Bytes(100)));
        assert_eq!(parse("10m"), Ok(HistoryMax::Age(Duration::from_secs(600))));
        for text in ["", "m", "0s", "0", "-1s", "1.5h", "1M", "99999999999999999999", "18446744073709551615h"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
