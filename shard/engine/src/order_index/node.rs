//! The nodes of the tree. A parent owns its children in a vector, so there is no arena to manage and no link that could
//! dangle. Every change descends once and repairs counts and shape on the way back up.

use std::cmp::Ordering;

use super::Keys;

/// Maximum of entries in a leaf and of children in an inner node. An overfull or just joined leaf, with `FULL + 1` or
/// `FULL + SPARSE - 1` entries, still fits the 64 bits of its live flags.
pub(super) const FULL: usize = 48;
/// Minimum of entries or children, except in the root.
pub(super) const SPARSE: usize = 12;
/// Two neighbours with at most this many together are joined; with more they share evenly. It is well below [`FULL`],
/// so an insert soon after a join does not split again.
const JOINED: usize = 36;
/// Entries by which a leaf's memory grows; doubling would waste half an entry each on average.
const GROWTH: usize = 8;

pub(super) enum Node<T> {
    Leaf(Leaf<T>),
    Inner(Box<Inner<T>>),
}

pub(super) struct Leaf<T> {
    /// Entries in key order.
    pub(super) entries: Vec<T>,
    /// Bit `i`: entry `i` is live.
    pub(super) live: u64,
}

pub(super) struct Inner<T> {
    /// `separators[i]` is above every key of child `i` and not above any key of child `i + 1`.
    pub(super) separators: Vec<Separator>,
    pub(super) children: Vec<Child<T>>,
}

pub(super) struct Child<T> {
    /// The number of live entries in this subtree.
    pub(super) live: u64,
    pub(super) node: Node<T>,
}

pub(super) type Separator = Box<[u8]>;

/// The result of an insert, for the level above.
pub(super) struct Inserted<T> {
    pub(super) old: Option<T>,
    /// The change of the number of live entries.
    pub(super) delta: i64,
    /// The right part, if the node was overfull and split.
    pub(super) split: Option<(Separator, Node<T>)>,
}

/// A number with the lowest `n` bits set.
pub(super) fn low_bits(n: usize) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

/// A binary search with branches. The one of the standard library is branchless, so each comparison waits for the
/// memory of the previous one. Speculation past a branch fetches the next key meanwhile, which halves the time in an
/// index larger than the caches.
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

/// Where to split an overfull node. The split follows the insertion, so keys inserted in order leave full nodes behind.
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

    /// One bit per entry.
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

    /// Gives back spare memory, with some slack so that alternating inserts and removes do not reallocate each time.
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
    /// The index of the only child whose subtree may hold `key`.
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

    /// Joins children `at` and `at + 1`, or lets them share evenly if one node would be too full. Both exist: an inner
    /// node has at least [`SPARSE`] children, and a root with a single child is replaced by that child.
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

    /// The number of entries of a leaf, or of children of an inner node.
    fn width(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.entries.len(),
            Self::Inner(inner) => inner.children.len(),
        }
    }

    /// The number of live entries in this subtree, from the counts of one level.
    fn live(&self) -> u64 {
        match self {
            Self::Leaf(leaf) => u64::from(leaf.live.count_ones()),
            Self::Inner(inner) => inner.children.iter().map(|child| child.live).sum(),
        }
    }

    /// Replaces a root with a single child by that child.
    pub(super) fn collapse(&mut self) {
        if let Self::Inner(inner) = self
            && inner.children.len() == 1
            && let Some(only) = inner.children.pop()
        {
            *self = only.node;
        }
    }

    /// Appends the content of the right neighbour.
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

    /// Counts visited nodes in tests, as the cost of a call.
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

    /// The only leaf that may hold `key`.
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

    /// Sets the flag of the entry of `key`; returns the previous one.
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

    /// The number of live entries below `key`.
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
