//! Translates a client's Range into requests for stores, and reads their answers. Values stay bytes.

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::{Key, KeyRange};
use kindred_proto::etcdserverpb as pb;
use kindred_proto::etcdserverpb::range_request::{SortOrder, SortTarget as WireTarget};
use kindred_router_core::range_split::{Item, Order, RangeSpec, SortTarget, StorePart};
use kindred_router_core::store::StoreIx;
use kindred_wire::kv::{KeyValueRef, put_range_kv};
use kindred_wire::peek::ResponseHeader;
use kindred_wire::rope::Rope;
use kindred_wire::scan::{Fields, WireError};
use kindred_wire::splice::Splice;

/// Assumed size of a key-value, to reserve room for the items of a page.
const ITEM_BYTES: usize = 512;

/// A store, and the keys that are read from it.
#[derive(Debug, Clone)]
pub struct Source {
    pub store: StoreIx,
    /// Never empty.
    pub range: KeyRange,
}

/// A parsed Range of a client.
#[derive(Debug)]
pub struct Ask {
    request: pb::RangeRequest,
    /// How the merge orders, limits and filters the answer.
    pub spec: RangeSpec,
    /// How the stores are asked.
    pub part: StorePart,
    /// If set, items are read in key order, sorted, and then cut to the limit.
    pub resort: Option<Resort>,
}

/// How etcd treats a sort target other than the key *without* a sort order: it reads the first `limit` + 1 items in key
/// order, sorts these, and cuts them to `limit`. With an order or a filter it sorts everything before it cuts.
#[derive(Debug, Clone, Copy)]
pub struct Resort {
    /// Always ascending.
    pub order: Order,
    pub limit: usize,
}

impl Ask {
    /// `None` for a request that etcd refuses; any store can give etcd's error for it.
    #[must_use]
    pub fn of(request: pb::RangeRequest) -> Option<Self> {
        let target = match WireTarget::try_from(request.sort_target).ok()? {
            WireTarget::Key => SortTarget::Key,
            WireTarget::Version => SortTarget::Version,
            WireTarget::Create => SortTarget::Create,
            WireTarget::Mod => SortTarget::Mod,
            WireTarget::Value => SortTarget::Value,
        };
        let descending = SortOrder::try_from(request.sort_order).ok()? == SortOrder::Descend;
        if request.key.is_empty() {
            return None;
        }
        let bounds = [
            request.min_mod_revision,
            request.max_mod_revision,
            request.min_create_revision,
            request.max_create_revision,
        ];
        let mut spec = RangeSpec {
            limit: u64::try_from(request.limit).ok().filter(|limit| *limit > 0),
            order: Order { target, descending },
            filtered: bounds.iter().any(|bound| *bound != 0),
            keys_only: request.keys_only,
            count_only: request.count_only,
        };
        let mut part = spec.part();
        let mut resort = None;
        if let Some(limit) = spec.limit
            && request.sort_order == SortOrder::None as i32
            && target != SortTarget::Key
            && !spec.filtered
            && !spec.count_only
        {
            resort = Some(Resort { order: spec.order, limit: usize::try_from(limit).ok()? });
            (spec.order, spec.limit) = (Order::DEFAULT, limit.checked_add(1));
            part.spec = RangeSpec { keys_only: part.spec.keys_only, ..spec };
        }
        Some(Self { request, spec, part, resort })
    }

    /// Whether a `RangeStream` can serve it.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.resort.is_none() && self.spec.streams()
    }

    #[must_use]
    pub fn revision(&self) -> Option<Revision> {
        Revision::from_wire(self.request.revision)
    }

    /// Whether the answer is in key order, so that stores can be read page by page.
    #[must_use]
    pub fn pages(&self) -> bool {
        self.spec.order.target == SortTarget::Key
    }

    /// The request for a source's next page, which begins behind the key `after`. Without `at` it is for the current
    /// revision, without `items` for all items.
    #[must_use]
    pub fn page(
        &self,
        source: &Source,
        after: Option<&Key>,
        at: Option<Revision>,
        items: Option<u64>,
    ) -> pb::RangeRequest {
        let (mut key, mut range_end) = source.range.to_wire();
        match after {
            Some(after) if self.spec.order.descending => range_end = after.0.clone(),
            Some(after) => key = after.successor().0,
            None => {}
        }
        let (sort_order, sort_target) = match self.resort {
            Some(_) => (0, 0),
            None => (self.request.sort_order, self.request.sort_target),
        };
        pb::RangeRequest {
            key,
            range_end,
            sort_order,
            sort_target,
            limit: items.and_then(|items| i64::try_from(items).ok()).unwrap_or(0),
            revision: at.map_or(0, Revision::get),
            serializable: false,
            keys_only: self.part.spec.keys_only,
            ..self.request.clone()
        }
    }

    /// The request for the count of a source.
    #[must_use]
    pub fn count(&self, source: &Source, at: Option<Revision>) -> pb::RangeRequest {
        let (key, range_end) = source.range.to_wire();
        let revision = at.map_or(0, Revision::get);
        pb::RangeRequest { key, range_end, revision, count_only: true, ..Default::default() }
    }
}

