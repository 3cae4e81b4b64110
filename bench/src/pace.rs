//! Open-loop writes: each is sent when it is due, regardless of earlier ones, and timed from when it was *due*, so
//! that a stalled server is charged for every write that it delayed (no coordinated omission).

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

/// The capacity of the queue of due writes, which is more than any run sends.
const DUE_MAX: usize = 1 << 20;

#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// When the write was due.
    pub due: Instant,
    /// When its answer arrived.
    pub acknowledged: Instant,
}

/// The plan of the writes: `keys` in turn, `rate` per second, `count` in total.
#[derive(Debug, Clone)]
pub struct Pace {
    pub keys: Arc<Vec<Bytes>>,
    pub rate: u64,
    pub count: u64,
    /// The length of a value. Its first eight bytes are the number of the write.
    pub value_bytes: usize,
}

pub fn value(number: u64, bytes: usize) -> Bytes {
    let mut value = BytesMut::with_capacity(bytes.max(8));
    value.put_u64(number);
    value.resize(bytes.max(8), b'v');
    value.freeze()
}

/// Writes at a pace; the result is in the order of the writes. Ends early when `stop` fires or its sender is
/// dropped.
pub async fn write(
    channels: &[Channel],
    pace: &Pace,
    mut stop: oneshot::Receiver<()>,
) -> anyhow::Result<Vec<Sent>> {
    let (to, mut due) = mpsc::channel(DUE_MAX);
    let (rate, count) = (pace.rate, pace.count);
    // The runtime's timer has steps of a millisecond; a separate thread is more precise.
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

/// Sends the due time of each write when it is reached.
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
        // The receiver has gone.
        if to.try_send(at).is_err() {
            return;
        }
    }
}
