//! What moves will cost, from what the owners hold now. Asks no store for anything that stays there: a count and a page of
//! each unit, and how long both stores take to answer.

use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::state::Change;
use kindred_partition_config::transfers::Transfer;
use kindred_partition_config::unit::Unit;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::moves::preview::{LegSize, UnitSize, preview};
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::parts::store_ix;
use kindred_router_core::plan::Call;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Status;

use crate::app::App;
use crate::execute::one::To;
use crate::execute::{Deadline, Effect};
use crate::stores::Store;

/// For each question to a store.
const WITHIN: Duration = Duration::from_secs(2);
/// Keys whose sizes stand for the others'.
const SAMPLE: i64 = 500;
/// Bytes in a second that a copy is taken to make when no limit is set: what was measured, about, for keys of 1 KiB
/// between two processes of one machine.
const RATE: u64 = 64 << 20;

/// The moves of a change with what they will cost, in the order in which they are begun.
pub async fn moves(app: &App, change: &Change) -> Vec<Value> {
    let mut planned = Vec::new();
    for (kind, transfers) in change.by_kind() {
        let resource = kind.map_or_else(|| "<rest>".to_owned(), |kind| change.state.scheme().name_of(&kind));
        let Some(record) = MoveRecord::new(kindred_partition_config::ids::MoveId(0), &transfers) else {
            continue;
        };
        let (mut legs, mut sizes, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        for leg in &record.legs {
            let mut shown = json!({
                "from": change.state.store_name(leg.from), "to": change.state.store_name(leg.to),
                "units": leg.transfers.iter().map(|transfer| unit(&transfer.unit)).collect::<Vec<_>>(),
            });
            match leg_size(app, &leg.transfers).await {
                Ok(size) => {
                    figures(&mut shown, &[size]);
                    sizes.push(size);
                }
                Err(status) => problems.push(status.message().to_owned()),
            }
            legs.push(shown);
        }
        let mut shown = json!({ "resource": resource, "switches": record.legs.len(), "problems": problems, "legs": legs });
        if sizes.len() == record.legs.len() {
            figures(&mut shown, &sizes);
        }
        planned.push(shown);
    }
    planned
}

fn figures(shown: &mut Value, legs: &[LegSize]) {
    let cost = preview(legs, RATE);
    shown["keys"] = json!(cost.keys);
    shown["bytes"] = json!(cost.bytes);
    shown["millis"] = json!(cost.duration.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
    shown["pauseMicros"] = json!(u64::try_from(cost.pause.as_micros()).unwrap_or(u64::MAX));
}

/// A unit for people.
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

async fn leg_size(app: &App, transfers: &[Transfer]) -> Result<LegSize, Status> {
    let (mut size, mut round_trip) = (UnitSize::default(), Duration::ZERO);
    for transfer in transfers {
        let owner = app.stores.get(store_ix(transfer.from));
        let began = Instant::now();
        let keys = range(app, owner, &transfer.unit.range, true).await?.count.unsigned_abs();
        round_trip = round_trip.max(began.elapsed());
        let page = range(app, owner, &transfer.unit.range, false).await?;
        let target = app.stores.get(store_ix(transfer.to));
        let began = Instant::now();
        // A store that had the unit before refuses: an answer, too.
        if let Err(status) = range(app, target, &transfer.unit.range, true).await {
            target.ready()?;
            tracing::debug!(store = target.name(), %status, "a target does not count what it will get");
        }
        round_trip = round_trip.max(began.elapsed());
        let (keys, bytes) = projected(&transfer.unit, keys, &page);
        size.keys += keys;
        size.bytes += bytes;
    }
    Ok(LegSize { size, written_per_second: 0, round_trip, room: None })
}

/// Keys and bytes of a unit, from the number of keys of its range and the first of them.
fn projected(unit: &Unit, keys: u64, page: &pb::RangeResponse) -> (u64, u64) {
    let all = page.kvs.len() as u64;
    let of_unit = || page.kvs.iter().filter(|kv| unit.contains(&kv.key));
    let bytes = of_unit().map(|kv| kv.encoded_len() as u64).sum::<u64>();
    match all {
        0 => (0, 0),
        all => (keys * of_unit().count() as u64 / all, keys * bytes / all),
    }
}

async fn range(app: &App, store: &Store, range: &KeyRange, count: bool) -> Result<pb::RangeResponse, Status> {
    let (key, range_end) = match range {
        KeyRange::Single(key) => (key.clone(), Bytes::new()),
        // A zero byte as the end: all keys from the first on.
        KeyRange::Span { start, end } => {
            (start.clone(), end.as_ref().map_or_else(|| Bytes::from_static(b"\0"), |end| end.0.clone()))
        }
    };
    let limit = if count { 0 } else { SAMPLE };
    let request = pb::RangeRequest { key: key.0, range_end, count_only: count, limit, ..Default::default() };
    let generation = app.routes.load().generation();
    let to = To { store, at_least: Revision::ZERO, generation };
    let body = Bytes::from(request.encode_to_vec());
    let answer = to.send(Call::Range, Effect::Read, body, Deadline::within(WITHIN)).await?;
    pb::RangeResponse::decode(answer).map_err(|error| Status::internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use kindred_proto::mvccpb::KeyValue;

    use super::*;

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
}
