//! What each store is asked for, so that a Range over several of them, read at one revision, merges into etcd's answer.
//!
//! Filters, the order and the revision go to every store as they came. Three fields do not:
//!
//! * `limit`: each store gives the first `limit` of its own order, which contains all of its part of the answer;
//! * `keys_only` with an order by value: the values decide the merge, so stores send them and the merge drops them, as
//!   etcd itself reads them and drops them after sorting;
//! * `count_only`: nothing else matters, no order and no limit.
//!
//! **Ties**: etcd sorts with an unstable algorithm, so it promises nothing among items that compare equal (with a few
//! items, they happen to come out in ascending key order, in both directions). We always put them in ascending key
//! order, as our shards do, so that a page depends on the data alone, not on how it is spread.

use std::cmp::Ordering;

use kindred_partition_config::ids::Revision;

/// One key-value pair of an answer, however it is held.
pub trait Item {
    /// Its key.
    fn key(&self) -> &[u8];
    /// Its create revision.
    fn create(&self) -> Revision;
    /// Its mod revision.
    fn modified(&self) -> Revision;
    /// Its version.
    fn version(&self) -> i64;
    /// Its value; only looked at where the order is by value.
    fn value(&self) -> &[u8];
}

/// What an order compares: etcd's `sort_target`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortTarget {
    /// The key.
    Key,
    /// The version.
    Version,
    /// The create revision.
    Create,
    /// The mod revision.
    Mod,
    /// The value.
    Value,
}

/// The order of an answer. etcd's `NONE` is ascending; the default is by key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Order {
    /// What is compared.
    pub target: SortTarget,
    /// From the highest down.
    pub descending: bool,
}

impl Order {
    /// By key, ascending: the order that needs no sort.
    pub const DEFAULT: Self = Self { target: SortTarget::Key, descending: false };

    /// The order of two items; equal only for one key.
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

/// What a Range asks for beside its keys and its revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeSpec {
    /// Most items; `None` for all (etcd's zero or less).
    pub limit: Option<u64>,
    /// The order.
    pub order: Order,
    /// Whether any of the four revision filters is set: `count` and `more` then speak of different sets.
    pub filtered: bool,
    /// Without values.
    pub keys_only: bool,
    /// Without items.
    pub count_only: bool,
}

/// What every store is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorePart {
    /// As the client's request, but for what a store must be asked otherwise. Filters stay as they are.
    pub spec: RangeSpec,
    /// The merge's answer must be freed of values.
    pub drop_values: bool,
}

impl RangeSpec {
    /// What every store is asked for.
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
