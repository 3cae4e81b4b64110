//! Who gets which bucket.
//!
//! [`hashed`] is a function of the stores' names and weights alone: a consistent-hash ring, so that a store that joins
//! takes buckets only for itself, about one in n, and one that leaves gives up only its own. What it cannot do is to be
//! even: 256 buckets thrown at n stores scatter, whatever throws them. Measured over 200 sets of names (busiest store
//! over the mean, average and worst; the test `balance_of_256_buckets` repeats it in small):
//!
//! | stores | ring, 512 vnodes | ring, 4096 | rendezvous | [`levelled`] |
//! | --- | --- | --- | --- | --- |
//! | 2 | 1.05, 1.20 | 1.05, 1.16 | 1.05, 1.20 | 1.00 |
//! | 4 | 1.13, 1.33 | 1.13, 1.47 | 1.13, 1.31 | 1.00 |
//! | 8 | 1.26, 1.50 | 1.27, 1.53 | 1.26, 1.53 | 1.00 |
//! | 16 | 1.46, 1.88 | 1.49, 1.94 | 1.48, 1.81 | 1.00 |
//!
//! More vnodes or rendezvous hashing change nothing at this size (all three move the same share, only to the new store),
//! so the ring stays, and evenness comes from [`levelled`]: it starts from a table, gives every store its exact share,
//! and moves no more than that needs. Its result depends on the table that it starts from, so keep it with the map.

use std::hash::{BuildHasher, Hash, Hasher};

use consistent_hash_ring::RingBuilder;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{BUCKETS, Bucket, BucketTable};
use crate::map::StoreIdx;

/// Points on the hash ring for each unit of weight. Frozen: another number is another table.
pub const VNODES_PER_WEIGHT: usize = 512;
/// Most weight of all stores of a ring together; building the ring is quadratic in it.
pub const TOTAL_WEIGHT_MAX: usize = 128;

/// A store of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name, which decides its place: a renamed store is another one.
    pub name: String,
    /// Its place in the configuration, which decides nothing.
    pub store: StoreIdx,
    /// Its share relative to others; 1 where all are alike.
    pub weight: u16,
}

/// Why there is no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// No store at all.
    #[error("a ring needs at least one store")]
    NoStore,
    /// A weight of zero: drain the store by leaving it out.
    #[error("store {0:?} has no weight")]
    NoWeight(String),
    /// Too much weight.
    #[error("the weights of a ring add up to {0}, more than {TOTAL_WEIGHT_MAX}")]
    TooHeavy(usize),
    /// Two members of one name or one place.
    #[error("store {0:?} is listed twice")]
    Twice(String),
    /// Two names whose points on the ring meet: possible, and never seen.
    #[error("two stores of the ring collide: rename one")]
    Collision,
}

/// The only hasher of the ring. Only whole 64-bit numbers go in, because what `Hash` writes for anything else is not
/// promised to stay.
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

/// The members in the order of their names, which no list order can change.
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

/// The table that the names and weights alone make, by a consistent-hash ring.
///
/// # Errors
/// When the members make no ring.
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
    // Built once and read only: changing a ring of this library may remove what it should not.
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

/// A member's claim while a table is levelled.
struct Share {
    store: StoreIdx,
    point: u64,
    held: usize,
    quota: usize,
}

/// `table` with every member at its exact share (among equal weights, no two differ by more than one bucket), moved as
/// little as that needs: only from stores above their share or no longer members, only to stores below theirs.
///
/// # Errors
/// When the members make no ring.
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
        // Quotas add up to all buckets, so there is one for each loose bucket.
        let Some(taker) = wanting.max_by_key(|share| liking(share.point, bucket)) else { continue };
        taker.held += 1;
        owners[usize::from(bucket.0)] = taker.store;
    }
    Ok(BucketTable::new(owners))
}

/// Which buckets a store gives up last and gets first: any fixed scatter will do.
fn liking(point: u64, bucket: Bucket) -> u64 {
    xxh3_64_with_seed(&[bucket.0], point)
}

/// What each member has and should have: its weight's part of all buckets, rounded so that all are given. Among equal
/// remainders, who holds more keeps more, so that rounding moves nothing.
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
