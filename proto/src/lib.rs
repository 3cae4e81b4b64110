//! The gRPC surfaces of kindred as generated code: etcd's v3 API (3.7) and `kindred.shard.v1`.
//!
//! `raw` holds KV and Watch with payloads left as bytes; everything else is typed. The generated files are checked in:
//! `cargo run -p kindred-proto-gen` writes them, `-- --check` verifies that they are fresh.

/// etcd's data types (`KeyValue`, `Event`).
#[allow(clippy::all, missing_docs, unused_qualifications)]
#[rustfmt::skip]
pub mod mvccpb {
    include!("gen/mvccpb.rs");
}

/// etcd's requests, answers and services.
#[allow(clippy::all, missing_docs, unused_qualifications)]
#[rustfmt::skip]
pub mod etcdserverpb {
    include!("gen/etcdserverpb.rs");
}

/// What a router asks of a shard beside etcd's API.
#[allow(clippy::all, missing_docs, unused_qualifications)]
#[rustfmt::skip]
pub mod shard_v1 {
    include!("gen/kindred.shard.v1.rs");
}

pub mod check;
pub mod nested;
pub mod raw;

/// The bit of a handshake's `features` that stands for service `Batches`.
pub const FEATURE_BATCHES: u64 = 1;

/// The bit that says that batches carry what a read over several stores asks: pins, raises and releases.
pub const FEATURE_BATCHED_CUTS: u64 = 2;
