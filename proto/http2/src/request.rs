//! Makes the head of a request out of its fields, and judges whether it is well-formed (RFC 9113, section 8).

use bytes::Bytes;

use crate::{
    head::{Path, RequestHead},
    hpack::{decoder::Sink, field::Field},
};

/// Fields that were seen.
mod seen {
    pub(super) const METHOD: u8 = 0x01;
    pub(super) const SCHEME: u8 = 0x02;
    pub(super) const PATH: u8 = 0x04;
    pub(super) const AUTHORITY: u8 = 0x08;
    /// Any that is no pseudo-header field. None of those may follow.
    pub(super) const REGULAR: u8 = 0x10;
    pub(super) const REQUIRED: u8 = METHOD | SCHEME | PATH;
}

/// A head that is being made.
pub(crate) struct HeadBuilder {
    head: RequestHead,
    host: Option<Bytes>,
    content_length: Option<u64>,
    seen: u8,
    malformed: bool,
}

/// What a request breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

impl HeadBuilder {
    pub(crate) const fn new() -> Self {
        Self { head: RequestHead::empty(), host: None, content_length: None, seen: 0, malformed: false }
    }

    #[inline]
    fn pseudo(&mut self, bit: u8) {
        self.malformed |= self.seen & (bit | seen::REGULAR) != 0;
        self.seen |= bit;
    }

    /// The head, and the length of its body if that is known.
    #[inline]
    pub(crate) fn finish(mut self) -> Result<(RequestHead, Option<u64>), Malformed> {
        if self.malformed || self.seen & seen::REQUIRED != seen::REQUIRED {
            return Err(Malformed);
        }
        if let Some(host) = self.host {
            match &self.head.authority {
                Some(authority) if *authority != host => return Err(Malformed),
                Some(_) => {}
                None => self.head.authority = Some(host),
            }
        }
        Ok((self.head, self.content_length))
    }
}

impl Sink for HeadBuilder {
    #[inline]
    fn field(&mut self, field: &Field) {
        match field {
            Field::Method(method) => {
                self.pseudo(seen::METHOD);
                self.head.method = *method;
                return;
            }
            Field::Scheme => return self.pseudo(seen::SCHEME),
            Field::Authority(authority) => {
                self.pseudo(seen::AUTHORITY);
                self.head.authority = Some(authority.clone());
                return;
            }
            Field::Path(path) => {
                self.pseudo(seen::PATH);
                self.head.path = match path {
                    Path::Known(route) => Path::Known(*route),
                    Path::Unknown(path) => Path::Unknown(path.clone()),
                };
                return;
            }
            Field::ContentType(content_type) => self.head.content_type = *content_type,
            Field::ContentLength(length) => {
                self.malformed |= self.content_length.is_some_and(|other| other != *length);
                self.content_length = Some(*length);
            }
            Field::TeTrailers => self.head.te_trailers = true,
            Field::Timeout(timeout) => self.head.timeout = *timeout,
            Field::Encoding(encoding) => self.head.encoding.clone_from(encoding),
            Field::AcceptEncoding => {}
            Field::UserAgent(agent) => self.head.user_agent = Some(agent.clone()),
            Field::Host(host) => {
                self.malformed |= self.host.as_ref().is_some_and(|other| other != host);
                self.host = Some(host.clone());
            }
            Field::Metadata(name, value) => self.head.metadata.push((name.clone(), value.clone())),
            Field::Malformed(_) => self.malformed = true,
        }
        self.seen |= seen::REGULAR;
    }
}

/// Judges the trailers of a request, whose fields no gRPC client uses.
#[derive(Debug, Default)]
pub(crate) struct TrailerCheck {
    pub(crate) malformed: bool,
}

impl Sink for TrailerCheck {
    fn field(&mut self, field: &Field) {
        self.malformed |= matches!(
            field,
            Field::Method(_) | Field::Scheme | Field::Path(_) | Field::Authority(_) | Field::Malformed(_)
        );
    }
}

