//! Runs progress rounds: carries out the commands of [`crate::progress`].

use std::time::{Duration, Instant};

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_wire::kv::WatchHead;

use super::message::{self, NO_WATCH};
use super::outside::{FeedReader as _, Outside};
use super::state::{FeedWatch, Request, Session, Watch};
use super::types::{Ask, FeedNo, Origin};
use crate::progress::Command;
use crate::store::StoreIx;

/// How long a round may take before it is aborted.
pub const ROUND_MAX: Duration = Duration::from_secs(1);
/// Maximum number of ranges named to a store; with more watches than that, all its keys are meant.
const RANGES_MAX: usize = 32;
/// How long an unanswered progress request is kept.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// The pause after an aborted round or a forwarded request, before the next try; held messages go first.
const ROUND_AGAIN: Duration = Duration::from_millis(200);

impl<O: Outside> Session<O> {
    /// The stores and feeds that the announced watches read from.
    fn members(&self) -> Vec<Origin> {
        let mut members: Vec<_> =
            self.watches.values().filter(|watch| watch.announced).map(|watch| watch.origin).collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// Whether anything can be promised: every announced watch is confirmed on its present stream, none reads a
    /// catch-up, and no stock etcd, which cannot be raised, is mixed with another store.
    fn can_promise(&self, members: &[Origin]) -> bool {
        let live =
            |watch: &Watch<O::Reader>| watch.live && watch.feed.as_ref().is_none_or(FeedWatch::is_caught_up);
        let raises = |member: &Origin| match member {
            Origin::Store(store) => self.outside.is_shard(*store),
            Origin::Feed(_) => true,
        };
        self.watches.values().all(|watch| live(watch) || !watch.announced)
            && (members.len() < 2 || members.iter().all(raises))
    }

    pub(super) fn on_progress_request(&mut self) {
        let now = self.now;
        let passed_on = self.requested.filter(|request| request.passed_on.is_some());
        let owed = passed_on.map_or(0, |request| request.owed);
        self.requested = Some(Request { since: now, not_before: now, passed_on: None, owed: owed + 1 });
        let members = self.members();
        if self.progress.in_round() && self.can_promise(&members) {
            // The request gets the next round: the revisions of the one under way were asked before it came (R7).
            let commands = self.progress.request(&members);
            self.follow(commands);
        } else {
            self.answer_request();
        }
    }

    /// Begins the round that answers the client's request, as soon as something can be promised.
    pub(super) fn answer_request(&mut self) {
        let Some(request) = self.requested else { return };
        if self.progress.in_round() || request.not_before > self.now {
            return;
        }
        if self.now.saturating_duration_since(request.since) > REQUEST_MAX {
            self.requested = None;
            return;
        }
        let members = self.members();
        let answers = |(store, number): (StoreIx, u64)| {
            members == [Origin::Store(store)]
                && self.upstreams.get(&store).is_some_and(|upstream| upstream.number == number)
        };
        if members.is_empty() || request.passed_on.is_some_and(answers) || !self.can_promise(&members) {
            return;
        }
        self.only_periodic = false;
        let commands = match members[..] {
            // Its next answer is to an earlier question, and may lie below what the client has seen since.
            [Origin::Store(store)] if self.owes_a_round(store) => self.progress.begin(&members),
            _ => self.progress.request(&members),
        };
        self.follow(commands);
    }

    /// Tells whether a store still owes the answer to a question of a round.
    fn owes_a_round(&self, store: StoreIx) -> bool {
        self.upstreams.get(&store).is_some_and(|upstream| upstream.asked_by_round > 0)
    }

    /// When a request that had to wait after a round is tried again.
    pub(super) fn request_due(&self) -> Option<Instant> {
        let at = self.requested.filter(|_| !self.progress.in_round())?.not_before;
        (at > self.now).then_some(at)
    }

    /// Notes that a watch which the client knows from now on may want periodic progress.
    pub(super) fn expect_periodic(&mut self, uid: i64) {
        let wants = self.watches.get(&uid).is_some_and(|watch| watch.create.progress_notify);
        if wants && self.next_periodic.is_none() {
            self.next_periodic = Some(self.now + self.settings.notify);
        }
    }

    /// Sends periodic progress; watches on a stock etcd get it from there.
    pub(super) fn on_period(&mut self) {
        if self.next_periodic.is_none_or(|at| at > self.now) {
            return;
        }
        self.next_periodic = Some(self.now + self.settings.notify);
        for (uid, watch) in &mut self.watches {
            let is_ours = match watch.origin {
                Origin::Store(store) => self.outside.is_shard(store),
                Origin::Feed(_) => true,
            };
            if watch.announced
                && std::mem::replace(&mut watch.quiet, true)
                && watch.create.progress_notify
                && is_ours
            {
                self.periodic.insert(*uid);
            }
        }
        let members = self.members();
        if !self.periodic.is_empty() && !self.progress.in_round() && self.can_promise(&members) {
            self.begin_unasked(&members);
        }
    }

    /// Begins a round that no client has asked for. It answers also a request that a store was to answer: what that store says is
    /// a part of the round from now on.
    fn begin_unasked(&mut self, members: &[Origin]) {
        self.only_periodic = self.requested.is_none();
        if let Some(request) = &mut self.requested {
            request.passed_on = None;
        }
        let commands = self.progress.begin(members);
        self.follow(commands);
    }

    /// Notes that watches which were given everything stand at or below what was compacted: if their store breaks or
    /// their keys move, they could not go on from there. etcd cancels no watch that is up to date.
    pub(super) fn on_compacted(&mut self) {
        let compacted = self.outside.compacted().get();
        let lags = |watch: &Watch<O::Reader>| watch.announced && self.next_of(watch) <= compacted;
        if self.watches.values().any(lags) {
            self.pass_at = Some(self.now);
        }
    }

    /// Begins the round that raises all watches above what was compacted, as soon as something can be promised.
    pub(super) fn pass_compaction(&mut self) {
        if self.progress.in_round() || self.pass_at.is_none_or(|at| at > self.now) {
            return;
        }
        let members = self.members();
        // A stock etcd cannot be raised, and counts its own revisions.
        let raises =
            |member: &Origin| !matches!(member, Origin::Store(store) if !self.outside.is_shard(*store));
        if members.is_empty() || !members.iter().all(raises) {
            self.pass_at = None;
        } else if self.can_promise(&members) {
            self.begin_unasked(&members);
        } else {
            self.pass_at = Some(self.now + ROUND_AGAIN);
        }
    }

    /// When the round for a compaction is tried again.
    pub(super) fn pass_due(&self) -> Option<Instant> {
        self.pass_at.filter(|at| *at > self.now && !self.progress.in_round())
    }

    pub(super) fn on_progressed(&mut self, member: Origin, at: Revision) {
        if !self.can_promise(&self.members()) {
            return;
        }
        let floor = self.watches.values().filter(|watch| watch.announced).map(|w| w.floor).max().unwrap_or(0);
        let was_in_round = self.progress.in_round();
        let commands = self.progress.progressed(member, at, |at| floor > at.get());
        let answers = commands.iter().any(|command| matches!(command, Command::Answer(_)));
        let ended = if was_in_round {
            !self.progress.in_round()
        } else {
            // If another member has come since the request was passed on, the request gets a round.
            self.requested.is_some_and(|request| request.passed_on.is_some()) && self.members() == [member]
        };
        if ended && !answers {
            // Some watch begins above the revision that could be promised, so nothing is answered, as in etcd.
            self.requested = None;
            self.pass_at = None;
        }
        self.follow(commands);
    }

    pub(super) fn on_asked(&mut self, ask: &Ask, answer: Option<Revision>) {
        if ask.round != self.asked {
            return;
        }
        let commands = match (answer, ask.to) {
            (Some(_), Some(to)) => self.progress.raised(ask.member, to),
            (Some(current), None) => self.progress.current(ask.member, current),
            (None, _) => return self.abort_round(),
        };
        self.follow(commands);
    }

    /// Tells the progress machine that the watches, or their upstream streams, have changed.
    pub(super) fn watches_changed(&mut self) {
        if !self.progress.depends_on_members() {
            return;
        }
        let members = self.members();
        // A round that nobody waits for any more must ask the stores nothing: an answer would be taken for that to the
        // client's next request.
        let is_idle = self.only_periodic && self.periodic.is_empty() && self.pass_at.is_none();
        if self.progress.in_round() && (is_idle || !self.can_promise(&members)) {
            return self.abort_round();
        }
        if self.progress.in_round() {
            // Answers to the round that ends must not count in the next one.
            self.give_up_asking();
        }
        let commands = self.progress.changed(&members);
        self.follow(commands);
    }

    pub(super) fn abort_round(&mut self) {
        self.give_up_asking();
        self.only_periodic = false;
        let again = self.now + ROUND_AGAIN;
        if let Some(request) = &mut self.requested {
            request.not_before = again;
        }
        self.pass_at = self.pass_at.map(|_| again);
        let commands = self.progress.abort();
        self.follow(commands);
    }

    pub(super) fn expire_round(&mut self) {
        if self.round_since.is_some_and(|since| self.now.saturating_duration_since(since) >= ROUND_MAX) {
            self.abort_round();
        }
    }

    pub(super) fn follow(&mut self, commands: Vec<Command<Origin>>) {
        if commands.is_empty() {
            // Nothing has changed, so feeds need no new look. Otherwise the session would spin while one feed has
            // reached the target of a round and another has not.
            return;
        }
        for command in commands {
            match command {
                Command::Ask(member) => {
                    self.round_since = Some(self.now);
                    match member {
                        Origin::Store(store) => self.ask_store(store, None),
                        Origin::Feed(no) => self.ask_feed(no),
                    }
                }
                Command::Raise(Origin::Store(store), to) => self.ask_store(store, Some(to)),
                Command::Raise(feed @ Origin::Feed(_), to) => {
                    // A feed raises its stores itself when it is asked to reach a revision.
                    let commands = self.progress.raised(feed, to);
                    self.follow(commands);
                }
                Command::Forward(Origin::Store(store)) => {
                    let (in_round, now) = (self.progress.in_round(), self.now);
                    if let Some(upstream) = self.upstreams.get_mut(&store) {
                        let sent = self.outside.send(store, message::progress());
                        upstream.asked += u32::from(sent);
                        if in_round && sent {
                            upstream.asked_by_round = upstream.asked;
                        }
                        let passed_on = sent.then_some((store, upstream.number));
                        // A request for which the queue had no room is tried again later. In a round, the expiry of the
                        // round does that.
                        if let Some(request) = self.requested.as_mut().filter(|_| !in_round) {
                            request.passed_on = passed_on;
                            request.not_before = now + ROUND_AGAIN;
                        }
                    }
                }
                Command::Forward(Origin::Feed(no)) => {
                    if let (Some(followed), Some(to)) = (self.feeds.get(&no), self.progress.target()) {
                        followed.live.want(to);
                    }
                }
                Command::Answer(at) => self.answer(at),
                Command::Release => {
                    self.held_bytes = 0;
                    self.outgoing.extend(self.held.drain(..).map(|(_, message)| message.into()));
                }
            }
        }
        if !self.progress.in_round() {
            self.round_since = None;
        }
        // Feeds are read up to the target of the round, so a new target, or its end, means that there is more to read.
        // While the target stays, a round that waits for one feed must not spin over the others.
        self.dirty |= !self.feeds.is_empty() && self.progress.target() != self.read_to;
    }

    fn answer(&mut self, at: Revision) {
        self.pass_at = None;
        for watch in self.watches.values_mut().filter(|watch| watch.announced) {
            watch.next = watch.next.max(at.get() + 1);
        }
        let header = self.ids.header(at.get());
        let uids: Vec<i64> = self.watches.keys().copied().collect();
        uids.into_iter().for_each(|uid| self.show(uid, at.get()));
        for uid in std::mem::take(&mut self.periodic) {
            if let Some(watch) = self.watches.get(&uid) {
                self.say(message::own(header, watch.client_id, WatchHead::default()));
            }
        }
        let manual = !std::mem::take(&mut self.only_periodic);
        // A store may still answer a request that an earlier round forwarded; by then no client waits for that answer.
        if manual && let Some(request) = &mut self.requested {
            request.owed = request.owed.saturating_sub(u32::from(request.passed_on.is_some()));
            if !self.progress.in_round() && (request.passed_on.is_none() || request.owed == 0) {
                self.requested = None;
            }
            self.say(message::own(header, NO_WATCH, WatchHead::default()));
        }
    }

    fn give_up_asking(&mut self) {
        self.asked += 1;
        self.outside.give_up_asking();
    }

    fn ask_feed(&mut self, no: FeedNo) {
        let Some(followed) = self.feeds.get(&no) else { return };
        let ask = Ask { round: self.asked, member: Origin::Feed(no), to: None };
        self.outside.ask_feed(ask, &followed.live);
    }

    fn ask_store(&mut self, store: StoreIx, to: Option<Revision>) {
        let of = |watch: &Watch<O::Reader>| (watch.create.key.clone(), watch.create.range_end.clone());
        let on_store = self.watches.values().filter(|watch| watch.on(store));
        let mut ranges: Vec<(Bytes, Bytes)> = on_store.take(RANGES_MAX + 1).map(of).collect();
        if ranges.len() > RANGES_MAX {
            let zero = Bytes::from_static(&[0]);
            ranges = vec![(zero.clone(), zero)];
        }
        let ask = Ask { round: self.asked, member: Origin::Store(store), to };
        self.outside.ask_store(ask, store, ranges);
    }
}
