//! Open-loop writes: each is sent when it is due, whatever became of those before it, and timed from when it was *due*,
//! so that a server that stalls is charged for every write that it kept waiting (no coordinated omission).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::{BufMut, Bytes, BytesMut};
use kindred_proto::etcdserverpb::{PutRequest, kv_client::KvClient};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tonic::transport::Channel;

/// Due writes that the runtime has not taken yet: more than any run sends.
const DUE_MAX: usize = 1 << 20;

/// One write.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// When it had to be sent.
    pub due: Instant,
    /// When its answer was there.
    pub acknowledged: Instant,
}

/// What is written: `keys` in turn, `rate` a second, `count` in all.
#[derive(Debug, Clone)]
pub struct Pace {
    /// The keys.
    pub keys: Arc<Vec<Bytes>>,
    /// Writes a second.
    pub rate: u64,
    /// Writes.
    pub count: u64,
    /// Bytes of a value; its first eight are the number of the write.
    pub value_bytes: usize,
}

/// The value of a numbered write.
pub fn value(number: u64, bytes: usize) -> Bytes {
    let mut value = BytesMut::with_capacity(bytes.max(8));
    value.put_u64(number);
    value.resize(bytes.max(8), b'v');
    value.freeze()
}

/// Writes at a pace; the answer is by the number of the write. Ends early when `stop` is told or dropped.
pub async fn write(
    channels: &[Channel],
    pace: &Pace,
    mut stop: oneshot::Receiver<()>,
) -> anyhow::Result<Vec<Sent>> {
    let (to, mut due) = mpsc::channel(DUE_MAX);
    let (rate, count) = (pace.rate, pace.count);
    // The runtime's timer has steps of a millisecond; a thread of its own keeps time better.
    let clock = std::thread::spawn(move || tick(rate, count, &to));
    let mut writes = JoinSet::new();
    let mut sent = Vec::with_capacity(usize::try_from(count)?.min(DUE_MAX));
    let mut number = 0;
    loop {
        tokio::select! {
            _ = &mut stop => break,
            next = due.recv() => {
                let Some(at) = next else { break };
                let mut kv = KvClient::new(channels[number % channels.len()].clone());
                let key = pace.keys[number % pace.keys.len()].clone();
                let request = PutRequest { key, value: value(number as u64, pace.value_bytes), ..Default::default() };
                writes.spawn(async move {
                    kv.put(request).await?;
                    anyhow::Ok((number, Sent { due: at, acknowledged: Instant::now() }))
                });
                number += 1;
            }
            Some(done) = writes.join_next(), if !writes.is_empty() => sent.push(done??),
        }
    }
    drop(due);
    while let Some(done) = writes.join_next().await {
        sent.push(done??);
    }
    clock.join().ok().context("the clock's thread ended badly")?;
    sent.sort_unstable_by_key(|(number, _)| *number);
    Ok(sent.into_iter().map(|(_, sent)| sent).collect())
}

/// Says when writes are due, one by one, as time passes.
pub fn tick(rate: u64, count: u64, to: &mpsc::Sender<Instant>) {
    let began = Instant::now() + Duration::from_millis(1);
    for number in 0..count {
        let at = began + Duration::from_nanos(number * 1_000_000_000 / rate);
        loop {
            let now = Instant::now();
            if now >= at {
                break;
            }
            std::thread::park_timeout(at - now);
        }
        // Nobody waits any more when it is closed.
        if to.try_send(at).is_err() {
            return;
        }
    }
}
