//! Compares what the engines show with the reference.

use kindred_engine::{engine::*, error::EngineError, ops::*};
use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
};

use crate::{
    common,
    moves_model::{
        reference::{Wrote, seen, seen_event},
        world::{World, cell_of},
    },
};

/// The most lists that are read page by page at the same time.
const RESTS_MAX: usize = 12;

/// A client's watch that is only read now and then.
pub struct SlowWatch {
    e: usize,
    stream: StreamId,
    range: KeyRange,
    from: Revision,
    owned: Vec<(usize, usize)>,
    got: Vec<Wrote>,
}

/// The rest of a list after one of its pages: the next page is asked for later.
pub struct Rest {
    e: usize,
    range: KeyRange,
    at: Revision,
}

/// A long list that is read over several steps.
pub struct SlowRead {
    e: usize,
    open: OpenRange,
    want: Vec<Wrote>,
    got: Vec<Wrote>,
}

fn sorted(mut events: Vec<Wrote>) -> Vec<Wrote> {
    events.sort_by(|a, b| (a.at, &a.key).cmp(&(b.at, &b.key)));
    events
}

impl World {
    pub fn check(&mut self) {
        for engine in &self.engines {
            engine.validate();
        }
        for _ in 0..4 {
            let e = self.random.below(self.engines.len());
            let range = self.random_range();
            self.check_range(e, &range);
        }
        for _ in 0..self.rests.len().min(3) {
            let rest = self.random.below(self.rests.len());
            let Rest { e, range, at } = self.rests.swap_remove(rest);
            if !self.waits(e, &range) && self.owns_some(e, &range) {
                let floors = self.floors(e, &range);
                self.check_at(e, &range, at, floors);
            }
        }
        self.check_keys();
        self.check_leases();
    }

    fn check_keys(&mut self) {
        for _ in 0..6 {
            let key = self.random.of(&self.keys).clone();
            let range = KeyRange::Single(Key::from(key.as_str()));
            let Some(e) = self.owner(&key) else { continue };
            if self.moves.iter().any(|m| m.makes_wait(e) && m.by.unit.contains(key.as_bytes())) {
                assert!(self.engines[e].range(&common::query(range)).is_err(), "R13");
                continue;
            }
            let answer = self.engines[e].range(&common::query(range.clone())).expect("owned");
            let got: Vec<Wrote> = answer.kvs.iter().map(seen).collect();
            assert_eq!(got, self.reference.now(&key).into_iter().collect::<Vec<_>>());
            assert_eq!(answer.count, got.len() as u64);
            let floor = self.cell(&key).floor;
            let history = self.reference.since(&range, floor, |_| true);
            for at in history.iter().map(|event| event.at).filter(|at| *at >= floor).collect::<Vec<_>>() {
                let query = RangeQuery { revision: Some(at), ..common::query(range.clone()) };
                let answer =
                    self.engines[e].range(&query).unwrap_or_else(|error| panic!("{key} at {at}: {error}"));
                let got: Vec<Wrote> = answer.kvs.iter().map(seen).collect();
                assert_eq!(got, self.reference.at(&key, at).into_iter().collect::<Vec<_>>());
            }
        }
    }

    fn check_range(&mut self, e: usize, range: &KeyRange) {
        let some = self.owns_some(e, range);
        let waits = self.waits(e, range);
        let (low, high) = self.floors(e, range);
        let owned = |world: &Self, key: &str| world.owner(key) == Some(e);
        match self.engines[e].range(&common::query(range.clone())) {
            Ok(answer) => {
                assert!(!waits, "R13, R15: {range:?} waits at {e}");
                let want = self.reference.list(range, Revision(i64::MAX), |key| owned(self, key));
                let got: Vec<Wrote> = answer.kvs.iter().map(seen).collect();
                assert_eq!(got, want, "{range:?} of {e}");
                assert_eq!(answer.count, want.len() as u64);
                assert!(want.iter().all(|kv| kv.at <= answer.header));
            }
            Err(EngineError::NotOwned(_)) => assert!(waits || !some, "{range:?} is owned by {e}"),
            Err(other) => panic!("{other}"),
        }
        if waits || !some {
            return;
        }
        assert_eq!(self.engines[e].owns(std::slice::from_ref(range), Some(self.generation)), Ok(()));
        let current = self.engines[e].current(std::slice::from_ref(range));
        let mut revisions: Vec<Revision> =
            self.reference.events.iter().flat_map(|w| [w.at.prev(), w.at]).collect();
        revisions.extend([low, high, low.prev(), current]);
        revisions.retain(|at| *at <= current && *at > Revision::ZERO);
        for _ in 0..4 {
            let at = *self.random.of(&revisions);
            self.check_at(e, range, at, (low, high));
            self.check_feed(e, range, at, (low, high));
            self.check_watch(e, range, at, (low, high));
        }
    }

