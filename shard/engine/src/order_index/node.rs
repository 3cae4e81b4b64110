//! The nodes of the tree. Children are owned by their parent's vector, so there is no arena to keep tidy and no link that
//! could dangle; every change descends once and repairs the counts and the shape on the way back up.

use std::cmp::Ordering;

use super::Keys;

/// Most entries of a leaf, and most children of an inner node. An overfull or freshly joined leaf still fits the 64 bits
/// of its live flags: `FULL + 1` and `FULL + SPARSE - 1` entries.
pub(super) const FULL: usize = 48;
/// Fewest, except for the root.
pub(super) const SPARSE: usize = 12;
/// Two neighbours with at most this many together become one; with more they share evenly. Well below [`FULL`], so that
/// one insert after a join does not split again.
const JOINED: usize = 36;
/// Entries by which a leaf's memory grows: doubling would cost half an entry each on average.
const GROWTH: usize = 8;

pub(super) enum Node<T> {
    Leaf(Leaf<T>),
    Inner(Box<Inner<T>>),
}

pub(super) struct Leaf<T> {
    /// In key order.
    pub(super) entries: Vec<T>,
    /// Bit `i`: entry `i` is live.
    pub(super) live: u64,
}

pub(super) struct Inner<T> {
    /// `separators[i]` is above every key of child `i` and not above any of child `i + 1`.
    pub(super) separators: Vec<Separator>,
    pub(super) children: Vec<Child<T>>,
}

pub(super) struct Child<T> {
    /// Live entries in this subtree.
    pub(super) live: u64,
    pub(super) node: Node<T>,
}

pub(super) type Separator = Box<[u8]>;

/// What an insert did, for the level above.
pub(super) struct Inserted<T> {
    pub(super) old: Option<T>,
    /// Change of the number of live entries.
    pub(super) delta: i64,
    /// The node was overfull; this is its right part.
    pub(super) split: Option<(Separator, Node<T>)>,
}

/// The lowest `n` bits set.
pub(super) fn low_bits(n: usize) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

/// Binary search with branches. The standard library's has none, so each comparison waits for the memory of the one before;
/// guessing ahead fetches the next key meanwhile, which halves the time in an index that does not fit the caches.
fn search<E>(sorted: &[E], compare: impl Fn(&E) -> Ordering) -> Result<usize, usize> {
    let (mut low, mut high) = (0, sorted.len());
    while low < high {
        let middle = low.midpoint(high);
        match compare(&sorted[middle]) {
            Ordering::Less => low = middle + 1,
            Ordering::Equal => return Ok(middle),
            Ordering::Greater => high = middle,
        }
    }
    Err(low)
}

/// The shortest byte string above `left` and not above `right`.
fn separator(left: &[u8], right: &[u8]) -> Separator {
    let common = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    right[..=common].into()
}

/// Where an overfull node is split. Keys that come in order leave full nodes behind: the split follows the insertion.
fn split_point(len: usize, inserted_at: usize) -> usize {
    match inserted_at {
        0 => SPARSE + 1,
        at if at + 1 == len => len - SPARSE - 1,
        _ => len / 2,
    }
}

impl<T> Leaf<T> {
    pub(super) const fn empty() -> Self {
        Self { entries: Vec::new(), live: 0 }
    }

    /// One bit an entry.
    pub(super) fn all(&self) -> u64 {
        low_bits(self.entries.len())
    }

    fn is_live(&self, at: usize) -> bool {
        self.live >> at & 1 == 1
    }

    fn put_live(&mut self, at: usize, live: bool) {
        self.live = self.live & !(1 << at) | u64::from(live) << at;
    }

    fn add(&mut self, at: usize, entry: T, live: bool) {
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(GROWTH);
        }
        self.entries.insert(at, entry);
        let low = low_bits(at);
        self.live = self.live & low | (self.live & !low) << 1;
        self.put_live(at, live);
    }

    fn take(&mut self, at: usize) -> (T, bool) {
        let live = self.is_live(at);
        let low = low_bits(at);
        self.live = self.live & low | self.live >> 1 & !low;
        let entry = self.entries.remove(at);
        self.trim();
        (entry, live)
    }

    fn split_off(&mut self, at: usize) -> Self {
        let right = Self { entries: self.entries.split_off(at), live: self.live >> at };
        self.live &= low_bits(at);
        self.trim();
        right
    }

    fn append(&mut self, mut right: Self) {
        self.live |= right.live << self.entries.len();
        self.entries.reserve_exact(right.entries.len());
        self.entries.append(&mut right.entries);
    }

    /// Gives spare memory back, with some slack so that a remove beside an insert does not reallocate each time.
    fn trim(&mut self) {
        if self.entries.capacity() - self.entries.len() > 2 * GROWTH {
            self.entries.shrink_to(self.entries.len() + GROWTH / 2);
        }
    }
}

