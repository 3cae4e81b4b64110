//! Removes the differences that the table in `answer.rs` allows.

use kindred_proto::{etcdserverpb::WatchResponse, mvccpb::Event};

use crate::differential::{
    answer::Answer,
    revision::{History, Mode},
    watches::Item,
};

pub fn stored_hash(history: &History, answers: &mut [Answer; 2]) {
    if let [Answer::HashKv(left), Answer::HashKv(right)] = answers
        && history.is_compaction(left.hash_revision)
    {
        (right.hash, right.compact_revision) = (left.hash, left.compact_revision);
    }
    if let [Answer::HashKv(left), right @ Answer::Error { .. }] = answers
        && history.is_compaction(left.hash_revision)
        && history.is_compacted(left.hash_revision)
        && matches!(right, Answer::Error { message, .. } if message.ends_with("revision has been compacted"))
    {
        *right = Answer::HashKv(*left);
    }
}

impl Mode {
    pub fn forgive_trailing(self, ours: &WatchResponse, theirs: &mut WatchResponse) {
        if let (Self::Mapped, true, Some(ours), Some(theirs)) =
            (self, ours.created && theirs.created, &ours.header, &mut theirs.header)
            && theirs.revision < ours.revision
        {
            theirs.revision = ours.revision;
        }
    }
}

/// `created`: the revision of etcd's `created` answer to the watch, 0 if it was created without a start.
pub fn kept_prev(history: &History, created: i64, ours: Option<&Item>, theirs: &mut Option<Item>) {
    let (Some(Item::Event(ours)), Some(Item::Event(theirs))) = (ours, theirs) else { return };
    let Some(kv) = &ours.kv else { return };
    let etcd_may_lose_it = history.is_compaction(kv.mod_revision) || kv.mod_revision <= created;
    if etcd_may_lose_it && ours.prev_kv.is_none() && !creates(theirs) {
        theirs.prev_kv = None;
    }
}

/// Whether the event creates its key, which then has no previous version.
fn creates(event: &Event) -> bool {
    event.kv.as_ref().is_some_and(|kv| kv.create_revision == kv.mod_revision)
}

#[cfg(test)]
mod tests {
    use kindred_proto::mvccpb::KeyValue;

    use super::*;

    fn event(create_revision: i64, mod_revision: i64, prev: Option<i64>) -> Item {
        let kv = |mod_revision| KeyValue { create_revision, mod_revision, ..KeyValue::default() };
        Item::Event(Event { kv: Some(kv(mod_revision)), prev_kv: prev.map(kv), ..Event::default() })
    }

    fn history() -> History {
        let mut history = History::new(Mode::Dense, 1, Vec::new());
        history.set_compacted([4, 4]);
        history
    }

    fn forgiven(created: i64, ours: &Item, theirs: Item) -> bool {
        let mut theirs = Some(theirs);
        kept_prev(&history(), created, Some(ours), &mut theirs);
        theirs.as_ref() == Some(ours)
    }

    /// A run found that etcd can send the past of a watch after it registered the watch, but before it registered that
    /// the watch wants prev_kv.
    #[test]
    fn etcd_may_leave_out_prev_kv_of_what_was_before_the_watch() {
        assert!(forgiven(7, &event(2, 6, None), event(2, 6, Some(5))));
        assert!(forgiven(7, &event(2, 7, None), event(2, 7, Some(5))));
    }

    #[test]
    fn not_of_what_came_after_the_watch_and_kindred_never() {
        assert!(!forgiven(7, &event(2, 8, None), event(2, 8, Some(5))));
        assert!(!forgiven(0, &event(2, 6, None), event(2, 6, Some(5))));
        assert!(!forgiven(7, &event(2, 6, Some(5)), event(2, 6, None)));
        assert!(!forgiven(7, &event(2, 6, Some(5)), event(2, 6, Some(3))));
    }

    #[test]
    fn what_is_created_has_no_prev_kv() {
        assert!(!forgiven(7, &event(6, 6, None), event(6, 6, Some(5))));
    }

    #[test]
    fn etcd_has_no_prev_kv_at_a_compaction() {
        assert!(forgiven(0, &event(2, 4, None), event(2, 4, Some(3))));
        assert!(!forgiven(0, &event(2, 5, None), event(2, 5, Some(3))));
    }
}
