//! KV, Watch, Feeds and Batches with protobuf bytes as requests and answers, and the codec that passes the bytes
//! through.

use bytes::{Buf, BufMut, Bytes};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// KV as bytes: `kv_server::{Kv, KvServer}` and `kv_client::KvClient`.
#[allow(clippy::all, missing_docs)]
#[rustfmt::skip]
pub mod kv {
    include!("gen/raw/etcdserverpb.KV.rs");
}

/// Watch as bytes: `watch_server::{Watch, WatchServer}` and `watch_client::WatchClient`.
#[allow(clippy::all, missing_docs)]
#[rustfmt::skip]
pub mod watch {
    include!("gen/raw/etcdserverpb.Watch.rs");
}

/// Feeds as bytes: `feeds_server::{Feeds, FeedsServer}` and `feeds_client::FeedsClient`.
#[allow(clippy::all, missing_docs)]
#[rustfmt::skip]
pub mod feeds {
    include!("gen/raw/kindred.shard.v1.Feeds.rs");
}

/// Batches as bytes: `batches_server::{Batches, BatchesServer}` and `batches_client::BatchesClient`.
#[allow(clippy::all, missing_docs)]
#[rustfmt::skip]
pub mod batches {
    include!("gen/raw/kindred.shard.v1.Batches.rs");
}

/// A codec that passes protobuf bytes through.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawCodec;

/// The encoding half of [`RawCodec`].
#[derive(Debug, Clone, Copy, Default)]
pub struct RawEncoder;

/// The decoding half of [`RawCodec`].
#[derive(Debug, Clone, Copy, Default)]
pub struct RawDecoder;

// A small initial buffer, because most unary answers are just a header; `encode` reserves the exact size of large
// ones.
const BUFFER_BYTES: usize = 1 << 10;
const YIELD_BYTES: usize = 32 << 10;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = RawEncoder;
    type Decoder = RawDecoder;

    fn encoder(&mut self) -> RawEncoder {
        RawEncoder
    }

    fn decoder(&mut self) -> RawDecoder {
        RawDecoder
    }
}

impl Encoder for RawEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, dst: &mut EncodeBuf<'_>) -> Result<(), Status> {
        dst.reserve(item.len());
        dst.put(item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}

impl Decoder for RawDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, src: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(src.copy_to_bytes(src.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}