impl<T> Leaf<T> {
    /// The position of the first entry at or above `key`.
    pub(super) fn lower_bound(&self, key: &[u8], keys: &impl Keys<T>) -> usize {
        self.find(key, keys).unwrap_or_else(|at| at)
    }

    fn find(&self, key: &[u8], keys: &impl Keys<T>) -> Result<usize, usize> {
        search(&self.entries, |entry| keys.key(entry).cmp(key))
    }

    fn insert(&mut self, entry: T, live: bool, keys: &impl Keys<T>) -> Inserted<T> {
        match self.find(keys.key(&entry), keys) {
            Ok(at) => {
                let delta = i64::from(live) - i64::from(self.is_live(at));
                self.put_live(at, live);
                let old = Some(std::mem::replace(&mut self.entries[at], entry));
                Inserted { old, delta, split: None }
            }
            Err(at) => {
                self.add(at, entry, live);
                let len = self.entries.len();
                let split = (len > FULL).then(|| self.split(split_point(len, at), keys));
                Inserted { old: None, delta: i64::from(live), split }
            }
        }
    }

    fn split(&mut self, at: usize, keys: &impl Keys<T>) -> (Separator, Node<T>) {
        let between = separator(keys.key(&self.entries[at - 1]), keys.key(&self.entries[at]));
        (between, Node::Leaf(self.split_off(at)))
    }
}

impl<T> Child<T> {
    fn new(node: Node<T>) -> Self {
        Self { live: node.live(), node }
    }
}

impl<T> Inner<T> {
    /// The child whose subtree holds `key`, if any does.
    pub(super) fn child_of(&self, key: &[u8]) -> usize {
        search(&self.separators, |separator| (**separator).cmp(key)).map_or_else(|at| at, |at| at + 1)
    }

    fn split(&mut self, at: usize) -> (Separator, Node<T>) {
        let children = self.children.split_off(at);
        let mut separators = self.separators.split_off(at - 1);
        let between = separators.remove(0);
        (between, Node::Inner(Box::new(Self { separators, children })))
    }
}

impl<T> Inner<T> {
    fn insert(&mut self, entry: T, live: bool, keys: &impl Keys<T>) -> Inserted<T> {
        let at = self.child_of(keys.key(&entry));
        let child = &mut self.children[at];
        let mut inserted = child.node.insert(entry, live, keys);
        child.live = child.live.wrapping_add_signed(inserted.delta);
        if let Some((between, right)) = inserted.split.take() {
            let right = Child::new(right);
            child.live -= right.live;
            self.separators.insert(at, between);
            self.children.insert(at + 1, right);
            let len = self.children.len();
            inserted.split = (len > FULL).then(|| self.split(split_point(len, at + 1)));
        }
        inserted
    }

    fn remove(&mut self, key: &[u8], keys: &impl Keys<T>) -> Option<(T, bool)> {
        let at = self.child_of(key);
        let child = &mut self.children[at];
        let (entry, live) = child.node.remove(key, keys)?;
        child.live -= u64::from(live);
        if child.node.width() < SPARSE {
            self.refill(at.saturating_sub(1), keys);
        }
        Some((entry, live))
    }

    /// Joins children `at` and `at + 1`, or lets them share evenly when one node would be too full. There are two: an
    /// inner node has [`SPARSE`] children at least, and a root that is left with one is replaced by it.
    fn refill(&mut self, at: usize, keys: &impl Keys<T>) {
        let between = self.separators.remove(at);
        let right = self.children.remove(at + 1);
        let left = &mut self.children[at];
        left.node.join(between, right.node);
        left.live += right.live;
        let width = left.node.width();
        if width > JOINED {
            let (between, right) = left.node.split(width / 2, keys);
            let right = Child::new(right);
            left.live -= right.live;
            self.separators.insert(at, between);
            self.children.insert(at + 1, right);
        }
    }
}

impl<T> Node<T> {
    pub(super) const fn empty() -> Self {
        Self::Leaf(Leaf::empty())
    }

    pub(super) fn parent_of(left: Self, between: Separator, right: Self) -> Self {
        let children = vec![Child::new(left), Child::new(right)];
        Self::Inner(Box::new(Inner { separators: vec![between], children }))
    }

