//! Estimates what moves will cost, from the stores' own numbers. For each unit the stores are asked for a count and one
//! page of keys, for the size and write rate of its Kinds, and how fast they answer.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::{MoveId, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::{ALL_ELSE, KindScheme};
use kindred_partition_config::state::{Change, ClusterState};
use kindred_partition_config::transfers::Transfer;
use kindred_partition_config::unit::Unit;
use kindred_partition_config::validate::{FieldError, FieldErrors};
use kindred_proto::etcdserverpb as pb;
use kindred_proto::shard_v1;
use kindred_router_core::clock_offset;
use kindred_router_core::moves::preview::{CopyRate, Lack, LegSize, Limit, UnitSize, no_room, preview};
use kindred_router_core::moves::record::{Leg, MoveRecord};
use kindred_router_core::parsed::Parsed;
use kindred_router_core::parts::store_ix;
use kindred_router_core::plan::Call;
use kindred_router_core::small::is_small;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::execute::fenced;
use crate::execute::one::To;
use crate::execute::{Deadline, Effect};
use crate::feeds::place::wire;
use crate::moves::mover::Mover;
use crate::stores::Store;

/// The time limit of each question to a store.
const WITHIN: Duration = Duration::from_secs(2);
/// The number of keys that are sampled for their size.
const SAMPLE: i64 = 500;
/// The disk flushes at the new owner during a switch: the seal and the opening. The freeze at the old owner adds one.
const SYNCS_OF_THE_TARGET: u32 = 2;

/// The moves of a change, and their estimated costs.
#[derive(Debug)]
pub struct Planned {
    /// The moves in the API's form, in the order in which they begin.
    moves: Vec<Value>,
    rate: CopyRate,
    lacks: Vec<String>,
    /// Errors for targets whose clocks are too far behind those of the owners.
    clocks: Vec<String>,
    /// Errors for stock etcds that have keys of others where the moves go.
    strangers: Vec<String>,
}

impl Planned {
    /// The moves of several changes, in the API's form.
    pub fn shown(all: &[Self]) -> Value {
        let moves: Vec<&Value> = all.iter().flat_map(|planned| &planned.moves).collect();
        let rate = all.first().map(
            |Self { rate, .. }| json!({ "bytesPerSecond": rate.bytes_per_second, "from": rate.from.word() }),
        );
        json!({ "moves": moves, "rate": rate })
    }

    /// Checks that the targets have room, and clocks that can follow, and that no keys of others are deleted unless `deletes`.
    /// `field` is the field that names the target.
    ///
    /// # Errors
    /// Every limit that would be exceeded, every clock that is too far behind, and every etcd with keys of others.
    pub fn fits(&self, field: &str, deletes: bool) -> Result<(), Vec<FieldError>> {
        let mut errors = FieldErrors::default();
        for lack in &self.lacks {
            errors.add(field, lack, "raise the quota there, or name another store");
        }
        for late in &self.clocks {
            errors.add(field, late, "set the time there, or name another store");
        }
        for strange in self.strangers.iter().filter(|_| !deletes) {
            errors.add(
                field,
                strange,
                "the move would delete them: bring them elsewhere, or allow it (deleteItsKeys=true, --delete-its-keys)",
            );
        }
        errors.into_result(())
    }
}

