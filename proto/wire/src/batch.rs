//! The messages of `kindred.shard.v1.Batches`: encoded around the bytes that they carry without another copy, and
//! parsed in place.

use crate::{
    flat::flat,
    scan::{Fields, Value, WireError, put_bytes, put_len, put_number, put_varint, varint_len, varints},
};

/// The method of an operation, with its number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Method {
    /// `KV/Range`
    Range = 1,
    /// `KV/Put`
    Put = 2,
    /// `KV/DeleteRange`
    DeleteRange = 3,
    /// `KV/Txn`
    Txn = 4,
    /// `Shard/RaiseSince`
    RaiseSince = 5,
    /// `Shard/ReleasePins`
    ReleasePins = 6,
}

impl Method {
    /// Decodes a method number; `None` if this version does not know it.
    #[must_use]
    pub const fn from_wire(number: i32) -> Option<Self> {
        match number {
            1 => Some(Self::Range),
            2 => Some(Self::Put),
            3 => Some(Self::DeleteRange),
            4 => Some(Self::Txn),
            5 => Some(Self::RaiseSince),
            6 => Some(Self::ReleasePins),
            _ => None,
        }
    }
}

flat! {
    /// A `BatchOp`.
    BatchOp<'a> {
        1 id: u64,
        2 method: i32,
        3 min_revision: i64,
        4 generation: u64,
        5 timeout_micros: u64,
        6 request: &'a [u8],
        7 pin: u64,
    }
}

impl BatchOp<'_> {
    /// The encoded length of this operation as a field of a `BatchRequest`.
    #[must_use]
    pub fn field_len(&self) -> usize {
        let inner = self.inner_len();
        1 + varint_len(inner as u64) + inner
    }

    fn numbers(&self) -> [(u32, u64); 6] {
        [
            (1, self.id),
            (2, u64::from(self.method.cast_unsigned())),
            (3, self.min_revision.cast_unsigned()),
            (4, self.generation),
            (5, self.timeout_micros),
            (7, self.pin),
        ]
    }

    fn inner_len(&self) -> usize {
        let numbers = self.numbers().into_iter().filter(|(_, number)| *number != 0);
        let request = self.request.len();
        numbers.map(|(_, number)| 1 + varint_len(number)).sum::<usize>()
            + 1
            + varint_len(request as u64)
            + request
    }

    /// Appends the operation to a `BatchRequest`.
    pub fn put(&self, message: &mut Vec<u8>) {
        put_len(message, 1, self.inner_len());
        for (field, number) in self.numbers() {
            if number != 0 {
                put_number(message, field, number);
            }
        }
        put_bytes(message, 6, self.request);
    }
}

/// Appends the cancellation of operation `id` to a `BatchRequest`.
pub fn put_cancel(message: &mut Vec<u8>, id: u64) {
    put_number(message, 2, id);
}

/// Passes the operations of a `BatchRequest` to `op` and its cancellations to `cancel`, in the order of the bytes.
///
/// # Errors
/// When the bytes are not such a message. Everything before the error has been passed on.
pub fn read_request<'a>(
    message: &'a [u8],
    mut op: impl FnMut(BatchOp<'a>),
    mut cancel: impl FnMut(u64),
) -> Result<(), WireError> {
    for field in Fields::new(message) {
        let field = field?;
        match (field.number, field.value) {
            (1, _) => op(BatchOp::parse(field.bytes()?)?),
            (2, Value::Len(packed)) => {
                for id in varints(packed) {
                    cancel(id?);
                }
            }
            (2, _) => cancel(field.varint()?),
            _ => {}
        }
    }
    Ok(())
}

/// The space reserved for a length that is written before it is known. A varint may be padded.
const LENGTH_BYTES: usize = 5;

/// Appends an answer to a `BatchResponse`. `write` appends the operation's response.
pub fn put_answer(message: &mut Vec<u8>, id: u64, write: impl FnOnce(&mut Vec<u8>)) {
    let outer = begin_len(message, 1);
    put_number(message, 1, id);
    let inner = begin_len(message, 2);
    write(message);
    end_len(message, inner);
    end_len(message, outer);
}

