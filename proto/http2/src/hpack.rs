//! HPACK (RFC 7541) with what gRPC means by fields.
//!
//! [`decoder`] keeps the client's dynamic table. A field is interpreted once, when it enters the table ([`field`]), so a
//! block of indexed fields is a loop of look-ups. [`encoder`] writes answers from blocks that are made once.

pub(crate) mod decoder;
pub(crate) mod encoder;
pub(crate) mod field;
pub(crate) mod huffman;
pub(crate) mod integer;
mod static_table;
pub(crate) mod table;
