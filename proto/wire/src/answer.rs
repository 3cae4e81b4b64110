//! Reads answers in place: what a router needs to merge ranges and watches. Key-values and events stay encoded.

use crate::{
    flat::FromField,
    peek::ResponseHeader,
    scan::{Fields, WireError},
};

/// The scalar fields of a `RangeResponse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RangeResponse {
    pub header: Option<ResponseHeader>,
    /// Whether the limit left out keys of the range.
    pub more: bool,
    /// The number of keys in the range, regardless of the limit.
    pub count: i64,
    /// The number of key-values in the message.
    pub kvs: usize,
}

impl RangeResponse {
    /// Parses the message without parsing the key-values.
    ///
    /// # Errors
    /// When the bytes are not such a message.
    pub fn parse(message: &[u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in Fields::new(message) {
            let field = field?;
            match field.number {
                1 => read.header.get_or_insert_default().merge(field.bytes()?)?,
                2 => {
                    field.bytes()?;
                    read.kvs += 1;
                }
                3 => read.more = FromField::from_field(&field)?,
                4 => read.count = FromField::from_field(&field)?,
                _ => {}
            }
        }
        Ok(read)
    }
}

/// The encoded key-values of a `RangeResponse`, in order.
pub fn range_kvs(message: &[u8]) -> impl Iterator<Item = Result<&[u8], WireError>> {
    repeated(message, 2)
}

/// The `RangeResponse` inside a `RangeStreamResponse`; empty if there is none.
///
/// # Errors
/// When the bytes are not such a message, or hold the response in several pieces, which no server writes.
pub fn range_of_stream(message: &[u8]) -> Result<&[u8], WireError> {
    let mut pieces = repeated(message, 1);
    let first = pieces.next().transpose()?.unwrap_or_default();
    match pieces.next() {
        None => Ok(first),
        Some(Err(error)) => Err(error),
        Some(Ok(_)) => Err(WireError::Repeated(1)),
    }
}

/// All fields of a `WatchResponse` except its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "etcd's own names")]
pub struct WatchResponse<'a> {
    pub header: Option<ResponseHeader>,
    pub watch_id: i64,
    pub created: bool,
    pub canceled: bool,
    pub compact_revision: i64,
    pub cancel_reason: &'a [u8],
    pub fragment: bool,
    /// The number of events in the message.
    pub events: usize,
}

impl<'a> WatchResponse<'a> {
    /// Parses the message without parsing the events.
    ///
    /// # Errors
    /// When the bytes are not such a message.
    pub fn parse(message: &'a [u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in Fields::new(message) {
            let field = field?;
            match field.number {
                1 => read.header.get_or_insert_default().merge(field.bytes()?)?,
                2 => read.watch_id = FromField::from_field(&field)?,
                3 => read.created = FromField::from_field(&field)?,
                4 => read.canceled = FromField::from_field(&field)?,
                5 => read.compact_revision = FromField::from_field(&field)?,
                6 => read.cancel_reason = FromField::from_field(&field)?,
                7 => read.fragment = FromField::from_field(&field)?,
                11 => {
                    field.bytes()?;
                    read.events += 1;
                }
                _ => {}
            }
        }
        Ok(read)
    }

    /// Whether the message is a progress notification: it promises that no event at or below the header's revision
    /// is still to come. etcd's clients use exactly these conditions.
    #[must_use]
    pub fn is_progress(&self) -> bool {
        self.events == 0
            && !self.created
            && !self.canceled
            && self.compact_revision == 0
            && self.header.is_some_and(|header| header.revision != 0)
    }
}

/// The encoded events of a `WatchResponse`, in order.
pub fn watch_events(message: &[u8]) -> impl Iterator<Item = Result<&[u8], WireError>> {
    repeated(message, 11)
}

/// All occurrences of a length-delimited field.
fn repeated(message: &[u8], number: u32) -> impl Iterator<Item = Result<&[u8], WireError>> {
    Fields::new(message).filter_map(move |field| match field {
        Ok(field) => (field.number == number).then(|| field.bytes()),
        Err(error) => Some(Err(error)),
    })
}