/// A store's answer to a Range.
#[derive(Debug)]
pub struct Page {
    /// The store's current revision.
    pub header: Revision,
    /// Keys in the requested range, before limit and filters.
    pub count: u64,
    /// Whether there are items behind the last one.
    pub more: bool,
    pub items: Vec<KeyValue>,
    /// The length of the answer in bytes.
    pub bytes: usize,
}

impl Page {
    /// Parses an answer in place and in one pass, so that each key-value is loaded into the CPU's caches once.
    ///
    /// # Errors
    /// When the bytes are not a `RangeResponse`.
    pub fn parse(answer: Rope) -> Result<Self, WireError> {
        let mut page = Self {
            header: Revision::ZERO,
            count: 0,
            more: false,
            items: Vec::with_capacity(answer.len() / ITEM_BYTES),
            bytes: answer.len(),
        };
        let mut header = ResponseHeader::default();
        for piece in answer.into_whole_fields()?.pieces() {
            let mut fields = Fields::new(piece);
            let mut begins = 0;
            while let Some(field) = fields.next() {
                let field = field?;
                match field.number {
                    1 => header.merge(field.bytes()?)?,
                    2 => page.items.push(KeyValue::of(piece, begins..fields.offset(), field.bytes()?)?),
                    3 => page.more = field.varint()? != 0,
                    4 => page.count = u64::try_from(field.varint()?.cast_signed()).unwrap_or(0),
                    _ => {}
                }
                begins = fields.offset();
            }
        }
        page.header = Revision(header.revision);
        Ok(page)
    }
}

/// An offset range within a page, at most 4 GiB. It is smaller than a `Bytes` that keeps the page alive.
#[derive(Debug, Clone, Copy)]
struct Place {
    start: u32,
    end: u32,
}

impl Place {
    fn of(part: &[u8], page: &[u8]) -> Result<Self, WireError> {
        if part.is_empty() {
            // An empty slice may point outside of the page.
            return Ok(Self { start: 0, end: 0 });
        }
        let start = part.as_ptr().addr() - page.as_ptr().addr();
        Self::range(start..start + part.len())
    }

    fn range(range: std::ops::Range<usize>) -> Result<Self, WireError> {
        let place = |at| u32::try_from(at).map_err(|_| WireError::Truncated);
        Ok(Self { start: place(range.start)?, end: place(range.end)? })
    }

    fn get(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// One key-value of an answer, as the bytes that the store sent.
#[derive(Debug, Clone)]
pub struct KeyValue {
    page: Bytes,
    /// The field with its tag and length.
    field: Place,
    encoded: Place,
    key: Place,
    value: Place,
    create: Revision,
    modified: Revision,
    version: i64,
}

impl KeyValue {
    fn of(page: &Bytes, field: std::ops::Range<usize>, encoded: &[u8]) -> Result<Self, WireError> {
        let kv = KeyValueRef::parse(encoded)?;
        Ok(Self {
            field: Place::range(field)?,
            encoded: Place::of(encoded, page)?,
            key: Place::of(kv.key, page)?,
            value: Place::of(kv.value, page)?,
            create: Revision(kv.create_revision),
            modified: Revision(kv.mod_revision),
            version: kv.version,
            page: page.clone(),
        })
    }

    /// Appends the key-value to a `RangeResponse`.
    ///
    /// # Errors
    /// When the store's bytes are not a valid key-value.
    pub fn splice_to(&self, response: &mut Splice, drop_value: bool) -> Result<(), WireError> {
        if !drop_value {
            response.field(&self.page, self.field.get());
            return Ok(());
        }
        let bare = KeyValueRef { value: &[], ..KeyValueRef::parse(&self.page[self.encoded.get()])? };
        put_range_kv(response.end(), &kindred_wire::kv::encode_key_value(&bare)[..]);
        Ok(())
    }

    /// Appends the field, with its value, to a `RangeResponse`.
    pub fn append_to(&self, response: &mut Vec<u8>) {
        response.extend_from_slice(&self.page[self.field.get()]);
    }

    /// The bytes that it adds to an answer, including its value.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.field.get().len()
    }
}

impl Item for KeyValue {
    fn key(&self) -> &[u8] {
        &self.page[self.key.get()]
    }

    fn create(&self) -> Revision {
        self.create
    }

    fn modified(&self) -> Revision {
        self.modified
    }

    fn version(&self) -> i64 {
        self.version
    }

    fn value(&self) -> &[u8] {
        &self.page[self.value.get()]
    }
}
