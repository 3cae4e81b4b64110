//! An event of a feed, and whether a watch wants it.
//!
//! Feeds carry every event with `prev_kv`, encoded once by its shard. A watch gets these bytes or a prefix of them: an
//! `mvccpb.Event` is `[type] kv prev_kv` in this order, so leaving out `prev_kv` is a cut, and nothing is encoded
//! again. The key is found once, when the event arrives; the value is skipped.

use std::sync::Arc;

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_wire::kv::{EventRef, EventType, KeyValueRef, part_len, put_watch_event};
use kindred_wire::scan::WireError;

use crate::watch_merge::{Entry, Group};

/// The events of one revision, shared by all who read them.
pub type Events = Arc<[FeedEvent]>;

impl Group for Events {
    fn join(&mut self, more: Self) {
        *self = self.iter().chain(&*more).cloned().collect();
    }
}

/// The bytes that an event counts in a budget beside its own.
const OVERHEAD_BYTES: usize = 96;

/// An encoded event, with the parts that watches need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedEvent {
    whole: Bytes,
    /// The event without `prev_kv`: a prefix of `whole` unless another writer ordered the fields otherwise.
    without_prev: Bytes,
    key: Bytes,
    is_delete: bool,
}

impl FeedEvent {
    /// Parses an encoded event.
    ///
    /// # Errors
    /// When the bytes are not a valid event.
    pub fn parse(whole: Bytes) -> Result<Self, WireError> {
        let event = EventRef::parse(&whole)?;
        let key = whole.slice_ref(KeyValueRef::parse(event.kv)?.key);
        let is_delete = event.event_type == EventType::Delete;
        let bare = EventRef { prev_kv: None, ..event };
        let cut = bare.encoded_len();
        let ends_with_kv = whole.get(..cut).is_some_and(|front| EventRef::parse(front) == Ok(bare));
        let without_prev = if ends_with_kv {
            whole.slice(..cut)
        } else {
            // Another writer may order the fields differently.
            let mut encoded = Vec::with_capacity(cut);
            bare.encode_into(&mut encoded);
            encoded.into()
        };
        Ok(Self { without_prev, key, is_delete, whole })
    }

    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The encoded event, with or without `prev_kv`.
    #[must_use]
    pub fn encoded(&self, prev_kv: bool) -> &[u8] {
        if prev_kv { &self.whole } else { &self.without_prev }
    }
}

/// The events of one revision as an entry of a merge and a ring.
#[must_use]
pub fn entry(revision: Revision, events: Vec<FeedEvent>) -> Entry<Events> {
    let bytes = events.iter().map(|event| event.whole.len() + OVERHEAD_BYTES).sum();
    Entry { revision, bytes, payload: events.into() }
}

/// The events that a watch wants of its feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    pub range: KeyRange,
    /// Leave out puts.
    pub no_put: bool,
    /// Leave out deletes.
    pub no_delete: bool,
    /// Include the previous key-value of each event.
    pub prev_kv: bool,
}

impl Filter {
    /// The encoded event for the watch; `None` if it is filtered out.
    #[must_use]
    pub fn pick<'e>(&self, event: &'e FeedEvent) -> Option<&'e [u8]> {
        let filtered = if event.is_delete { self.no_delete } else { self.no_put };
        (!filtered && self.range.contains(event.key())).then(|| event.encoded(self.prev_kv))
    }
}

/// The events of some revisions that a watch wants, as the fields that they are in its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The first and the last revision with such an event.
    pub span: (Revision, Revision),
    /// The fields, which follow the message's head.
    pub fields: Bytes,
}

impl Encoded {
    /// `None` if the watch wants none of them.
    #[must_use]
    pub fn of(entries: &[Entry<Events>], filter: &Filter) -> Option<Self> {
        let (mut wanted, mut span) = (Vec::new(), None);
        for entry in entries {
            let before = wanted.len();
            wanted.extend(entry.payload.iter().filter_map(|event| filter.pick(event)));
            if wanted.len() > before {
                let (first, _) = span.unwrap_or((entry.revision, entry.revision));
                span = Some((first, entry.revision));
            }
        }
        let span = span?;
        let mut fields = Vec::with_capacity(wanted.iter().map(part_len).sum());
        wanted.into_iter().for_each(|event| put_watch_event(&mut fields, event));
        Some(Self { span, fields: fields.into() })
    }
}

