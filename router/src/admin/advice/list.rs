//! The decisions of `kindred advise` as they are kept: a bounded list, in which what is said again and again counts up. Pure.

use kindred_partition_config::validate::FieldError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The decisions that are kept.
pub const KEPT: usize = 200;
/// The longest text of a field, in bytes: with all of its decisions the list stays far below what a meta store takes.
pub const TEXT_MAX: usize = 1000;
/// How far in the future a decision may be, by another clock.
const AHEAD_MAX: f64 = 3600.0;

/// What became of a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It is the operator's to do.
    Proposed,
    /// It is not made yet; the reason says why.
    Waited,
    /// It was made.
    Applied,
    /// It was tried; the reason says why it failed.
    Failed,
}

impl Outcome {
    /// Whether it is said at every look, so that it counts up.
    fn repeats(self) -> bool {
        matches!(self, Self::Proposed | Self::Waited)
    }

    fn has_reason(self) -> bool {
        matches!(self, Self::Waited | Self::Failed)
    }
}

/// A decision that is told.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Told {
    /// When it was made, in seconds since the Unix epoch; without it, now.
    #[serde(default)]
    pub at: Option<f64>,
    /// What is proposed.
    pub what: String,
    /// What it is proposed for.
    pub why: String,
    pub outcome: Outcome,
    /// Why it waits or failed.
    #[serde(default)]
    pub reason: Option<String>,
}

/// A decision that is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Advice")]
pub struct Kept {
    /// When it was last made, in seconds since the Unix epoch.
    pub at: f64,
    /// When it was first made.
    pub first: f64,
    /// How many times in a row.
    pub times: u64,
    pub what: String,
    pub why: String,
    pub outcome: Outcome,
    /// Why it waits or failed.
    pub reason: Option<String>,
}

impl Told {
    /// The decision to keep.
    ///
    /// # Errors
    /// Each field that is wrong.
    pub fn checked(self, now: f64) -> Result<Kept, Vec<FieldError>> {
        let mut wrong = Vec::new();
        let mut is_wrong = |path: &str, message: String, what_to_do: &str| {
            wrong.push(FieldError { path: path.to_owned(), message, what_to_do: what_to_do.to_owned() });
        };
        let texts = [("what", Some(&self.what)), ("why", Some(&self.why)), ("reason", self.reason.as_ref())];
        for (field, text) in texts.into_iter().filter_map(|(field, text)| Some((field, text?))) {
            if text.trim().is_empty() {
                is_wrong(field, "there is no text".to_owned(), "write what is meant");
            } else if text.len() > TEXT_MAX {
                let message = format!("{} bytes are too long", text.len());
                is_wrong(field, message, &format!("write at most {TEXT_MAX} bytes"));
            }
        }
        if self.outcome.has_reason() && self.reason.is_none() {
            let message = "what waits or failed has a reason".to_owned();
            is_wrong("reason", message, "write why it waits or failed");
        }
        let at = self.at.unwrap_or(now);
        if !(0.0..=now + AHEAD_MAX).contains(&at) {
            let message = format!("{at} is no time until now");
            is_wrong("at", message, "write seconds since the Unix epoch, or leave the field out");
        }
        let Self { what, why, outcome, reason, .. } = self;
        if wrong.is_empty() {
            Ok(Kept { at, first: at, times: 1, what, why, outcome, reason })
        } else {
            Err(wrong)
        }
    }
}

/// All that are kept, in the order in which they were last made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct List {
    pub entries: Vec<Kept>,
}

