//! Informers. Each lists and then watches from the revision after the list. It lists again only when its watch is
//! canceled as compacted.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use kindred_proto::{
    etcdserverpb::{
        RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse, watch_request::RequestUnion,
    },
    mvccpb::KeyValue,
};
use kindred_tests::{client::Client, scenario::wait_for};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::crash::{
    cluster::{Cluster, Kind},
    writers::{Shared, number},
};

const AWAY: Duration = Duration::from_millis(50);
const CAUGHT_UP_LIMIT: Duration = Duration::from_secs(60);
/// How many of a watch's last events are looked for in the history after a crash.
const EVENTS_MAX: usize = 40;

/// The number and the revision of each key.
pub type Contents = BTreeMap<String, (u64, i64)>;

/// The state of an informer.
#[derive(Debug, Default)]
struct Known {
    contents: Contents,
    /// The last events since the last list, each with key, number and revision.
    events: VecDeque<(String, u64, i64)>,
    relists: usize,
    /// The highest revision that the informer has seen.
    shown: i64,
}

/// One informer.
pub struct Watcher {
    pub kind: Kind,
    pub router: usize,
    client: Client,
    known: Arc<Mutex<Known>>,
}

/// Starts an informer of each Kind through every router. They run until the tasks are dropped.
pub fn start(
    cluster: &Cluster,
    kinds: &[Kind],
    shared: &Arc<Shared>,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Vec<Watcher>> {
    let mut watchers = Vec::new();
    for kind in kinds {
        for router in 0..cluster.addresses.len() {
            let (client, known) = (cluster.client(router)?, Arc::<Mutex<Known>>::default());
            let informer = Informer {
                kind: *kind,
                client: client.clone(),
                known: known.clone(),
                shared: shared.clone(),
            };
            tasks.spawn(informer.run());
            watchers.push(Watcher { kind: *kind, router, client, known });
        }
    }
    Ok(watchers)
}

impl Watcher {
    pub fn relists(&self) -> usize {
        self.known.lock().relists
    }

    /// Waits until the informer has exactly the contents of the store, while the writers pause. Asserts that every
    /// event since its last list is in the history. Returns the number of these events.
    pub async fn check(&mut self) -> anyhow::Result<usize> {
        let who = format!("the watch of {} by router {}", self.kind.resource, self.router);
        let (there, _) = list(&mut self.client, &self.kind).await?;
        let known = &self.known;
        let caught_up =
            wait_for(&who, CAUGHT_UP_LIMIT, || async { Ok((known.lock().contents == there).then_some(())) })
                .await;
        if let Err(error) = caught_up {
            let known = self.known.lock();
            let differ = there
                .iter()
                .map(|(key, at)| (key, Some(at), known.contents.get(key)))
                .chain(
                    known
                        .contents
                        .iter()
                        .filter(|(key, _)| !there.contains_key(*key))
                        .map(|(key, at)| (key, None, Some(at))),
                )
                .filter(|(_, there, known)| there != known);
            let differ: Vec<_> = differ.take(5).collect();
            bail!("{error:#}: differences as (key, in the store, at the informer): {differ:?}");
        }
        let events: Vec<_> = self.known.lock().events.iter().cloned().collect();
        for (key, number, revision) in &events {
            let found = at_revision(&mut self.client, key, *revision).await?;
            ensure!(
                found == Found::There(*number, *revision),
                "{who} was given {key} {number} at {revision} and was not cancelled, but there is {found:?}"
            );
        }
        Ok(events.len())
    }
}

struct Informer {
    kind: Kind,
    client: Client,
    known: Arc<Mutex<Known>>,
    shared: Arc<Shared>,
}

impl Informer {
    async fn run(mut self) {
        loop {
            let from = match list(&mut self.client, &self.kind).await {
                Ok((contents, revision)) => {
                    self.listed(contents, revision);
                    revision + 1
                }
                Err(_) => {
                    tokio::time::sleep(AWAY).await;
                    continue;
                }
            };
            self.follow(from).await;
        }
    }

    fn listed(&self, contents: Contents, revision: i64) {
        let mut known = self.known.lock();
        if revision < known.shown {
            let kind = self.kind.resource;
            self.shared.complain(format!("{kind}: a list at {revision} after {} was shown", known.shown));
        }
        known.shown = known.shown.max(revision);
        known.contents = contents;
        known.events.clear();
    }

    /// Watches from a revision on, over as many streams as necessary, until a watch is canceled as compacted.
    async fn follow(&mut self, mut from: i64) {
        loop {
            let create = WatchCreateRequest {
                key: self.kind.prefix.into(),
                range_end: self.kind.end().into(),
                start_revision: from,
                ..Default::default()
            };
            let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
            let requests =
                futures_util::StreamExt::chain(tokio_stream::iter([create]), tokio_stream::pending());
            if let Ok(answers) = self.client.watch.watch(requests).await {
                let mut answers = answers.into_inner();
                while let Ok(Some(answer)) = answers.message().await {
                    if answer.canceled {
                        if answer.compact_revision > 0 {
                            self.known.lock().relists += 1;
                            return;
                        }
                        // The store was away for longer than the router lets a create wait.
                        break;
                    }
                    if let Err(error) = self.given(&answer) {
                        self.shared.complain(format!("{}: {error:#}", self.kind.resource));
                    }
                    if let Some(last) = answer.events.iter().filter_map(|event| event.kv.as_ref()).last() {
                        from = last.mod_revision + 1;
                    }
                }
            }
            tokio::time::sleep(AWAY).await;
        }
    }

    fn given(&self, answer: &WatchResponse) -> anyhow::Result<()> {
        let mut known = self.known.lock();
        for kv in answer.events.iter().filter_map(|event| event.kv.as_ref()) {
            let (key, at) = parsed(kv)?;
            let before = known.contents.get(&key).map_or(0, |(_, revision)| *revision);
            ensure!(kv.mod_revision > before, "{key} at {} after {before}", kv.mod_revision);
            known.events.push_back((key.clone(), at.0, at.1));
            if known.events.len() > EVENTS_MAX {
                known.events.pop_front();
            }
            known.shown = known.shown.max(kv.mod_revision);
            known.contents.insert(key, at);
        }
        Ok(())
    }
}

fn parsed(kv: &KeyValue) -> anyhow::Result<(String, (u64, i64))> {
    let key = String::from_utf8(kv.key.to_vec())?;
    let number = number(&kv.value).with_context(|| format!("{key} has a value that nobody wrote"))?;
    Ok((key, (number, kv.mod_revision)))
}

/// All keys of a Kind, and the revision of the list.
pub async fn list(client: &mut Client, kind: &Kind) -> anyhow::Result<(Contents, i64)> {
    let all = RangeRequest { key: kind.prefix.into(), range_end: kind.end().into(), ..Default::default() };
    let answer = client.kv.range(all).await?.into_inner();
    let contents = answer.kvs.iter().map(parsed).collect::<anyhow::Result<_>>()?;
    Ok((contents, answer.header.context("a header")?.revision))
}

/// The state of a key at a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The key's number, and the revision that wrote it.
    There(u64, i64),
    Nothing,
    Compacted,
}

pub async fn at_revision(client: &mut Client, key: &str, revision: i64) -> anyhow::Result<Found> {
    let get = RangeRequest { key: key.to_owned().into(), revision, ..Default::default() };
    match client.kv.range(get).await {
        Ok(answer) => match answer.into_inner().kvs.first() {
            Some(kv) => parsed(kv).map(|(_, (number, revision))| Found::There(number, revision)),
            None => Ok(Found::Nothing),
        },
        Err(status) if status.message().contains("has been compacted") => Ok(Found::Compacted),
        Err(status) => Err(status).with_context(|| format!("reading {key} at {revision}")),
    }
}
