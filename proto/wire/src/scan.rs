//! Iterates over the fields of a protobuf message without decoding or copying.
//!
//! It is as strict as prost, which decodes the same bytes elsewhere: a varint has at most 64 bits, field numbers
//! are 1 to 2^29 - 1, a group must end with its own number, and a known field of the wrong wire type is an error.

/// The maximum nesting depth of groups and messages, as in prost.
const DEPTH_MAX: usize = 100;

/// Why bytes are not the expected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("the message ends inside a field")]
    Truncated,
    /// A varint has more than 64 bits.
    #[error("a number has more than 64 bits")]
    VarintTooLong,
    /// The field number is 0 or above 2^29 - 1, or the wire type does not exist.
    #[error("bad field tag {0}")]
    BadTag(u64),
    /// A field of the message has an unexpected wire type.
    #[error("field {0} has the wrong wire type")]
    WrongWireType(u32),
    /// A field occurs in several pieces where no server writes that.
    #[error("field {0} occurs more than once")]
    Repeated(u32),
    /// The end of a group does not match the innermost open group.
    #[error("unmatched end of group {0}")]
    UnmatchedGroup(u32),
    /// Groups or txns are nested too deep.
    #[error("nested too deep")]
    TooDeep,
}

/// The payload of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1.
    Fixed64(u64),
    /// Wire type 2: bytes, strings, messages and packed numbers.
    Len(&'a [u8]),
    /// A group, skipped as a whole; etcd's messages have none.
    Group,
    /// Wire type 5.
    Fixed32(u32),
}

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The field's number in the `.proto` file.
    pub number: u32,
    pub value: Value<'a>,
}

impl<'a> Field<'a> {
    /// The payload of an `int64`, `uint64`, enum or `bool`.
    ///
    /// # Errors
    /// When the field has another wire type.
    pub fn varint(&self) -> Result<u64, WireError> {
        match self.value {
            Value::Varint(number) => Ok(number),
            _ => Err(WireError::WrongWireType(self.number)),
        }
    }

    /// The payload of `bytes`, a `string` or a message.
    ///
    /// # Errors
    /// When the field has another wire type.
    pub fn bytes(&self) -> Result<&'a [u8], WireError> {
        match self.value {
            Value::Len(bytes) => Ok(bytes),
            _ => Err(WireError::WrongWireType(self.number)),
        }
    }
}

