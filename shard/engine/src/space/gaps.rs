//! Gaps: revisions whose events may be lost (R10), and the refusal of reads in them.

use kindred_partition_config::{ids::Revision, key::KeyRange, kind::Located, unit::Unit};

use super::{Space, View};
use crate::{
    error::EngineError,
    types::{Gap, KindGap, gaps_of},
};

impl Space {
    /// The gaps of keys that are in no unit.
    pub(crate) fn kind_gaps(&self) -> &[KindGap] {
        &self.gaps
    }

    pub(crate) fn set_gaps(&mut self, gaps: Vec<KindGap>) {
        self.gaps = gaps;
        for kind in &mut self.kinds {
            kind.gaps = gaps_of(&self.gaps, &kind.prefix);
        }
        self.count_gaps();
    }

    pub(crate) fn count_gaps(&mut self) {
        let of_units = self.units.records.iter().any(|record| !record.gaps.is_empty());
        self.has_gaps = of_units || !self.gaps.is_empty();
    }

    /// Forgets the gaps that a compaction has passed: the floor covers them.
    pub(crate) fn compact_gaps(&mut self, at: Revision) {
        if !self.has_gaps {
            return;
        }
        // A kept revision in such a gap must still be refused.
        let of_units = self.units.records.iter().flat_map(|record| &record.gaps);
        let passed = self.gaps.iter().map(|gap| &gap.gap).chain(of_units).map(|gap| gap.until);
        let passed = passed.filter(|until| *until <= at).max();
        self.imported_floor = self.imported_floor.max(passed.unwrap_or(self.imported_floor));
        self.gaps.retain(|gap| gap.gap.until > at);
        for gaps in self.kinds.iter_mut().map(|kind| &mut kind.gaps) {
            gaps.retain(|gap| gap.until > at);
        }
        for record in &mut self.units.records {
            record.gaps.retain(|gap| gap.until > at);
        }
        self.count_gaps();
    }

    /// Refuses a read at a revision inside a gap.
    pub(crate) fn check_gaps(
        &self,
        range: &KeyRange,
        at: Option<Revision>,
        view: &View,
    ) -> Result<(), EngineError> {
        let Some(at) = at.filter(|_| self.has_gaps) else { return Ok(()) };
        let gaps = self.gaps_of_range(range, view);
        let hides = gaps.into_iter().filter(|gap| gap.hides(at));
        match hides.map(|gap| gap.until).max() {
            Some(floor) => Err(EngineError::Compacted { floor }),
            None => Ok(()),
        }
    }

    /// The end of the gap in which a watch's start lies.
    pub(crate) fn gap_of_start(&self, range: &KeyRange, start: Revision) -> Option<Revision> {
        let gaps = self.gaps_in(range).into_iter().filter(|gap| gap.holds_start(start));
        gaps.map(|gap| gap.until).max()
    }

    /// The gaps of what a range reads, sorted.
    pub(crate) fn gaps_in(&self, range: &KeyRange) -> Vec<Gap> {
        if !self.has_gaps {
            return Vec::new();
        }
        self.gaps_of_range(range, &View::Now)
    }

    /// The gaps of a range, as far as the view sees it. A single key is in one unit or in none.
    fn gaps_of_range(&self, range: &KeyRange, view: &View) -> Vec<Gap> {
        let KeyRange::Single(key) = range else {
            return self.gaps_of_unit(&Unit::of_range(range.clone()), view);
        };
        match self.units.deciding(key) {
            Some(record) if view.sees(record) => record.gaps.clone(),
            Some(_) => Vec::new(),
            None => self.gaps_of_rest(range),
        }
    }

    /// The gaps of a unit, as far as the view sees it.
    pub(crate) fn gaps_of_unit(&self, unit: &Unit, view: &View) -> Vec<Gap> {
        let (records, rest) = self.units.over(unit);
        let visible = records.iter().filter(|record| view.sees(record));
        let mut gaps: Vec<Gap> = visible.flat_map(|record| record.gaps.iter().copied()).collect();
        for piece in &rest {
            gaps.extend(self.gaps_of_rest(&piece.range));
        }
        gaps.sort_unstable();
        gaps.dedup();
        gaps
    }

    /// The gaps of keys that are in no unit. They count although the shard has units of the Kind and seems to own nothing
    /// else: a restart does not know whether there were keys that it lost.
    fn gaps_of_rest(&self, range: &KeyRange) -> Vec<Gap> {
        if self.dense {
            return gaps_of(&self.gaps, b"");
        }
        if let Some(prefix) = self.only_kind(range) {
            return self.gaps_of_kind(prefix);
        }
        let mut gaps = gaps_of(&self.gaps, b"");
        if let KeyRange::Single(key) = range {
            if let Located::Pseudo { stem } = self.scheme.locate(key) {
                gaps.extend(self.gaps_of_kind(&[stem, b"/"].concat()));
            }
            return gaps;
        }
        let named = self.gaps.iter().map(|gap| &gap.kind).filter(|kind| !kind.is_empty());
        let overlapped = named.filter(|kind| range.overlaps(&KeyRange::prefix((*kind).clone())));
        gaps.extend(overlapped.flat_map(|kind| self.gaps_of_kind(kind)));
        gaps
    }

    fn gaps_of_kind(&self, prefix: &[u8]) -> Vec<Gap> {
        let kind = self.by_prefix.get(prefix).map(|id| self.kind(*id));
        kind.map_or_else(|| gaps_of(&self.gaps, prefix), |kind| kind.gaps.clone())
    }
}
