//! Runs a sequence on both sides and stops at the first difference.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use anyhow::{Context, bail};
use kindred_tests::{layouts::Place, scenario::report};

use crate::differential::{
    answer::{Answer, View},
    forgive,
    keys::{self, KINDS},
    operation::{Action, KeyTable, Operation},
    revision::{History, Mode, Scope, Who},
    side::Side,
    watches::{Item, WatchStream},
};

/// The indexes of a stream, of its watch, and of the watch's item.
type ItemPlace = (usize, usize, usize);

const WHO: [Who; 2] = [Who::Left, Who::Right];

#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub operations: usize,
    pub errors: usize,
    pub watches: usize,
    pub watch_events: usize,
    pub mismatches: usize,
}

/// The operation at which the sides differ, and a text that shows both answers.
#[derive(Debug)]
pub struct Mismatch {
    pub index: usize,
    pub text: String,
}

pub struct Run {
    sides: [Side; 2],
    /// Only in mapped mode: a watch of each kind on each side. Their events give the history its revisions.
    recorders: Option<[WatchStream; 2]>,
    history: History,
    /// For each kind, the number of its events that are in the history.
    known: Vec<usize>,
    /// Makes additional writes on the right side, so that its revisions differ. This tests the mapped comparison.
    noise: bool,
    /// Differences are reported and counted, and do not end the run.
    keep_going: bool,
    reported: BTreeSet<ItemPlace>,
    counts: Counts,
}

impl Run {
    pub async fn new(addresses: [&[String]; 2], mode: Mode, right: Place) -> anyhow::Result<Self> {
        let right_is_etcd = right == Place::ETCD;
        let noise = mode == Mode::Mapped && right_is_etcd;
        let mut sides =
            [Side::connect(addresses[0], true).await?, Side::connect(addresses[1], right_is_etcd).await?];
        if noise {
            for _ in 0..100 {
                sides[1].noise().await?;
            }
        }
        let (mut recorders, mut compacted) = (None, None);
        if mode == Mode::Mapped {
            compacted = Some([sides[0].begin_compacted().await?, sides[1].begin_compacted().await?]);
            recorders = Some([recorder(&sides[0]).await?, recorder(&sides[1]).await?]);
        }
        let mut base = Vec::new();
        for kind in 0..KINDS.len() {
            let (key, _) = keys::whole(kind);
            base.push([sides[0].current(&key).await?, sides[1].current(&key).await?]);
        }
        let mut history = History::new(mode, KINDS.len(), base);
        if let Some(compacted) = compacted {
            history.set_compacted(compacted);
        }
        Ok(Self {
            sides,
            recorders,
            history,
            known: vec![0; KINDS.len()],
            noise,
            keep_going: std::env::var_os("KINDRED_KEEP_GOING").is_some(),
            reported: BTreeSet::new(),
            counts: Counts::default(),
        })
    }

    pub async fn sequence(mut self, operations: &[Operation]) -> Result<Counts, Mismatch> {
        for (index, operation) in operations.iter().enumerate() {
            let step = self.step(index, operation).await;
            step.map_err(|error| Mismatch {
                index,
                text: format!("operation {index}: {operation:?}\n{error:#}"),
            })?;
            self.counts.operations += 1;
        }
        let [left, _] = &self.sides;
        self.counts.watch_events = left.streams.iter().map(|stream| stream.events).sum();
        self.counts.watches = left.streams.iter().map(|stream| stream.watches.len()).sum();
        Ok(self.counts)
    }

