//! Converts the engine's log records to records of the log and back.
//!
//! A version is written as it is answered. Leases, units and modes are rare and small: they are
//! JSON, whose names are persisted and **must never change their meaning**; `tests` compares them with fixed texts.

use std::collections::BTreeMap;

use kindred_engine::{
    durability::{
        Durability, DurableUnit, Gap, Imported, KindModes, LeaseRecord, LeaseState, UnitEntry, UnitLayer,
        UnitTable,
    },
    units::UnitMove,
    version::Version,
};
use kindred_partition_config::{
    ids::{Epoch, LeaseId, MoveId, Revision, Slot, Term},
    key::{Key, KeyRange},
    unit::Unit,
};
use kindred_wal::{Batch, Record, Records, VersionHead, VersionRecord};
use kindred_wire::kv::Part;
use serde::{Deserialize, Serialize};

/// A record with a correct checksum that this version does not understand.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The text is not in a form that this version writes.
    #[error(
        "a record of a {what} that this version cannot read ({source}); start the version that wrote it, or a later one"
    )]
    Text {
        /// The kind of record.
        what: &'static str,
        source: serde_json::Error,
    },
    /// A value is outside the range that a shard can have.
    #[error("a record of a {what} with a value that cannot be: {value}")]
    Value {
        /// The kind of record.
        what: &'static str,
        value: String,
    },
}

fn read<'b, T: Deserialize<'b>>(what: &'static str, bytes: &'b [u8]) -> Result<T, RecordError> {
    serde_json::from_slice(bytes).map_err(|source| RecordError::Text { what, source })
}

/// Encodes a value as JSON.
fn write(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("maps with keys of text, numbers and lists only")
}

fn bad(what: &'static str, value: impl std::fmt::Display) -> RecordError {
    RecordError::Value { what, value: value.to_string() }
}

