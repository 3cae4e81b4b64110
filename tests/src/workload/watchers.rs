//! Clients that watch. Each has one stream with many watches, which it creates, cancels, drops and resumes at random.

use std::{collections::VecDeque, time::Duration};

use anyhow::bail;
use kindred_checker::history::{KeyRange, List, Nanos, Outcome, Request, Revision, WatchOptions};
use rand::Rng as _;
use tokio::{sync::watch, time::Instant};

use super::{
    keys::{self, KINDS, kind_of},
    stream::{Heard, Tracked, Wanted, WatchStream},
    workers::Worker,
};

const WATCHES_MAX: usize = 8;
const PAUSE_MILLIS: u64 = 25;
const RECONNECT_MILLIS: u64 = 40;
/// Within this time after the last write every watch must get progress that covers everything.
const FINISH_LIMIT: Duration = Duration::from_secs(30);
/// An etcd that has not answered a progress request within this time has dropped it.
const PROGRESS_DROPPED: Nanos = Nanos(300_000_000);

/// The last revision of each Kind, which every watch must reach before it may end.
pub type Targets = [Revision; KINDS.len()];

/// A client that opens one stream after another.
#[derive(Debug)]
pub struct Watcher {
    pub worker: Worker,
    /// Set when all writes are done.
    pub targets: watch::Receiver<Option<Targets>>,
    /// Creates no watch while a progress is outstanding. etcd may send `created` before a progress that it computed
    /// earlier.
    pub careful: bool,
    /// The watches to create, resumed ones first.
    queue: VecDeque<Wanted>,
}

enum Ending {
    /// Every watch has received everything.
    Finished,
    /// The client or the server ended the stream.
    Lost,
}

impl Watcher {
    pub fn new(worker: Worker, targets: watch::Receiver<Option<Targets>>, careful: bool) -> Self {
        Self { worker, targets, careful, queue: VecDeque::new() }
    }

    /// Runs until every watch has received all writes.
    ///
    /// # Errors
    /// If a watch does not receive all writes in time.
    pub async fn run(mut self) -> anyhow::Result<()> {
        let mut finish_by = None;
        loop {
            let finishing = self.finishing(&mut finish_by, None)?;
            if self.queue.is_empty() {
                if finishing {
                    return Ok(());
                }
                self.add_wanted().await?;
                continue;
            }
            let Some(mut stream) = WatchStream::open(&self.worker.caller, self.queue[0].clone()).await?
            else {
                let pause = self.worker.rng.random_range(1..RECONNECT_MILLIS);
                tokio::time::sleep(Duration::from_millis(pause)).await;
                self.worker.caller.reconnect(&mut self.worker.rng)?;
                continue;
            };
            self.queue.pop_front();
            match self.session(&mut stream, &mut finish_by).await? {
                Ending::Finished => return Ok(()),
                Ending::Lost => {
                    for watch in stream.unfinished() {
                        let events_only = self.worker.rng.random_bool(0.3);
                        self.queue.push_front(watch.resumed(events_only));
                    }
                    self.worker.caller.reconnect(&mut self.worker.rng)?;
                }
            }
        }
    }

    /// Whether all writes are done. Fails if they have been done for longer than `FINISH_LIMIT`.
    fn finishing(
        &self,
        finish_by: &mut Option<Instant>,
        stream: Option<&WatchStream>,
    ) -> anyhow::Result<bool> {
        let Some(targets) = *self.targets.borrow() else { return Ok(false) };
        if Instant::now() > *finish_by.get_or_insert_with(|| Instant::now() + FINISH_LIMIT) {
            let stream: Vec<String> =
                stream.map(|stream| stream.unfinished().map(Tracked::shown).collect()).unwrap_or_default();
            let queue = self.queue.len();
            bail!(
                "a watch was not told within {FINISH_LIMIT:?} that it has everything up to {targets:?}; {queue} are \
                 to be made, on the stream are\n{}",
                stream.join("\n")
            );
        }
        Ok(true)
    }

    async fn session(
        &mut self,
        stream: &mut WatchStream,
        finish_by: &mut Option<Instant>,
    ) -> anyhow::Result<Ending> {
        let mut actions_left = self.worker.rng.random_range(20..200);
        let mut act_at = tokio::time::Instant::now();
        loop {
            tokio::select! {
                heard = stream.hear() => match heard? {
                    Heard::Other => {}
                    Heard::Compacted(index) => {
                        let (range, options) = stream.watches[index].wanted();
                        self.list_then_watch(range, options).await?;
                    }
                    Heard::Broken => return Ok(Ending::Lost),
                },
                () = tokio::time::sleep_until(act_at) => {
                    let pause = self.worker.rng.random_range(1..PAUSE_MILLIS);
                    act_at = tokio::time::Instant::now() + Duration::from_millis(pause);
                    if self.finishing(finish_by, Some(&*stream))? {
                        if self.is_finished(stream) {
                            return Ok(Ending::Finished);
                        }
                        self.finish(stream);
                        continue;
                    }
                    actions_left -= 1;
                    if actions_left == 0 {
                        return Ok(Ending::Lost);
                    }
                    self.act(stream).await?;
                }
            }
        }
    }

