//! One shard with Kinds of every mode, which is ended and started again and again. Its writers record which writes were
//! acknowledged.

use std::{
    collections::BTreeMap,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{DefragmentRequest, LeaseGrantRequest};
use kindred_tests::{client::Client, scenario::wait_for, servers::Shard};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::task::JoinSet;

use crate::crash::{
    cases::{Case, Way},
    check::{self, End, Tally},
    cluster::{Kind, Mode},
    modes::{Changer, Timeline},
    writers::{Shared, Writer},
};

/// The signal with which a process ends itself at a failpoint.
const ABORTED: i32 = 6;
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How long to wait for a point that the shard may not reach.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long to wait for a point that the shard must reach.
const CERTAIN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(3);
/// The number of writers of each Kind.
const WRITERS: usize = 2;
/// Segments are small, so that a log has many.
const SEGMENT_BYTES: &str = "--segment-bytes=65536";

/// The modes and the revisions of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A Kind of each mode, and one whose mode changes.
    Mixed,
    /// All Kinds of one mode.
    All(Mode),
    /// Revisions count 1, 2, 3 (`--revisions dense`).
    Dense,
}

impl Layout {
    pub const ALL: [Self; 5] =
        [Self::Mixed, Self::All(Mode::None), Self::All(Mode::Buffered), Self::All(Mode::Fsync), Self::Dense];

    pub fn word(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::All(mode) => mode.word(),
            Self::Dense => "dense",
        }
    }

    fn kinds(self) -> Vec<Kind> {
        let kind = |resource, prefix, mode| match self {
            Self::Mixed => Kind::new(resource, prefix, mode, false),
            Self::All(mode) => Kind::new(resource, prefix, mode, false),
            Self::Dense => Kind::new(resource, prefix, Mode::Fsync, false),
        };
        let mut kinds = vec![
            kind("configmaps", "/registry/configmaps/", Mode::Buffered),
            kind("secrets", "/registry/secrets/", Mode::Fsync),
            kind("events", "/registry/events/", Mode::None),
        ];
        if self == Self::Mixed {
            let changing = kind("pods", "/registry/pods/", Mode::Buffered);
            kinds.push(Kind { changes: Some("changing"), ..changing });
        }
        kinds
    }

    fn flags(self) -> Vec<String> {
        match self {
            Self::Mixed => vec![
                "--durability=buffered".to_owned(),
                "--durability-of=secrets=fsync,events=none".to_owned(),
            ],
            Self::All(mode) => vec![format!("--durability={}", mode.word())],
            Self::Dense => vec!["--revisions=dense".to_owned(), "--durability=fsync".to_owned()],
        }
    }

    /// Whether a shard of this layout can reach the point of a case.
    pub fn has(self, case: &Case) -> bool {
        let point = case.point.as_str();
        let of_clock = point.starts_with("clock.") || point.ends_with(".ceiling");
        match self {
            Self::Mixed => true,
            Self::All(_) => !point.starts_with("modes."),
            Self::Dense => !point.starts_with("modes.") && !of_clock,
        }
    }

    /// Whether a shard of this layout certainly reaches the point of a case.
    fn certain(self, case: &Case) -> bool {
        // A shard without Kinds of mode buffered, for example, never appends to the log of that mode.
        self == Self::Mixed && case.nth == 1
    }
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Counts {
    pub ends: usize,
    /// Ends at the point of a case.
    pub reached: usize,
    pub stops: usize,
    /// Cases whose point the shard did not reach in time.
    pub passed: Vec<String>,
}

/// The shard with its writers.
pub struct Alone {
    layout: Layout,
    dir: PathBuf,
    shard: Shard,
    client: Client,
    kinds: Vec<Kind>,
    pub shared: Arc<Shared>,
    pub timeline: Arc<Timeline>,
    /// This file exists while the shard waits at a point.
    held: PathBuf,
    pub tallies: BTreeMap<&'static str, Tally>,
    pub counts: Counts,
    random: StdRng,
    /// The ends that were not checked yet. With each goes the number of attempts before it.
    ends: Vec<(End, usize)>,
    _tasks: JoinSet<()>,
}

