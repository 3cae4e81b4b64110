//! Converts the messages of service `Units` to the engine's types, and back.

use bytes::Bytes;
use kindred_engine::{
    durability::Gap,
    units::{
        CopiedKey, CopyChunk, FollowedEvent, Import, Tracking, UnitDigest, UnitMove, UnitRecord, UnitState,
    },
    version::Version,
};
use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, Term},
    key::{Key, KeyRange},
    unit::Unit,
};
use kindred_proto::{mvccpb::event::EventType, shard_v1 as pb};
use prost::Message;
use tonic::Status;

/// An `mvccpb.Event` whose parts are not decoded.
#[derive(Clone, PartialEq, Message)]
struct RawEvent {
    #[prost(enumeration = "EventType", tag = "1")]
    event_type: i32,
    #[prost(bytes = "bytes", tag = "2")]
    kv: Bytes,
    #[prost(bytes = "bytes", optional, tag = "3")]
    prev_kv: Option<Bytes>,
}

fn invalid(what: &str) -> Status {
    Status::invalid_argument(format!("kindred: {what}"))
}

pub fn unit(unit: pb::Unit) -> Result<Unit, Status> {
    let range = unit.range.ok_or_else(|| invalid("unit.range is missing"))?;
    let range = KeyRange::from_wire(range.key, range.range_end);
    if matches!(range, KeyRange::Single(_)) || range.is_empty() {
        return Err(invalid("unit.range must be a span that is not empty"));
    }
    let buckets = Unit::buckets_from_wire(&unit.buckets, unit.prefix_len);
    let buckets = buckets.ok_or_else(|| invalid("unit.buckets must be empty or 32 bytes"))?;
    Ok(Unit { range, buckets })
}