/// A key as text: two hexadecimal digits per byte.
fn key_text(key: &[u8]) -> String {
    use std::fmt::Write as _;
    key.iter().fold(String::with_capacity(2 * key.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn key_of(what: &'static str, text: &str) -> Result<Key, RecordError> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    let bytes: Option<Vec<u8>> = pairs.collect();
    Ok(Key(bytes.ok_or_else(|| bad(what, text))?.into()))
}

// ---- leases

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lease {
    id: i64,
    state: State,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum State {
    Home { ttl: i64, attached: Vec<u16> },
    Adopted { ttl: i64, home: u16 },
    Handing { ttl: i64, attached: Vec<u16> },
    Handed { ttl: i64, home: u16 },
    Ended { attached: Vec<u16> },
    Gone {},
}

fn slots(slots: &[Slot]) -> Vec<u16> {
    slots.iter().map(|slot| slot.get()).collect()
}

fn slot(number: u16) -> Result<Slot, RecordError> {
    Slot::new(number).ok_or_else(|| bad("lease", format!("slot {number}")))
}

fn slots_of(numbers: Vec<u16>) -> Result<Vec<Slot>, RecordError> {
    numbers.into_iter().map(slot).collect()
}

#[must_use]
pub fn lease(record: &LeaseRecord) -> Vec<u8> {
    let state = match &record.state {
        LeaseState::Home { ttl_s, attached } => State::Home { ttl: *ttl_s, attached: slots(attached) },
        LeaseState::Adopted { ttl_s, home } => State::Adopted { ttl: *ttl_s, home: home.get() },
        LeaseState::Handing { ttl_s, attached } => State::Handing { ttl: *ttl_s, attached: slots(attached) },
        LeaseState::Handed { ttl_s, home } => State::Handed { ttl: *ttl_s, home: home.get() },
        LeaseState::Ended { attached } => State::Ended { attached: slots(attached) },
        LeaseState::Gone => State::Gone {},
    };
    write(&Lease { id: record.id.get(), state })
}

/// Decodes a lease's record.
///
/// # Errors
/// When this version does not understand it.
pub fn lease_of(content: &[u8]) -> Result<LeaseRecord, RecordError> {
    let Lease { id, state } = read("lease", content)?;
    let id = LeaseId::from_wire(id).ok_or_else(|| bad("lease", id))?;
    let state = match state {
        State::Home { ttl, attached } => LeaseState::Home { ttl_s: ttl, attached: slots_of(attached)? },
        State::Adopted { ttl, home } => LeaseState::Adopted { ttl_s: ttl, home: slot(home)? },
        State::Handing { ttl, attached } => LeaseState::Handing { ttl_s: ttl, attached: slots_of(attached)? },
        State::Handed { ttl, home } => LeaseState::Handed { ttl_s: ttl, home: slot(home)? },
        State::Ended { attached } => LeaseState::Ended { attached: slots_of(attached)? },
        State::Gone {} => LeaseState::Gone,
    };
    Ok(LeaseRecord { id, state })
}

// ---- modes

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Modes {
    generation: u64,
    default: Mode,
    kinds: BTreeMap<String, Mode>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    None,
    Buffered,
    Fsync,
}

impl From<Durability> for Mode {
    fn from(mode: Durability) -> Self {
        match mode {
            Durability::None => Self::None,
            Durability::Buffered => Self::Buffered,
            Durability::Fsync => Self::Fsync,
        }
    }
}

impl From<Mode> for Durability {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::None => Self::None,
            Mode::Buffered => Self::Buffered,
            Mode::Fsync => Self::Fsync,
        }
    }
}

#[must_use]
pub fn modes(modes: &KindModes) -> Vec<u8> {
    let kinds = modes.kinds.iter().map(|(kind, mode)| (key_text(kind), (*mode).into())).collect();
    write(&Modes { generation: modes.generation, default: modes.default.into(), kinds })
}

/// Decodes a record of modes.
///
/// # Errors
/// When this version does not understand it.
pub fn modes_of(content: &[u8]) -> Result<KindModes, RecordError> {
    let Modes { generation, default, kinds } = read("Kind's mode", content)?;
    let kinds = kinds.into_iter().map(|(kind, mode)| Ok((key_of("Kind's mode", &kind)?, mode.into())));
    Ok(KindModes { generation, default: default.into(), kinds: kinds.collect::<Result<_, _>>()? })
}

// ---- units

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Units {
    next: u64,
    records: Vec<Entry>,
    terms: Vec<(MoveId, Term)>,
    layers: Vec<Layer>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    number: u64,
    #[serde(rename = "move")]
    by: MoveId,
    term: Term,
    unit: Keys,
    state: UnitText,
    epoch: Epoch,
    floor: i64,
    split: bool,
    gaps: Vec<(i64, i64)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    unit: Keys,
    number: u64,
    fresh: bool,
    since: i64,
}

/// A unit's span and, in a ring, its buckets as in the internal API.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    start: String,
    end: Option<String>,
    buckets: String,
    prefix: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum UnitText {
    Tracked {},
    Frozen { last: i64 },
    Sealed { last: i64 },
    Owned {},
    Gone {},
}

fn keys(unit: &Unit) -> Keys {
    let (buckets, prefix) = unit.buckets_to_wire();
    let end = match &unit.range {
        KeyRange::Span { end, .. } => end.as_ref().map(|end| key_text(end)),
        KeyRange::Single(key) => Some(key_text(&key.successor())),
    };
    Keys { start: key_text(unit.range.start()), end, buckets: key_text(&buckets), prefix }
}

fn unit_of(keys: &Keys) -> Result<Unit, RecordError> {
    let start = key_of("unit", &keys.start)?;
    let end = keys.end.as_deref().map(|end| key_of("unit", end)).transpose()?;
    let buckets = key_of("unit", &keys.buckets)?;
    let buckets =
        Unit::buckets_from_wire(&buckets.0, keys.prefix).ok_or_else(|| bad("unit", &keys.buckets))?;
    Ok(Unit { range: KeyRange::Span { start, end }, buckets })
}

#[must_use]
pub fn units(table: &UnitTable) -> Vec<u8> {
    let entry = |entry: &UnitEntry| Entry {
        number: entry.number,
        by: entry.by.id,
        term: entry.by.term,
        unit: keys(&entry.by.unit),
        state: match entry.state {
            DurableUnit::Tracked => UnitText::Tracked {},
            DurableUnit::Frozen { last } => UnitText::Frozen { last: last.get() },
            DurableUnit::Sealed { last } => UnitText::Sealed { last: last.get() },
            DurableUnit::Owned => UnitText::Owned {},
            DurableUnit::Gone => UnitText::Gone {},
        },
        epoch: entry.epoch,
        floor: entry.floor.get(),
        split: entry.split,
        gaps: entry.gaps.iter().map(|gap| (gap.after.get(), gap.until.get())).collect(),
    };
    let layer = |layer: &UnitLayer| Layer {
        unit: keys(&layer.unit),
        number: layer.number,
        fresh: layer.fresh,
        since: layer.since.get(),
    };
    write(&Units {
        next: table.next,
        records: table.records.iter().map(entry).collect(),
        terms: table.terms.clone(),
        layers: table.layers.iter().map(layer).collect(),
    })
}

/// Decodes a record of units.
///
/// # Errors
/// When this version does not understand it.
pub fn units_of(content: &[u8]) -> Result<UnitTable, RecordError> {
    let Units { next, records, terms, layers } = read("unit", content)?;
    let entry = |entry: Entry| {
        let unit = unit_of(&entry.unit)?;
        Ok(UnitEntry {
            number: entry.number,
            by: UnitMove { id: entry.by, term: entry.term, unit },
            state: match entry.state {
                UnitText::Tracked {} => DurableUnit::Tracked,
                UnitText::Frozen { last } => DurableUnit::Frozen { last: Revision(last) },
                UnitText::Sealed { last } => DurableUnit::Sealed { last: Revision(last) },
                UnitText::Owned {} => DurableUnit::Owned,
                UnitText::Gone {} => DurableUnit::Gone,
            },
            epoch: entry.epoch,
            floor: Revision(entry.floor),
            split: entry.split,
            gaps: entry
                .gaps
                .into_iter()
                .map(|(after, until)| Gap { after: Revision(after), until: Revision(until) })
                .collect(),
        })
    };
    let layer = |layer: Layer| {
        let unit = unit_of(&layer.unit)?;
        Ok(UnitLayer { unit, number: layer.number, fresh: layer.fresh, since: Revision(layer.since) })
    };
    Ok(UnitTable {
        next,
        records: records.into_iter().map(entry).collect::<Result<_, RecordError>>()?,
        terms,
        layers: layers.into_iter().map(layer).collect::<Result<_, RecordError>>()?,
    })
}

// ---- versions, by themselves and in imports

pub fn push_version(batch: &mut Batch, version: &Version) {
    let encoded = version.encoded();
    let (revision, sub) = version.order();
    let head = VersionHead { revision, sub, deletion: version.is_tombstone() };
    batch.push_version(head, encoded.bytes(), |out| encoded.append_to(out));
}

/// Decodes a record of a version.
///
/// # Errors
/// When it is malformed, or its revision differs from the record's.
pub fn version_of(record: &VersionRecord<'_>) -> Result<Version, RecordError> {
    let found = Version::from_wire(record.key_value, record.deletion, record.sub);
    let found = found.map_err(|error| bad("version", error))?;
    if found.mod_revision() == record.revision {
        Ok(found)
    } else {
        Err(bad("version", format!("revision {} in a record of {}", found.mod_revision(), record.revision)))
    }
}

/// The content of an import's record: the number of its unit (8 bytes), then the versions as records.
#[must_use]
pub fn import(imported: &Imported) -> Vec<u8> {
    let mut versions = Batch::new();
    imported.versions.iter().for_each(|version| push_version(&mut versions, version));
    [&imported.unit.to_le_bytes()[..], versions.payload()].concat()
}

/// Decodes a record of an import.
///
/// # Errors
/// When this version does not understand it.
pub fn import_of(content: &[u8]) -> Result<Imported, RecordError> {
    let (unit, versions) = content.split_first_chunk::<8>().ok_or_else(|| bad("import", "cut off"))?;
    let versions = Records::new(versions).map(|record| match record {
        Ok(Record::Version(record)) => version_of(&record),
        Ok(_) => Err(bad("import", "what is no version")),
        Err(damage) => Err(bad("import", damage)),
    });
    Ok(Imported { unit: u64::from_le_bytes(*unit), versions: versions.collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_this_version_are_read_for_ever() {
        let id = LeaseId(7);
        let slots = || vec![Slot::new(2).unwrap(), Slot::new(1023).unwrap()];
        for (text, state) in [
            (
                r#"{"id":7,"state":{"home":{"ttl":60,"attached":[2,1023]}}}"#,
                LeaseState::Home { ttl_s: 60, attached: slots() },
            ),
            (
                r#"{"id":7,"state":{"adopted":{"ttl":60,"home":2}}}"#,
                LeaseState::Adopted { ttl_s: 60, home: slots()[0] },
            ),
            (
                r#"{"id":7,"state":{"handing":{"ttl":60,"attached":[2,1023]}}}"#,
                LeaseState::Handing { ttl_s: 60, attached: slots() },
            ),
            (
                r#"{"id":7,"state":{"handed":{"ttl":60,"home":2}}}"#,
                LeaseState::Handed { ttl_s: 60, home: slots()[0] },
            ),
            (r#"{"id":7,"state":{"ended":{"attached":[2,1023]}}}"#, LeaseState::Ended { attached: slots() }),
            (r#"{"id":7,"state":{"gone":{}}}"#, LeaseState::Gone),
        ] {
            let record = LeaseRecord { id, state };
            assert_eq!(String::from_utf8(lease(&record)).unwrap(), text);
            assert_eq!(lease_of(text.as_bytes()).unwrap(), record);
        }
        let text = r#"{"generation":3,"default":"buffered","kinds":{"2f7265":"fsync","ff00":"none"}}"#;
        let of = KindModes {
            generation: 3,
            default: Durability::Buffered,
            kinds: [
                (Key::copy_from(b"/re"), Durability::Fsync),
                (Key::copy_from(b"\xff\0"), Durability::None),
            ]
            .into(),
        };
        assert_eq!(String::from_utf8(modes(&of)).unwrap(), text);
        assert_eq!(modes_of(text.as_bytes()).unwrap(), of);
    }

    #[test]
    fn units_of_this_version_are_read_for_ever() {
        let unit = Unit::of_range(KeyRange::prefix(Key::copy_from(b"/r/")));
        let last = Revision(9);
        let entry = |number, state| UnitEntry {
            number,
            by: UnitMove { id: MoveId(5), term: Term(2), unit: unit.clone() },
            state,
            epoch: Epoch(3),
            floor: Revision(4),
            split: true,
            gaps: vec![Gap { after: Revision(6), until: Revision(8) }],
        };
        let states = [
            DurableUnit::Tracked,
            DurableUnit::Frozen { last },
            DurableUnit::Sealed { last },
            DurableUnit::Owned,
            DurableUnit::Gone,
        ];
        let table = UnitTable {
            next: 7,
            records: (1..).zip(states).map(|(number, state)| entry(number, state)).collect(),
            terms: vec![(MoveId(5), Term(2))],
            layers: vec![UnitLayer { unit: unit.clone(), number: 3, fresh: true, since: last }],
        };
        let content = units(&table);
        assert_eq!(units_of(&content).unwrap(), table);
        let one = UnitTable { records: vec![entry(1, DurableUnit::Frozen { last })], ..table };
        let keys = r#"{"start":"2f722f","end":"2f7230","buckets":"","prefix":0}"#;
        let text = format!(
            r#"{{"next":7,"records":[{{"number":1,"move":5,"term":2,"unit":{keys},"state":{{"frozen":{{"last":9}}}},"epoch":3,"floor":4,"split":true,"gaps":[[6,8]]}}],"terms":[[5,2]],"layers":[{{"unit":{keys},"number":3,"fresh":true,"since":9}}]}}"#
        );
        assert_eq!(String::from_utf8(units(&one)).unwrap(), text);
    }

    #[test]
    fn what_is_held_in_two_pieces_is_logged_whole() {
        let value = "v".repeat(1100);
        let put = [b"\x0a\x01k\x10\xac\x02\x18\xac\x02\x20\x01\x2a\xcc\x08", value.as_bytes()].concat();
        let put = Version::from_wire(&put, false, 0).unwrap();
        assert!(put.value_pieces().iter().all(|piece| !piece.is_empty()), "it is cut");
        let mut batch = Batch::new();
        push_version(&mut batch, &put);
        let Some(Ok(Record::Version(record))) = batch.records().next() else { panic!("no version") };
        let back = version_of(&record).unwrap();
        assert_eq!(
            (back.encoded().to_vec(), back.mod_revision()),
            (put.encoded().to_vec(), put.mod_revision())
        );
        let back = import_of(&import(&Imported { unit: 7, versions: vec![put.clone()] })).unwrap();
        assert_eq!(back.versions[0].value(), put.value());
    }

    #[test]
    fn imports_come_back() {
        // key "k", created and modified at 300, version 1, value "v"; and its deletion at 301.
        let put =
            Version::from_wire(b"\x0a\x01k\x10\xac\x02\x18\xac\x02\x20\x01\x2a\x01v", false, 2).unwrap();
        let gone = Version::from_wire(b"\x0a\x01k\x18\xad\x02", true, 0).unwrap();
        let back = import_of(&import(&Imported { unit: 258, versions: vec![put.clone(), gone] })).unwrap();
        assert_eq!((back.unit, back.versions.len()), (258, 2));
        assert_eq!(
            (back.versions[0].encoded().to_vec(), back.versions[0].sub()),
            (put.encoded().to_vec(), 2)
        );
        assert!(back.versions[1].is_tombstone());
        assert!(import_of(b"\0\0\0").is_err() && import_of(b"\0\0\0\0\0\0\0\0\x01\x01\0").is_err());
    }

    #[test]
    fn what_is_not_understood_is_an_error_and_not_another_record() {
        for text in [
            "",
            "{}",
            r#"{"id":0,"state":{"gone":{}}}"#,
            r#"{"id":7}"#,
            r#"{"id":7,"state":{"sold":{}}}"#,
            r#"{"id":7,"state":{"home":{"ttl":60,"attached":[2000]}}}"#,
            r#"{"id":7,"state":{"home":{"ttl":60,"attached":[],"since":1}}}"#,
        ] {
            assert!(lease_of(text.as_bytes()).is_err(), "{text}");
        }
        for kinds in [r#"{"2f7":"fsync"}"#, r#"{"2g":"fsync"}"#, r#"{"2f":"maybe"}"#] {
            let text = format!(r#"{{"generation":3,"default":"none","kinds":{kinds}}}"#);
            assert!(modes_of(text.as_bytes()).is_err(), "{text}");
        }
    }
}
