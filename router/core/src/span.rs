//! Contexts of distributed traces, as W3C's Trace Context has them in the header `traceparent`, and which calls are
//! sampled: those whose parent is, and a part of those without a parent, as in etcd.

use std::fmt;

/// The call from which another one comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    /// Whether its spans are recorded.
    pub sampled: bool,
}

impl Parent {
    /// Reads `traceparent`. `None` for what the standard says is to be ignored: another form, or an id of zeros.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = hex::<1>(version)?[0];
        // Later versions may add parts at the end, the first has none.
        if version == 0xff || version == 0 && parts.next().is_some() {
            return None;
        }
        let parent = Self { trace: hex(trace)?, span: hex(span)?, sampled: hex::<1>(flags)?[0] & 1 == 1 };
        (parent.trace != [0; 16] && parent.span != [0; 8]).then_some(parent)
    }
}

/// The text of `traceparent`, of the first version.
impl fmt::Display for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        self.trace.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", u8::from(self.sampled))
    }
}

/// Bytes from lower-case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Whether a call is recorded. Of those without a parent, so many of a million are.
#[must_use]
pub fn is_sampled(parent: Option<&Parent>, per_million: u32, random: impl FnOnce() -> u64) -> bool {
    match parent {
        Some(parent) => parent.sampled,
        None => per_million > 0 && random() % 1_000_000 < u64::from(per_million),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_standard_is_read() {
        let parent = Parent::parse(GOOD).unwrap();
        assert_eq!(
            (parent.trace[0], parent.trace[15], parent.span[1], parent.sampled),
            (0x4b, 0x36, 0xf0, true)
        );
        assert_eq!(parent.to_string(), GOOD);
        assert!(!Parent::parse(&GOOD.replace("-01", "-00")).unwrap().sampled);
        assert_eq!(Parent::parse(&format!("{}-more", GOOD.replacen("00", "01", 1))), Some(parent));
    }

    #[test]
    fn what_the_standard_ignores_is_ignored() {
        for wrong in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
        ] {
            assert_eq!(Parent::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_parent_decides_and_without_one_the_rate() {
        let parent = Parent::parse(GOOD).unwrap();
        assert!(is_sampled(Some(&parent), 0, || 0));
        assert!(!is_sampled(Some(&Parent { sampled: false, ..parent }), 1_000_000, || 0));
        assert!(!is_sampled(None, 0, || 0) && is_sampled(None, 1, || 0) && !is_sampled(None, 1, || 1));
        assert!(is_sampled(None, 1_000_000, || u64::MAX));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,80}", wild in "[0-9a-f-]{50,60}") {
            let _ = (Parent::parse(&text), Parent::parse(&wild));
        }
    }
}
