//! A request of KV that was parsed once, for all that ask about it: what it is counted as ([`crate::verb`]), where it
//! goes ([`crate::plan`]), and whether it may go in a batch ([`crate::small`]).

use kindred_wire::{
    optimistic::Optimistic,
    peek::{DeleteRangeRequest, PutRequest, RangeRequest, WireError},
};

/// The calls of KV that have keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Range,
    RangeStream,
    Put,
    DeleteRange,
    Txn,
}

impl Call {
    /// The name of the method.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Range => "Range",
            Self::RangeStream => "RangeStream",
            Self::Put => "Put",
            Self::DeleteRange => "DeleteRange",
            Self::Txn => "Txn",
        }
    }
}

/// A request of KV. It has a few numbers and slices of the bytes, however long these are.
#[derive(Debug, Clone, Copy)]
pub struct Parsed<'r> {
    /// The call that it is a request of.
    pub call: Call,
    /// The bytes that it was parsed from.
    pub bytes: &'r [u8],
    pub(crate) form: Form<'r>,
}

/// The content of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form<'r> {
    Range(RangeRequest<'r>),
    Put(PutRequest<'r>),
    Delete(DeleteRangeRequest<'r>),
    /// A transaction as a kube-apiserver makes it.
    Optimistic(Optimistic<'r>),
    /// Any other transaction, or bytes that are none. It may have many parts, so nobody keeps them: who asks about it
    /// visits them.
    Txn,
    /// The bytes are no such request.
    Malformed(WireError),
}

impl<'r> Parsed<'r> {
    /// Parses the request of a call. Bytes that do not parse are a request too, which [`crate::plan::plan`] refuses.
    #[must_use]
    pub fn new(call: Call, bytes: &'r [u8]) -> Self {
        let form = match call {
            Call::Range | Call::RangeStream => RangeRequest::parse(bytes).map(Form::Range),
            Call::Put => PutRequest::parse(bytes).map(Form::Put),
            Call::DeleteRange => DeleteRangeRequest::parse(bytes).map(Form::Delete),
            Call::Txn => Ok(Optimistic::parse(bytes).map_or(Form::Txn, Form::Optimistic)),
        };
        Self { call, bytes, form: form.unwrap_or_else(Form::Malformed) }
    }
}
