//! Clients that write all the time, however often a request has to be repeated, and watches that must never end. Each object
//! has one writer, which writes each of its values once, so what a watch has to deliver of it is known exactly.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use kindred_tests::{
    kube_client::{Answer, Event, KubeClient, Watch, items, revision},
    scenario::wait_for,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::kube::{load::many, watches::now};

/// The number of changes of each object after it was created.
const CHANGES: usize = 3;
const LAST: &str = "steady-last";
/// The pause of a writer after each request, as several clusters may share the machine.
const BETWEEN_REQUESTS: Duration = Duration::from_millis(50);
/// The time for a request to succeed, with all that is repeated.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);
const EVENT_LIMIT: Duration = Duration::from_secs(60);
/// A watch without events is no error by itself.
const QUIET_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// The longest time in which something did not happen.
#[derive(Debug)]
pub struct Pauses(Mutex<(Instant, Duration)>);

impl Default for Pauses {
    fn default() -> Self {
        Self(Mutex::new((Instant::now(), Duration::ZERO)))
    }
}

impl Pauses {
    pub fn happened(&self) {
        let (last, longest) = &mut *self.0.lock();
        *longest = (*longest).max(last.elapsed());
        *last = Instant::now();
    }

    /// The longest pause since the last call and until now.
    pub fn longest(&self) -> Duration {
        let (last, longest) = &mut *self.0.lock();
        std::mem::take(longest).max(last.elapsed())
    }
}

/// What a writer knows of an object.
#[derive(Debug, Default)]
struct Life {
    /// The revisions of its acknowledged values, in their order.
    revisions: Vec<u64>,
    deleted: bool,
}

/// A Kind that is written and watched.
pub struct Steady {
    pub resource: &'static str,
    /// The store that should have it.
    pub store: &'static str,
    path: String,
    object: fn(&str) -> Value,
    lives: Mutex<BTreeMap<String, Life>>,
    acknowledged: AtomicUsize,
    pub pauses: Pauses,
    /// Refusals and lost answers, by their beginnings.
    pub errors: Mutex<BTreeMap<String, usize>>,
}

impl Steady {
    pub fn new(
        resource: &'static str,
        store: &'static str,
        path: impl Into<String>,
        object: fn(&str) -> Value,
    ) -> Self {
        Self {
            resource,
            store,
            path: path.into(),
            object,
            lives: Mutex::default(),
            acknowledged: AtomicUsize::new(0),
            pauses: Pauses::default(),
            errors: Mutex::default(),
        }
    }