/// The moves of a change, and their estimated costs.
pub async fn moves(mover: &Mover, change: &Change) -> Planned {
    let (state, rate) = (&change.state, mover.copy_speed.expected());
    let scheme = state.scheme();
    let mut sized = Vec::new();
    for (kind, transfers) in change.by_kind() {
        let resource = kind.map_or_else(|| ALL_ELSE.to_owned(), |kind| scheme.name_of(&kind));
        let Some(record) = MoveRecord::new(MoveId(0), &transfers) else {
            continue;
        };
        let record = record.one_way_from(|store| state.is_etcd(store));
        let mut sizes = Vec::new();
        for leg in &record.legs {
            sizes.push(leg_size(mover, leg, &scheme).await.map_err(|status| status.message().to_owned()));
        }
        sized.push((resource, record.legs, sizes));
    }
    let clocks: Vec<_> = sized
        .iter()
        .flat_map(|(_, legs, _)| legs)
        .filter_map(|leg| too_far_behind(mover, leg, state))
        .collect();
    let mut strangers = Vec::new();
    for (resource, legs, _) in &sized {
        for leg in legs.iter().filter(|leg| state.is_etcd(leg.to)) {
            let found = keys_of_others(mover, leg, state, resource).await.unwrap_or_else(|status| {
                let (to, why) = (state.store_name(leg.to), status.message().to_owned());
                Some(format!("store {to:?} does not say whether it has keys of others: {why}"))
            });
            strangers.extend(found.map(|found| (resource.clone(), found)));
        }
    }
    let lacks = no_room(sized.iter().flat_map(|(_, _, sizes)| sizes.iter().flatten()));
    let moves = sized.into_iter().map(|(resource, legs, sizes)| {
        let problems = sizes.iter().filter_map(|size| size.as_ref().err().cloned());
        let lacks = lacks.iter().filter(|lack| sizes.iter().flatten().any(|size| concerns(lack, size)));
        let late = legs.iter().filter_map(|leg| too_far_behind(mover, leg, state));
        let strange = strangers.iter().filter(|(of, _)| *of == resource).map(|(_, found)| found.clone());
        let problems = problems.chain(lacks.map(|lack| said(lack, state))).chain(late).chain(strange);
        let problems: Vec<_> = problems.collect();
        let shown = legs.iter().zip(&sizes).map(|(leg, size)| shown_leg(leg, size.as_ref().ok(), rate, state));
        let mut shown = json!({
            "resource": resource, "switches": legs.len(), "problems": problems, "legs": shown.collect::<Vec<_>>(),
            "notes": notes(&legs),
        });
        if let Ok(sizes) = sizes.into_iter().collect::<Result<Vec<_>, _>>() {
            figures(&mut shown, &sizes, rate);
        }
        shown
    });
    let moves = moves.collect();
    let lacks = lacks.iter().map(|lack| said(lack, state)).collect();
    let strangers = strangers.into_iter().map(|(_, found)| found).collect();
    Planned { moves, rate, lacks, clocks, strangers }
}

/// The keys that a stock etcd has where the leg goes, in words. What it still has of what it has given away is kindred's.
async fn keys_of_others(
    mover: &Mover,
    leg: &Leg,
    state: &ClusterState,
    resource: &str,
) -> Result<Option<String>, Status> {
    let target = mover.stores.get(store_ix(leg.to));
    target.ready()?;
    let moved = fenced::read(target, Deadline::within(WITHIN)).await?.doc.moved();
    for part in leg.transfers.iter().flat_map(|transfer| without(&transfer.unit.range, &moved)) {
        let found = range(mover, target, &part, 1).await?;
        if let Some(kv) = found.kvs.first() {
            let (to, key) = (state.store_name(leg.to), kv.key.escape_ascii());
            let keys = if found.count == 1 { "a key" } else { "keys" };
            return Ok(Some(format!(
                "store {to:?} has {keys} of {resource} that kindred has not put there ({}): \"{key}\"",
                found.count
            )));
        }
    }
    Ok(None)
}

/// The parts of a range that lie in none of the others.
fn without(range: &KeyRange, others: &[KeyRange]) -> Vec<KeyRange> {
    let KeyRange::Span { start, end } = range else {
        let is_left = !others.iter().any(|other| other.overlaps(range));
        return is_left.then(|| range.clone()).into_iter().collect();
    };
    let mut taken: Vec<KeyRange> =
        others.iter().filter(|other| other.overlaps(range)).map(|other| other.intersection(range)).collect();
    taken.sort_by(|one, other| one.start().cmp(other.start()));
    let (mut parts, mut at) = (Vec::new(), Some(start.clone()));
    for taken in taken {
        let Some(from) = at else { return parts };
        if *taken.start() > from {
            parts.push(KeyRange::Span { start: from.clone(), end: Some(taken.start().clone()) });
        }
        at = match taken {
            KeyRange::Single(key) => Some(from.max(key.successor())),
            KeyRange::Span { end, .. } => end.map(|end| from.max(end)),
        };
    }
    let rest = at.map(|start| KeyRange::Span { start, end: end.clone() });
    parts.extend(rest.filter(|rest| !rest.is_empty()));
    parts
}

