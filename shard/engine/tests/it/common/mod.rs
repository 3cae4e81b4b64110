//! Helpers of the tests.

use bytes::Bytes;
use kindred_engine::{engine::*, ops::*};
use kindred_partition_config::{
    ids::{LeaseId, Revision, Slot},
    key::{Key, KeyRange},
    kind::KindScheme,
};

pub const NOW: WallMicros = WallMicros(2_000);

pub fn hlc() -> Engine {
    engine(RevisionMode::Hlc(Slot::new(3).expect("below 1024")))
}

pub fn dense() -> Engine {
    engine(RevisionMode::Dense)
}

pub fn engine(revisions: RevisionMode) -> Engine {
    let kinds = KindScheme::default();
    let config = EngineConfig { revisions, kinds, max_clock_offset_micros: 10_000_000, min_lease_ttl_s: 2 };
    Engine::new(config, WallMicros(1_000))
}

pub fn put(key: &str, value: &str) -> Op {
    Op::Put(Put {
        key: key.into(),
        value: Bytes::copy_from_slice(value.as_bytes()),
        lease: None,
        ignore_value: false,
        ignore_lease: false,
        prev_kv: false,
    })
}

pub fn delete(key: &str) -> Op {
    Op::Delete(Delete { range: KeyRange::Single(key.into()), buckets: None, prev_kv: true })
}

pub fn all() -> RangeQuery {
    query(KeyRange::everything())
}

pub fn query(range: KeyRange) -> RangeQuery {
    RangeQuery {
        range,
        revision: None,
        limit: 0,
        sort: None,
        contents: Contents::Whole,
        count_only: false,
        filter: RevisionFilter::default(),
    }
}

pub fn keys(answer: &RangeAnswer) -> Vec<String> {
    answer.kvs.iter().map(|kv| String::from_utf8_lossy(kv.key()).into_owned()).collect()
}

pub fn prefix(prefix: &str) -> KeyRange {
    KeyRange::prefix(Key::from(prefix))
}

pub fn single(key: &str) -> KeyRange {
    KeyRange::Single(Key::from(key))
}

pub fn leased(key: &str, lease: Option<LeaseId>) -> Op {
    match put(key, "v") {
        Op::Put(put) => Op::Put(Put { lease, ..put }),
        other => other,
    }
}

pub fn compare(key: &str, target: CompareTarget, result: CompareResult) -> Compare {
    Compare { range: single(key), target, result }
}

pub fn txn(compares: Vec<Compare>, success: Vec<Op>, failure: Vec<Op>) -> Op {
    Op::Txn(Box::new(Txn { compares, success, failure }))
}

/// Applies and publishes a request. Returns the answer's revision.
pub fn write(engine: &mut Engine, op: Op) -> Revision {
    let answer = engine.apply(NOW, op).expect("accepted");
    engine.publish();
    header(&answer)
}

pub fn header(answer: &OpAnswer) -> Revision {
    match answer {
        OpAnswer::Range(range) => range.header,
        OpAnswer::Put { header, .. } | OpAnswer::Delete { header, .. } => *header,
        OpAnswer::Txn(txn) => txn.header,
    }
}

pub fn succeeded(answer: &OpAnswer) -> bool {
    matches!(answer, OpAnswer::Txn(TxnAnswer { succeeded: true, .. }))
}

pub fn watch(range: KeyRange, start: Option<Revision>) -> WatchSpec {
    WatchSpec {
        range,
        start,
        id: None,
        prev_kv: true,
        no_put: false,
        no_delete: false,
        progress_notify: false,
        fragment: false,
    }
}

/// The messages of a stream, one line each: `created 0`, `0: +key@2 -key@3(2)` (the previous version), `progress *`.
pub fn pull(engine: &mut Engine, stream: StreamId, max_bytes: usize) -> Vec<String> {
    let out = engine.watch_pull(stream, max_bytes);
    out.iter().map(line).collect()
}

fn line(out: &WatchOut) -> String {
    match out {
        WatchOut::Created { id, .. } => format!("created {}", id.0),
        WatchOut::Compacted { id, floor, .. } => format!("compacted {} at {floor}", id.0),
        WatchOut::Canceled { id, .. } => format!("canceled {}", id.0),
        WatchOut::Moved { id, header } => format!("moved {} at {header}", id.0),
        WatchOut::Progress { id: None, header } => format!("progress * {header}"),
        WatchOut::Progress { id: Some(id), header } => format!("progress {} {header}", id.0),
        WatchOut::Events { id, events, .. } => {
            let events: Vec<String> = events.iter().map(event).collect();
            format!("{}: {}", id.0, events.join(" "))
        }
    }
}

fn event(event: &Event) -> String {
    let sign = if event.is_delete() { '-' } else { '+' };
    let prev = event.prev.as_ref().map_or(String::new(), |prev| format!("({})", prev.mod_revision()));
    format!("{sign}{}@{}{prev}", event.kv.key().escape_ascii(), event.kv.mod_revision())
}
