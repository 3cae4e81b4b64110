//! The primary's side: what each standby has received.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{BEAT, LEASE, MemberId, Position};

/// Two noted times of sending are at least this far apart. What was sent between them counts as sent with the first.
const NOTED_EVERY: Duration = Duration::from_millis(20);

/// What a primary knows of one standby.
#[derive(Debug, Default)]
struct Member {
    /// Whether it is in the set: everything waits for it. A member that is not catches up.
    counts: bool,
    /// The last batch that may have been shown without it.
    counted_behind: Position,
    /// The last batch that was sent to it on the present stream.
    sent: Position,
    /// The times at which batches were sent, oldest first. Each stands for its batch and those behind it.
    times: VecDeque<(Position, Duration)>,
    /// It has received everything up to there.
    received: Position,
    /// When the newest batch was sent that it has acknowledged.
    heard: Option<Duration>,
}

/// The standbys of a primary.
#[derive(Debug, Default)]
pub struct Primary {
    /// The last batch.
    shipped: Position,
    members: BTreeMap<MemberId, Member>,
}

impl Primary {
    /// A primary whose set has these members. None of them has acknowledged anything, so it may not answer yet.
    #[must_use]
    pub fn new(set: impl IntoIterator<Item = MemberId>) -> Self {
        let member = |id| (id, Member { counts: true, ..Member::default() });
        Self { shipped: Position::default(), members: set.into_iter().map(member).collect() }
    }

    /// A batch is to be sent to every standby. Returns its number.
    pub fn ship(&mut self) -> Position {
        self.shipped.0 += 1;
        self.shipped
    }

    /// The last batch.
    #[must_use]
    pub fn shipped(&self) -> Position {
        self.shipped
    }

    /// A standby follows on a new stream, and has everything up to this batch.
    pub fn follows(&mut self, id: &MemberId, has: Position) {
        let member = self.members.entry(id.clone()).or_default();
        member.times.clear();
        (member.sent, member.received) = (has, member.received.max(has));
    }

    /// A batch was handed to the stream of a standby.
    pub fn sent(&mut self, id: &MemberId, batch: Position, now: Duration) {
        let Some(member) = self.members.get_mut(id) else { return };
        member.sent = member.sent.max(batch);
        if member.times.back().is_none_or(|(_, last)| now >= *last + NOTED_EVERY) {
            member.times.push_back((batch, now));
        }
    }

    /// A standby has received everything up to a batch.
    pub fn acknowledged(&mut self, id: &MemberId, batch: Position) {
        let Some(member) = self.members.get_mut(id) else { return };
        member.received = member.received.max(batch);
        while let Some((_, at)) = member.times.pop_front_if(|(of, _)| *of <= batch) {
            member.heard = Some(at);
        }
    }

    /// Everything waits for a standby from now on. To be called before meta's record says that it is in sync, because it
    /// may be promoted from then on (R19).
    pub fn count(&mut self, id: &MemberId) {
        let shipped = self.shipped;
        let member = self.members.entry(id.clone()).or_default();
        if !member.counts {
            (member.counts, member.counted_behind) = (true, shipped);
        }
    }

    /// Whether a standby that counts has all that was shown when it began to: only then meta's record may name it.
    #[must_use]
    pub fn has_shown(&self, id: &MemberId) -> bool {
        self.members.get(id).is_some_and(|member| member.counts && member.received >= member.counted_behind)
    }

    /// How long ago the newest batch was sent that a standby has acknowledged.
    #[must_use]
    pub fn silent(&self, id: &MemberId, now: Duration) -> Duration {
        let heard = self.members.get(id).and_then(|member| member.heard);
        heard.map_or(now, |heard| now.saturating_sub(heard))
    }

    /// Nothing waits for a standby any more. To be called after meta's record says that it is not in sync (R19). If it
    /// follows, it goes on.
    pub fn discount(&mut self, id: &MemberId) {
        if let Some(member) = self.members.get_mut(id) {
            member.counts = false;
        }
    }

    /// A standby that does not count will never be back.
    pub fn forget(&mut self, id: &MemberId) {
        self.members.remove(id);
    }

    /// Whether everything waits for a standby.
    #[must_use]
    pub fn counts(&self, id: &MemberId) -> bool {
        self.members.get(id).is_some_and(|member| member.counts)
    }

    /// The members of the set.
    pub fn counted(&self) -> impl Iterator<Item = &MemberId> {
        self.members.iter().filter(|(_, member)| member.counts).map(|(id, _)| id)
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        !self.members.values().any(|member| member.counts)
    }

    /// Everything up to this batch is at every member of the set: it may become visible (R18).
    #[must_use]
    pub fn received(&self) -> Position {
        let set = self.members.values().filter(|member| member.counts);
        set.map(|member| member.received).min().unwrap_or(self.shipped)
    }

    /// The time before which it may answer (R20); `None` for ever, because nobody can be promoted.
    #[must_use]
    pub fn answers_until(&self) -> Option<Duration> {
        let set = self.members.values().filter(|member| member.counts);
        set.map(|member| member.heard.map_or(Duration::ZERO, |heard| heard + LEASE)).min()
    }

    /// Whether it may answer now.
    #[must_use]
    pub fn answers(&self, now: Duration) -> bool {
        self.answers_until().is_none_or(|until| now < until)
    }