impl Alone {
    /// Starts the shard, its writers, and the tasks that request leases, checkpoints and changes of modes.
    pub async fn start(dir: &Path, layout: Layout, seed: u64) -> anyhow::Result<Self> {
        let name = layout.word();
        let mut flags = layout.flags();
        flags.extend([SEGMENT_BYTES.to_owned(), "--log-level=warn".to_owned()]);
        let shard = Shard::start(dir, name, &flags).await?;
        let (kinds, shared) = (layout.kinds(), Arc::<Shared>::default());
        let mut tasks = JoinSet::new();
        for (at, kind) in kinds.iter().enumerate() {
            for number in 0..WRITERS {
                let client = Client::lazy(&shard.address)?;
                tasks.spawn(Writer::new(at, kind, number, client, &shared, |_| 0).run());
            }
        }
        tasks.spawn(prod(Client::lazy(&shard.address)?, StdRng::seed_from_u64(seed)));
        let timeline = Arc::new(Timeline::new(Mode::Buffered));
        for kind in kinds.iter().filter(|kind| kind.changes.is_some()) {
            let changer = Changer::new(*kind, &shard.address, &timeline, &shared)?;
            tasks.spawn(changer.run(seed));
        }
        Ok(Self {
            layout,
            dir: dir.to_owned(),
            client: Client::lazy(&shard.address)?,
            held: dir.join(format!("{name}.held")),
            shard,
            kinds,
            shared,
            timeline,
            tallies: BTreeMap::new(),
            counts: Counts::default(),
            random: StdRng::seed_from_u64(seed),
            ends: Vec::new(),
            _tasks: tasks,
        })
    }

    /// Kills the shard, starts it with a failpoint, starts it again when it has ended there, and checks what is
    /// promised.
    pub async fn case(&mut self, case: &Case) -> anyhow::Result<()> {
        if case.way() == Way::First {
            return self.first(case).await;
        }
        self.some_time(60).await;
        self.end(false).await?;
        self.arm(case);
        self.shard.process.launch()?;
        let reached = self.run_into(case).await?;
        self.note(case, reached)?;
        self.shard.process.kill()?;
        self.ended(reached && case.is_behind_the_stop()).await;
        self.back().await?;
        self.check().await
    }

