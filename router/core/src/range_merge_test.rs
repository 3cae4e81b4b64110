//! Tables, then random data over random layouts, checked against a reference that sorts all and cuts as etcd does.

use kindred_partition_config::ids::Revision;
use proptest::prelude::*;

use super::*;

const A: SourceIx = SourceIx(0);
const B: SourceIx = SourceIx(1);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Kv {
    key: Vec<u8>,
    create: i64,
    modified: i64,
    version: i64,
    value: Vec<u8>,
}

impl Item for Kv {
    fn key(&self) -> &[u8] {
        &self.key
    }
    fn create(&self) -> Revision {
        Revision(self.create)
    }
    fn modified(&self) -> Revision {
        Revision(self.modified)
    }
    fn version(&self) -> i64 {
        self.version
    }
    fn value(&self) -> &[u8] {
        &self.value
    }
}

fn kv(key: &str) -> Kv {
    Kv { key: key.into(), create: 1, modified: 1, version: 1, value: Vec::new() }
}

fn spec(limit: u64) -> RangeSpec {
    let limit = Some(limit).filter(|limit| *limit > 0);
    RangeSpec { limit, order: Order::DEFAULT, filtered: false, keys_only: false, count_only: false }
}

fn chunk(source: SourceIx, keys: &[&str], count: Option<u64>, end: Option<bool>) -> Event<Kv> {
    let items = keys.iter().map(|key| kv(key)).collect();
    Event::Chunk { source, items, count, end: end.map(|more| End { more }) }
}

fn emit(keys: &[&str]) -> Command<Kv> {
    Command::Emit(keys.iter().map(|key| kv(key)).collect())
}

fn fetch_of(source: SourceIx, limit: u64) -> Command<Kv> {
    Command::Fetch { source, limit: Some(limit).filter(|limit| *limit > 0) }
}

#[test]
fn name_ranges_are_read_one_after_another() {
    let mut merge = RangeMerge::new(spec(0), &[1, 1], 0);
    assert_eq!(merge.start(), Ok(vec![fetch_of(A, 0)]));
    assert_eq!(merge.step(chunk(A, &["a", "b"], None, None)), Ok(vec![emit(&["a", "b"]), fetch_of(A, 0)]));
    let last = merge.step(chunk(A, &["c"], Some(3), Some(false)));
    assert_eq!(last, Ok(vec![emit(&["c"]), fetch_of(B, 0)]));
    let done = Command::Done { count: 4, more: false };
    assert_eq!(merge.step(chunk(B, &["d"], Some(1), Some(false))), Ok(vec![emit(&["d"]), done]));
}

#[test]
fn the_stores_of_a_ring_are_read_together() {
    let mut merge = RangeMerge::new(spec(0), &[2], 0);
    assert_eq!(merge.start(), Ok(vec![fetch_of(A, 0), fetch_of(B, 0)]));
    assert_eq!(merge.step(chunk(B, &["b", "d"], Some(2), Some(false))), Ok(vec![]));
    assert_eq!(
        merge.step(chunk(A, &["a", "c"], None, None)),
        Ok(vec![emit(&["a", "b", "c"]), fetch_of(A, 0)])
    );
    let done = Command::Done { count: 5, more: false };
    assert_eq!(merge.step(chunk(A, &["e"], Some(3), Some(false))), Ok(vec![emit(&["d", "e"]), done]));
}

#[test]
fn at_the_limit_one_more_is_looked_for_and_the_rest_is_counted() {
    let mut merge = RangeMerge::new(spec(2), &[1, 1, 1], 1);
    let c = SourceIx(2);
    assert_eq!(merge.start(), Ok(vec![fetch_of(A, 2), fetch_of(B, 2)]));
    assert_eq!(
        merge.step(chunk(A, &["a", "b"], Some(2), Some(false))),
        Ok(vec![emit(&["a", "b"]), fetch_of(c, 1)])
    );
    assert_eq!(
        merge.step(chunk(B, &["x"], Some(1), Some(true))),
        Ok(vec![Command::Close { source: c }, Command::Count { source: c }])
    );
    let done = Command::Done { count: 3, more: true };
    assert_eq!(merge.step(Event::Counted { source: c, count: 0 }), Ok(vec![done]));
}

/// A source that has not ended is read on, whatever its count says; behind the limit it has more.
#[test]
fn f01_a_count_ends_no_list() {
    let mut merge = RangeMerge::new(spec(0), &[1], 0);
    merge.start().unwrap();
    let more = merge.step(chunk(A, &["a", "b"], Some(1), None));
    assert_eq!(more, Ok(vec![emit(&["a", "b"]), fetch_of(A, 0)]));
    let done = Command::Done { count: 3, more: false };
    assert_eq!(merge.step(chunk(A, &["c"], None, Some(false))), Ok(vec![emit(&["c"]), done]));

    let mut merge = RangeMerge::new(spec(2), &[1], 0);
    merge.start().unwrap();
    let cut = merge.step(chunk(A, &["a", "b"], Some(1), None));
    let done = Command::Done { count: 1, more: true };
    assert_eq!(cut, Ok(vec![emit(&["a", "b"]), Command::Close { source: A }, done]));

    let mut merge = RangeMerge::new(spec(2), &[1, 1], 0);
    merge.start().unwrap();
    let cut = merge.step(chunk(A, &["a", "b"], Some(9), Some(false)));
    assert_eq!(cut, Ok(vec![emit(&["a", "b"]), fetch_of(B, 1)]), "there may be none behind it");
    let done = Command::Done { count: 9, more: false };
    assert_eq!(merge.step(chunk(B, &[], Some(0), Some(false))), Ok(vec![done]));
}