/// Why the target's clock does not allow the leg: at the switch it is raised to the owner's (R15b), which may be too
/// far ahead (R3).
fn too_far_behind(mover: &Mover, leg: &Leg, state: &ClusterState) -> Option<String> {
    let offset = |store| mover.stores.clocks().offset(store_ix(store));
    let (owner, target) = (offset(leg.from)?, offset(leg.to)?);
    clock_offset::is_too_far_behind(target, owner).then(|| {
        let behind = (owner - target) as f64 / 1e6;
        let (from, to) = (state.store_name(leg.from), state.store_name(leg.to));
        format!("the clock of store {to:?} is {behind:.1} s behind that of store {from:?}, which it may not follow so far")
    })
}

/// What the operator should know before the move begins.
fn notes(legs: &[Leg]) -> Vec<&'static str> {
    let one_way = legs.iter().any(|leg| leg.one_way).then_some(
        "a stock etcd is one of the two: watches are cancelled once, as compacted, and there is no way back but another move; \
         what has left an etcd stays there, where no router serves it any more",
    );
    one_way.into_iter().collect()
}

/// Whether the leg contributes to this lack of room.
fn concerns(lack: &Lack, leg: &LegSize) -> bool {
    leg.to == lack.to && leg.limits.iter().any(|limit| limit.of == lack.of && limit.takes > 0)
}

fn said(lack: &Lack, state: &ClusterState) -> String {
    let of =
        lack.of.as_ref().map_or_else(String::new, |kind| format!(" of {}", state.scheme().name_of(kind)));
    let Lack { takes, room, .. } = lack;
    format!(
        "store {:?} has room for {room} bytes{of}, and {takes} are to move there",
        state.store_name(lack.to)
    )
}

fn shown_leg(leg: &Leg, size: Option<&LegSize>, rate: CopyRate, state: &ClusterState) -> Value {
    let mut shown = json!({
        "from": state.store_name(leg.from), "to": state.store_name(leg.to),
        "units": leg.transfers.iter().map(|transfer| unit(&transfer.unit)).collect::<Vec<_>>(),
    });
    if let Some(size) = size {
        figures(&mut shown, std::slice::from_ref(size), rate);
        // The limit that would be exceeded first.
        let tightest =
            size.limits.iter().min_by_key(|limit| i128::from(limit.room) - i128::from(limit.takes));
        shown["limited"] = json!(tightest.is_some());
        shown["roomBytes"] = json!(tightest.map(|limit| limit.room));
        shown["takesBytes"] = json!(tightest.map(|limit| limit.takes));
    }
    shown
}