    async fn step(&mut self, index: usize, operation: &Operation) -> anyhow::Result<()> {
        if self.noise && index % 3 == 1 {
            self.sides[1].noise().await?;
        }
        match operation.action {
            Action::Drain => return self.drain().await,
            Action::WatchCancel { stream, position } => return self.cancel(stream, position).await,
            _ => {}
        }
        if matches!(operation.action, Action::Compact(_)) {
            // Otherwise a watch that is behind might be canceled as compacted on one side only.
            self.drain().await?;
        }
        let [left, right] = &mut self.sides;
        let mut table = KeyTable::new();
        for key in operation.compared_keys() {
            let revisions = [left.key_revisions(&key).await?, right.key_revisions(&key).await?];
            table.insert(key, revisions);
        }
        let mut actions = operation.resolve(&self.history, &table);
        if let (true, Action::WatchCreate { request, .. }) = (self.noise, &mut actions[1]) {
            // The additional writes on the right must not move the start of a waiting watch into the past.
            if operation.waits() {
                request.start_revision = request.start_revision.max(right.current(&request.key).await? + 1);
            }
        }
        let sent = format!("left  {:?}\nright {:?}", actions[0], actions[1]);
        let watch = actions[0].clone();
        let [first, second] = actions;
        let compacts = match &first {
            Action::Compact(request) => Some(request.revision),
            _ => None,
        };
        let compacts_right = match &second {
            Action::Compact(request) => request.revision,
            _ => 0,
        };
        let (first, second) =
            tokio::join!(left.execute(operation.scope, first), right.execute(operation.scope, second));
        let mut answers = [first.context("left")?, second.context("right")?];
        if let (Some(revision), Answer::Compact(_)) = (compacts, &answers[0]) {
            self.history.set_compacted([revision, compacts_right]);
            right.wait_compacted(compacts_right).await?;
        }
        if matches!(answers[0], Answer::Error { .. }) {
            self.counts.errors += 1;
        }
        let wrote = answers[0].revision().is_some_and(|now| now > self.history.last(Scope::All, Who::Left));
        if let (true, Answer::Error { code, message }) = (wrote, &answers[1]) {
            bail!(
                "sent\n{}\nleft (etcd) wrote, now at {:?}, before at {}; right refused with {code}: {message}",
                shortened(&sent),
                answers[0].revision(),
                self.history.last(Scope::All, Who::Left)
            );
        }
        self.learn(&answers).await.with_context(|| format!("sent {}", shortened(&sent)))?;
        for (who, answer) in WHO.into_iter().zip(&mut answers) {
            View { history: &self.history, scope: operation.scope, who }.normalise(answer);
        }
        forgive::stored_hash(&self.history, &mut answers);
        if let (Action::WatchCreate { request, .. }, [Answer::Watch(left), Answer::Watch(right)]) =
            (&watch, &mut answers)
            && request.start_revision > 0
        {
            left.iter().zip(right).for_each(|(left, right)| self.history.mode.forgive_trailing(left, right));
        }
        if answers[0] != answers[1] {
            let difference = format!(
                "sent\n{}\nleft answered (etcd)\n{}\nright answered\n{}",
                shortened(&sent),
                shortened(&format!("{:#?}", answers[0])),
                shortened(&format!("{:#?}", answers[1]))
            );
            if !self.keep_going {
                bail!(difference);
            }
            report(&format!("operation {index} differs, going on\n{difference}"));
            self.counts.mismatches += 1;
        }
        if let (Action::WatchCreate { stream, request }, Answer::Watch(created)) = (&watch, &answers[0]) {
            let compacted = request.start_revision > 0 && self.history.is_compacted(request.start_revision);
            if compacted && created.iter().all(|answer| !answer.canceled) {
                for (side, who) in self.sides.iter_mut().zip(WHO) {
                    let forgotten = side.streams[*stream].forget_compacted(created[0].watch_id).await;
                    forgotten.with_context(|| format!("{who:?}"))?;
                }
            }
        }
        Ok(())
    }

