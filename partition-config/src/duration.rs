//! Times in flags and files.

use std::time::Duration;

/// A time as Go writes it, such as `90s`, `100ms` or `1m30s`; a number alone is seconds. Who asks names the field.
///
/// # Errors
/// When it is none.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    read(text.trim()).ok_or_else(|| format!("{text:?} is not a time; write 100ms, 90s, 10m, 1h or 1m30s"))
}

fn read(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()) {
        return rest.parse().ok().map(Duration::from_secs);
    }
    let mut total = None;
    while !rest.is_empty() {
        let (number, behind) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, behind) =
            behind.split_at(behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len()));
        let number: u64 = number.parse().ok()?;
        let part = match unit {
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "m" => Duration::from_secs(number.checked_mul(60)?),
            "h" => Duration::from_secs(number.checked_mul(3600)?),
            _ => return None,
        };
        total = Some(total.unwrap_or(Duration::ZERO).checked_add(part)?);
        rest = behind;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_go_writes_them_and_seconds() {
        for (text, millis) in [
            ("5s", 5_000),
            ("1m30s", 90_000),
            ("100ms", 100),
            ("2h", 7_200_000),
            ("600", 600_000),
            ("0", 0),
            ("0s", 0),
            ("+5s", 5_000),
            (" 5s ", 5_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_none_is_told_with_an_example() {
        let larger = format!("{}h", u64::MAX);
        for wrong in ["", " ", "s", "5 s", "1x", "-5s", "1.5s", "1m30", "five", &larger] {
            let told = parse_duration(wrong).unwrap_err();
            assert!(told.contains(&format!("{wrong:?} is not a time")) && told.contains("90s"), "{told}");
        }
    }
}
