//! A field of a header block, with its meaning for a gRPC server.

use bytes::Bytes;

use crate::{
    head::{ContentType, Method, Path, Timeout},
    routes::Routes,
};

/// What the size of a field counts beside its name and value (RFC 7541, section 4.1).
pub(crate) const OVERHEAD: usize = 32;

/// A field. It keeps of name and value only what anyone asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Field {
    Method(Method),
    Scheme,
    Authority(Bytes),
    Path(Path),
    ContentType(ContentType),
    ContentLength(u64),
    TeTrailers,
    Timeout(Timeout),
    /// `grpc-encoding`; nothing is `identity`.
    Encoding(Option<Bytes>),
    /// Answers are never compressed, so nobody asks for `grpc-accept-encoding`.
    AcceptEncoding,
    UserAgent(Bytes),
    Host(Bytes),
    Metadata(Box<(Bytes, Bytes)>),
    /// A field that makes a request malformed, with its name. It is an error of its stream when it is used; the table
    /// of the connection keeps it like any other.
    Malformed(Bytes),
}

/// Names with a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Method,
    Scheme,
    Authority,
    Path,
    ContentType,
    ContentLength,
    Te,
    Timeout,
    Encoding,
    AcceptEncoding,
    UserAgent,
    Host,
}

/// The name of a field that is about to be read.
#[derive(Debug, Clone)]
pub(crate) enum Name {
    Known(Known),
    Other(Bytes),
}

impl Known {
    const fn text(self) -> &'static str {
        match self {
            Self::Method => ":method",
            Self::Scheme => ":scheme",
            Self::Authority => ":authority",
            Self::Path => ":path",
            Self::ContentType => "content-type",
            Self::ContentLength => "content-length",
            Self::Te => "te",
            Self::Timeout => "grpc-timeout",
            Self::Encoding => "grpc-encoding",
            Self::AcceptEncoding => "grpc-accept-encoding",
            Self::UserAgent => "user-agent",
            Self::Host => "host",
        }
    }

    fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":authority" => Self::Authority,
            b":path" => Self::Path,
            b"content-type" => Self::ContentType,
            b"content-length" => Self::ContentLength,
            b"te" => Self::Te,
            b"grpc-timeout" => Self::Timeout,
            b"grpc-encoding" => Self::Encoding,
            b"grpc-accept-encoding" => Self::AcceptEncoding,
            b"user-agent" => Self::UserAgent,
            b"host" => Self::Host,
            _ => return None,
        })
    }
}

impl Name {
    pub(crate) fn of(name: &[u8]) -> Self {
        Known::of(name).map_or_else(|| Self::Other(Bytes::copy_from_slice(name)), Self::Known)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Known(known) => known.text().len(),
            Self::Other(name) => name.len(),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Known(known) => Bytes::from_static(known.text().as_bytes()),
            Self::Other(name) => name,
        }
    }
}

/// Whether a name has only what RFC 9113, section 8.2.1, allows, and does not belong to one connection (8.2.2).
/// Pseudo-header fields that a request can have are known by name and do not come here.
fn name_is_sound(name: &[u8]) -> bool {
    let forbidden: [&[u8]; 5] =
        [b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"];
    let sound = |byte: &u8| matches!(byte, 0x21..=0x7e) && !byte.is_ascii_uppercase() && *byte != b':';
    !name.is_empty() && name.iter().all(sound) && !forbidden.contains(&name)
}

/// Whether a value has only what RFC 9113, section 8.2.1, allows.
fn value_is_sound(value: &[u8]) -> bool {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    !value.iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r'))
        && !blank(value.first())
        && !blank(value.last())
}

impl Field {
    /// Interprets a field.
    #[inline]
    pub(crate) fn read(name: Name, value: &[u8], routes: &Routes) -> Self {
        if let Name::Known(Known::Timeout) = name {
            return Self::Timeout(Timeout::parse(value));
        }
        Self::read_any(name, value, routes)
    }

    fn read_any(name: Name, value: &[u8], routes: &Routes) -> Self {
        if !value_is_sound(value) {
            return Self::Malformed(name.into_bytes());
        }
        let known = match name {
            Name::Known(known) => known,
            Name::Other(name) if name_is_sound(&name) => {
                return Self::Metadata(Box::new((name, Bytes::copy_from_slice(value))));
            }
            Name::Other(name) => return Self::Malformed(name),
        };
        let malformed = || Self::Malformed(Bytes::from_static(known.text().as_bytes()));
        let copy = || Bytes::copy_from_slice(value);
        match known {
            Known::Method => match value {
                b"POST" => Self::Method(Method::Post),
                b"GET" => Self::Method(Method::Get),
                // A request of CONNECT has neither scheme nor path, and nothing here could serve it.
                b"" | b"CONNECT" => malformed(),
                name => Self::Method(Method::Other(Bytes::copy_from_slice(name))),
            },
            Known::Scheme if value.is_empty() => malformed(),
            Known::Scheme => Self::Scheme,
            Known::Authority => Self::Authority(copy()),
            Known::Path if value.first() == Some(&b'/') || value == b"*" => {
                Self::Path(routes.route(value).map_or_else(|| Path::Unknown(copy()), Path::Known))
            }
            Known::Path => malformed(),
            Known::ContentType => Self::ContentType(ContentType::parse(value)),
            Known::ContentLength => content_length(value).map_or_else(malformed, Self::ContentLength),
            Known::Te if value == b"trailers" => Self::TeTrailers,
            Known::Te => malformed(),
            Known::Timeout => Self::Timeout(Timeout::parse(value)),
            Known::Encoding => Self::Encoding((value != b"identity").then(copy)),
            Known::AcceptEncoding => Self::AcceptEncoding,
            Known::UserAgent => Self::UserAgent(copy()),
            Known::Host => Self::Host(copy()),
        }
    }

    /// The name, for a field that refers to it.
    pub(crate) fn name(&self) -> Name {
        Name::Known(match self {
            Self::Method(_) => Known::Method,
            Self::Scheme => Known::Scheme,
            Self::Authority(_) => Known::Authority,
            Self::Path(_) => Known::Path,
            Self::ContentType(_) => Known::ContentType,
            Self::ContentLength(_) => Known::ContentLength,
            Self::TeTrailers => Known::Te,
            Self::Timeout(_) => Known::Timeout,
            Self::Encoding(_) => Known::Encoding,
            Self::AcceptEncoding => Known::AcceptEncoding,
            Self::UserAgent(_) => Known::UserAgent,
            Self::Host(_) => Known::Host,
            Self::Metadata(both) => return Name::Other(both.0.clone()),
            Self::Malformed(name) => {
                return Known::of(name).map_or_else(|| Name::Other(name.clone()), Name::Known);
            }
        })
    }
}

fn content_length(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| digits)?.parse().ok()
}

#[cfg(test)]
mod tests;