    /// How far a standby is behind, in batches; `None` if it is not known.
    #[must_use]
    pub fn behind(&self, id: &MemberId) -> Option<u64> {
        let member = self.members.get(id)?;
        Some(self.shipped.0.saturating_sub(member.received.0))
    }

    /// When an empty batch is to be sent, given the time of the last one.
    #[must_use]
    pub fn beats_at(last: Duration) -> Duration {
        last + BEAT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn id(name: &str) -> MemberId {
        MemberId(name.to_owned())
    }

    /// A primary with these standbys, to each of which it sends what it ships at once.
    struct Shipping(Primary, Vec<MemberId>);

    impl Shipping {
        fn with(names: &[&str]) -> Self {
            let ids: Vec<MemberId> = names.iter().map(|name| id(name)).collect();
            let mut primary = Primary::new(ids.clone());
            ids.iter().for_each(|id| primary.follows(id, Position(0)));
            Self(primary, ids)
        }

        fn ship(&mut self, now: Duration) -> Position {
            let batch = self.0.ship();
            for id in &self.1 {
                self.0.sent(id, batch, now);
            }
            batch
        }
    }

    #[test]
    fn r18_all_of_the_set_must_have_received_it() {
        let mut shipping = Shipping::with(&["a", "b"]);
        let first = shipping.ship(MS);
        let second = shipping.ship(MS);
        shipping.0.acknowledged(&id("a"), second);
        assert_eq!(shipping.0.received(), Position(0));
        shipping.0.acknowledged(&id("b"), first);
        assert_eq!(shipping.0.received(), first);
        // One that is taken out is not waited for any more.
        shipping.0.discount(&id("b"));
        assert_eq!(shipping.0.received(), second);
        shipping.0.discount(&id("a"));
        assert!(shipping.0.is_alone());
        assert_eq!(shipping.ship(2 * MS), Position(3));
        assert_eq!(shipping.0.received(), Position(3));
    }

    #[test]
    fn r18_a_standby_that_catches_up_is_not_waited_for() {
        let mut shipping = Shipping::with(&["a"]);
        shipping.0.follows(&id("new"), Position(0));
        let batch = shipping.ship(MS);
        shipping.0.acknowledged(&id("a"), batch);
        assert_eq!((shipping.0.received(), shipping.0.behind(&id("new"))), (batch, Some(1)));
        // Counted before meta says so.
        shipping.0.count(&id("new"));
        assert_eq!(shipping.0.received(), Position(0));
        assert!(!shipping.0.answers(2 * MS), "it has acknowledged nothing");
    }

    #[test]
    fn r20_the_lease_runs_from_when_the_acknowledged_batch_was_sent() {
        let mut shipping = Shipping::with(&["a"]);
        assert!(!shipping.0.answers(Duration::ZERO), "a restarted primary first hears of its standby");
        let batch = shipping.ship(100 * MS);
        assert!(!shipping.0.answers(101 * MS));
        // The acknowledgement comes late: it counts from the sending.
        shipping.0.acknowledged(&id("a"), batch);
        assert_eq!(shipping.0.answers_until(), Some(1_100 * MS));
        assert!(shipping.0.answers(1_099 * MS) && !shipping.0.answers(1_100 * MS));
        // Batches that are sent shortly after one count as sent with it.
        let next = shipping.ship(200 * MS);
        let close = shipping.ship(210 * MS);
        shipping.0.acknowledged(&id("a"), close);
        assert!(next < close);
        assert_eq!(shipping.0.answers_until(), Some(1_200 * MS));
        // The slowest of the set counts, and a primary alone needs no lease.
        shipping.0.count(&id("b"));
        assert!(!shipping.0.answers(300 * MS));
        shipping.0.discount(&id("b"));
        assert!(shipping.0.answers(300 * MS));
        shipping.0.discount(&id("a"));
        assert_eq!(shipping.0.answers_until(), None);
    }

    #[test]
    fn a_standby_that_was_taken_out_is_heard_as_long_as_it_follows() {
        let mut shipping = Shipping::with(&["a"]);
        shipping.0.discount(&id("a"));
        let batch = shipping.ship(100 * MS);
        shipping.0.acknowledged(&id("a"), batch);
        assert_eq!(shipping.0.silent(&id("a"), 150 * MS), 50 * MS);
        assert_eq!(shipping.0.behind(&id("a")), Some(0));
        shipping.0.count(&id("a"));
        assert!(shipping.0.has_shown(&id("a")) && shipping.0.answers(150 * MS));
        shipping.0.forget(&id("a"));
        assert!(shipping.0.is_alone());
    }

    #[test]
    fn r20_a_stream_that_broke_proves_nothing() {
        let mut shipping = Shipping::with(&["a"]);
        let batch = shipping.ship(100 * MS);
        // The standby comes back on another stream and has the batch: when it acknowledged it is not known.
        shipping.0.follows(&id("a"), batch);
        assert_eq!(shipping.0.received(), batch);
        assert!(!shipping.0.answers(150 * MS));
        let batch = shipping.ship(200 * MS);
        shipping.0.acknowledged(&id("a"), batch);
        assert!(shipping.0.answers(1_199 * MS));
    }
}