    fn check_at(&mut self, e: usize, range: &KeyRange, at: Revision, (low, high): (Revision, Revision)) {
        let want = self.reference.list(range, at, |key| self.owner(key) == Some(e));
        let limit = self.random.below(5);
        let query = RangeQuery { revision: Some(at), limit, ..common::query(range.clone()) };
        match self.engines[e].range(&query) {
            Ok(answer) => {
                assert!(at >= low, "{range:?} of {e} at {at}, below {low}");
                let got: Vec<Wrote> = answer.kvs.iter().map(seen).collect();
                let page = if limit == 0 { want.len() } else { limit.min(want.len()) };
                assert_eq!(got, want[..page], "{range:?} of {e} at {at}");
                assert_eq!(
                    (answer.count, answer.more),
                    (want.len() as u64, page < want.len()),
                    "{range:?} of {e} at {at}"
                );
                if let (Some(last), KeyRange::Span { end, .. }) =
                    (answer.kvs.last().filter(|_| answer.more), range)
                    && self.rests.len() < RESTS_MAX
                {
                    let start = Key::copy_from(last.key()).successor();
                    self.rests.push(Rest { e, range: KeyRange::Span { start, end: end.clone() }, at });
                }
            }
            Err(EngineError::Compacted { .. }) => {
                assert!(at < high, "{range:?} of {e} at {at}: floors {low} {high}")
            }
            Err(other) => panic!("{other}"),
        }
        let query = RangeQuery { count_only: true, revision: Some(at), ..common::query(range.clone()) };
        if let Ok(answer) = self.engines[e].range(&query) {
            assert_eq!(answer.count, want.len() as u64, "{range:?} of {e} at {at}");
        }
    }

    fn check_feed(&mut self, e: usize, range: &KeyRange, from: Revision, (low, high): (Revision, Revision)) {
        let want = sorted(self.reference.since(range, from, |key| self.owner(key) == Some(e)));
        let feed = self.engines[e].feed_open(vec![range.clone()], Some(from));
        let mut got = Vec::new();
        loop {
            let bytes = 1 + self.random.below(400);
            let out = self.engines[e].feed_pull(feed, bytes).expect("until it has a watermark");
            if out.compacted.is_some() {
                assert!(from < high, "{range:?} of {e} from {from}: floors {low} {high}");
                break;
            }
            got.extend(out.events.iter().map(seen_event));
            if out.watermark.is_some() {
                assert!(from >= low, "{range:?} of {e} from {from}, below {low}");
                assert!(got.is_sorted_by_key(|event| event.at));
                assert_eq!(sorted(got), want, "{range:?} of {e} from {from}");
                break;
            }
        }
        self.engines[e].feed_close(feed);
    }