/// Begins a length-delimited field whose length is set later; returns the offset of its content.
fn begin_len(message: &mut Vec<u8>, field: u32) -> usize {
    put_varint(message, u64::from(field << 3 | 2));
    message.extend_from_slice(&[0; LENGTH_BYTES]);
    message.len()
}

fn end_len(message: &mut [u8], content: usize) {
    let mut len = message.len() - content;
    for (at, byte) in message[content - LENGTH_BYTES..content].iter_mut().enumerate() {
        *byte = (len & 0x7f) as u8 | if at + 1 < LENGTH_BYTES { 0x80 } else { 0 };
        len >>= 7;
    }
}

/// A gRPC status as an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusal<'a> {
    /// The gRPC status code, not 0.
    pub code: i32,
    pub message: &'a [u8],
    pub details: &'a [u8],
    /// The names and values of the status metadata.
    pub metadata: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Refusal<'a> {
    /// Appends the status to a `BatchResponse` as the answer to an operation.
    pub fn put(&self, message: &mut Vec<u8>, id: u64) {
        let outer = begin_len(message, 1);
        put_number(message, 1, id);
        let inner = begin_len(message, 3);
        put_number(message, 1, u64::from(self.code.cast_unsigned()));
        put_bytes(message, 2, self.message);
        put_bytes(message, 3, self.details);
        for (name, value) in &self.metadata {
            let entry = begin_len(message, 4);
            put_bytes(message, 1, name);
            put_bytes(message, 2, value);
            end_len(message, entry);
        }
        end_len(message, inner);
        end_len(message, outer);
    }

    fn parse(message: &'a [u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in Fields::new(message) {
            let field = field?;
            match field.number {
                1 => read.code = field.varint()? as i32,
                2 => read.message = field.bytes()?,
                3 => read.details = field.bytes()?,
                4 => {
                    let (mut name, mut value): (&[u8], &[u8]) = (&[], &[]);
                    for part in Fields::new(field.bytes()?) {
                        let part = part?;
                        match part.number {
                            1 => name = part.bytes()?,
                            2 => value = part.bytes()?,
                            _ => {}
                        }
                    }
                    read.metadata.push((name, value));
                }
                _ => {}
            }
        }
        Ok(read)
    }
}

/// Appends to a `BatchResponse` that no operation after `last` was or will be executed on this stream.
pub fn put_last(message: &mut Vec<u8>, last: u64) {
    put_number(message, 2, last);
}

/// An item of a `BatchResponse`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The response to an operation, by its id.
    Response(u64, &'a [u8]),
    /// The refusal of an operation, by its id.
    Refused(u64, Refusal<'a>),
    /// See [`put_last`].
    Last(u64),
}

/// Passes the items of a `BatchResponse` to `show`, in the order of its bytes.
///
/// # Errors
/// When the bytes are not such a message. Everything before the error has been passed on.
pub fn read_response<'a>(message: &'a [u8], mut show: impl FnMut(Answer<'a>)) -> Result<(), WireError> {
    for field in Fields::new(message) {
        let field = field?;
        match field.number {
            1 => show(answer(field.bytes()?)?),
            2 => show(Answer::Last(field.varint()?)),
            _ => {}
        }
    }
    Ok(())
}

fn answer(message: &[u8]) -> Result<Answer<'_>, WireError> {
    let (mut id, mut response, mut refused): (u64, &[u8], _) = (0, &[], None);
    for field in Fields::new(message) {
        let field = field?;
        match field.number {
            1 => id = field.varint()?,
            2 => response = field.bytes()?,
            3 => refused = Some(Refusal::parse(field.bytes()?)?),
            _ => {}
        }
    }
    Ok(match refused {
        Some(refusal) => Answer::Refused(id, refusal),
        None => Answer::Response(id, response),
    })
}
