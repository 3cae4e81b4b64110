//! One revision that all stores of a feed promise (R5, R8): each is asked for its current revision, and those below the
//! highest are raised to it.

use kindred_partition_config::ids::Revision;

/// The current revisions that the stores answered to the first question, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Currents(pub Vec<Revision>);

impl Currents {
    /// The revision that all of them are to promise.
    #[must_use]
    pub fn highest(&self) -> Revision {
        self.0.iter().copied().max().unwrap_or(Revision::ZERO)
    }

    /// The stores that do not promise it yet, by their places.
    pub fn below(&self) -> impl Iterator<Item = usize> {
        let highest = self.highest();
        self.0.iter().enumerate().filter(move |(_, current)| **current < highest).map(|(at, _)| at)
    }

    /// The revision, given what these stores answered when they were raised to it. `None` if one did not follow (R3):
    /// then nothing may be shown there.
    #[must_use]
    pub fn common(&self, raised: &[Revision]) -> Option<Revision> {
        let highest = self.highest();
        raised.iter().all(|reached| *reached >= highest).then_some(highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_below_the_highest_are_raised_to_it() {
        let currents = Currents([4, 9, 9, 7].map(Revision).to_vec());
        assert_eq!(currents.highest(), Revision(9));
        assert_eq!(currents.below().collect::<Vec<_>>(), [0, 3]);
        assert_eq!(currents.common(&[Revision(9), Revision(10)]), Some(Revision(9)));
        assert_eq!(currents.common(&[Revision(9), Revision(8)]), None, "it could not follow");
    }

    #[test]
    fn one_store_needs_no_raise() {
        let current = Currents(vec![Revision(4)]);
        assert_eq!(current.below().count(), 0);
        assert_eq!(current.common(&[]), Some(Revision(4)));
        assert_eq!(Currents(Vec::new()).highest(), Revision::ZERO);
    }
}
