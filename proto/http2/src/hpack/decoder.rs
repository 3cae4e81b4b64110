//! The decoder of header blocks (RFC 7541, section 6). It keeps the table that the client's encoder relies on, so every
//! block of a connection passes through it, also when nobody wants the fields.

use std::sync::Arc;

use super::{
    field::{Field, Name, OVERHEAD},
    huffman, integer,
    static_table::TABLE as STATIC,
    table::{Entry, Table},
};
use crate::{head::Timeout, routes::Routes};

/// A block that cannot be decoded. Both sides disagree about the table from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompressionError {
    /// The block ends in the middle of a field.
    Truncated,
    /// An integer is larger than 32 bits.
    Integer,
    /// No field has the index.
    Index,
    Huffman,
    /// The table may not be so large.
    TableSize,
    /// The table's size changes behind a field.
    LateUpdate,
    /// The table's size had to change and did not.
    MissingUpdate,
}

/// What a field is called as long as a connection lasts: an index of the static table, or the number of an entry that
/// was inserted. Fields with one number are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldId(pub(crate) u64);

impl FieldId {
    /// A field that is in no table.
    pub(crate) const NONE: Self = Self(0);
}

/// What takes the fields of a block.
pub(crate) trait Sink {
    /// Takes a field, of which the size is known, if its number says all. Returns the size.
    #[inline]
    fn expected(&mut self, _id: FieldId) -> Option<u32> {
        None
    }

    fn field(&mut self, id: FieldId, field: &Field, size: u32);
}

/// A sink for what nobody wants.
impl Sink for () {
    fn field(&mut self, _id: FieldId, _field: &Field, _size: u32) {}
}

/// A sink, and the size of the list that it may still take.
struct Taking<'a, S> {
    sink: &'a mut S,
    left: usize,
    taken: Taken,
}

impl<S: Sink> Taking<'_, S> {
    #[inline]
    fn expected(&mut self, id: FieldId) -> bool {
        let Some(size) = self.sink.expected(id) else { return false };
        self.fits(size);
        true
    }

    #[inline]
    fn field(&mut self, id: FieldId, field: &Field, size: u32) {
        if self.fits(size) {
            self.sink.field(id, field, size);
        }
    }

    #[inline]
    fn fits(&mut self, size: u32) -> bool {
        let fits = size as usize <= self.left;
        if fits {
            self.left -= size as usize;
        } else {
            // Smaller fields may follow; none of them is taken.
            self.left = 0;
            self.taken = Taken::TooLarge;
        }
        fits
    }
}

/// The fields of a block were all taken, or there were too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Taken {
    All,
    /// The list is larger than allowed, and its end was not given to the sink.
    TooLarge,
}

/// The decoder of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
    routes: Arc<Routes>,
    /// The maximum size that an update may set.
    size_allowed: usize,
    /// The table must become this small at the begin of the next block, because it was told to.
    size_required: Option<usize>,
    name: huffman::Decoded,
    value: huffman::Decoded,
}

const TIMEOUT: &str = "grpc-timeout";
/// The size of the table before anything else was said.
const SIZE_DEFAULT: usize = 4096;

impl Decoder {
    /// The client learns of `size` from SETTINGS. Until it says so, the default holds as well.
    pub(crate) fn new(size: usize, routes: Arc<Routes>) -> Self {
        Self {
            table: Table::new(SIZE_DEFAULT),
            routes,
            size_allowed: size.max(SIZE_DEFAULT),
            size_required: None,
            name: huffman::Decoded::default(),
            value: huffman::Decoded::default(),
        }
    }

    /// The client has acknowledged the size. It may have made its table smaller before it said so.
    pub(crate) fn acknowledged(&mut self, size: usize) {
        self.size_allowed = size;
        self.size_required = (size < self.table.size_max()).then_some(size);
    }