fn figures(shown: &mut Value, legs: &[LegSize], rate: CopyRate) {
    let cost = preview(legs, rate);
    shown["keys"] = json!(cost.keys);
    shown["bytes"] = json!(cost.bytes);
    shown["writtenPerSecond"] = json!(cost.written_per_second);
    shown["millis"] = json!(cost.duration.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
    shown["pauseMicros"] = json!(u64::try_from(cost.pause.as_micros()).unwrap_or(u64::MAX));
}

/// A unit in the API's form.
pub fn unit(unit: &Unit) -> Value {
    let end = match &unit.range {
        KeyRange::Single(key) => Some(key.successor()),
        KeyRange::Span { end, .. } => end.clone(),
    };
    json!({
        "start": unit.range.start().to_string(), "end": end.map(|end| end.to_string()),
        "buckets": unit.buckets.as_ref().map(|buckets| buckets.set.len()),
    })
}

async fn leg_size(mover: &Mover, leg: &Leg, scheme: &KindScheme) -> Result<LegSize, Status> {
    let (owner, target) = (mover.stores.get(store_ix(leg.from)), mover.stores.get(store_ix(leg.to)));
    let (mut size, mut written_per_second, mut round_trip) = (UnitSize::default(), 0, Duration::ZERO);
    let (mut takes, mut owner_syncs) = (BTreeMap::<Bytes, u64>::new(), Duration::ZERO);
    for Transfer { unit, .. } in &leg.transfers {
        let began = Instant::now();
        let keys = range(mover, owner, &unit.range, 0).await?.count.unsigned_abs();
        round_trip = round_trip.max(began.elapsed());
        let page = range(mover, owner, &unit.range, SAMPLE).await?;
        let began = Instant::now();
        // A store that owned the unit before refuses to count it, which is an answer too.
        if let Err(status) = range(mover, target, &unit.range, 0).await {
            target.ready()?;
            tracing::debug!(store = target.name(), %status, "a target does not count what it will get");
        }
        round_trip = round_trip.max(began.elapsed());
        let (keys, bytes) = projected(unit, keys, &page);
        let load = load(owner, std::slice::from_ref(&unit.range)).await?;
        let part = Part::of(keys, bytes, load.as_ref());
        size.keys += keys;
        size.bytes += part.bytes;
        written_per_second += part.written_per_second;
        for (kind, bytes) in part.takes {
            *takes.entry(kind).or_default() += bytes;
        }
        owner_syncs = owner_syncs.max(load.map_or(Duration::ZERO, |load| sync_of(&load)));
    }
    let ranges: Vec<_> = leg.transfers.iter().map(|transfer| transfer.unit.range.clone()).collect();
    let there = load(target, &ranges).await?;
    let target_syncs = there.as_ref().map_or(Duration::ZERO, sync_of) * SYNCS_OF_THE_TARGET;
    Ok(LegSize {
        to: leg.to,
        size,
        written_per_second,
        round_trip,
        syncs: owner_syncs + target_syncs,
        limits: there.map_or_else(Vec::new, |there| limits(&takes, &there, scheme)),
    })
}

fn sync_of(load: &shard_v1::LoadResponse) -> Duration {
    Duration::from_micros(load.fsync_p99_micros)
}

/// What a shard has and writes of the Kinds of these ranges; `None` for stores that cannot say.
pub(super) async fn load(
    store: &Store,
    ranges: &[KeyRange],
) -> Result<Option<shard_v1::LoadResponse>, Status> {
    if !store.is_shard() {
        return Ok(None);
    }
    store.ready()?;
    let request = shard_v1::LoadRequest { ranges: ranges.iter().map(wire).collect() };
    let (mut shard, request) = (store.shard(), Deadline::within(WITHIN).request(request));
    match tokio::time::timeout(WITHIN, shard.load(request)).await {
        Ok(Ok(load)) => Ok(Some(load.into_inner())),
        // The shard is one version behind.
        Ok(Err(status)) if status.code() == Code::Unimplemented => Ok(None),
        Ok(Err(status)) => Err(status),
        Err(_) => Err(store.unavailable("no answer in time")),
    }
}

/// A unit's share of its Kinds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Part {
    /// The bytes that are copied, history included.
    bytes: u64,
    written_per_second: u64,
    /// For each Kind, the bytes that its keys and their history will occupy.
    takes: Vec<(Bytes, u64)>,
}

impl Part {
    /// The share of `keys` keys whose current versions have `bytes` bytes. Assumes that they have as much history, and
    /// are written as often, as the other keys of their Kinds.
    fn of(keys: u64, bytes: u64, load: Option<&shard_v1::LoadResponse>) -> Self {
        let Some(load) = load else { return Self { bytes, ..Self::default() } };
        let sum = |of: fn(&shard_v1::KindLoad) -> u64| load.kinds.iter().map(of).fold(0, u64::saturating_add);
        let all = sum(|kind| kind.keys);
        // `keys` may include keys that were created after the load was measured.
        let part = |of_all: u64| share(of_all, keys.min(all), all);
        Self {
            bytes: share(bytes, sum(|kind| kind.bytes), sum(|kind| kind.live_bytes)).max(bytes),
            written_per_second: part(sum(|kind| kind.written_per_second)),
            takes: load.kinds.iter().map(|kind| (kind.prefix.clone(), part(kind.bytes))).collect(),
        }
    }
}

