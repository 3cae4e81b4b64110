//! Pure: keys and ranges, Kinds, partition configs and the partition map. No I/O, no clock, no runtime, no gRPC.

pub mod ids;
pub mod key;
pub mod kind;
pub mod map;
pub mod model;
pub mod parse;
pub mod ring;
pub mod state;
pub mod transfers;
pub mod unit;
pub mod validate;