    fn check_watch(&mut self, e: usize, range: &KeyRange, from: Revision, (low, high): (Revision, Revision)) {
        let want = sorted(self.reference.since(range, from, |key| self.owner(key) == Some(e)));
        let stream = self.engines[e].watch_open();
        self.engines[e].watch_create(stream, common::watch(range.clone(), Some(from))).expect("owned");
        let mut got = Vec::new();
        let mut compacted = false;
        loop {
            let out = self.engines[e].watch_pull(stream, 200);
            if out.is_empty() {
                break;
            }
            for said in out {
                match said {
                    WatchOut::Events { events, .. } => got.extend(events.iter().map(seen_event)),
                    WatchOut::Compacted { .. } => compacted = true,
                    WatchOut::Created { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        if compacted {
            assert!(from < high, "{range:?} of {e} from {from}: floors {low} {high}");
        } else {
            assert!(from >= low);
            assert!(got.is_sorted_by_key(|event| event.at));
            assert_eq!(sorted(got), want, "{range:?} of {e} from {from}");
        }
        self.engines[e].watch_close(stream);
    }

    fn check_leases(&self) {
        for lease in &self.leases {
            for e in &lease.known {
                if self.moves.iter().any(|m| m.makes_wait(*e)) {
                    continue;
                }
                let keys = self.engines[*e].lease_keys(lease.id, Some(self.generation));
                let keys = keys.expect("nothing waits").expect("known");
                let want = self
                    .reference
                    .list(&KeyRange::everything(), Revision(i64::MAX), |key| self.owner(key) == Some(*e));
                let want: Vec<Key> = want
                    .iter()
                    .filter(|kv| kv.lease == lease.id.get())
                    .map(|kv| Key::from(kv.key.as_str()))
                    .collect();
                assert_eq!(keys, want, "of lease {} at {e}", lease.id);
            }
        }
    }

    // ---- checks over several steps

    pub fn slow(&mut self) {
        for i in (0..self.watches.len()).rev() {
            if self.random.one_in(3) && self.pull_slow(i) {
                let watch = self.watches.swap_remove(i);
                self.engines[watch.e].watch_close(watch.stream);
            }
        }
        for i in (0..self.reads.len()).rev() {
            let read = &mut self.reads[i];
            let engine = &mut self.engines[read.e];
            let over = match engine.next_chunk(&mut read.open, 2, 1 << 20) {
                Ok(chunk) if chunk.is_empty() => {
                    assert_eq!(read.got, read.want, "a long read at {}", read.open.at);
                    true
                }
                Ok(chunk) => {
                    read.got.extend(chunk.iter().map(seen));
                    assert!(read.want.starts_with(&read.got), "a long read at {}", read.open.at);
                    false
                }
                // The unit that it reads was dropped.
                Err(EngineError::NotOwned(_)) => true,
                Err(other) => panic!("{other}"),
            };
            if over {
                let read = self.reads.swap_remove(i);
                self.engines[read.e].close_range(read.open);
            }
        }
        let (e, range) = (self.random.below(self.engines.len()), self.random_range());
        if !self.owns_some(e, &range) || self.waits(e, &range) {
            return;
        }
        if self.reads.len() < 2 {
            let open = self.engines[e].open_range(&range, None).expect("owned");
            let want = self.reference.list(&range, open.at, |key| self.owner(key) == Some(e));
            assert_eq!(open.count, want.len() as u64);
            self.reads.push(SlowRead { e, open, want, got: Vec::new() });
        }
        if self.watches.len() < 4 {
            let stream = self.engines[e].watch_open();
            let from = self.engines[e].current(std::slice::from_ref(&range)).next();
            self.engines[e].watch_create(stream, common::watch(range.clone(), Some(from))).expect("owned");
            let cells = (0..self.cells.len()).flat_map(|p| (0..self.cells[p].len()).map(move |g| (p, g)));
            let owned = cells.filter(|(p, g)| self.cells[*p][*g].owner == Some(e)).collect();
            self.watches.push(SlowWatch { e, stream, range, from, owned, got: Vec::new() });
        }
    }

    /// Answers true when the watch has ended.
    fn pull_slow(&mut self, i: usize) -> bool {
        let bytes = 1 + self.random.below(300);
        let watch = &mut self.watches[i];
        let owned = |key: &str| watch.owned.contains(&cell_of(key));
        let all = sorted(self.reference.since(&watch.range, watch.from, owned));
        for said in self.engines[watch.e].watch_pull(watch.stream, bytes) {
            match said {
                WatchOut::Events { events, .. } => watch.got.extend(events.iter().map(seen_event)),
                WatchOut::Compacted { .. } => return true,
                WatchOut::Moved { header, .. } => {
                    let want: Vec<Wrote> = all.iter().filter(|event| event.at <= header).cloned().collect();
                    assert_eq!(sorted(watch.got.clone()), want, "up to its end at {header}");
                    return true;
                }
                WatchOut::Created { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        let got = sorted(watch.got.clone());
        assert!(all.starts_with(&got), "{got:?}\nof {all:?}");
        false
    }
}