    /// Entries of a leaf, children of an inner node.
    fn width(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.entries.len(),
            Self::Inner(inner) => inner.children.len(),
        }
    }

    /// Live entries in this subtree, from one level.
    fn live(&self) -> u64 {
        match self {
            Self::Leaf(leaf) => u64::from(leaf.live.count_ones()),
            Self::Inner(inner) => inner.children.iter().map(|child| child.live).sum(),
        }
    }

    /// A root with one child is replaced by it.
    pub(super) fn collapse(&mut self) {
        if let Self::Inner(inner) = self
            && inner.children.len() == 1
            && let Some(only) = inner.children.pop()
        {
            *self = only.node;
        }
    }

    /// Takes over the right neighbour's content.
    fn join(&mut self, between: Separator, right: Self) {
        match (self, right) {
            (Self::Leaf(left), Self::Leaf(right)) => left.append(right),
            (Self::Inner(left), Self::Inner(mut right)) => {
                left.separators.push(between);
                left.separators.append(&mut right.separators);
                left.children.append(&mut right.children);
            }
            _ => unreachable!("all leaves are equally deep"),
        }
    }

    /// Counted in tests: what a call costs, in nodes.
    pub(super) fn visited(&self) {
        #[cfg(test)]
        super::tests::count_visit();
    }
}

impl<T> Node<T> {
    pub(super) fn insert(&mut self, entry: T, live: bool, keys: &impl Keys<T>) -> Inserted<T> {
        self.visited();
        match self {
            Self::Leaf(leaf) => leaf.insert(entry, live, keys),
            Self::Inner(inner) => inner.insert(entry, live, keys),
        }
    }

    pub(super) fn remove(&mut self, key: &[u8], keys: &impl Keys<T>) -> Option<(T, bool)> {
        self.visited();
        match self {
            Self::Leaf(leaf) => leaf.find(key, keys).ok().map(|at| leaf.take(at)),
            Self::Inner(inner) => inner.remove(key, keys),
        }
    }

    fn split(&mut self, at: usize, keys: &impl Keys<T>) -> (Separator, Self) {
        match self {
            Self::Leaf(leaf) => leaf.split(at, keys),
            Self::Inner(inner) => inner.split(at),
        }
    }

    /// The leaf that holds `key`, if any does.
    fn leaf(&self, key: &[u8]) -> &Leaf<T> {
        let mut node = self;
        loop {
            node.visited();
            match node {
                Self::Leaf(leaf) => return leaf,
                Self::Inner(inner) => node = &inner.children[inner.child_of(key)].node,
            }
        }
    }

    pub(super) fn get(&self, key: &[u8], keys: &impl Keys<T>) -> Option<(&T, bool)> {
        let leaf = self.leaf(key);
        let at = leaf.find(key, keys).ok()?;
        Some((&leaf.entries[at], leaf.is_live(at)))
    }

    /// Sets the flag of the entry at `key`; the flag before.
    pub(super) fn set_live(&mut self, key: &[u8], live: bool, keys: &impl Keys<T>) -> Option<bool> {
        self.visited();
        match self {
            Self::Leaf(leaf) => {
                let at = leaf.find(key, keys).ok()?;
                let before = leaf.is_live(at);
                leaf.put_live(at, live);
                Some(before)
            }
            Self::Inner(inner) => {
                let at = inner.child_of(key);
                let child = &mut inner.children[at];
                let before = child.node.set_live(key, live, keys)?;
                child.live = child.live.wrapping_add_signed(i64::from(live) - i64::from(before));
                Some(before)
            }
        }
    }

    /// Live entries with a key below `key`.
    pub(super) fn live_below(&self, key: &[u8], keys: &impl Keys<T>) -> u64 {
        let mut node = self;
        let mut below = 0;
        loop {
            node.visited();
            match node {
                Self::Leaf(leaf) => {
                    let mine = leaf.live & low_bits(leaf.lower_bound(key, keys));
                    return below + u64::from(mine.count_ones());
                }
                Self::Inner(inner) => {
                    let at = inner.child_of(key);
                    below += inner.children[..at].iter().map(|child| child.live).sum::<u64>();
                    node = &inner.children[at].node;
                }
            }
        }
    }

    pub(super) fn first(&self) -> Option<&T> {
        match self {
            Self::Leaf(leaf) => leaf.entries.first(),
            Self::Inner(inner) => inner.children.first()?.node.first(),
        }
    }

    pub(super) fn last(&self) -> Option<&T> {
        match self {
            Self::Leaf(leaf) => leaf.entries.last(),
            Self::Inner(inner) => inner.children.last()?.node.last(),
        }
    }
}