    async fn some_time(&mut self, max_ms: u64) {
        let ms = self.random.random_range(0..max_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Ends the shard at a random moment, starts it again, and checks what is promised.
    pub async fn any_end(&mut self) -> anyhow::Result<()> {
        self.some_time(400).await;
        let clean = self.random.random_ratio(1, 6);
        self.end(clean).await?;
        self.back().await?;
        self.check().await
    }

    /// Runs a case of the first start, in a new data folder. The data folder of the other cases is not touched.
    async fn first(&mut self, case: &Case) -> anyhow::Result<()> {
        self.end(false).await?;
        let at = |name: &str| self.dir.join(name).display().to_string();
        let (new, old) = (at(&format!("new-{}", self.counts.ends)), at(self.layout.word()));
        self.shard.process.set_arg("--data-dir", &new);
        self.arm(case);
        self.shard.process.launch()?;
        let reached = self.run_into(case).await?;
        self.note(case, reached)?;
        self.shard.process.kill()?;
        self.counts.ends += 1;
        // Writes to the new data folder are not checked, as its revisions have nothing to do with the other ones.
        let unseen = self.shared.attempts.lock().len();
        let complaints = self.shared.complaints.lock().len();
        self.back().await.context("behind a first start that was cut short")?;
        self.some_writes().await?;
        self.shard.process.kill()?;
        let shared = self.shared.clone();
        let _nobody_writes = shared.writing.write().await;
        shared.attempts.lock().truncate(unseen);
        shared.complaints.lock().truncate(complaints);
        self.timeline.forget();
        self.shard.process.set_arg("--data-dir", &old);
        self.back().await
    }

    fn arm(&mut self, case: &Case) {
        let env = [
            ("KINDRED_SHARD_FAILPOINTS", case.to_string()),
            ("KINDRED_SHARD_FAILPOINT_FILE", self.held.display().to_string()),
        ];
        self.shard.process.set_env(env.map(|(name, value)| (name.to_owned(), value)).into());
    }

    fn disarm(&mut self) {
        self.shard.process.set_env(Vec::new());
        // The file exists only if a thread waits, so an error is expected.
        let _ = std::fs::remove_file(&self.held);
    }

    /// Waits until the process has ended at its point, or one of its threads waits there. False if it did not reach it.
    async fn run_into(&mut self, case: &Case) -> anyhow::Result<bool> {
        let limit = if self.layout.certain(case) { CERTAIN } else { PATIENCE };
        let began = Instant::now();
        let mut told = false;
        while began.elapsed() < limit {
            if let Some(status) = self.shard.process.ended()? {
                let at_point = status.signal() == Some(ABORTED);
                ensure!(at_point || told, "it has ended by itself: {status}");
                return Ok(at_point);
            }
            if self.held.exists() {
                // The other threads may run a moment longer.
                self.some_time(30).await;
                return Ok(true);
            }
            if case.way() == Way::Stop && !told && self.shard.process.is_ready() {
                self.some_writes().await?;
                self.shard.process.ask_to_stop()?;
                told = true;
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(false)
    }

    fn note(&mut self, case: &Case, reached: bool) -> anyhow::Result<()> {
        ensure!(reached || !self.layout.certain(case), "{case} was not come to");
        match reached {
            true => self.counts.reached += 1,
            false => self.counts.passed.push(case.to_string()),
        }
        Ok(())
    }

    async fn some_writes(&self) -> anyhow::Result<()> {
        let acknowledged = || {
            let attempts = self.shared.attempts.lock();
            attempts.iter().filter(|attempt| attempt.acknowledged.is_some()).count()
        };
        let before = acknowledged();
        let some = async || Ok((acknowledged() > before + 20).then_some(()));
        wait_for("some writes", READY_LIMIT, some).await
    }

    /// Ends the process. The next check looks for the writes that it acknowledged.
    async fn end(&mut self, clean: bool) -> anyhow::Result<()> {
        match clean {
            true => drop(self.shard.process.stop().await.context("a clean stop")?),
            false => self.shard.process.kill()?,
        }
        self.counts.stops += usize::from(clean);
        self.ended(clean).await;
        Ok(())
    }

    async fn ended(&mut self, clean: bool) {
        let at = Instant::now();
        self.counts.ends += 1;
        // Writes that are acknowledged from here on belong to the next incarnation.
        let _nobody_writes = self.shared.writing.write().await;
        self.ends.push((End { store: 0, at, clean }, self.shared.attempts.lock().len()));
    }

    async fn back(&mut self) -> anyhow::Result<()> {
        self.disarm();
        self.shard.process.restart().await.context("a start behind an end")
    }

    /// Stops the writers and checks what is promised for all incarnations since the last check.
    async fn check(&mut self) -> anyhow::Result<()> {
        let shared = self.shared.clone();
        let _nobody_writes = shared.writing.write().await;
        let mut attempts = shared.attempts.lock().clone();
        let (kinds, timeline) = (&self.kinds, &self.timeline);
        let promised = |kind: usize, since| match kinds[kind].changes {
            Some(_) => timeline.weakest(since),
            None => kinds[kind].mode,
        };
        for (end, life) in std::mem::take(&mut self.ends) {
            let life = &mut attempts[..life];
            check::after_end(&mut self.client, kinds, promised, life, end, &mut self.tallies).await?;
        }
        check::contents(&mut self.client, kinds, &attempts).await?;
        *shared.attempts.lock() = attempts;
        let complaints = shared.complaints.lock();
        ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
        Ok(())
    }

    /// The number of acknowledged writes.
    pub fn acknowledged(&self) -> usize {
        self.shared.attempts.lock().iter().filter(|attempt| attempt.acknowledged.is_some()).count()
    }
}

/// Requests leases and checkpoints for ever.
async fn prod(mut client: Client, mut random: StdRng) {
    loop {
        let _ = client.lease.lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await;
        if random.random_ratio(1, 3) {
            let _ = client.maintenance.defragment(DefragmentRequest {}).await;
        }
        let wait = random.random_range(5..60);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }
}