#[test]
fn with_filters_more_is_looked_for() {
    let mut merge = RangeMerge::new(RangeSpec { filtered: true, ..spec(1) }, &[1, 1], 0);
    merge.start().unwrap();
    assert_eq!(
        merge.step(chunk(A, &["a"], Some(9), Some(false))),
        Ok(vec![emit(&["a"]), fetch_of(B, 1)]),
        "B has keys, but maybe none that passes"
    );
    let done = Command::Done { count: 14, more: false };
    assert_eq!(merge.step(chunk(B, &[], Some(5), Some(false))), Ok(vec![done]));
}

#[test]
fn count_only_counts() {
    let mut merge = RangeMerge::<Kv>::new(RangeSpec { count_only: true, ..spec(1) }, &[1, 1], 0);
    assert_eq!(merge.start(), Ok(vec![Command::Count { source: A }, Command::Count { source: B }]));
    assert_eq!(merge.step(Event::Counted { source: A, count: 3 }), Ok(vec![]));
    let done = Command::Done { count: 7, more: false };
    assert_eq!(merge.step(Event::Counted { source: B, count: 4 }), Ok(vec![done]));
}

#[test]
fn a_source_that_breaks_its_contract_fails_the_read() {
    let ring = || {
        let mut merge = RangeMerge::new(spec(3), &[2], 0);
        merge.start().unwrap();
        merge
    };
    assert_eq!(ring().step(chunk(A, &["b", "a"], None, None)), Err(RangeError::OutOfOrder(A)));
    assert_eq!(ring().step(chunk(A, &["a", "a"], None, None)), Err(RangeError::OutOfOrder(A)));
    assert_eq!(ring().step(chunk(A, &[], None, None)), Err(RangeError::EmptyChunk(A)));
    assert_eq!(ring().step(chunk(SourceIx(2), &[], None, None)), Err(RangeError::UnknownSource(SourceIx(2))));
    let mut merge = ring();
    merge.step(chunk(A, &["a"], None, None)).unwrap();
    assert_eq!(merge.step(chunk(A, &["b"], None, None)), Err(RangeError::Unasked(A)));
    let mut merge = ring();
    merge.step(chunk(A, &["a"], None, None)).unwrap();
    assert_eq!(merge.step(chunk(B, &["a"], None, None)), Err(RangeError::SharedKey(A, B)));
    let mut merge = ring();
    merge.step(chunk(A, &["a"], Some(5), Some(true))).unwrap();
    assert_eq!(merge.step(chunk(B, &["b"], Some(1), Some(false))), Err(RangeError::Short(A)));
    let mut merge = RangeMerge::new(spec(0), &[1, 1], 0);
    merge.start().unwrap();
    merge.step(chunk(A, &["m"], Some(1), Some(false))).unwrap();
    assert_eq!(merge.step(chunk(B, &["c"], None, None)), Err(RangeError::OutOfOrder(B)), "over groups");
}

#[test]
fn keys_only_by_value_reads_values_and_drops_them() {
    let by_value = Order { target: SortTarget::Value, descending: false };
    let asked = RangeSpec { keys_only: true, order: by_value, ..spec(5) };
    let part = asked.part();
    assert!(part.drop_values && !part.spec.keys_only);
    let part = RangeSpec { order: Order::DEFAULT, ..asked }.part();
    assert!(!part.drop_values && part.spec.keys_only);
    let part = RangeSpec { count_only: true, ..asked }.part();
    assert_eq!((part.spec.limit, part.spec.order, part.drop_values), (None, Order::DEFAULT, false));
    assert!(!asked.streams() && spec(5).streams());
}

/// A store: its items that pass the filter, in the requested order, cut at the requested limit, in chunks of some size.
struct Store {
    all: u64,
    items: Vec<Kv>,
    at: usize,
    chunk: usize,
    count_first: bool,
}

impl Store {
    fn next(&mut self, source: SourceIx, limit: Option<u64>, store_limit: Option<u64>) -> Event<Kv> {
        let cap = store_limit.map_or(usize::MAX, |limit| limit as usize).min(self.items.len());
        let take = self.chunk.min(limit.map_or(usize::MAX, |limit| limit as usize));
        let to = (self.at + take).min(cap);
        let items = self.items[self.at..to].to_vec();
        let first = self.at == 0;
        self.at = to;
        let end = (to == cap).then_some(End { more: cap < self.items.len() });
        let count = (first && self.count_first || end.is_some() && !self.count_first).then_some(self.all);
        Event::Chunk { source, items, count, end }
    }
}

