//! Decides how each store is asked so that a Range over several, read at one revision, merges into etcd's answer.
//!
//! Filters, order and revision go to every store unchanged. Three fields may not:
//!
//! * `limit`: each store gives the first `limit` items of its own order, which contain all its items of the answer;
//! * `keys_only` with an order by value: the merge needs the values, so stores send them and the merge drops them, as
//!   etcd itself reads them and drops them after sorting;
//! * `count_only`: order and limit do not matter and are dropped.
//!
//! **Ties**: etcd sorts with an unstable algorithm, so it promises nothing about items that compare equal (with few
//! items they happen to come out in ascending key order, in both directions). The merge and the shards always put them
//! in ascending key order, so that a page depends only on the data, not on how it is spread.

use std::cmp::Ordering;

use kindred_partition_config::ids::Revision;

/// A key-value of an answer, in whatever representation.
pub trait Item {
    fn key(&self) -> &[u8];
    fn create(&self) -> Revision;
    fn modified(&self) -> Revision;
    fn version(&self) -> i64;
    /// Read only if the order is by value.
    fn value(&self) -> &[u8];
}

/// What an order compares: etcd's `sort_target`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortTarget {
    Key,
    Version,
    Create,
    Mod,
    Value,
}

/// The order of an answer. etcd's `NONE` counts as ascending; the default is by key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Order {
    pub target: SortTarget,
    pub descending: bool,
}

impl Order {
    /// Ascending by key: the order that needs no sort.
    pub const DEFAULT: Self = Self { target: SortTarget::Key, descending: false };

    /// Compares two items; equal only for the same key.
    pub fn compare<I: Item>(self, a: &I, b: &I) -> Ordering {
        let by_target = match self.target {
            SortTarget::Key => a.key().cmp(b.key()),
            SortTarget::Version => a.version().cmp(&b.version()),
            SortTarget::Create => a.create().cmp(&b.create()),
            SortTarget::Mod => a.modified().cmp(&b.modified()),
            SortTarget::Value => a.value().cmp(b.value()),
        };
        let directed = if self.descending { by_target.reverse() } else { by_target };
        directed.then_with(|| a.key().cmp(b.key()))
    }
}

/// The options of a Range beside its keys and its revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeSpec {
    /// The most items; `None` for all (zero or less in etcd).
    pub limit: Option<u64>,
    pub order: Order,
    /// Whether any of the four revision filters is set; then `count` and `more` describe different sets.
    pub filtered: bool,
    pub keys_only: bool,
    pub count_only: bool,
}

/// How every store is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorePart {
    /// The options for the store; filters stay as they are.
    pub spec: RangeSpec,
    /// Whether the merge must drop the values of the answer.
    pub drop_values: bool,
}

impl RangeSpec {
    #[must_use]
    pub fn part(self) -> StorePart {
        if self.count_only {
            let spec = Self { limit: None, order: Order::DEFAULT, filtered: false, ..self };
            return StorePart { spec, drop_values: false };
        }
        let drop_values = self.keys_only && self.order.target == SortTarget::Value;
        StorePart { spec: Self { keys_only: self.keys_only && !drop_values, ..self }, drop_values }
    }

    /// Whether `RangeStream` serves it; etcd answers Unimplemented for another order or a filter.
    #[must_use]
    pub fn streams(self) -> bool {
        self.order == Order::DEFAULT && !self.filtered
    }
}
