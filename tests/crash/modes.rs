//! The mode of a Kind changes while clients write it. A write survives what the weakest mode promises that may have
//! been in force since its acknowledgement.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kindred_proto::{
    etcdserverpb::{DefragmentRequest, LeaseGrantRequest, RangeRequest},
    shard_v1::{self, KindMode, SetModesRequest, shard_client::ShardClient},
};
use kindred_tests::client::Client;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tonic::transport::{Channel, Endpoint};

use crate::crash::{
    cluster::{Kind, Mode},
    writers::Shared,
};

const AWAY: Duration = Duration::from_millis(25);
const TTL_S: i64 = 600;

/// The requested modes, in their order.
#[derive(Debug, Default)]
pub struct Timeline {
    asked: Mutex<Vec<Asked>>,
}

#[derive(Debug)]
struct Asked {
    mode: Mode,
    /// From this time on the mode was certainly in force, and no earlier one.
    settled: Option<Instant>,
}

impl Timeline {
    /// Begins with the mode of the shard's start.
    pub fn new(mode: Mode) -> Self {
        Self { asked: Mutex::new(vec![Asked { mode, settled: Some(Instant::now()) }]) }
    }

    /// The weakest mode that may have been in force at any time since `since`.
    pub fn weakest(&self, since: Instant) -> Mode {
        let asked = self.asked.lock();
        let settled = |asked: &Asked| asked.settled.is_some_and(|at| at <= since);
        let first = asked.iter().rposition(settled).unwrap_or(0);
        asked[first..].iter().map(|asked| asked.mode).min().unwrap_or(Mode::None)
    }

    /// The number of changes that took effect.
    pub fn changes(&self) -> usize {
        self.asked.lock().iter().filter(|asked| asked.settled.is_some()).count() - 1
    }

    /// From here on any mode may be in force.
    pub fn forget(&self) {
        for mode in Mode::ALL {
            self.ask(mode);
        }
    }

    fn ask(&self, mode: Mode) -> usize {
        let mut asked = self.asked.lock();
        asked.push(Asked { mode, settled: None });
        asked.len() - 1
    }

    fn settle(&self, at: usize) {
        self.asked.lock()[at].settled = Some(Instant::now());
    }
}

/// Changes the mode of a Kind on a shard repeatedly.
pub struct Changer {
    pub kind: Kind,
    pub client: Client,
    pub shard: ShardClient<Channel>,
    pub timeline: Arc<Timeline>,
    pub shared: Arc<Shared>,
}

impl Changer {
    /// `address` is the shard's.
    pub fn new(
        kind: Kind,
        address: &str,
        timeline: &Arc<Timeline>,
        shared: &Arc<Shared>,
    ) -> anyhow::Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
        Ok(Self {
            kind,
            client: Client::lazy(address)?,
            shard: ShardClient::new(channel),
            timeline: timeline.clone(),
            shared: shared.clone(),
        })
    }

    /// Runs until it is dropped.
    pub async fn run(mut self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        for generation in 1_u64.. {
            let mode = Mode::ALL[random.random_range(0..Mode::ALL.len())];
            let wait = random.random_range(0..150);
            tokio::time::sleep(Duration::from_millis(wait)).await;
            if self.change(generation, mode).await.is_none() {
                tokio::time::sleep(AWAY).await;
            }
        }
    }

    /// Changes the mode. None if the shard is away before or during the change.
    async fn change(&mut self, generation: u64, mode: Mode) -> Option<()> {
        // Without a connection the request would not be sent, so the mode could not come into force.
        self.client.kv.range(RangeRequest { key: "k".into(), ..RangeRequest::default() }).await.ok()?;
        let at = self.timeline.ask(mode);
        let wanted = match mode {
            Mode::None => shard_v1::Durability::None,
            Mode::Buffered => shard_v1::Durability::Buffered,
            Mode::Fsync => shard_v1::Durability::Fsync,
        };
        let modes = vec![KindMode { prefix: self.kind.prefix.into(), mode: wanted.into() }];
        let request = SetModesRequest { generation, modes, ..SetModesRequest::default() };
        let taken = self.shard.set_modes(request).await.ok()?.into_inner();
        if !taken.unmet.is_empty() {
            self.shared.complain(format!("modes are not taken: {taken:?}"));
        }
        // A change to a stronger mode takes effect with a checkpoint. The lease's grant waits until the record of the
        // change is on disk.
        self.client.maintenance.defragment(DefragmentRequest {}).await.ok()?;
        self.client.lease.lease_grant(LeaseGrantRequest { ttl: TTL_S, id: 0 }).await.ok()?;
        self.timeline.settle(at);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_survives_the_weakest_of_the_modes_since() {
        let timeline = Timeline::new(Mode::Fsync);
        let first = Instant::now();
        assert_eq!(timeline.weakest(first), Mode::Fsync);
        let weaker = timeline.ask(Mode::Buffered);
        assert_eq!(timeline.weakest(first), Mode::Buffered, "it may be in force");
        let weakest = timeline.ask(Mode::None);
        timeline.settle(weakest);
        let second = Instant::now();
        let stronger = timeline.ask(Mode::Fsync);
        assert_eq!((timeline.weakest(first), timeline.weakest(second)), (Mode::None, Mode::None));
        timeline.settle(stronger);
        assert_eq!(timeline.weakest(second), Mode::None, "of before it was settled");
        assert_eq!(timeline.weakest(Instant::now()), Mode::Fsync);
        assert_eq!((timeline.changes(), weaker), (2, 1));
    }
}
