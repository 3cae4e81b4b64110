//! Makes the head of a request out of its fields, and judges whether it is well-formed (RFC 9113, section 8).
//!
//! A client says nearly the same in each request. [`Memory`] has what recent requests said beside path and timeout, as the
//! numbers of their fields. A request with the same numbers in the same order is judged and shared without looking at
//! its fields.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    head::{Common, Path, RequestHead, Timeout},
    hpack::{
        decoder::{FieldId, Sink},
        field::Field,
    },
};

/// So many different requests are remembered.
const REMEMBERED: usize = 4;

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

/// The most fields of a request that is remembered, and one for the end.
const FIELDS: usize = 16;

/// The numbers of the fields of a remembered request, with `END` behind them.
type Ids = [FieldId; FIELDS];
/// The sizes of the same fields.
type Sizes = [u32; FIELDS];
/// No remembered request has a field in this place.
const NEW: usize = FIELDS - 1;
const END: FieldId = FieldId(u64::MAX);

/// A request that was well-formed, without its path and timeout.
#[derive(Debug)]
struct Remembered {
    ids: Ids,
    sizes: Sizes,
    fields: Vec<Field>,
    /// How many of the fields are pseudo-header fields.
    pseudo: usize,
    common: Arc<Common>,
    content_length: Option<u64>,
}

/// Recent requests of a connection, of which `last` is the newest. The one that a request is compared with is taken out,
/// and forgotten if the request is never finished.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    requests: [Option<Box<Remembered>>; REMEMBERED],
    last: usize,
}

impl Memory {
    /// Another request that begins with these fields.
    fn like(&self, ids: &[FieldId]) -> Option<usize> {
        self.requests.iter().position(|other| other.as_ref().is_some_and(|other| other.ids.starts_with(ids)))
    }

    #[inline]
    fn take(&mut self) -> Box<Remembered> {
        self.requests[self.last].take().unwrap_or_else(nothing)
    }

    /// Remembers a request in the place of the oldest.
    fn remember(&mut self, request: Box<Remembered>) {
        self.last = (self.last + 1) % REMEMBERED;
        self.requests[self.last] = Some(request);
    }
}

/// What no request is like.
#[cold]
fn nothing() -> Box<Remembered> {
    Box::new(Remembered {
        ids: [END; FIELDS],
        sizes: [0; FIELDS],
        fields: Vec::new(),
        pseudo: 0,
        common: Arc::new(Common::empty()),
        content_length: None,
    })
}

/// What a request breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A place among the fields that are remembered, which is behind all of them where there is none.
const NOWHERE: usize = usize::MAX;

/// A head that is being made.
pub(crate) struct HeadBuilder<'a> {
    memory: &'a mut Memory,
    known: Box<Remembered>,
    /// How many fields were those of the remembered request, or `NEW`.
    matched: usize,
    path: Path,
    timeout: Timeout,
    /// How many of the remembered fields came before the path, and before the first timeout.
    path_at: usize,
    timeout_at: usize,
    malformed: bool,
    /// A request that is not remembered is made here.
    new: Option<Box<New>>,
}

impl<'a> HeadBuilder<'a> {
    #[inline]
    pub(crate) fn new(memory: &'a mut Memory) -> Self {
        Self {
            known: memory.take(),
            memory,
            matched: 0,
            path: Path::Unknown(Bytes::new()),
            timeout: Timeout::None,
            path_at: NOWHERE,
            timeout_at: NOWHERE,
            malformed: false,
            new: None,
        }
    }

    /// The head, and the length of its body if that is known.
    #[inline]
    pub(crate) fn finish(mut self) -> Result<(RequestHead, Option<u64>), Malformed> {
        if self.known.ids[self.matched] != END || self.matched == 0 {
            self.shorter();
        }
        if let Some(new) = self.new.take() {
            return self.remembered(*new);
        }
        // What is remembered is well-formed, if the path comes among its pseudo-header fields and the timeout after them.
        let known = &self.known;
        let malformed = self.malformed || self.path_at > known.pseudo || self.timeout_at < known.pseudo;
        let (common, content_length) = (known.common.clone(), known.content_length);
        self.memory.requests[self.memory.last] = Some(self.known);
        if malformed {
            return Err(Malformed);
        }
        Ok((RequestHead { path: self.path, timeout: self.timeout, common }, content_length))
    }

