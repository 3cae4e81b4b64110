//! Generated code for kindred's gRPC APIs: etcd's v3 API (3.7) and `kindred.shard.v1`.
//!
//! `raw` has the services whose payloads stay bytes; everything else is typed. The generated files are checked in:
//! `cargo run -p kindred-proto-gen` writes them, and `-- --check` verifies that they are up to date.

/// etcd's data types, such as `KeyValue` and `Event`.
#[allow(clippy::all, missing_docs, unused_qualifications)]
#[rustfmt::skip]
pub mod mvccpb {
    include!("gen/mvccpb.rs");
}

/// Permissions of etcd's roles, and options of its users.
#[allow(clippy::all, missing_docs, unused_qualifications)]
#[rustfmt::skip]
pub mod authpb {
    include!("gen/authpb.rs");
}

/// etcd's requests, responses and services.
#[allow(clippy::all, missing_docs, unused_qualifications)]
#[rustfmt::skip]
pub mod etcdserverpb {
    include!("gen/etcdserverpb.rs");
}

/// etcd's locks.
#[allow(clippy::all, missing_docs, unused_qualifications)]
#[rustfmt::skip]
pub mod v3lockpb {
    include!("gen/v3lockpb.rs");
}

/// etcd's elections.
#[allow(clippy::all, missing_docs, unused_qualifications)]
#[rustfmt::skip]
pub mod v3electionpb {
    include!("gen/v3electionpb.rs");
}

/// The internal API that routers call on shards, beside etcd's API.
#[allow(clippy::all, missing_docs, unused_qualifications)]
#[rustfmt::skip]
pub mod shard_v1 {
    include!("gen/kindred.shard.v1.rs");
}

/// A `FileDescriptorSet` of etcd's API.
pub const DESCRIPTORS: &[u8] = include_bytes!("gen/etcd.binpb");

pub mod check;
pub mod nested;
pub mod raw;
pub mod values;

/// The feature bit of a handshake for the service `Batches`.
pub const FEATURE_BATCHES: u64 = 1;

/// The feature bit for batches that carry parts of a read over several stores: pins, raises and releases of pins.
pub const FEATURE_BATCHED_SNAPSHOTS: u64 = 2;
