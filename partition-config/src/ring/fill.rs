//! Assigns buckets to the stores of a ring.
//!
//! [`hashed`] depends only on the stores' names and weights. It is a consistent-hash ring: a store that joins takes
//! about one bucket in n, all for itself, and a store that leaves gives up only its own. It cannot be even, because
//! 256 buckets thrown at n stores scatter under any hash. The table shows the busiest store over the mean, average
//! and worst of 200 sets of names; the test `balance_of_256_buckets` repeats the measurement on a small scale:
//!
//! | stores | ring, 512 vnodes | ring, 4096 | rendezvous | [`levelled`] |
//! | --- | --- | --- | --- | --- |
//! | 2 | 1.05, 1.20 | 1.05, 1.16 | 1.05, 1.20 | 1.00 |
//! | 4 | 1.13, 1.33 | 1.13, 1.47 | 1.13, 1.31 | 1.00 |
//! | 8 | 1.26, 1.50 | 1.27, 1.53 | 1.26, 1.53 | 1.00 |
//! | 16 | 1.46, 1.88 | 1.49, 1.94 | 1.48, 1.81 | 1.00 |
//!
//! More vnodes or rendezvous hashing gain nothing at this size; all three move the same share, only to the new
//! store. [`levelled`] provides evenness: it starts from a table, gives every store its exact share, and moves no
//! more than that needs. Its result depends on the table that it starts from, so the table is stored in the map.

use std::hash::{BuildHasher, Hash, Hasher};

use consistent_hash_ring::RingBuilder;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{BUCKETS, Bucket, BucketTable};
use crate::map::StoreIdx;

/// Points on the hash ring per unit of weight. Frozen: another number gives another table.
pub const VNODES_PER_WEIGHT: usize = 512;
/// The maximum total weight of a ring's stores. Building the ring takes quadratic time in it.
pub const TOTAL_WEIGHT_MAX: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The store's name. It decides the store's points on the ring, so a renamed store counts as another store.
    pub name: String,
    /// The store's index in the configuration. It does not affect the assignment.
    pub store: StoreIdx,
    /// The store's share relative to the others; 1 if all are alike.
    pub weight: u16,
}

/// Why no table could be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    #[error("a ring needs at least one store")]
    NoStore,
    /// A weight is zero. To drain a store, leave it out.
    #[error("store {0:?} has no weight")]
    NoWeight(String),
    /// The total weight exceeds [`TOTAL_WEIGHT_MAX`].
    #[error("the weights of a ring add up to {0}, more than {TOTAL_WEIGHT_MAX}")]
    TooHeavy(usize),
    /// Two members have the same name or the same index.
    #[error("store {0:?} is listed twice")]
    Twice(String),
    /// Points of two names collide on the ring. This is possible in theory and has never been seen.
    #[error("two stores of the ring collide: rename one")]
    Collision,
}

/// The only hasher of the ring. It accepts only whole `u64` values, because the bytes that `Hash` writes for other
/// types may change.
struct RingHashV1 {
    state: u64,
}

impl Hasher for RingHashV1 {
    fn write(&mut self, _: &[u8]) {
        unreachable!("points and keys write one u64")
    }

    fn write_u64(&mut self, number: u64) {
        self.state = xxh3_64_with_seed(&number.to_le_bytes(), self.state);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[derive(Clone)]
struct BuildRingHashV1;

impl BuildHasher for BuildRingHashV1 {
    type Hasher = RingHashV1;

    fn build_hasher(&self) -> RingHashV1 {
        RingHashV1 { state: 0 }
    }
}

#[derive(Clone, PartialEq, Eq)]
struct Node {
    point: u64,
    store: StoreIdx,
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.point);
    }
}

struct RingKey(u64);

impl Hash for RingKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0);
    }
}

/// The validated members sorted by name, so that the order of the list does not matter.
fn checked(members: &[Member]) -> Result<Vec<&Member>, FillError> {
    if members.is_empty() {
        return Err(FillError::NoStore);
    }
    if let Some(idle) = members.iter().find(|member| member.weight == 0) {
        return Err(FillError::NoWeight(idle.name.clone()));
    }
    let total = members.iter().map(|member| usize::from(member.weight)).sum();
    if total > TOTAL_WEIGHT_MAX {
        return Err(FillError::TooHeavy(total));
    }
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_by_key(|member| member.store);
    let same_store = sorted.windows(2).find(|pair| pair[0].store == pair[1].store);
    if let Some(pair) = same_store {
        return Err(FillError::Twice(pair[1].name.clone()));
    }
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    match sorted.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => Err(FillError::Twice(pair[1].name.clone())),
        None => Ok(sorted),
    }
}

