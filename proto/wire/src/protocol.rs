//! Metadata that routers and shards add to calls beside protobuf. Both sides take the names from here.
//!
//! A receiver may ignore such metadata unless it is marked "mandatory": a receiver that does not support mandatory
//! metadata must refuse the call.

/// To a shard: the answer's revision should be at or above this number, and that of a write above it (R8).
pub const MIN_REVISION: &str = "kindred-min-revision";
/// To a shard: the nonzero name of a pin. The answer's header revision should stay readable for a while, or until
/// the pin is released (R5).
pub const PIN: &str = "kindred-pin";
/// To a shard: the generation of the map by which a request over a span of keys was routed (R13).
pub const MAP: &str = "kindred-map";
/// To a shard, with a `DeleteRange`: the buckets of the range to delete. Mandatory.
pub const BUCKETS: &str = "kindred-buckets";
/// To a shard: the cluster's secret, or `-` without one, which identifies the caller as a router.
pub const ROUTER: &str = "kindred-router";
/// From a shard, with a refusal for ownership: the generation of the map since which another store owns the keys,
/// or 0 while the ownership is being decided (R11).
pub const NOT_OWNED: &str = "kindred-not-owned";
/// Metadata of a refusal by a member that is not, or may not be any more, the primary of its store (R19): nothing was
/// executed, and another member will soon serve. The value is empty.
pub const NOT_PRIMARY: &str = "kindred-not-primary";
/// From a shard, with a refused call of a move: the highest term of that move that the shard has seen (R14).
pub const STALE_TERM: &str = "kindred-stale-term";
