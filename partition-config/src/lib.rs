//! The pure data model: keys and ranges, Kinds, partition configs and the partition map. It has no I/O, clock,
//! runtime or gRPC.

pub mod duration;
pub mod errors;
pub mod history;
pub mod ids;
pub mod key;
pub mod kind;
pub mod map;
pub mod model;
pub mod parse;
pub mod ring;
pub mod shape;
pub mod state;
pub mod transfers;
pub mod unit;
pub mod validate;