fn passes(item: &Kv, min_modified: Option<i64>) -> bool {
    min_modified.is_none_or(|min| item.modified >= min)
}

/// etcd's answer, computed from all items at once.
fn reference(all: &[Kv], spec: RangeSpec, filter: Option<i64>) -> (Vec<Kv>, u64, bool) {
    let count = all.len() as u64;
    if spec.count_only {
        return (Vec::new(), count, false);
    }
    let mut items: Vec<Kv> = all.iter().filter(|item| passes(item, filter)).cloned().collect();
    items.sort_by(|a, b| a.key.cmp(&b.key));
    items.sort_by(|a, b| {
        let by = match spec.order.target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create.cmp(&b.create),
            SortTarget::Mod => a.modified.cmp(&b.modified),
            SortTarget::Value => a.value.cmp(&b.value),
        };
        if spec.order.descending { by.reverse() } else { by }
    });
    let limit = spec.limit.map_or(usize::MAX, |limit| limit as usize);
    let more = items.len() > limit;
    items.truncate(limit);
    (items, count, more)
}

fn run(
    merge: &mut RangeMerge<Kv>,
    stores: &mut [Store],
    spec: RangeSpec,
    pick: &mut dyn FnMut(usize) -> usize,
) -> (Vec<Kv>, u64, bool) {
    let mut got = Vec::new();
    let mut pending: Vec<Command<Kv>> = merge.start().unwrap();
    let mut done = None;
    let bound: usize = stores.iter().map(|store| store.chunk).sum();
    loop {
        let mut asked = Vec::new();
        for command in pending.drain(..) {
            match command {
                Command::Emit(items) => got.extend(items),
                Command::Done { count, more } => done = Some((count, more)),
                Command::Close { .. } => {}
                other => asked.push(other),
            }
        }
        if let Some((count, more)) = done {
            return (got, count, more);
        }
        pending = asked;
        assert!(!pending.is_empty(), "nothing under way, and not done");
        let event = match pending.swap_remove(pick(pending.len())) {
            Command::Fetch { source, limit } => stores[source.0].next(source, limit, spec.limit),
            Command::Count { source } => Event::Counted { source, count: stores[source.0].all },
            other => panic!("{other:?}"),
        };
        pending.extend(merge.step(event).unwrap());
        assert!(merge.buffered() <= bound, "more than one chunk of a source");
    }
}

fn order() -> impl Strategy<Value = Order> {
    let target = prop_oneof![
        4 => Just(SortTarget::Key),
        1 => Just(SortTarget::Version),
        1 => Just(SortTarget::Create),
        1 => Just(SortTarget::Mod),
        1 => Just(SortTarget::Value),
    ];
    (target, any::<bool>()).prop_map(|(target, descending)| Order { target, descending })
}

proptest! {
    #[test]
    fn the_merge_is_what_one_store_would_answer(
        items in prop::collection::btree_map("[a-d]{1,3}", (1..4i64, 1..6i64, 1..4i64, "[xy]{0,2}"), 0..40),
        group_sizes in prop::collection::vec(1..4usize, 1..4),
        owners in prop::collection::vec(any::<prop::sample::Index>(), 40),
        cuts in prop::collection::vec(0..40usize, 3),
        (limit, order, count_only) in (0..12u64, order(), prop::bool::weighted(0.1)),
        filter in prop::option::of(1..6i64),
        (ahead, chunk, count_first) in (0..3usize, 1..7usize, any::<bool>()),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        let all: Vec<Kv> = items
            .into_iter()
            .map(|(key, (create, modified, version, value))| {
                Kv { key: key.into(), create, modified, version, value: value.into() }
            })
            .collect();
        let spec = RangeSpec { order, filtered: filter.is_some(), count_only, ..spec(limit) };
        let total: usize = group_sizes.iter().sum();
        let mut stores: Vec<Store> = (0..total)
            .map(|_| Store { all: 0, items: Vec::new(), at: 0, chunk, count_first })
            .collect();
        // The key decides the group, chance the store within it.
        let mut bounds = cuts;
        bounds.sort_unstable();
        for (at, item) in all.iter().enumerate() {
            let group = bounds.iter().filter(|cut| **cut <= at).count().min(group_sizes.len() - 1);
            let first: usize = group_sizes[..group].iter().sum();
            let store = &mut stores[first + owners[at].index(group_sizes[group])];
            store.all += 1;
            if passes(item, filter) {
                store.items.push(item.clone());
            }
        }
        for store in &mut stores {
            store.items.sort_by(|a, b| order.compare(a, b));
        }
        let mut merge = RangeMerge::new(spec, &group_sizes, ahead);
        let mut turn = 0;
        let mut pick = |len: usize| {
            turn += 1;
            picks[turn % picks.len()].index(len)
        };
        let got = run(&mut merge, &mut stores, spec.part().spec, &mut pick);
        prop_assert_eq!(got, reference(&all, spec, filter));
    }
}