/// `number * part / whole`; zero if `whole` is zero.
fn share(number: u64, part: u64, whole: u64) -> u64 {
    let of_whole = (u128::from(number) * u128::from(part)).checked_div(u128::from(whole));
    u64::try_from(of_whole.unwrap_or_default()).unwrap_or(u64::MAX)
}

/// The limits of a store that would take so many bytes of each Kind.
fn limits(takes: &BTreeMap<Bytes, u64>, there: &shard_v1::LoadResponse, scheme: &KindScheme) -> Vec<Limit> {
    let room = |quota: u64, held: u64| if there.full { 0 } else { quota.saturating_sub(held) };
    let whole = (there.quota_bytes > 0 || there.full).then(|| Limit {
        of: None,
        takes: takes.values().copied().fold(0, u64::saturating_add),
        room: room(there.quota_bytes, there.held_bytes),
    });
    let kinds = there.kinds.iter().filter(|kind| kind.quota_bytes > 0).filter_map(|kind| {
        Some(Limit {
            of: Some(scheme.kind_prefix(&kind.prefix)?),
            takes: *takes.get(&kind.prefix)?,
            room: room(kind.quota_bytes, kind.held_bytes),
        })
    });
    whole.into_iter().chain(kinds).collect()
}

/// Estimates keys and bytes of a unit from the number of keys in its range and a page of them.
fn projected(unit: &Unit, keys: u64, page: &pb::RangeResponse) -> (u64, u64) {
    let all = page.kvs.len() as u64;
    let of_unit = || page.kvs.iter().filter(|kv| unit.contains(&kv.key));
    let bytes = of_unit().map(|kv| kv.encoded_len() as u64).sum::<u64>();
    match all {
        0 => (0, 0),
        all => (keys * of_unit().count() as u64 / all, keys * bytes / all),
    }
}

