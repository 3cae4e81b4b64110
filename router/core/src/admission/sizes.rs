//! Predicts the length of a list's answer from those of former lists of the same Kind.
//!
//! Kubernetes measured that the memory of a list is given by the bytes of its objects (KEP-5116, and
//! `apiserver/pkg/util/flowcontrol/request/list_work_estimator.go`, one seat for each 100 kB). A router does not know
//! the sizes of objects before it reads them, but lists of a Kind are alike.

/// Answers that are remembered.
const KEPT: usize = 8;

/// The last numbers of a series.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Last {
    numbers: [u64; KEPT],
    count: usize,
}

impl Last {
    fn note(&mut self, number: u64) {
        self.numbers[self.count % KEPT] = number;
        self.count += 1;
    }

    /// The second largest, so that a single outlier does not count; the largest of fewer than three.
    fn expected(&self) -> Option<u64> {
        let known = self.count.min(KEPT);
        let mut numbers = self.numbers;
        let numbers = &mut numbers[..known];
        numbers.sort_unstable();
        match known {
            0 => None,
            1 | 2 => numbers.last().copied(),
            _ => numbers.get(known - 2).copied(),
        }
    }
}

/// What a list asks for, as far as its length goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Whether it goes over the whole Kind, or over a part of it, such as a namespace.
    pub whole: bool,
    /// The most keys that it may have; 0 for all.
    pub limit: u64,
}

/// The lengths of the former lists of a Kind, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    whole: Last,
    part: Last,
    /// For a key, of lists with a limit.
    key: Last,
}

impl Sizes {
    /// Notes an answer.
    pub fn note(&mut self, shape: Shape, bytes: u64) {
        match shape {
            Shape { limit: 1.., .. } => self.key.note(bytes.div_ceil(shape.limit)),
            Shape { whole: true, .. } => self.whole.note(bytes),
            Shape { whole: false, .. } => self.part.note(bytes),
        }
    }

    /// The expected length of an answer; `None` if nothing is known.
    #[must_use]
    pub fn expected(&self, shape: Shape) -> Option<u64> {
        let all = if shape.whole { self.whole.expected() } else { self.part.expected() };
        if shape.limit == 0 {
            return all;
        }
        let limited = self.key.expected().map(|key| key.saturating_mul(shape.limit));
        match (limited, all) {
            (Some(limited), Some(all)) => Some(limited.min(all)),
            (limited, all) => limited.or(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Shape = Shape { whole: true, limit: 0 };
    const PART: Shape = Shape { whole: false, limit: 0 };

    fn page(limit: u64) -> Shape {
        Shape { whole: true, limit }
    }

    #[test]
    fn one_outlier_does_not_count_and_old_answers_are_forgotten() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.expected(WHOLE), None);
        for bytes in [100, 120, 9000, 110] {
            sizes.note(WHOLE, bytes);
        }
        assert_eq!(sizes.expected(WHOLE), Some(120));
        assert_eq!(sizes.expected(PART), None, "a namespace is not the whole Kind");
        (0..KEPT).for_each(|_| sizes.note(WHOLE, 50));
        assert_eq!(sizes.expected(WHOLE), Some(50));
    }

    #[test]
    fn a_page_is_as_long_as_its_keys_and_no_longer_than_all() {
        let mut sizes = Sizes::default();
        sizes.note(page(100), 50_000);
        assert_eq!(sizes.expected(page(10)), Some(5000));
        sizes.note(WHOLE, 2000);
        assert_eq!(sizes.expected(page(10)), Some(2000));
        assert_eq!(sizes.expected(page(u64::MAX)), Some(2000));
    }
}