    /// Adds the writes up to the left answer's revision to the history.
    async fn learn(&mut self, answers: &[Answer; 2]) -> anyhow::Result<()> {
        let Some(revision) = answers[0].revision() else { return Ok(()) };
        if revision <= self.history.last(Scope::All, Who::Left) {
            return Ok(());
        }
        let Some([left, right]) = &mut self.recorders else {
            self.history.extend_dense(revision);
            return Ok(());
        };
        left.flush(revision).await.context("left recorder")?;
        for (kind, keys) in KINDS.iter().enumerate() {
            let ours = revisions(&left.watches[kind].items);
            right
                .until(kind, |items| revisions(items).len() >= ours.len())
                .await
                .with_context(|| format!("right recorder, {}", keys.prefix))?;
            let theirs = revisions(&right.watches[kind].items);
            let mut from = self.known[kind];
            for write in ours[from..].chunk_by(|one, next| one == next) {
                self.history.push(kind, write[0], &theirs[from..from + write.len()]);
                from += write.len();
            }
            self.known[kind] = from;
        }
        Ok(())
    }

    /// Whether a stream has a watch that waits for a revision that is not written yet. Neither side answers progress
    /// requests on such a stream.
    fn waits(&self, stream: usize) -> bool {
        self.sides.iter().zip(WHO).any(|(side, who)| {
            let watches = &side.streams[stream].watches;
            watches.iter().any(|watch| {
                // kindred's current revision of an idle kind stands still while other kinds are written.
                let scope = if who == Who::Left { Scope::All } else { watch.scope };
                watch.live && watch.start > self.history.last(scope, who)
            })
        })
    }

    async fn drain(&mut self) -> anyhow::Result<()> {
        for stream in 0..self.sides[0].streams.len() {
            self.drain_stream(stream).await.with_context(|| format!("watch stream {stream}"))?;
        }
        Ok(())
    }

    /// Waits until a stream has delivered everything on both sides, and compares. If a watch waits for a later
    /// revision, it compares only what has arrived so far and returns false.
    async fn drain_stream(&mut self, stream: usize) -> anyhow::Result<bool> {
        let waits = self.waits(stream);
        let history = &self.history;
        let [left, right] = &mut self.sides;
        for (side, who) in [left, right].into_iter().zip(WHO) {
            let side = &mut side.streams[stream];
            let live = side.watches.iter().filter(|watch| watch.live);
            let target = live.map(|watch| history.last(watch.scope, who)).max().unwrap_or(0);
            let flushed = if waits { side.poll().await } else { side.flush(target).await };
            flushed.with_context(|| format!("{who:?}"))?;
        }
        self.compare(stream, !waits)?;
        Ok(!waits)
    }

    fn compare(&mut self, stream: usize, complete: bool) -> anyhow::Result<()> {
        for (place, difference) in self.differences(stream, complete)? {
            if self.reported.insert(place) {
                report(&format!("watch stream {stream}, going on: {difference}"));
                self.counts.mismatches += 1;
            }
        }
        Ok(())
    }

    fn differences(&self, stream: usize, complete: bool) -> anyhow::Result<BTreeMap<ItemPlace, String>> {
        let mut differences = BTreeMap::new();
        let history = &self.history;
        let [left, right] = [&self.sides[0].streams[stream], &self.sides[1].streams[stream]];
        for (index, (ours, theirs)) in left.watches.iter().zip(&right.watches).enumerate() {
            let view = |who| View { history: &self.history, scope: ours.scope, who };
            let from_now = ours.from_now;
            let before_watch = if from_now { 0 } else { ours.created() };
            let ours = comparable(&ours.items, view(Who::Left), complete);
            let theirs = comparable(&theirs.items, view(Who::Right), complete);
            let lengths = [ours.len(), theirs.len()];
            for position in 0..lengths[0].max(lengths[1]) {
                let (ours, mut theirs) = (ours.get(position).cloned(), theirs.get(position).cloned());
                forgive::kept_prev(history, before_watch, ours.as_ref(), &mut theirs);
                if let (Some(Item::Control(ours)), Some(Item::Control(theirs)), false) =
                    (&ours, &mut theirs, from_now)
                {
                    history.mode.forgive_trailing(ours, theirs);
                }
                let both = ours.is_some() && theirs.is_some();
                if ours != theirs && (complete || both) {
                    let difference = format!(
                        "watch {index} ({:?}) differs at item {position} (lengths {lengths:?})\n\
                         left was sent (etcd)\n{ours:#?}\nright was sent\n{theirs:#?}",
                        self.sides[0].streams[stream].watches[index].items[0]
                    );
                    if !self.keep_going {
                        bail!(difference);
                    }
                    differences.insert((stream, index, position), difference);
                }
            }
        }
        Ok(differences)
    }

