//! Remembers how many keys are left behind each page of a list, so that the next page need not count them.
//!
//! An apiserver reads a long list in pages at the revision of the first page, and each answer carries the count of what
//! is left. The state at a revision does not change, so that count is the previous one less the keys of the previous
//! page. Counted by the index, it would cost the creates and deletes since that revision, which under many writes
//! exceed the page itself.
//!
//! At most [`PAGES_MAX`] lists are remembered; the oldest beyond that are counted again, which only costs time.

use std::collections::VecDeque;

use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
};

/// Lists that are remembered at once.
const PAGES_MAX: usize = 64;

/// Identifies the units that a reader sees; a count made with another sight does not apply.
pub(crate) type Sight = (u64, u64, u64);

#[derive(Debug)]
struct Next {
    at: Revision,
    sight: Sight,
    /// The last key of the previous page; the next page starts right behind it.
    behind: Key,
    end: Option<Key>,
    left: u64,
}

impl Next {
    fn is_of(&self, range: &KeyRange, at: Revision, sight: Sight) -> bool {
        let KeyRange::Span { start, end } = range else { return false };
        self.at == at
            && self.sight == sight
            && start.strip_suffix(&[0]) == Some(&*self.behind)
            && self.end == *end
    }

    fn is_behind(&self, last: &[u8], end: Option<&Key>, at: Revision, sight: Sight) -> bool {
        self.at == at && self.sight == sight && *self.behind == *last && self.end.as_ref() == end
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Pages(VecDeque<Next>);

impl Pages {
    /// The number of keys of a range at a revision, if the range is what a remembered page left.
    pub(crate) fn left(&self, range: &KeyRange, at: Revision, sight: Sight) -> Option<u64> {
        self.place(range, at, sight).and_then(|place| self.0.get(place)).map(|next| next.left)
    }

    /// Remembers that a page of `range`, ending with `last`, left this many keys. `known`: its own count came from
    /// [`Pages::left`], so it continues a remembered list.
    pub(crate) fn page(
        &mut self,
        range: &KeyRange,
        at: Revision,
        sight: Sight,
        last: &[u8],
        left: u64,
        known: bool,
    ) {
        let KeyRange::Span { end, .. } = range else { return };
        if self.0.back().is_some_and(|next| next.is_behind(last, end.as_ref(), at, sight)) {
            return;
        }
        if let Some(place) = known.then(|| self.place(range, at, sight)).flatten() {
            self.0.remove(place);
        } else if self.0.len() >= PAGES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Next { at, sight, behind: Key::copy_from(last), end: end.clone(), left });
    }

    fn place(&self, range: &KeyRange, at: Revision, sight: Sight) -> Option<usize> {
        self.0.iter().position(|next| next.is_of(range, at, sight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Revision = Revision(7);

    fn range(start: &str) -> KeyRange {
        KeyRange::Span { start: Key::copy_from(start.as_bytes()), end: Some(Key::copy_from(b"/b")) }
    }

    #[test]
    fn a_page_goes_on_where_the_last_one_ended() {
        let mut pages = Pages::default();
        pages.page(&range("/a/"), AT, (0, 0, 0), b"/a/5", 12, false);
        assert_eq!(pages.left(&range("/a/5\0"), AT, (0, 0, 0)), Some(12));
        assert_eq!(pages.left(&range("/a/5"), AT, (0, 0, 0)), None, "another start");
        assert_eq!(pages.left(&range("/a/5\0"), Revision(8), (0, 0, 0)), None, "another revision");
        assert_eq!(pages.left(&range("/a/5\0"), AT, (1, 0, 0)), None, "other units");
    }

    #[test]
    fn many_lists_are_bounded_and_one_long_list_takes_one_place() {
        let mut pages = Pages::default();
        for list in 0..1000_u32 {
            pages.page(&range("/a/"), AT, (0, 0, 0), format!("/a/{list}").as_bytes(), 1, false);
        }
        assert_eq!(pages.0.len(), PAGES_MAX);
        assert_eq!(pages.left(&range("/a/0\0"), AT, (0, 0, 0)), None);
        let mut at = range("/a/999\0");
        for page in 0..1000_u32 {
            let last = format!("/a/999/{page}");
            pages.page(&at, AT, (0, 0, 0), last.as_bytes(), 1, true);
            at = range(&format!("{last}\0"));
        }
        assert_eq!(pages.left(&range("/a/998\0"), AT, (0, 0, 0)), Some(1), "the others are where they were");
    }
}