    /// Finishes a request that is not like a remembered one.
    #[cold]
    fn remembered(self, new: New) -> Result<(RequestHead, Option<u64>), Malformed> {
        self.memory.requests[self.memory.last] = Some(self.known);
        let (common, content_length) = new.finish(self.malformed, self.memory)?;
        Ok((RequestHead { path: self.path, timeout: self.timeout, common }, content_length))
    }

    /// Compares with another request from here on.
    fn switch(&mut self, other: usize) {
        let Some(other_request) = self.memory.requests[other].take() else { return };
        let known = std::mem::replace(&mut self.known, other_request);
        self.memory.requests[self.memory.last] = Some(known);
        self.memory.last = other;
    }

    /// The numbers of the fields so far, and one more.
    fn begin_with(&self, id: FieldId) -> Ids {
        let mut ids = self.known.ids;
        ids[self.matched] = id;
        ids
    }

    /// The request ends where the remembered one goes on.
    #[cold]
    fn shorter(&mut self) {
        let ids = self.begin_with(END);
        match self.memory.like(&ids[..=self.matched]) {
            Some(other) if self.matched > 0 => self.switch(other),
            _ => self.begin_new(),
        }
    }

    /// The next field is not the remembered one.
    #[cold]
    fn other(&mut self, id: FieldId, field: &Field, size: u32) {
        if self.new.is_none() {
            if self.again(id, field) {
                self.matched += 1;
                return;
            }
            self.begin_new();
        }
        if let Some(new) = &mut self.new {
            new.field(id, field, size);
        }
    }

    /// Whether the field is the remembered one after all, because it has entered the table again, or that of another
    /// request which began in the same way.
    fn again(&mut self, id: FieldId, field: &Field) -> bool {
        if self.known.fields.get(self.matched) == Some(field) {
            if id != FieldId::NONE {
                self.known.ids[self.matched] = id;
            }
            return true;
        }
        let ids = self.begin_with(id);
        let Some(other) = self.memory.like(&ids[..=self.matched]) else { return false };
        self.switch(other);
        true
    }

    /// Makes a new request of what was matched so far, with path and timeout in their places.
    fn begin_new(&mut self) {
        let mut new = Box::new(New::empty());
        let known = &self.known;
        for at in 0..=self.matched {
            if at == self.path_at {
                new.pseudo(seen::PATH);
            }
            if at == self.timeout_at {
                new.seen |= seen::REGULAR;
            }
            if at < self.matched {
                new.field(known.ids[at], &known.fields[at], known.sizes[at]);
            }
        }
        self.new = Some(new);
        self.matched = NEW;
    }
}

impl Sink for HeadBuilder<'_> {
    #[inline]
    fn expected(&mut self, id: FieldId) -> Option<u32> {
        let matched = self.matched;
        if self.known.ids[matched] != id {
            return None;
        }
        self.matched += 1;
        Some(self.known.sizes[matched])
    }

    #[inline]
    fn field(&mut self, id: FieldId, field: &Field, size: u32) {
        match field {
            Field::Path(path) => {
                self.malformed |= self.path_at != NOWHERE || self.timeout_at != NOWHERE;
                self.path_at = self.matched;
                self.path = match path {
                    Path::Known(route) => Path::Known(*route),
                    Path::Unknown(path) => Path::Unknown(path.clone()),
                };
                if let Some(new) = &mut self.new {
                    new.pseudo(seen::PATH);
                }
            }
            Field::Timeout(timeout) => {
                self.timeout = *timeout;
                self.timeout_at = self.timeout_at.min(self.matched);
                if let Some(new) = &mut self.new {
                    new.seen |= seen::REGULAR;
                }
            }
            _ => self.other(id, field, size),
        }
    }
}

