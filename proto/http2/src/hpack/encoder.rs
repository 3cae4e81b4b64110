//! Header blocks of answers.
//!
//! Nearly all answers have the same head and the same trailers. The first head puts `content-type: application/grpc` into
//! the client's table, and the first trailers put `grpc-status: 0` there. Nothing else ever goes there, so both keep
//! their index, and later heads and trailers are two bytes and one. All other fields are literals that leave the table
//! alone, made once as a [`Block`].

use bytes::Bytes;
use thiserror::Error;

use super::integer;

/// `:status: 200` in the static table.
const STATUS_200: u8 = 0x88;
const CONTENT_TYPE: (&str, &str) = ("content-type", "application/grpc");
const STATUS_OK: (&str, &str) = ("grpc-status", "0");
/// Sets the size of the table to 0.
const NO_TABLE: u8 = 0x20;
/// The size that a client's table has, as long as it says nothing else.
const TABLE_BYTES: u32 = 4096;

/// What the client's table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The content type, at the first index.
    Head,
    /// The status at the first index, and the content type at the second.
    Both,
    /// The client wants a smaller table. It gets none.
    NoTable,
}

/// Writes the blocks of one connection.
#[derive(Debug)]
pub(crate) struct Encoder {
    known: Known,
    update_due: bool,
}

impl Encoder {
    /// The blocks of head and trailers when the client's table has both.
    pub(crate) const SETTLED_HEAD: [u8; 2] = [STATUS_200, 0x80 | 63];
    pub(crate) const SETTLED_TRAILERS: [u8; 1] = [0x80 | 62];

    pub(crate) const fn new() -> Self {
        Self { known: Known::Nothing, update_due: false }
    }

    /// Whether the client's table has the fields of every answer.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.known == Known::Both
    }

    /// The client's table may have this size.
    pub(crate) fn table_size(&mut self, size: u32) {
        if size < TABLE_BYTES {
            self.update_due |= self.known != Known::NoTable;
            self.known = Known::NoTable;
        }
    }

    /// Begins a block. Nothing may be written between this and the rest of the block.
    #[inline]
    pub(crate) fn begin(&mut self, out: &mut Vec<u8>) {
        if self.update_due {
            self.update_due = false;
            out.push(NO_TABLE);
        }
    }

    /// The fields of an ordinary head.
    #[inline]
    pub(crate) fn head(&mut self, out: &mut Vec<u8>) {
        match self.known {
            Known::Both => out.extend_from_slice(&Self::SETTLED_HEAD),
            Known::Head => out.extend_from_slice(&[STATUS_200, 0x80 | 62]),
            Known::Nothing => {
                out.push(STATUS_200);
                literal(out, 0x40, CONTENT_TYPE.0.as_bytes(), CONTENT_TYPE.1.as_bytes());
                self.known = Known::Head;
            }
            Known::NoTable => {
                out.push(STATUS_200);
                literal(out, 0, CONTENT_TYPE.0.as_bytes(), CONTENT_TYPE.1.as_bytes());
            }
        }
    }

    /// The trailers of a call that succeeded.
    #[inline]
    pub(crate) fn trailers_ok(&mut self, out: &mut Vec<u8>) {
        match self.known {
            Known::Both => out.extend_from_slice(&Self::SETTLED_TRAILERS),
            Known::Head => {
                literal(out, 0x40, STATUS_OK.0.as_bytes(), STATUS_OK.1.as_bytes());
                self.known = Known::Both;
            }
            Known::Nothing | Known::NoTable => {
                literal(out, 0, STATUS_OK.0.as_bytes(), STATUS_OK.1.as_bytes());
            }
        }
    }
}

/// A literal field with a literal name. The first byte says whether it goes into the table.
fn literal(out: &mut Vec<u8>, first: u8, name: &[u8], value: &[u8]) {
    out.push(first);
    for text in [name, value] {
        integer::write(out, 0, 7, text.len());
        out.extend_from_slice(text);
    }
}

/// Fields of an answer, encoded once. They say nothing of a connection, so one block serves all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Block(Vec<u8>);

/// A name or value that HTTP/2 does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a header field has a byte that HTTP/2 does not allow")]
pub struct BadField;

impl Block {
    /// No fields, for metadata beside an ordinary head.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Trailers with a status of gRPC and a message, which is percent-encoded.
    #[must_use]
    pub fn status(code: u32, message: &str) -> Self {
        let mut block = Vec::new();
        literal(&mut block, 0, STATUS_OK.0.as_bytes(), code.to_string().as_bytes());
        if !message.is_empty() {
            literal(&mut block, 0, b"grpc-message", &percent_encoded(message));
        }
        Self(block)
    }

    /// The head of an answer that is not gRPC's, such as 415.
    #[must_use]
    pub fn http(status: u16) -> Self {
        let mut block = Vec::new();
        literal(&mut block, 0, b":status", status.to_string().as_bytes());
        Self(block)
    }

    /// Adds a field.
    ///
    /// # Errors
    /// When the name is not lower-case ASCII, or the value has control characters or blanks around it.
    pub fn field(mut self, name: &str, value: &[u8]) -> Result<Self, BadField> {
        self.add(name, value)?;
        Ok(self)
    }

    /// Adds a field, as [`Block::field`] does, to a block that stays as it is where that fails.
    ///
    /// # Errors
    /// As [`Block::field`].
    pub fn add(&mut self, name: &str, value: &[u8]) -> Result<(), BadField> {
        let name_byte = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.')
        };
        let value_byte = |byte: u8| matches!(byte, b'\t' | 0x20..=0x7e | 0x80..);
        let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        let sound = !name.is_empty()
            && name.bytes().all(name_byte)
            && value.iter().all(|byte| value_byte(*byte))
            && !blank(value.first())
            && !blank(value.last());
        if !sound {
            return Err(BadField);
        }
        literal(&mut self.0, 0, name.as_bytes(), value);
        Ok(())
    }

    /// Adds a field whose name ends with `-bin`, such as `grpc-status-details-bin`, in base64.
    ///
    /// # Errors
    /// When the name is not lower-case ASCII.
    pub fn binary(self, name: &str, value: &[u8]) -> Result<Self, BadField> {
        self.field(name, &base64(value))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What ends an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trailers {
    /// `grpc-status: 0`.
    Ok,
    /// Encoded fields, with a `grpc-status` among them.
    Block(Bytes),
    /// None: an answer that is not gRPC's ends with its last byte.
    None,
}

impl From<Block> for Trailers {
    fn from(block: Block) -> Self {
        Self::Block(Bytes::from(block.0))
    }
}

/// `grpc-message`, as gRPC encodes it. Blanks at its ends are encoded too, because HTTP/2 does not allow them there.
fn percent_encoded(message: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len());
    let last = message.len().saturating_sub(1);
    for (at, byte) in message.bytes().enumerate() {
        let plain = match byte {
            b'%' => false,
            b' ' => at > 0 && at < last,
            _ => matches!(byte, 0x21..=0x7e),
        };
        if plain {
            out.push(byte);
        } else {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
    out
}

/// Base64 without padding.
fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::with_capacity(bytes.len() * 4 / 3 + 3);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..=three.len() {
            out.push(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize]);
        }
    }
    out
}

#[cfg(test)]
mod tests;
