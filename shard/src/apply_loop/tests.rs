use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use kindred_engine::ops::{Op, Put};

use super::{call::To, *};
use crate::{core::sample, read_hints::ReadHints};

/// Keys that have a version to be freed; many times what one slice frees.
const KEYS: usize = 20_000;
/// More than the versions that one slice frees.
const SLICE_MAX: usize = 500;

fn put(key: usize) -> Op {
    Op::Put(Put {
        key: format!("/registry/leases/a/{key}").as_str().into(),
        value: Bytes::from_static(b"value"),
        lease: None,
        ignore_value: false,
        ignore_lease: false,
        prev_kv: false,
    })
}

/// Tokio itself interrupts a task only after 128 things that were ready: a loop that did not yield freed as many slices
/// of a compaction before any connection was read, which held up calls for ten milliseconds.
#[tokio::test]
async fn other_tasks_run_between_slices_of_long_work() {
    let mut core = sample::core(sample::settings(), &Arc::new(AtomicU64::new(0)));
    for key in (0..KEYS).chain(0..KEYS) {
        core.apply(put(key), ReadHints::default()).unwrap();
    }
    core.engine.publish();
    let at = core.engine.last_revision();
    let stop = CancellationToken::new();
    let (senders, apply_loop) =
        spawn(core, Logs::memory(), Shipping::alone(), Duration::from_secs(5), stop.clone());
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let (answer, compacted) = oneshot::channel();
    let compact = Call::Compact(call::Compact { at, physical: true, answer }, To::Nowhere);
    assert!(senders.requests.send(Request::Call(compact)).await.is_ok());
    assert_eq!(compacted.await.unwrap().unwrap(), at);
    let turns = turns.load(Relaxed);
    assert!(turns >= KEYS / SLICE_MAX, "{turns} turns of another task");
    other.abort();
    stop.cancel();
    apply_loop.await.unwrap();
}