/// A request that says something new.
struct New {
    common: Common,
    host: Option<Bytes>,
    content_length: Option<u64>,
    ids: Vec<FieldId>,
    sizes: Vec<u32>,
    fields: Vec<Field>,
    pseudo: usize,
    seen: u8,
    malformed: bool,
}

impl New {
    fn empty() -> Self {
        Self {
            common: Common::empty(),
            host: None,
            content_length: None,
            ids: Vec::new(),
            sizes: Vec::new(),
            fields: Vec::new(),
            pseudo: 0,
            seen: 0,
            malformed: false,
        }
    }

    fn pseudo(&mut self, bit: u8) {
        self.malformed |= self.seen & (bit | seen::REGULAR) != 0;
        self.seen |= bit;
    }

    fn field(&mut self, id: FieldId, field: &Field, size: u32) {
        self.ids.push(id);
        self.sizes.push(size);
        self.fields.push(field.clone());
        match field {
            Field::Method(method) => {
                self.pseudo(seen::METHOD);
                self.common.method = method.clone();
            }
            Field::Scheme => self.pseudo(seen::SCHEME),
            Field::Authority(authority) => {
                self.pseudo(seen::AUTHORITY);
                self.common.authority = Some(authority.clone());
            }
            _ => {
                self.seen |= seen::REGULAR;
                self.regular(field);
                return;
            }
        }
        self.pseudo += 1;
    }

    fn regular(&mut self, field: &Field) {
        match field {
            Field::ContentType(content_type) => self.common.content_type = content_type.clone(),
            Field::ContentLength(length) => {
                self.malformed |= self.content_length.is_some_and(|other| other != *length);
                self.content_length = Some(*length);
            }
            Field::TeTrailers => self.common.te_trailers = true,
            Field::Encoding(encoding) => self.common.encoding.clone_from(encoding),
            Field::UserAgent(agent) => self.common.user_agent = Some(agent.clone()),
            Field::Host(host) => {
                self.malformed |= self.host.as_ref().is_some_and(|other| other != host);
                self.host = Some(host.clone());
            }
            Field::Metadata(both) => self.common.metadata.push((**both).clone()),
            Field::AcceptEncoding | Field::Timeout(_) => {}
            Field::Malformed(_) | Field::Method(_) | Field::Scheme | Field::Authority(_) | Field::Path(_) => {
                self.malformed = true
            }
        }
    }

    /// Remembers the request, if it is well-formed and can be recognised.
    fn finish(
        mut self,
        malformed: bool,
        memory: &mut Memory,
    ) -> Result<(Arc<Common>, Option<u64>), Malformed> {
        if malformed || self.malformed || self.seen & seen::REQUIRED != seen::REQUIRED {
            return Err(Malformed);
        }
        if let Some(host) = self.host {
            match &self.common.authority {
                Some(authority) if *authority != host => return Err(Malformed),
                Some(_) => {}
                None => self.common.authority = Some(host),
            }
        }
        let (common, content_length) = (Arc::new(self.common), self.content_length);
        if self.ids.len() < FIELDS && !self.ids.contains(&FieldId::NONE) {
            let mut ids = [END; FIELDS];
            let mut sizes = [0; FIELDS];
            ids[..self.ids.len()].copy_from_slice(&self.ids);
            sizes[..self.sizes.len()].copy_from_slice(&self.sizes);
            let (fields, pseudo) = (self.fields, self.pseudo);
            let common = common.clone();
            memory.remember(Box::new(Remembered { ids, sizes, fields, pseudo, common, content_length }));
        }
        Ok((common, content_length))
    }
}

/// Judges the trailers of a request, whose fields no gRPC client uses.
#[derive(Debug, Default)]
pub(crate) struct TrailerCheck {
    pub(crate) malformed: bool,
}

impl Sink for TrailerCheck {
    fn field(&mut self, _id: FieldId, field: &Field, _size: u32) {
        self.malformed |= matches!(
            field,
            Field::Method(_) | Field::Scheme | Field::Path(_) | Field::Authority(_) | Field::Malformed(_)
        );
    }
}

#[cfg(test)]
mod tests;
