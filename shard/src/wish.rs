//! What a router asks for beside a request, in the call's metadata: wishes, which are fulfilled or ignored (R5, R8).

use kindred_engine::engine::PinId;
use kindred_partition_config::ids::Revision;
use tonic::metadata::MetadataMap;

/// The answer's revision is to be at or above this, that of a write above it.
pub const AT_LEAST: &str = "kindred-at-least";
/// A name, not 0: the answer's header revision is to stay readable for a while, or until that name is released.
pub const PIN: &str = "kindred-pin";

/// The wishes of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// See [`AT_LEAST`].
    pub at_least: Option<Revision>,
    /// See [`PIN`].
    pub pin: Option<PinId>,
}

impl Wish {
    /// The wishes in a call's metadata; what is no revision is none.
    #[must_use]
    pub fn of(metadata: &MetadataMap) -> Self {
        let at_least = metadata.get(AT_LEAST).and_then(|value| value.to_str().ok()?.parse().ok());
        let pin = metadata.get(PIN).and_then(|value| value.to_str().ok()?.parse().ok());
        Self { at_least: at_least.and_then(Revision::from_wire), pin: pin.and_then(pin_id) }
    }
}

/// A pin's name as it is on the wire; 0 is none.
#[must_use]
pub fn pin_id(pin: u64) -> Option<PinId> {
    (pin != 0).then_some(PinId(pin))
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
            assert_eq!((wish.at_least, wish.pin), (expected.map(Revision), None), "{text:?}");
        }
        let largest = u64::MAX.to_string();
        let pins =
            [("1", Some(1)), (&largest, Some(u64::MAX)), ("0", None), ("", None), ("-1", None), ("x", None)];
        for (text, expected) in pins {
            let mut metadata = MetadataMap::new();
            metadata.insert(PIN, text.parse().unwrap());
            assert_eq!(Wish::of(&metadata).pin, expected.map(PinId), "{text:?}");
        }
    }
}