    /// Decodes a block. The sum of the fields' sizes may be `list_max`.
    ///
    /// # Errors
    /// When the table is in doubt from here on.
    #[inline]
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        list_max: usize,
        sink: &mut impl Sink,
    ) -> Result<Taken, CompressionError> {
        let mut at = 0;
        let mut taking = Taking { sink, left: list_max, taken: Taken::All };
        if block.first().is_some_and(|first| first & 0xe0 == 0x20) || self.size_required.is_some() {
            self.updates(block, &mut at)?;
        }
        while let Some(&first) = block.get(at) {
            if first & 0x80 != 0 {
                let index = if first == 0xff {
                    integer::read(block, &mut at, 7)? as usize
                } else {
                    at += 1;
                    usize::from(first & 0x7f)
                };
                if index > STATIC.len() {
                    let index = index - STATIC.len() - 1;
                    let number = FieldId(self.table.number(index).ok_or(CompressionError::Index)?);
                    if !taking.expected(number)
                        && let Some(entry) = self.table.get(index)
                    {
                        taking.field(number, &entry.field, entry.size);
                    }
                } else if !taking.expected(FieldId(index as u64)) {
                    let (field, size) = self.of_static(index)?;
                    taking.field(FieldId(index as u64), &field, size);
                }
            } else if first & 0x40 != 0 {
                let entry = self.literal(block, &mut at, 6)?;
                match self.table.insert(entry) {
                    Ok((number, entry)) => taking.field(FieldId(number), &entry.field, entry.size),
                    Err(entry) => taking.field(FieldId::NONE, &entry.field, entry.size),
                }
            } else if first & 0x20 != 0 {
                return Err(CompressionError::LateUpdate);
            } else {
                let entry = self.literal(block, &mut at, 4)?;
                taking.field(FieldId::NONE, &entry.field, entry.size);
            }
        }
        Ok(taking.taken)
    }

    /// Takes the updates of the table's size at the begin of a block.
    #[cold]
    fn updates(&mut self, block: &[u8], at: &mut usize) -> Result<(), CompressionError> {
        let mut smallest = usize::MAX;
        while block.get(*at).is_some_and(|first| first & 0xe0 == 0x20) {
            let size = integer::read(block, at, 5)? as usize;
            if size > self.size_allowed {
                return Err(CompressionError::TableSize);
            }
            smallest = smallest.min(size);
            self.table.resize(size);
        }
        match self.size_required.take() {
            Some(required) if smallest > required => Err(CompressionError::MissingUpdate),
            _ => Ok(()),
        }
    }

    #[cold]
    fn of_static(&self, index: usize) -> Result<(Field, u32), CompressionError> {
        let (name, value) = STATIC.get(index.wrapping_sub(1)).ok_or(CompressionError::Index)?;
        let size = (name.len() + value.len() + OVERHEAD) as u32;
        Ok((Field::read(Name::of(name.as_bytes()), value.as_bytes(), &self.routes), size))
    }

    /// Reads a literal field whose first byte ends with `bits` bits of the index of its name.
    #[inline]
    fn literal(&mut self, block: &[u8], at: &mut usize, bits: u8) -> Result<Entry, CompressionError> {
        let index = integer::read(block, at, bits)? as usize;
        let name = if index > STATIC.len() {
            let entry = self.table.get(index - STATIC.len() - 1).ok_or(CompressionError::Index)?;
            if let Field::Timeout(_) = entry.field {
                // This is what grpc-go sends in each request.
                let value = string(block, at, &mut self.value)?;
                let size = (TIMEOUT.len() + value.len() + OVERHEAD) as u32;
                return Ok(Entry { field: Field::Timeout(Timeout::parse(value)), size });
            }
            entry.field.name()
        } else if index > 0 {
            Name::of(STATIC[index - 1].0.as_bytes())
        } else {
            Name::of(string(block, at, &mut self.name)?)
        };
        let value = string(block, at, &mut self.value)?;
        let size = (name.len() + value.len() + OVERHEAD) as u32;
        Ok(Entry { field: Field::read(name, value, &self.routes), size })
    }

    #[cfg(test)]
    pub(crate) const fn table(&self) -> &Table {
        &self.table
    }
}

/// Reads a string. A coded one is decoded into `scratch`.
#[inline]
fn string<'a>(
    block: &'a [u8],
    at: &mut usize,
    scratch: &'a mut huffman::Decoded,
) -> Result<&'a [u8], CompressionError> {
    let coded = block.get(*at).is_some_and(|first| first & 0x80 != 0);
    let length = integer::read(block, at, 7)? as usize;
    let end = at.checked_add(length).filter(|end| *end <= block.len()).ok_or(CompressionError::Truncated)?;
    let text = &block[*at..end];
    *at = end;
    if !coded {
        return Ok(text);
    }
    huffman::decode(text, scratch).map_err(|_| CompressionError::Huffman)
}

#[cfg(test)]
mod tests;