/// What the last reader of a feed was given, for others that stand at the same position and want the same.
#[derive(Debug)]
pub struct LastEncoded {
    first: Revision,
    last: Revision,
    filter: Filter,
    encoded: Option<Encoded>,
}

impl LastEncoded {
    /// What was encoded of these revisions, if it is for this filter.
    #[must_use]
    pub fn get(&self, entries: &[Entry<Events>], filter: &Filter) -> Option<Option<Encoded>> {
        let ends = (entries.first()?.revision, entries.last()?.revision);
        (ends == (self.first, self.last) && *filter == self.filter).then(|| self.encoded.clone())
    }

    /// Keeps what was encoded of these revisions.
    #[must_use]
    pub fn of(entries: &[Entry<Events>], filter: &Filter, encoded: Option<Encoded>) -> Option<Self> {
        let (first, last) = (entries.first()?.revision, entries.last()?.revision);
        Some(Self { first, last, filter: filter.clone(), encoded })
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::key::Key;
    use kindred_proto::mvccpb;
    use prost::Message;

    use super::*;

    fn encoded(key: &'static str, delete: bool, prev: bool) -> Bytes {
        let kv =
            mvccpb::KeyValue { key: key.into(), mod_revision: 7, value: "v".into(), ..Default::default() };
        let prev_kv = prev.then(|| mvccpb::KeyValue { mod_revision: 5, ..kv.clone() });
        mvccpb::Event { r#type: i32::from(delete), kv: Some(kv), prev_kv }.encode_to_vec().into()
    }

    #[test]
    fn prev_kv_is_cut_off() {
        for delete in [false, true] {
            let event = FeedEvent::parse(encoded("k", delete, true)).unwrap();
            assert_eq!(event.key(), b"k");
            assert_eq!(event.encoded(true), encoded("k", delete, true));
            assert_eq!(event.encoded(false), encoded("k", delete, false));
            let bare = FeedEvent::parse(encoded("k", delete, false)).unwrap();
            assert_eq!(bare.encoded(true), encoded("k", delete, false));
        }
    }

    #[test]
    fn another_order_of_fields_is_read_too() {
        let whole = mvccpb::Event::decode(encoded("k", true, true)).unwrap();
        let part = |event: mvccpb::Event| event.encode_to_vec();
        let bytes = [
            part(mvccpb::Event { kv: None, r#type: 0, ..whole.clone() }),
            part(mvccpb::Event { prev_kv: None, ..whole }),
        ];
        let event = FeedEvent::parse(bytes.concat().into()).unwrap();
        assert_eq!(event.encoded(false), encoded("k", true, false));
        assert_eq!(event.encoded(true), bytes.concat());
    }

    #[test]
    fn filters() {
        let put = FeedEvent::parse(encoded("b", false, true)).unwrap();
        let delete = FeedEvent::parse(encoded("b", true, true)).unwrap();
        let span = |start: &str, end: &str| KeyRange::Span { start: start.into(), end: Some(Key::from(end)) };
        let all = Filter { range: span("a", "c"), no_put: false, no_delete: false, prev_kv: false };
        assert_eq!(all.pick(&put), Some(put.encoded(false)));
        assert_eq!(Filter { prev_kv: true, ..all.clone() }.pick(&put), Some(put.encoded(true)));
        assert_eq!(Filter { no_put: true, ..all.clone() }.pick(&put), None);
        assert!(Filter { no_put: true, ..all.clone() }.pick(&delete).is_some());
        assert_eq!(Filter { no_delete: true, ..all.clone() }.pick(&delete), None);
        assert_eq!(Filter { range: span("a", "b"), ..all.clone() }.pick(&put), None);
        let only = KeyRange::Single("b".into());
        assert!(Filter { range: only, ..all }.pick(&put).is_some());
    }
}