/// The first keys of a range and how many there are; with a limit of 0 only how many.
async fn range(
    mover: &Mover,
    store: &Store,
    range: &KeyRange,
    limit: i64,
) -> Result<pb::RangeResponse, Status> {
    let (key, range_end) = range.to_wire();
    let request = pb::RangeRequest { key, range_end, count_only: limit == 0, limit, ..Default::default() };
    let generation = mover.routing.load().generation();
    let body = Bytes::from(request.encode_to_vec());
    let small = is_small(&Parsed::new(Call::Range, &body));
    let to = To { store, min_revision: Revision::ZERO, generation, small };
    let answer = to.send(Call::Range, Effect::Read, body, Deadline::within(WITHIN)).await?;
    pb::RangeResponse::decode(answer.into_bytes()).map_err(|error| Status::internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use kindred_proto::mvccpb::KeyValue;

    use super::*;

    /// A Kind that had left an etcd hid what others have in the rest of a range that comes there.
    #[test]
    fn f90_what_lies_outside_of_what_was_given_away_is_looked_at() {
        let span = |start: &str, end: Option<&str>| KeyRange::Span {
            start: kindred_partition_config::key::Key::from(start),
            end: end.map(kindred_partition_config::key::Key::from),
        };
        let single = |key: &str| KeyRange::Single(kindred_partition_config::key::Key::from(key));
        let moved = [span("f", Some("h")), single("c"), span("g", Some("k")), span("x", None)];
        let left = without(&span("b", None), &moved);
        assert_eq!(left, [span("b", Some("c")), span("c\0", Some("f")), span("k", Some("x"))]);
        assert_eq!(without(&span("f", Some("j")), &moved), []);
        assert_eq!(without(&span("l", Some("m")), &moved), [span("l", Some("m"))]);
        assert_eq!(
            (without(&single("c"), &moved), without(&single("d"), &moved)),
            (vec![], vec![single("d")])
        );
        assert_eq!(without(&span("f", Some("z")), &[]), [span("f", Some("z"))]);
    }

    #[test]
    fn a_page_stands_for_the_rest() {
        let unit = Unit::of_range(KeyRange::everything());
        let kv = KeyValue {
            key: Bytes::from_static(b"abc"),
            value: Bytes::from(vec![1; 100]),
            ..Default::default()
        };
        let one = kv.encoded_len() as u64;
        let page = pb::RangeResponse { kvs: vec![kv; 4], ..Default::default() };
        assert_eq!(projected(&unit, 1000, &page), (1000, 1000 * one));
        assert_eq!(projected(&unit, 0, &pb::RangeResponse::default()), (0, 0));
        let elsewhere = Unit::of_range(KeyRange::Single(kindred_partition_config::key::Key::copy_from(b"x")));
        assert_eq!(projected(&elsewhere, 1000, &page), (0, 0));
    }

    fn load(kinds: &[(&'static str, u64, u64, u64, u64)]) -> shard_v1::LoadResponse {
        let kind =
            |(prefix, keys, live_bytes, bytes, written_per_second): &(&'static str, u64, u64, u64, u64)| {
                shard_v1::KindLoad {
                    prefix: Bytes::from_static(prefix.as_bytes()),
                    keys: *keys,
                    live_bytes: *live_bytes,
                    bytes: *bytes,
                    held_bytes: *bytes,
                    written_per_second: *written_per_second,
                    ..Default::default()
                }
            };
        shard_v1::LoadResponse { kinds: kinds.iter().map(kind).collect(), ..Default::default() }
    }

    #[test]
    fn a_part_of_a_kind_has_its_part_of_the_history_and_of_the_writes() {
        let pods = load(&[("/registry/pods/", 100, 10_000, 40_000, 800)]);
        let takes = |bytes| vec![(Bytes::from_static(b"/registry/pods/"), bytes)];
        let whole = Part { bytes: 36_000, written_per_second: 800, takes: takes(40_000) };
        assert_eq!(Part::of(100, 9000, Some(&pods)), whole);
        let quarter = Part { bytes: 8000, written_per_second: 200, takes: takes(10_000) };
        assert_eq!(Part::of(25, 2000, Some(&pods)), quarter, "a range with smaller keys than the others");
        assert_eq!(Part::of(25, 2000, None), Part { bytes: 2000, ..Part::default() });
        let more = Part::of(200, 9000, Some(&pods));
        assert_eq!(more.takes, takes(40_000), "no more than all");
        assert_eq!(Part::of(0, 0, Some(&load(&[]))), Part::default());
    }

    #[test]
    fn limits_are_those_of_the_store_and_of_the_kinds_that_come() {
        let (scheme, pods) = (KindScheme::default(), Bytes::from_static(b"/registry/pods/"));
        let takes = BTreeMap::from([(pods, 500), (Bytes::new(), 7)]);
        let mut there = load(&[("/registry/pods/", 1, 100, 100, 0), ("/registry/minions/", 0, 0, 0, 0)]);
        assert_eq!(limits(&takes, &there, &scheme), []);
        there.kinds.iter_mut().for_each(|kind| kind.quota_bytes = 150);
        let of_pods = |room| Limit { of: scheme.resolve("pods").ok(), takes: 500, room };
        assert_eq!(limits(&takes, &there, &scheme), [of_pods(50)]);
        (there.quota_bytes, there.held_bytes) = (1000, 400);
        assert_eq!(limits(&takes, &there, &scheme), [Limit { of: None, takes: 507, room: 600 }, of_pods(50)]);
        there.full = true;
        assert_eq!(limits(&takes, &there, &scheme), [Limit { of: None, takes: 507, room: 0 }, of_pods(0)]);
    }
}
