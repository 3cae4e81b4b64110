use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use kindred_engine::ops::{Op, Put};

use super::{
    call::{CoreCall, To},
    *,
};
use crate::{core::sample, read_hints::ReadHints};

/// Keys that have a version to be freed; many times what one slice frees.
const KEYS: usize = 20_000;
/// More than the versions that one slice frees.
const SLICE_MAX: usize = 500;
/// Slices that a task asks for.
const SLICES: usize = 300;

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

/// A task that runs as often as the runtime looks at sockets, and how often that was.
fn other_task() -> (JoinHandle<()>, Arc<AtomicUsize>) {
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = turns.clone();
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Relaxed);
            tokio::task::yield_now().await;
        }
    });
    (other, turns)
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
    let (other, turns) = other_task();
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

/// The loop and a task that asks it for slice after slice wake each other. Thirty slices of a move ran before any
/// connection was read, and a write beside them took twelve milliseconds.
#[tokio::test]
async fn other_tasks_run_between_slices_that_a_task_asks_for() {
    let core = sample::core(sample::settings(), &Arc::new(AtomicU64::new(0)));
    let stop = CancellationToken::new();
    let (senders, apply_loop) =
        spawn(core, Logs::memory(), Shipping::alone(), Duration::from_secs(5), stop.clone());
    let (other, turns) = other_task();
    // In a task of its own: the runtime looks at sockets each time before it goes on with the test itself.
    let asks = tokio::spawn(async move {
        for _ in 0..SLICES {
            let (to, answered) = oneshot::channel();
            let late = call::ListUnits {}.named(To::Published(to)).0;
            assert!(senders.requests.send(Request::Late(late)).await.is_ok());
            assert_eq!(answered.await.unwrap().0, []);
        }
    });
    asks.await.unwrap();
    let turns = turns.load(Relaxed);
    assert!(turns >= SLICES / 2, "{turns} turns of another task");
    other.abort();
    stop.cancel();
    apply_loop.await.unwrap();
}
