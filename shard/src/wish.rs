//! What a router asks for beside a request, in the call's metadata: wishes, which are fulfilled or ignored (R5, R8).

use kindred_partition_config::ids::Revision;
use tonic::metadata::MetadataMap;

/// The answer's revision is to be at or above this, that of a write above it.
pub const AT_LEAST: &str = "kindred-at-least";
/// `1`: the answer's header revision is to stay readable for a while.
pub const PIN: &str = "kindred-pin";

/// The wishes of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// See [`AT_LEAST`].
    pub at_least: Option<Revision>,
    /// See [`PIN`].
    pub pin: bool,
}

impl Wish {
    /// The wishes in a call's metadata; what is no revision is none.
    #[must_use]
    pub fn of(metadata: &MetadataMap) -> Self {
        let at_least = metadata.get(AT_LEAST).and_then(|value| value.to_str().ok()?.parse().ok());
        let pin = metadata.get(PIN).is_some_and(|value| value.as_bytes() == b"1");
        Self { at_least: at_least.and_then(Revision::from_wire), pin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_read_is_a_wish() {
        for (text, expected) in
            [("7", Some(7)), ("0", None), ("-7", None), ("", None), ("x", None), ("7 ", None)]
        {
            let mut metadata = MetadataMap::new();
            metadata.insert(AT_LEAST, text.parse().unwrap());
            let wish = Wish::of(&metadata);
            assert_eq!((wish.at_least, wish.pin), (expected.map(Revision), false), "{text:?}");
        }
        let mut metadata = MetadataMap::new();
        metadata.insert(PIN, "1".parse().unwrap());
        assert!(Wish::of(&metadata).pin);
    }
}