/// The table that a consistent-hash ring of the names and weights gives.
///
/// # Errors
/// When the members do not form a valid ring.
pub fn hashed(members: &[Member]) -> Result<BucketTable, FillError> {
    let members = checked(members)?;
    let mut builder = RingBuilder::new(BuildRingHashV1);
    let mut vnodes = 0;
    for member in &members {
        let node = Node { point: xxh3_64(member.name.as_bytes()), store: member.store };
        let of_member = usize::from(member.weight) * VNODES_PER_WEIGHT;
        vnodes += of_member;
        builder = builder.weighted_node(node, of_member);
    }
    // The ring is never modified: removing a node from a ring of this library may remove points of other nodes.
    let ring = builder.build();
    if ring.vnodes() != vnodes {
        return Err(FillError::Collision);
    }
    let mut owners = [StoreIdx(0); BUCKETS];
    for bucket in Bucket::all() {
        let node = ring.try_get(RingKey(xxh3_64(&[bucket.0]))).ok_or(FillError::NoStore)?;
        owners[usize::from(bucket.0)] = node.store;
    }
    Ok(BucketTable::new(owners))
}

/// A member's current and target number of buckets.
struct Share {
    store: StoreIdx,
    point: u64,
    held: usize,
    quota: usize,
}

/// Gives every member its exact share of `table`: members of equal weight differ by at most one bucket. It moves as
/// few buckets as possible, only from stores above their share or no longer members to stores below theirs.
///
/// # Errors
/// When the members do not form a valid ring.
pub fn levelled(table: &BucketTable, members: &[Member]) -> Result<BucketTable, FillError> {
    let mut shares = shares(table, &checked(members)?);
    let mut owners: [StoreIdx; BUCKETS] = std::array::from_fn(|at| table.owner(Bucket(at as u8)));
    let mut loose: Vec<Bucket> = Bucket::all()
        .filter(|bucket| !shares.iter().any(|share| share.store == table.owner(*bucket)))
        .collect();
    for share in &mut shares {
        let mut own: Vec<Bucket> = table.of(share.store).iter().collect();
        own.sort_by_key(|bucket| liking(share.point, *bucket));
        loose.extend(own.into_iter().take(share.held.saturating_sub(share.quota)));
        share.held = share.held.min(share.quota);
    }
    loose.sort_unstable();
    for bucket in loose {
        let wanting = shares.iter_mut().filter(|share| share.held < share.quota);
        // The quotas sum to all buckets, so every loose bucket finds a taker.
        let Some(taker) = wanting.max_by_key(|share| liking(share.point, bucket)) else { continue };
        taker.held += 1;
        owners[usize::from(bucket.0)] = taker.store;
    }
    Ok(BucketTable::new(owners))
}

/// A store's preference for a bucket: it gives up the least preferred first and takes the most preferred. Any fixed
/// scatter works.
fn liking(point: u64, bucket: Bucket) -> u64 {
    xxh3_64_with_seed(&[bucket.0], point)
}

/// Each member's held buckets and quota. The quota is the weight's part of all buckets, rounded so that the quotas
/// sum to all of them. Among equal remainders the member that holds more is rounded up, so that rounding moves
/// nothing.
fn shares(table: &BucketTable, members: &[&Member]) -> Vec<Share> {
    let total: usize = members.iter().map(|member| usize::from(member.weight)).sum();
    let mut rounding: Vec<(usize, usize, u64, usize)> = Vec::new();
    let mut shares: Vec<Share> = Vec::new();
    for (at, member) in members.iter().enumerate() {
        let exact = usize::from(member.weight) * BUCKETS;
        let held = table.of(member.store).len();
        let point = xxh3_64(member.name.as_bytes());
        rounding.push((exact % total, held, point, at));
        shares.push(Share { store: member.store, point, held, quota: exact / total });
    }
    rounding.sort_unstable_by(|a, b| b.cmp(a));
    let left = BUCKETS - shares.iter().map(|share| share.quota).sum::<usize>();
    for (_, _, _, at) in rounding.into_iter().take(left) {
        shares[at].quota += 1;
    }
    shares
}
