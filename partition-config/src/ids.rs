//! Newtypes for numbers that must never be mixed up. None implements `Default`, because zero is a valid value in
//! each.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What etcd calls a revision and Kubernetes a resourceVersion. Strictly increasing in the order of events; positive
/// wherever it names an event. `0` on the wire means "not given" and is an `Option::None` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub i64);

impl Revision {
    pub const ZERO: Self = Self(0);

    /// Reads a wire value; `None` if it is not positive, which means "not given".
    #[must_use]
    pub fn from_wire(revision: i64) -> Option<Self> {
        (revision > 0).then_some(Self(revision))
    }

    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// When a shard assigned it: microseconds since the Unix epoch (R1). `None` for a number that is too low for a time
    /// of today, as the revisions of a stock etcd are.
    #[must_use]
    pub fn micros(self) -> Option<u64> {
        /// The year 2017. An etcd that counts as far has been written to a trillion times.
        const EARLIEST: u64 = 1_500_000_000_000_000;
        u64::try_from(self.0 >> SLOT_BITS).ok().filter(|micros| *micros >= EARLIEST)
    }

    /// The next revision. Saturates, although a clock near the end of `i64` is refused long before.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The revision before this one; never below zero.
    #[must_use]
    pub const fn prev(self) -> Self {
        Self(if self.0 > 0 { self.0 - 1 } else { 0 })
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lease id as on the wire. `0` means "no lease" there and is an `Option::None` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub i64);

impl LeaseId {
    /// Reads a wire value; `None` if it is zero, which means "no lease".
    #[must_use]
    pub fn from_wire(id: i64) -> Option<Self> {
        (id != 0).then_some(Self(id))
    }

    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The number of low bits of a revision that name the store that assigned it (R1).
pub const SLOT_BITS: u32 = 10;

/// A store's slot: the low [`SLOT_BITS`] of every revision that the store assigns (R1). Slot 0 is the meta store's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Slot(u16);

impl Slot {
    pub const MAX: u16 = (1 << SLOT_BITS) - 1;

    /// `None` above [`Slot::MAX`].
    #[must_use]
    pub fn new(slot: u16) -> Option<Self> {
        (slot <= Self::MAX).then_some(Self(slot))
    }

    /// The slot as a number, 0 to 1023.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for Slot {
    type Error = String;

    fn try_from(slot: u16) -> Result<Self, String> {
        Self::new(slot).ok_or_else(|| format!("slot {slot} is out of range 0..={}", Self::MAX))
    }
}

impl From<Slot> for u16 {
    fn from(slot: Slot) -> Self {
        slot.0
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The cluster id of routers and shards that are started without one: FNV-1a of the product's name.
pub const DEFAULT_CLUSTER_ID: u64 = fnv(b"kindred");

/// 64-bit FNV-1a, for ids that every process must compute alike.
#[must_use]
pub const fn fnv(text: &[u8]) -> u64 {
    let (mut sum, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while at < text.len() {
        sum = (sum ^ text[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    sum
}

/// Parses a cluster id.
///
/// # Errors
/// When `text` is not a positive number, in decimal or in hexadecimal after `0x`.
pub fn parse_cluster_id(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match parsed {
        Ok(0) | Err(_) => Err(format!("{text:?} is not a number above zero, decimal or 0x…")),
        Ok(id) => Ok(id),
    }
}

/// A cluster's id, as sent in headers and handshakes. Never 0, which means "none" on the wire. It is written as a
/// `0x…` string, because many JSON readers round large numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterId(pub u64);

impl TryFrom<String> for ClusterId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse_cluster_id(&text).map(Self)
    }
}

impl From<ClusterId> for String {
    fn from(id: ClusterId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The identity of a cluster: a UUID minted with its first state. Two clusters with the same configuration, or even
/// the same cluster id, have different lineages, so data of one is never taken for the other's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lineage(pub String);

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Formats 128 random bits as a UUID of version 4, variant 1.
#[must_use]
pub fn uuid_of(high: u64, low: u64) -> String {
    let (high, low) = (high & !0xf000 | 0x4000, low & !(0b11 << 62) | (0b10 << 62));
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// A store's name, unique in the configuration (`pods`, `default`, `etcd-secrets`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct StoreName(pub String);

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The version of the ownership of keys. It grows with every change of an owner: the map has it, and each partition and
/// unit that of its last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// That of a map that never changes; on the wire, a request that was routed by no map. It is below that of any
    /// decision: a unit has it before its first switch, and a refusal has it while a switch is being decided.
    pub const NONE: Self = Self(0);

    /// That of the next map.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a live move in the meta store. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MoveId(pub u64);

impl fmt::Display for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Numbers the coordinators of one move. Each takeover increments it, which fences all earlier coordinators (R15).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Term(pub u64);

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a member of a store by the contents of its disk: a standby that begins anew is another member.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct MemberId(pub String);

impl MemberId {
    /// Stands for a primary of which the record is lost. No member has it.
    #[must_use]
    pub fn unknown() -> Self {
        Self("unknown".to_owned())
    }

    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.0 == "unknown"
    }

    /// Counts at a primary that is to be in doubt. No member has it.
    #[must_use]
    pub fn whoever_was_promoted() -> Self {
        Self("whoever-was-promoted".to_owned())
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_numbers() {
        assert_eq!([-1, 0, 1].map(Revision::from_wire), [None, None, Some(Revision(1))]);
        assert_eq!([-1, 0].map(LeaseId::from_wire), [Some(LeaseId(-1)), None]);
        assert_eq!((Revision(1).next(), Revision(i64::MAX).next()), (Revision(2), Revision(i64::MAX)));
        assert_eq!((Revision(2).prev(), Revision::ZERO.prev()), (Revision(1), Revision::ZERO));
        assert_eq!(LeaseId(-1).to_string(), "ffffffffffffffff");
    }

    #[test]
    fn a_cluster_id_is_text_in_json() {
        let id = ClusterId(DEFAULT_CLUSTER_ID);
        let json = serde_json::to_string(&id).unwrap();
        assert!(json.starts_with("\"0x"), "{json}");
        assert_eq!(serde_json::from_str::<ClusterId>(&json).unwrap(), id);
        assert!(serde_json::from_str::<ClusterId>("\"0\"").is_err());
        assert_eq!(uuid_of(0, 0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid_of(u64::MAX, u64::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }

    #[test]
    fn slots_fit_into_a_revision() {
        assert_eq!(Slot::new(1023).map(Slot::get), Some(1023));
        assert_eq!(Slot::new(1024), None);
        assert_eq!(serde_json::from_str::<Slot>("7").unwrap().get(), 7);
        assert!(serde_json::from_str::<Slot>("1024").unwrap_err().to_string().contains("out of range"));
    }
}
