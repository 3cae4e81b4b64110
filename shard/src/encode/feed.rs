//! Encodes messages of a feed (`kindred.shard.v1.FeedResponse`) by hand around the stored bytes.

use bytes::Bytes;
use kindred_engine::{durability::Gap, engine::FeedOut, version::Encoded};
use kindred_partition_config::ids::Revision;
use kindred_wire::kv::StoredEvent;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

const OPENED: u32 = 1;
const EVENTS: u32 = 2;
const WATERMARK: u32 = 3;
const COMPACTED: u32 = 4;
const MOVED: u32 = 5;
const GAPS: u32 = 6;
/// Fields of a `Gap`.
const AFTER: u32 = 1;
const UNTIL: u32 = 2;
/// Fields of a `FeedEvent`.
const REVISION: u32 = 1;
const EVENT: u32 = 2;
/// Maximum bytes of a revision with its tag.
const NUMBER_BYTES_MAX: usize = 11;

#[must_use]
pub fn response(out: &FeedOut) -> Bytes {
    let events: Vec<(Revision, StoredEvent<Encoded<'_>>)> =
        out.events.iter().map(|event| (event.kv.mod_revision(), super::stored(event, true))).collect();
    // A tag and a length of at most five bytes each.
    let room =
        |(_, event): &(Revision, StoredEvent<Encoded<'_>>)| event.encoded_len() + NUMBER_BYTES_MAX + 12;
    let mut bytes = Vec::with_capacity(4 * NUMBER_BYTES_MAX + events.iter().map(room).sum::<usize>());
    put_revision(&mut bytes, OPENED, out.opened);
    for (revision, event) in events {
        put_event(&mut bytes, revision, &event);
    }
    put_revision(&mut bytes, WATERMARK, out.watermark);
    put_revision(&mut bytes, COMPACTED, out.compacted);
    put_revision(&mut bytes, MOVED, out.moved);
    for gap in &out.gaps {
        put_gap(&mut bytes, gap);
    }
    bytes.into()
}

fn put_gap(out: &mut Vec<u8>, gap: &Gap) {
    let mut bytes = Vec::with_capacity(2 * NUMBER_BYTES_MAX);
    put_revision(&mut bytes, AFTER, Some(gap.after));
    put_revision(&mut bytes, UNTIL, Some(gap.until));
    encode_key(GAPS, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(&bytes);
}

fn put_event(out: &mut Vec<u8>, revision: Revision, event: &StoredEvent<Encoded<'_>>) {
    let event_bytes = event.encoded_len();
    let number_bytes = 1 + encoded_len_varint(revision.get().cast_unsigned());
    let part_bytes = 1 + encoded_len_varint(event_bytes as u64) + event_bytes;
    encode_key(EVENTS, WireType::LengthDelimited, out);
    encode_varint((number_bytes + part_bytes) as u64, out);
    // An event's revision is never zero.
    put_revision(out, REVISION, Some(revision));
    encode_key(EVENT, WireType::LengthDelimited, out);
    encode_varint(event_bytes as u64, out);
    event.encode_into(out);
}

fn put_revision(out: &mut Vec<u8>, field: u32, revision: Option<Revision>) {
    if let Some(revision) = revision.filter(|revision| *revision != Revision::ZERO) {
        encode_key(field, WireType::Varint, out);
        encode_varint(revision.get().cast_unsigned(), out);
    }
}