    /// The number of acknowledged writes.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.load(Relaxed)
    }

    /// Waits until so many more writes are acknowledged.
    pub async fn more(&self, writes: usize) -> anyhow::Result<()> {
        let wanted = self.acknowledged() + writes;
        let waited = wait_for("more writes", EVENT_LIMIT, || async {
            Ok((self.acknowledged() >= wanted).then_some(()))
        });
        waited.await.with_context(|| format!("{}: {:?}", self.resource, self.errors.lock()))
    }

    /// Creates, changes and deletes objects until `done`. Of two objects, one stays.
    pub async fn write(&self, client: &KubeClient, writer: usize, done: &AtomicBool) -> anyhow::Result<()> {
        for cycle in 0.. {
            if done.load(Relaxed) {
                break;
            }
            let name = format!("steady-{writer}-{cycle}");
            self.create(client, &name).await?;
            let path = format!("{}/{name}", self.path);
            for round in 1..=CHANGES {
                // A repetition of a change that was made finds nothing to change.
                let labels = json!({"metadata": {"labels": {"round": round.to_string()}}});
                let changed = self.repeated(|| client.merge(&path, &labels), &[200]).await?;
                self.note(&name, Some(revision(&changed.body)?));
            }
            if cycle % 2 == 0 {
                self.repeated(|| client.delete(&path), &[200, 404]).await?;
                self.note(&name, None);
            }
        }
        Ok(())
    }

    async fn create(&self, client: &KubeClient, name: &str) -> anyhow::Result<()> {
        let mut object = (self.object)(name);
        object["metadata"]["labels"] = json!({"round": "0"});
        let path = format!("{}/{name}", self.path);
        let made = self.repeated(|| client.create(&self.path, &object), &[201, 409]).await?;
        let made = match made.status {
            201 => made,
            // An attempt without an answer has created it.
            _ => self.repeated(|| client.get(&path), &[200]).await?,
        };
        self.note(name, Some(revision(&made.body)?));
        Ok(())
    }

    fn note(&self, name: &str, revision: Option<u64>) {
        let mut lives = self.lives.lock();
        let life = lives.entry(name.to_owned()).or_default();
        match revision {
            Some(revision) => life.revisions.push(revision),
            None => life.deleted = true,
        }
        self.acknowledged.fetch_add(1, Relaxed);
        self.pauses.happened();
    }

    /// Repeats a request until it has one of these answers.
    async fn repeated<F, Fut>(&self, mut request: F, wanted: &[u16]) -> anyhow::Result<Answer>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = anyhow::Result<Answer>>,
    {
        wait_for("an acknowledgement", REQUEST_LIMIT, || {
            let request = request();
            async move {
                tokio::time::sleep(BETWEEN_REQUESTS).await;
                let why = match request.await {
                    Ok(answer) if wanted.contains(&answer.status) => return Ok(Some(answer)),
                    Ok(answer) => format!("{} {}", answer.status, answer.body["message"]),
                    Err(error) => format!("{error:#}"),
                };
                *self.errors.lock().entry(why.chars().take(160).collect()).or_default() += 1;
                Ok(None)
            }
        })
        .await
        .with_context(|| format!("{}: {:?}", self.resource, self.errors.lock()))
    }

    /// Watches the Kind from now on.
    pub async fn watch(&self, client: &KubeClient) -> anyhow::Result<Informer> {
        let start = now(client, &self.path).await?;
        Ok(Informer::start(client.watch(&self.path, Some(start)).await?))
    }

    /// After the writers have ended: the watch delivered every change once and in order, and the objects are as they were
    /// acknowledged. Returns the number of events.
    pub async fn check(&self, client: &KubeClient, informer: &Informer) -> anyhow::Result<usize> {
        self.create(client, LAST).await?;
        let events = informer.until(LAST).await.with_context(|| format!("the watch of {}", self.resource))?;
        let lives = self.lives.lock();
        let mut told: BTreeMap<&str, Vec<&Told>> = BTreeMap::new();
        let mut last = 0;
        for event in &events {
            ensure!(event.revision > last, "{}: {event:?} after {last}", self.resource);
            last = event.revision;
            told.entry(&event.name).or_default().push(event);
        }
        for (name, life) in &*lives {
            let told = told.remove(name.as_str()).unwrap_or_default();
            let what = || format!("{} {name}: {life:?} was acknowledged, {told:?} was told", self.resource);
            ensure!(told.len() >= life.revisions.len(), "{}", what());
            let (written, after) = told.split_at(life.revisions.len());
            for (round, (event, wanted)) in written.iter().zip(&life.revisions).enumerate() {
                let change = if round == 0 { "ADDED" } else { "MODIFIED" };
                let is = (event.change.as_str(), event.revision, event.round.as_str());
                ensure!(is == (change, *wanted, round.to_string().as_str()), "{}", what());
            }
            // The apiserver marks some objects before it deletes them.
            let marks = after.iter().take_while(|event| event.change == "MODIFIED" && event.marked).count();
            let end: Vec<_> = after[marks..].iter().map(|event| event.change.as_str()).collect();
            ensure!(end == if life.deleted { vec!["DELETED"] } else { Vec::new() }, "{}", what());
        }
        ensure!(told.is_empty(), "{}: nobody wrote {told:?}", self.resource);
        Ok(events.len())
    }

    /// Every acknowledged object is stored with its last value, and the apiserver's cache has the same.
    pub async fn check_stored(&self, client: &KubeClient) -> anyhow::Result<usize> {
        let lives: Vec<(String, Option<u64>)> = {
            let lives = self.lives.lock();
            let last = |life: &Life| life.revisions.last().copied().filter(|_| !life.deleted);
            lives.iter().map(|(name, life)| (name.clone(), last(life))).collect()
        };
        // A read of one object without a revision does not come from the cache.
        let stored = many(lives.len(), |index| {
            let (name, wanted) = &lives[index];
            async move {
                let answer = client.get(&format!("{}/{name}", self.path)).await?;
                let is = if answer.status == 404 { None } else { Some(revision(&answer.ok()?)?) };
                ensure!(is == *wanted, "{} {name}: {is:?} is stored, not {wanted:?}", self.resource);
                Ok(usize::from(is.is_some()))
            }
        })
        .await?;
        let list = client.get(&format!("{}?resourceVersion=0", self.path)).await?.ok()?;
        let mut cached = BTreeMap::new();
        for object in items(&list)? {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            if name.starts_with("steady-") {
                cached.insert(name.to_owned(), revision(object)?);
            }
        }
        let wanted: BTreeMap<String, u64> =
            lives.into_iter().filter_map(|(name, revision)| Some((name, revision?))).collect();
        ensure!(cached == wanted, "{}: the cache has {cached:?}, not {wanted:?}", self.resource);
        Ok(stored.into_iter().sum())
    }
}

/// An event of a watch.
#[derive(Debug, Clone)]
struct Told {
    change: String,
    name: String,
    revision: u64,
    round: String,
    marked: bool,
}

/// A watch that is read all the time, and that must not end.
pub struct Informer {
    told: Arc<Mutex<Vec<Told>>>,
    ended: Arc<Mutex<Option<String>>>,
    _reading: AbortOnDropHandle<()>,
}

impl Informer {
    fn start(watch: Watch) -> Self {
        let (told, ended) = (Arc::<Mutex<Vec<Told>>>::default(), Arc::<Mutex<Option<String>>>::default());
        let (to, why) = (told.clone(), ended.clone());
        let reading = tokio::spawn(async move {
            *why.lock() = read(watch, &to).await.err().map(|error| format!("{error:#}"));
        });
        Self { told, ended, _reading: AbortOnDropHandle::new(reading) }
    }

    /// Fails if the watch has ended.
    pub fn lives(&self) -> anyhow::Result<()> {
        match &*self.ended.lock() {
            Some(why) => bail!("the watch ended: {why}"),
            None => Ok(()),
        }
    }

    /// The events up to the first one of this object.
    async fn until(&self, name: &str) -> anyhow::Result<Vec<Told>> {
        wait_for("the last event", EVENT_LIMIT, || async {
            self.lives()?;
            Ok(self.told.lock().iter().any(|event| event.name == name).then_some(()))
        })
        .await?;
        Ok(self.told.lock().clone())
    }
}

async fn read(mut watch: Watch, to: &Mutex<Vec<Told>>) -> anyhow::Result<()> {
    loop {
        let Event { change, object } = watch.change(QUIET_LIMIT).await?;
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        // Others write this Kind as well.
        if name.starts_with("steady-") {
            let round = metadata["labels"]["round"].as_str().unwrap_or_default().to_owned();
            let marked = metadata["deletionTimestamp"].is_string();
            let revision = revision(&object)?;
            to.lock().push(Told { change, name, revision, round, marked });
        }
    }
}
