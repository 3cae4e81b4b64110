//! Revisions whose events may be lost.

use kindred_partition_config::{ids::Revision, key::Key};

/// The open interval of revisions that may have been shown and lost in an unclean restart (R10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gap {
    /// The last revision before the gap; nothing up to it is missing.
    pub after: Revision,
    /// The first readable revision behind the gap.
    pub until: Revision,
}

impl Gap {
    /// Whether a read at this revision asks for what may be lost.
    #[must_use]
    pub fn hides(&self, at: Revision) -> bool {
        self.after < at && at < self.until
    }

    /// Whether a reader that has seen everything below `start` may have seen what is lost.
    #[must_use]
    pub fn holds_start(&self, start: Revision) -> bool {
        self.hides(start.prev()) && start < self.until
    }

    /// Whether no revision is in it.
    pub(crate) fn is_nothing(&self) -> bool {
        self.after.next() >= self.until
    }
}

/// The gap that one start left in one Kind. An empty prefix stands for the keys of no Kind and for every Kind that has
/// no `KindGap` with the same end; so a Kind that lost nothing is listed with an empty gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindGap {
    /// The Kind's prefix, or empty.
    pub kind: Key,
    pub gap: Gap,
}

/// Where the logged gap begins that stands for the floor of a Kind. Gaps of restarts begin at zero or above.
const BEFORE_ALL: Revision = Revision(-1);

impl KindGap {
    /// The gap that stands for the floor of a Kind in logs and checkpoints.
    pub(crate) fn floor(kind: Key, floor: Revision) -> Self {
        Self { kind, gap: Gap { after: BEFORE_ALL, until: floor } }
    }

    /// Whether it is the floor of one Kind: everything of the Kind up to its end is gone.
    #[must_use]
    pub(crate) fn is_floor(&self) -> bool {
        !self.kind.is_empty() && self.gap.after == BEFORE_ALL
    }
}

/// The floor of a Kind among logged gaps.
pub(crate) fn floor_among(all: &[KindGap], kind: &[u8]) -> Revision {
    let floors = all.iter().filter(|gap| gap.is_floor() && *gap.kind == *kind);
    floors.map(|gap| gap.gap.until).max().unwrap_or(Revision::ZERO)
}

/// The gaps of one Kind out of all.
pub(crate) fn gaps_of(all: &[KindGap], kind: &[u8]) -> Vec<Gap> {
    let named = |until: Revision| all.iter().any(|gap| *gap.kind == *kind && gap.gap.until == until);
    let ours = all.iter().filter(|gap| *gap.kind == *kind || (gap.kind.is_empty() && !named(gap.gap.until)));
    let mut gaps: Vec<Gap> = ours.map(|gap| gap.gap).filter(|gap| !gap.is_nothing()).collect();
    gaps.sort_unstable();
    gaps.dedup();
    gaps
}