    fn may_create(&self, stream: &WatchStream) -> bool {
        let now = self.worker.caller.recorder.now();
        let answered = stream.progress_outstanding().is_none_or(|at| now.0 - at.0 > PROGRESS_DROPPED.0);
        !stream.is_creating() && (answered || !self.careful)
    }

    async fn act(&mut self, stream: &mut WatchStream) -> anyhow::Result<()> {
        if self.may_create(stream)
            && let Some(wanted) = self.queue.pop_front()
        {
            stream.create(wanted);
            return Ok(());
        }
        let live = stream.live();
        match self.worker.rng.random_range(0..100) {
            0..30 if live.len() < WATCHES_MAX && self.queue.is_empty() => self.add_wanted().await?,
            30..37 if live.len() > 2 => stream.cancel(live[self.worker.rng.random_range(0..live.len())]),
            37..75 if !stream.is_canceling() => stream.ask_progress(),
            75..82 => self.read_what_is_watched(stream).await?,
            _ => {}
        }
        Ok(())
    }

    /// A read by the same client as the stream. Its header must not be below what the watches delivered.
    async fn read_what_is_watched(&mut self, stream: &WatchStream) -> anyhow::Result<()> {
        let Some(&index) = stream.live().first() else { return Ok(()) };
        let range = stream.watches[index].range();
        let request = match kind_of(&range.key) {
            Some(kind) if self.worker.rng.random_bool(0.5) => Request::get(keys::probe(kind)),
            _ => Request::List(List::current(range.clone())),
        };
        let worker = &mut self.worker;
        worker.caller.call(&mut worker.rng, request).await?;
        Ok(())
    }

    /// Draws a watch that starts now, at a revision that a client saw before, or after a list.
    async fn add_wanted(&mut self) -> anyhow::Result<()> {
        let worker = &mut self.worker;
        let kind = keys::kind(&mut worker.rng);
        let range = keys::range(&mut worker.rng, kind);
        let filter = worker.rng.random_range(0..20);
        let mut options = WatchOptions {
            start: None,
            prev_kv: worker.rng.random_bool(0.6),
            no_put: filter == 0,
            no_delete: filter == 1,
            progress_notify: worker.rng.random_bool(0.5),
            fragment: worker.rng.random_bool(0.2),
        };
        match worker.rng.random_range(0..10) {
            0..3 => self.queue.push_back(Wanted { range, options, resumes: None }),
            3..6 => {
                let shown = worker.caller.recorder.shown(kind);
                if !shown.is_empty() {
                    let (_, revision) = shown[worker.rng.random_range(shown.len() / 2..shown.len())];
                    let next = worker.rng.random_bool(0.5);
                    options.start = Some(if next { revision.next() } else { revision });
                }
                self.queue.push_back(Wanted { range, options, resumes: None });
            }
            _ => self.list_then_watch(range, options).await?,
        }
        Ok(())
    }

    /// Lists, and queues a watch from the revision after the list's header.
    async fn list_then_watch(&mut self, range: KeyRange, mut options: WatchOptions) -> anyhow::Result<()> {
        let worker = &mut self.worker;
        let request = Request::List(List::current(range.clone()));
        if let Outcome::Read { header, .. } = worker.caller.call(&mut worker.rng, request).await? {
            options.start = Some(header.next());
            self.queue.push_back(Wanted { range, options, resumes: None });
        }
        Ok(())
    }

    fn finish(&mut self, stream: &mut WatchStream) {
        if !self.queue.is_empty() {
            if self.may_create(stream)
                && let Some(wanted) = self.queue.pop_front()
            {
                stream.create(wanted);
            }
            return;
        }
        let now = self.worker.caller.recorder.now();
        let dropped = stream.progress_outstanding().is_none_or(|at| now.0 - at.0 > PROGRESS_DROPPED.0);
        if dropped && !stream.is_canceling() && !stream.is_creating() {
            stream.ask_progress();
        }
    }

    fn is_finished(&self, stream: &WatchStream) -> bool {
        let Some(targets) = *self.targets.borrow() else { return false };
        let there = |watch: &Tracked| {
            kind_of(&watch.range().key).is_none_or(|kind| watch.position >= Some(targets[kind]))
        };
        self.queue.is_empty()
            && !stream.is_creating()
            && !stream.is_canceling()
            && stream.unfinished().all(there)
    }
}