/// The fields of a message in the order of the bytes. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    #[must_use]
    pub const fn new(message: &'a [u8]) -> Self {
        Self { all: message, at: 0 }
    }

    /// The number of bytes read. Between two calls of `next` this is the offset of the next field.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.at
    }

    /// Most are below 128: tags, lengths of keys, flags.
    #[inline]
    fn varint(&mut self) -> Result<u64, WireError> {
        match self.all.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    #[inline(never)]
    fn long_varint(&mut self) -> Result<u64, WireError> {
        let mut number = 0u64;
        for shift in 0..10 {
            let byte = *self.all.get(self.at).ok_or(WireError::Truncated)?;
            self.at += 1;
            if shift == 9 && byte > 1 {
                return Err(WireError::VarintTooLong);
            }
            number |= u64::from(byte & 0x7f) << (7 * shift);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(WireError::VarintTooLong)
    }

    /// The next number of a packed field, which has no tags; `None` at the end and after an error.
    pub(crate) fn packed_varint(&mut self) -> Option<Result<u64, WireError>> {
        if self.at >= self.all.len() {
            return None;
        }
        let number = self.varint();
        if number.is_err() {
            self.at = self.all.len();
        }
        Some(number)
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let end = self.at.checked_add(len).ok_or(WireError::Truncated)?;
        let taken = self.all.get(self.at..end).ok_or(WireError::Truncated)?;
        self.at = end;
        Ok(taken)
    }

    /// Reads a field number and a wire type.
    #[inline]
    fn tag(&mut self) -> Result<(u32, u8), WireError> {
        let tag = self.varint()?;
        let number = u32::try_from(tag).map_err(|_| WireError::BadTag(tag))? >> 3;
        let wire_type = (tag & 7) as u8;
        if number == 0 || wire_type > 5 { Err(WireError::BadTag(tag)) } else { Ok((number, wire_type)) }
    }

    #[inline]
    fn field(&mut self) -> Result<Field<'a>, WireError> {
        let (number, wire_type) = self.tag()?;
        let value = match wire_type {
            // Nearly all fields.
            2 => Value::Len(self.len_delimited()?),
            0 => Value::Varint(self.varint()?),
            _ => self.rare(number, wire_type)?,
        };
        Ok(Field { number, value })
    }

    #[inline]
    fn len_delimited(&mut self) -> Result<&'a [u8], WireError> {
        let len = usize::try_from(self.varint()?).map_err(|_| WireError::Truncated)?;
        self.take(len)
    }

    /// Reads a payload of a wire type that etcd's messages do not have.
    #[cold]
    fn rare(&mut self, number: u32, wire_type: u8) -> Result<Value<'a>, WireError> {
        match wire_type {
            3 => {
                self.skip_group(number)?;
                Ok(Value::Group)
            }
            4 => Err(WireError::UnmatchedGroup(number)),
            _ => self.value(wire_type),
        }
    }

    /// Reads a payload of any wire type except groups.
    fn value(&mut self, wire_type: u8) -> Result<Value<'a>, WireError> {
        Ok(match wire_type {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(array(self.take(8)?))),
            2 => Value::Len(self.len_delimited()?),
            _ => Value::Fixed32(u32::from_le_bytes(array(self.take(4)?))),
        })
    }

    /// Skips to the end of the current group, without recursion.
    fn skip_group(&mut self, number: u32) -> Result<(), WireError> {
        let mut open = vec![number];
        while let Some(innermost) = open.last() {
            let (number, wire_type) = self.tag()?;
            match wire_type {
                3 if open.len() >= DEPTH_MAX => return Err(WireError::TooDeep),
                3 => open.push(number),
                4 if number != *innermost => return Err(WireError::UnmatchedGroup(number)),
                4 => {
                    open.pop();
                }
                _ => {
                    self.value(wire_type)?;
                }
            }
        }
        Ok(())
    }
}

/// The minimum number of bytes missing from a message that ends inside its first field; 0 if that field is
/// complete.
pub(crate) fn missing(begun: &[u8]) -> Result<usize, WireError> {
    let mut fields = Fields::new(begun);
    let head = fields.tag().and_then(|(_, wire_type)| match wire_type {
        2 => usize::try_from(fields.varint()?).map(Some).map_err(|_| WireError::Truncated),
        _ => Ok(None),
    });
    match head {
        Ok(Some(len)) => Ok(len.saturating_sub(begun.len() - fields.at)),
        Ok(None) => match Fields::new(begun).field() {
            Ok(_) => Ok(0),
            Err(WireError::Truncated) => Ok(1),
            Err(error) => Err(error),
        },
        Err(WireError::Truncated) => Ok(1),
        Err(error) => Err(error),
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, WireError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.all.len() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.at = self.all.len();
        }
        Some(field)
    }
}

/// The numbers of a packed field.
pub(crate) fn varints(packed: &[u8]) -> impl Iterator<Item = Result<u64, WireError>> {
    let mut rest = Fields::new(packed);
    std::iter::from_fn(move || rest.packed_varint())
}

/// Copies a slice that has exactly `N` bytes.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The encoded length of a varint.
pub(crate) const fn varint_len(number: u64) -> usize {
    // One byte for each started group of 7 bits; zero takes one as well.
    (63 - (number | 1).leading_zeros() as usize) / 7 + 1
}

/// Appends a varint field, even if it is zero.
pub(crate) fn put_number(out: &mut Vec<u8>, field: u32, number: u64) {
    put_varint(out, u64::from(field << 3));
    put_varint(out, number);
}

/// Appends the tag and the length of a length-delimited field.
pub(crate) fn put_len(out: &mut Vec<u8>, field: u32, len: usize) {
    put_varint(out, u64::from(field << 3 | 2));
    put_varint(out, len as u64);
}

/// Appends a length-delimited field, even if it is empty.
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_len(out, field, bytes.len());
    out.extend_from_slice(bytes);
}