    async fn cancel(&mut self, stream: usize, position: usize) -> anyhow::Result<()> {
        // The events before a cancel can be compared only if the watch has received all of them.
        if !self.drain_stream(stream).await? {
            return Ok(());
        }
        let live = self.sides[0].streams[stream].live();
        if live.is_empty() {
            return Ok(());
        }
        let id = live[position % live.len()];
        for (side, who) in self.sides.iter_mut().zip(WHO) {
            side.streams[stream].cancel(id).await.with_context(|| format!("{who:?}"))?;
        }
        self.compare(stream, true)
    }
}

/// The items of a watch in comparable form. The events of a write in several parts are in the order of keys. If some
/// of them may still be missing, that write is left out.
fn comparable(items: &[Item], view: View<'_>, complete: bool) -> Vec<Item> {
    let mut items: Vec<Item> = items.iter().map(|item| normalised(item, view)).collect();
    let same = |one: &Item, next: &Item| revision(one).is_some() && revision(one) == revision(next);
    for write in items.chunk_by_mut(same) {
        if revision(&write[0]).is_some_and(|left| view.history.is_split(left)) {
            write.sort_by(|one, next| key(one).cmp(&key(next)));
        }
    }
    let last = items.last().and_then(revision).filter(|left| !complete && view.history.is_split(*left));
    if last.is_some() {
        items.retain(|item| revision(item) != last);
    }
    items
}

fn revision(item: &Item) -> Option<i64> {
    match item {
        Item::Event(event) => event.kv.as_ref().map(|kv| kv.mod_revision),
        Item::Control(_) => None,
    }
}

fn key(item: &Item) -> Option<&[u8]> {
    match item {
        Item::Event(event) => event.kv.as_ref().map(|kv| kv.key.as_ref()),
        Item::Control(_) => None,
    }
}

fn normalised(item: &Item, view: View<'_>) -> Item {
    let mut item = item.clone();
    match &mut item {
        Item::Control(answer) => view.watch(answer),
        Item::Event(event) => {
            event.kv.iter_mut().for_each(|kv| view.key_value(kv));
            event.prev_kv.iter_mut().for_each(|kv| view.key_value(kv));
        }
    }
    item
}

fn revisions(items: &[Item]) -> Vec<i64> {
    items.iter().filter_map(revision).collect()
}

async fn recorder(side: &Side) -> anyhow::Result<WatchStream> {
    let mut stream = side.open_stream();
    for kind in 0..KINDS.len() {
        let (key, range_end) = keys::whole(kind);
        let request =
            kindred_proto::etcdserverpb::WatchCreateRequest { key, range_end, ..Default::default() };
        stream.create(Scope::Kind(kind), &request).await?;
    }
    Ok(stream)
}

/// Cuts long lines, as large values would hide the difference.
fn shortened(text: &str) -> String {
    const LINE_CHARS: usize = 600;
    let mut short = String::new();
    for line in text.lines() {
        match line.char_indices().nth(LINE_CHARS) {
            Some((end, _)) => {
                let _ = writeln!(short, "{}… ({} bytes)", &line[..end], line.len());
            }
            None => {
                let _ = writeln!(short, "{line}");
            }
        }
    }
    short
}