impl List {
    /// Reads the list; one that cannot be read is as none, since it only tells of the past.
    #[must_use]
    pub fn read(text: Option<&str>) -> Self {
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Adds a decision. One that says the same of the same as the last one counts up. The oldest makes room.
    pub fn add(&mut self, mut new: Kept) {
        let last = self.entries.iter().rposition(|known| known.what == new.what);
        let same = last.filter(|at| {
            let known = &self.entries[*at];
            new.outcome.repeats() && (known.outcome, &known.reason) == (new.outcome, &new.reason)
        });
        if let Some(at) = same {
            let known = self.entries.remove(at);
            (new.first, new.times) = (known.first, known.times.saturating_add(1));
        }
        self.entries.push(new);
        let surplus = self.entries.len().saturating_sub(KEPT);
        self.entries.drain(..surplus);
    }

    /// The newest first.
    #[must_use]
    pub fn newest_first(mut self) -> Vec<Kept> {
        self.entries.reverse();
        self.entries
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: f64 = 1_700_000_000.0;

    fn told(what: &str, outcome: Outcome, reason: Option<&str>) -> Told {
        Told {
            at: None,
            what: what.to_owned(),
            why: "it is full".to_owned(),
            outcome,
            reason: reason.map(str::to_owned),
        }
    }

    fn kept(at: f64, what: &str, outcome: Outcome, reason: Option<&str>) -> Kept {
        told(what, outcome, reason).checked(at).unwrap()
    }

    #[test]
    fn what_waits_for_the_same_reason_counts_up() {
        let mut list = List::default();
        let quiet = Some("these are quiet hours");
        for (at, reason) in [(1.0, Some("seen in 1 of 2 looks")), (2.0, quiet), (3.0, quiet), (4.0, quiet)] {
            list.add(kept(at, "move pods", Outcome::Waited, reason));
        }
        list.add(kept(5.0, "move nodes", Outcome::Waited, quiet));
        list.add(kept(6.0, "move pods", Outcome::Waited, quiet));
        let shown: Vec<_> =
            list.entries.iter().map(|one| (&*one.what, one.times, one.first, one.at)).collect();
        assert_eq!(
            shown,
            [("move pods", 1, 1.0, 1.0), ("move nodes", 1, 5.0, 5.0), ("move pods", 4, 2.0, 6.0)]
        );
        for _ in 0..2 {
            list.add(kept(7.0, "move pods", Outcome::Applied, None));
        }
        list.add(kept(8.0, "move pods", Outcome::Waited, quiet));
        let newest = list.newest_first();
        assert_eq!(newest.iter().take(3).map(|one| one.times).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(newest.len(), 6);
    }

    #[test]
    fn a_list_that_cannot_be_read_is_as_none() {
        let mut list = List::default();
        list.add(kept(1.0, "move pods", Outcome::Failed, Some("refused")));
        let text = serde_json::to_string(&list).unwrap();
        assert_eq!(List::read(Some(&text)), list);
        assert_eq!(List::read(Some("no")), List::default());
        assert_eq!(List::read(None), List::default());
    }

    #[test]
    fn wrong_fields_are_named() {
        let wrong = |told: Told| {
            told.checked(NOW).unwrap_err().into_iter().map(|error| error.path).collect::<Vec<_>>()
        };
        assert_eq!(wrong(told("", Outcome::Applied, None)), ["what"]);
        assert_eq!(wrong(told(&"x".repeat(TEXT_MAX + 1), Outcome::Applied, None)), ["what"]);
        assert_eq!(wrong(told("x", Outcome::Waited, None)), ["reason"]);
        assert_eq!(wrong(told("x", Outcome::Failed, Some(" "))), ["reason"]);
        for at in [-1.0, f64::NAN, f64::INFINITY, NOW + 2.0 * AHEAD_MAX] {
            assert_eq!(wrong(Told { at: Some(at), ..told("x", Outcome::Applied, None) }), ["at"]);
        }
        let early = Told { at: Some(5.0), ..told("x", Outcome::Applied, None) };
        assert_eq!(early.checked(NOW).unwrap().at, 5.0);
    }

    proptest! {
        /// The list has a bound, nothing is lost before it is reached, and the last one told is the last of the list.
        #[test]
        fn every_decision_is_counted(told in prop::collection::vec((0u8..4, 0u8..4, 0u8..3), 0..400)) {
            let mut list = List::default();
            for (at, (what, outcome, reason)) in told.iter().enumerate() {
                let outcome =
                    [Outcome::Proposed, Outcome::Waited, Outcome::Applied, Outcome::Failed][usize::from(*outcome)];
                let new = kept(at as f64, &what.to_string(), outcome, Some(&reason.to_string()));
                list.add(new.clone());
                prop_assert!(list.entries.len() <= KEPT);
                let last = list.entries.last().unwrap();
                prop_assert_eq!((&last.what, last.outcome, &last.reason, last.at), (&new.what, outcome, &new.reason, at as f64));
            }
            prop_assert!(list.entries.windows(2).all(|two| two[0].at < two[1].at));
            let counted: u64 = list.entries.iter().map(|one| one.times).sum();
            prop_assert!(counted == told.len() as u64 || list.entries.len() == KEPT);
        }
    }
}
