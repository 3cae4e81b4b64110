//! The head of a request, as a gRPC server wants it.

use std::{ops::Deref, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::routes::RouteId;

/// What a client asks for. It is also its [`Common`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    pub path: Path,
    pub timeout: Timeout,
    /// Requests of a connection that say the same here share it.
    pub common: Arc<Common>,
}

/// What is the same in most requests of a client. What has no place of its own is in `metadata`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Common {
    /// `:authority`, or `host` where there is none.
    pub authority: Option<Bytes>,
    pub user_agent: Option<Bytes>,
    /// `grpc-encoding`, unless it is `identity`.
    pub encoding: Option<Bytes>,
    /// Other fields in the order of their arrival. Values of names that end with `-bin` are as they were sent, in base64.
    pub metadata: Vec<(Bytes, Bytes)>,
    pub method: Method,
    pub content_type: ContentType,
    /// Whether there is `te: trailers`, which gRPC asks for to find proxies that lose trailers.
    pub te_trailers: bool,
}

impl Deref for RequestHead {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

/// A path, as the id that [`crate::Routes`] gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Path {
    Known(RouteId),
    Unknown(Bytes),
}

/// A method. gRPC has only POST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Method {
    Post,
    Get,
    Other(Bytes),
}

impl Method {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        match self {
            Self::Post => b"POST",
            Self::Get => b"GET",
            Self::Other(name) => name,
        }
    }
}

/// A content type. gRPC answers 415 to one that is not gRPC's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentType {
    Missing,
    /// `application/grpc`, or that with `+proto` or parameters.
    Grpc,
    /// gRPC with another encoding of messages than protobuf.
    GrpcOther(Bytes),
    Other(Bytes),
}

impl ContentType {
    pub(crate) fn parse(value: &[u8]) -> Self {
        match value.strip_prefix(b"application/grpc") {
            Some(b"" | b"+proto" | [b';', ..]) => Self::Grpc,
            Some([b'+', ..]) => Self::GrpcOther(Bytes::copy_from_slice(value)),
            _ => Self::Other(Bytes::copy_from_slice(value)),
        }
    }

    /// What the client said, but for the variants of gRPC with protobuf; `None` if it said nothing.
    #[must_use]
    pub fn text(&self) -> Option<Bytes> {
        match self {
            Self::Missing => None,
            Self::Grpc => Some(Bytes::from_static(b"application/grpc")),
            Self::GrpcOther(text) | Self::Other(text) => Some(text.clone()),
        }
    }
}

/// `grpc-timeout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    None,
    /// So many units of so many nanoseconds.
    After {
        amount: u32,
        unit: TimeUnit,
    },
    /// A value which gRPC does not allow.
    Malformed,
}

/// The unit of a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    Hour,
    Minute,
    Second,
    Millisecond,
    Microsecond,
    Nanosecond,
}

impl Timeout {
    /// Reads one to eight digits and a unit.
    #[inline]
    pub(crate) fn parse(value: &[u8]) -> Self {
        let Some((&unit, digits)) = value.split_last() else { return Self::Malformed };
        if digits.is_empty() || digits.len() > 8 {
            return Self::Malformed;
        }
        let mut amount = 0;
        for digit in digits {
            let digit = digit.wrapping_sub(b'0');
            if digit > 9 {
                return Self::Malformed;
            }
            amount = amount * 10 + u32::from(digit);
        }
        let unit = match unit {
            b'H' => TimeUnit::Hour,
            b'M' => TimeUnit::Minute,
            b'S' => TimeUnit::Second,
            b'm' => TimeUnit::Millisecond,
            b'u' => TimeUnit::Microsecond,
            b'n' => TimeUnit::Nanosecond,
            _ => return Self::Malformed,
        };
        Self::After { amount, unit }
    }

    /// How long the client waits, where it says so.
    #[must_use]
    pub fn duration(self) -> Option<Duration> {
        let Self::After { amount, unit } = self else { return None };
        let amount = u64::from(amount);
        Some(match unit {
            TimeUnit::Hour => Duration::from_secs(amount * 3600),
            TimeUnit::Minute => Duration::from_secs(amount * 60),
            TimeUnit::Second => Duration::from_secs(amount),
            TimeUnit::Millisecond => Duration::from_millis(amount),
            TimeUnit::Microsecond => Duration::from_micros(amount),
            TimeUnit::Nanosecond => Duration::from_nanos(amount),
        })
    }
}

impl Common {
    pub(crate) fn empty() -> Self {
        Self {
            authority: None,
            user_agent: None,
            encoding: None,
            metadata: Vec::new(),
            method: Method::Other(Bytes::new()),
            content_type: ContentType::Missing,
            te_trailers: false,
        }
    }

    /// Whether this is a request of gRPC with messages of protobuf. The caller answers others.
    #[must_use]
    pub fn is_grpc(&self) -> bool {
        self.method == Method::Post && self.content_type == ContentType::Grpc
    }

    /// The first value of a metadata name.
    #[must_use]
    pub fn metadata(&self, name: &str) -> Option<&Bytes> {
        self.metadata.iter().find(|(known, _)| known == name.as_bytes()).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests;