/// The move that every call names.
pub fn unit_move(by: Option<pb::UnitMove>) -> Result<UnitMove, Status> {
    let by = by.ok_or_else(|| invalid("move is missing"))?;
    let named = by.unit.ok_or_else(|| invalid("move.unit is missing"))?;
    let (id, term) = (counted(by.r#move, "move.move")?, counted(by.term, "move.term")?);
    Ok(UnitMove { id: MoveId(id), term: Term(term), unit: unit(named)? })
}

/// Above every number of moves, terms or states that a cluster reaches. A larger number would fence out all later ones
/// for good.
const COUNT_MAX: u64 = 1 << 48;

fn counted(number: u64, field: &str) -> Result<u64, Status> {
    if number > COUNT_MAX {
        return Err(invalid(&format!("{field} is {number}, and no cluster counts so far")));
    }
    Ok(number)
}

/// An optional revision.
pub fn revision(revision: i64, field: &str) -> Result<Option<Revision>, Status> {
    if revision < 0 {
        return Err(invalid(&format!("{field} must be a revision, not {revision}")));
    }
    Ok(Revision::from_wire(revision))
}

/// A generation that a call must name.
pub fn epoch(epoch: u64) -> Result<Epoch, Status> {
    if epoch == 0 {
        Err(invalid("epoch must be the generation of the map that was decided"))
    } else {
        counted(epoch, "epoch").map(Epoch)
    }
}

/// The key behind which a stream continues.
pub fn after(after: Bytes) -> Option<Key> {
    (!after.is_empty()).then_some(Key(after))
}

pub fn record(record: UnitRecord) -> pb::UnitRecord {
    let (state, final_revision, through) = match record.state {
        UnitState::Tracked { .. } => (pb::UnitState::Tracked, Revision::ZERO, Revision::ZERO),
        UnitState::Frozen { last } => (pb::UnitState::Frozen, last, Revision::ZERO),
        UnitState::Following { through, sealed } => {
            (pb::UnitState::Following, sealed.unwrap_or(Revision::ZERO), through)
        }
        UnitState::Owned => (pb::UnitState::Owned, Revision::ZERO, Revision::ZERO),
        UnitState::Dropping => (pb::UnitState::Dropping, Revision::ZERO, Revision::ZERO),
        UnitState::Gone => (pb::UnitState::Gone, Revision::ZERO, Revision::ZERO),
    };
    pb::UnitRecord {
        r#move: Some(move_to_wire(&record.by)),
        state: state.into(),
        epoch: record.epoch.0,
        final_revision: final_revision.get(),
        through: through.get(),
        keys: record.keys,
        floor: record.floor.get(),
    }
}

fn move_to_wire(by: &UnitMove) -> pb::UnitMove {
    let (key, range_end) = match &by.unit.range {
        KeyRange::Single(key) => (key.0.clone(), Bytes::new()),
        KeyRange::Span { start, end: None } => (start.0.clone(), Bytes::from_static(&[0])),
        KeyRange::Span { start, end: Some(end) } => (start.0.clone(), end.0.clone()),
    };
    let (buckets, prefix_len) = by.unit.buckets_to_wire();
    let unit = pb::Unit { range: Some(pb::KeyRange { key, range_end }), buckets, prefix_len };
    pb::UnitMove { r#move: by.id.0, term: by.term.0, unit: Some(unit) }
}

/// The progress of a track.
pub fn tracking(tracking: Tracking) -> pb::TrackResponse {
    let Tracking { ready, keys, bytes, events, floor } = tracking;
    pb::TrackResponse { ready, keys, bytes, events, floor: floor.get() }
}

/// A chunk of a copy that began at `at`, in messages of about `bytes_max` bytes. The history of a key may be spread over
/// several of them, oldest first: an import adds what is newer than what it has. Changes of one revision stay together.
pub fn copied(
    at: Revision,
    chunk: CopyChunk,
    bytes_max: usize,
) -> impl Iterator<Item = pb::CopyResponse> + Send + use<> {
    let gap = |gap: &Gap| pb::Gap { after: gap.after.get(), until: gap.until.get() };
    let gaps: Vec<_> = if at == Revision::ZERO { Vec::new() } else { chunk.gaps.iter().map(gap).collect() };
    let floor = chunk.floor.get();
    let message = move |keys| pb::CopyResponse { at: at.get(), floor, keys, gaps: gaps.clone() };
    let mut versions = chunk.keys.into_iter().flat_map(|key| key.versions).peekable();
    let mut is_first = true;
    // Each message is made only when the one before it was taken.
    std::iter::from_fn(move || {
        let (mut keys, mut bytes) = (Vec::<pb::CopiedKey>::new(), 0);
        let mut last = None;
        while let Some(version) = versions.next_if(|next| {
            bytes == 0 || bytes + next.encoded_len() <= bytes_max || last == Some(next.mod_revision())
        }) {
            bytes += version.encoded_len();
            last = Some(version.mod_revision());
            match keys.last_mut().filter(|key| key.key.as_ref() == version.key()) {
                Some(key) => key.versions.push(copied_version(&version)),
                None => keys.push(pb::CopiedKey {
                    key: Bytes::copy_from_slice(version.key()),
                    versions: vec![copied_version(&version)],
                }),
            }
        }
        // Without keys, too, the first message says where the copy begins.
        (std::mem::take(&mut is_first) || !keys.is_empty()).then(|| message(keys))
    })
}

fn copied_version(version: &Version) -> pb::CopiedVersion {
    pb::CopiedVersion {
        kv: version.encoded().to_vec().into(),
        deletion: version.is_tombstone(),
        sub: version.sub(),
    }
}

pub fn digest(digest: UnitDigest) -> pb::VerifyResponse {
    let UnitDigest { last_key, keys, versions, hash } = digest;
    pb::VerifyResponse { last_key: last_key.0, keys, versions, hash }
}

fn key_from_wire(copied: pb::CopiedKey) -> Result<CopiedKey, Status> {
    let pb::CopiedKey { key, versions } = copied;
    let version = |version: pb::CopiedVersion| {
        let parsed = Version::from_wire(&version.kv, version.deletion, version.sub);
        parsed.map_err(|error| invalid(&format!("a version of {} does not parse: {error}", Key(key.clone()))))
    };
    let versions = versions.into_iter().map(version).collect::<Result<Vec<_>, _>>()?;
    if versions.is_empty() || versions.iter().any(|version| version.key() != key.as_ref()) {
        return Err(invalid(&format!("keys: {} must have versions, all of that key", Key(key))));
    }
    Ok(CopiedKey { versions })
}

/// An event of a tail; `sub` is its position in its revision.
fn event_from_wire(event: pb::FeedEvent, sub: u32) -> Result<FollowedEvent, Status> {
    let at = event.revision;
    let bad = |what: &dyn std::fmt::Display| invalid(&format!("events: the one at revision {at} {what}"));
    let raw = RawEvent::decode(event.event).map_err(|error| bad(&error))?;
    let deletion = raw.event_type == i32::from(EventType::Delete);
    let version = Version::from_wire(&raw.kv, deletion, sub).map_err(|error| bad(&error))?;
    let prev = raw.prev_kv.map(|prev| Version::from_wire(&prev, false, 0)).transpose();
    let prev = prev.map_err(|error| bad(&error))?;
    if version.mod_revision().get() != at {
        return Err(bad(&"has another mod_revision"));
    }
    Ok(FollowedEvent { version, prev })
}

fn gap(gap: &pb::Gap) -> Result<Gap, Status> {
    if gap.after < 0 || gap.until <= gap.after {
        return Err(invalid(&format!("gaps: the one behind {} ends at {}", gap.after, gap.until)));
    }
    Ok(Gap { after: Revision(gap.after), until: Revision(gap.until) })
}

/// An import, split into pieces of the size of one turn of the loop, in order: at most `keys_max` keys or events, or
/// about `bytes_max` bytes, without splitting keys or revisions. The first piece has floor and gaps, the last has
/// `through`; there is at least one.
pub fn import(request: pb::ImportRequest, keys_max: usize, bytes_max: usize) -> Result<Vec<Import>, Status> {
    let (floor, through) = (revision(request.floor, "floor")?, revision(request.through, "through")?);
    let gaps = request.gaps.iter().map(gap).collect::<Result<_, _>>()?;
    let mut pieces = vec![Import { floor, gaps, ..Import::default() }];
    let (mut count, mut bytes) = (0, 0);
    // Begins a new piece when the present one is full.
    let mut piece = |pieces: &mut Vec<Import>, splits: bool, more: usize| {
        if splits && count > 0 && (count >= keys_max || bytes + more > bytes_max) {
            pieces.push(Import::default());
            (count, bytes) = (0, 0);
        }
        count += 1;
        bytes += more;
    };
    for key in request.keys {
        let more = key.versions.iter().map(|version| version.kv.len()).sum();
        piece(&mut pieces, true, more);
        let key = key_from_wire(key)?;
        pieces.last_mut().expect("there is one from the start").keys.push(key);
    }
    let (mut last, mut sub) = (0, 0);
    for event in request.events {
        if event.revision < last {
            return Err(invalid(&format!("events: revision {} comes behind {last}", event.revision)));
        }
        let splits = event.revision > last;
        sub = if splits { 0 } else { sub + 1 };
        last = event.revision;
        piece(&mut pieces, splits, event.event.len());
        let event = event_from_wire(event, sub)?;
        pieces.last_mut().expect("there is one from the start").events.push(event);
    }
    pieces.last_mut().expect("there is one from the start").through = through;
    Ok(pieces)
}
