//! The traffic of the last hour in steps, for pages that show it over time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::Traffic;
use super::kinds::KindTraffic;
use crate::ticks::Ticks;

/// The length of a step.
pub const STEP: Duration = Duration::from_secs(10);
/// The steps that are kept: an hour.
const KEPT: usize = 360;

/// The traffic of a Kind within a step, or since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Calls that ended.
    pub calls: u64,
    /// Those that did not end with OK.
    pub failed: u64,
    /// Bytes of requests, answers and events.
    pub bytes: u64,
    /// The time of all calls together, in microseconds.
    pub micros: u64,
    /// Messages with events.
    pub messages: u64,
}

impl Amount {
    /// All that a Kind had since the start.
    #[must_use]
    pub fn of(kind: &KindTraffic) -> Self {
        let (messages, message_bytes) = kind.delivered();
        let mut amount = Self { messages, bytes: message_bytes, ..Self::default() };
        for (_, of) in kind.verbs() {
            let codes = of.codes();
            amount.calls += codes.iter().sum::<u64>();
            amount.failed += codes[1..].iter().sum::<u64>();
            let (received, sent) = of.bytes();
            amount.bytes += received + sent;
            amount.micros += (of.seconds.read().sum_seconds() * 1e6) as u64;
        }
        amount
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(earlier.calls),
            failed: self.failed.saturating_sub(earlier.failed),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            micros: self.micros.saturating_sub(earlier.micros),
            messages: self.messages.saturating_sub(earlier.messages),
        }
    }
}

/// One step: what each Kind had that had anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// When it ended.
    pub at: SystemTime,
    pub kinds: Vec<(Arc<str>, Amount)>,
}

#[derive(Debug, Default)]
struct Kept {
    steps: VecDeque<Step>,
    totals: HashMap<Arc<str>, Amount>,
}

/// The steps of the last hour.
#[derive(Debug, Default)]
pub struct Samples(Mutex<Kept>);

impl Samples {
    /// Ends a step.
    pub fn step(&self, at: SystemTime, kinds: &[Arc<KindTraffic>]) {
        let mut kept = self.0.lock();
        let mut changed = Vec::new();
        for kind in kinds {
            let now = Amount::of(kind);
            let before = kept.totals.insert(kind.name.clone(), now).unwrap_or_default();
            if now != before {
                changed.push((kind.name.clone(), now.since(before)));
            }
        }
        if kept.steps.len() == KEPT {
            kept.steps.pop_front();
        }
        kept.steps.push_back(Step { at, kinds: changed });
    }

    /// What each Kind had in the last step.
    #[must_use]
    pub fn last(&self) -> HashMap<Arc<str>, Amount> {
        self.0.lock().steps.back().map(|step| step.kinds.iter().cloned().collect()).unwrap_or_default()
    }

    /// The steps that ended after this time, the oldest first.
    #[must_use]
    pub fn since(&self, after: SystemTime) -> Vec<Step> {
        self.0.lock().steps.iter().filter(|step| step.at > after).cloned().collect()
    }
}

/// Ends a step every [`STEP`].
pub async fn run(traffic: Arc<Traffic>, ticks: Ticks) {
    loop {
        ticks.sleep(STEP).await;
        traffic.samples.step(SystemTime::now(), &traffic.kinds.all());
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::kind::KindScheme;
    use kindred_router_core::verb::Verb;
    use tonic::Code;

    use super::super::kinds::Kinds;
    use super::*;

    #[test]
    fn a_step_has_what_came_in_it_and_an_hour_is_kept() {
        let (kinds, samples) = (Kinds::default(), Samples::default());
        let pods = kinds.of(&KindScheme::default(), b"/registry/pods/a", b"");
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let call = |code| pods.ended(Verb::Get, code, Duration::from_millis(1), (1, 2));
        call(Code::Ok);
        samples.step(at(10), &kinds.all());
        samples.step(at(20), &kinds.all());
        call(Code::Ok);
        call(Code::Internal);
        samples.step(at(30), &kinds.all());
        let shown: Vec<_> =
            samples.since(at(0)).into_iter().map(|step| step.kinds.first().map(|(_, of)| of.calls)).collect();
        assert_eq!(shown, [Some(1), None, Some(2)]);
        let last = samples.since(at(20)).remove(0).kinds.remove(0);
        let expected = Amount { calls: 2, failed: 1, bytes: 6, micros: 2000, messages: 0 };
        assert_eq!((&*last.0, last.1), ("pods", expected));
        for second in 31..31 + KEPT as u64 {
            samples.step(at(second), &[]);
        }
        assert_eq!(samples.since(at(0)).len(), KEPT);
        assert_eq!(samples.since(at(0))[0].at, at(31));
    }
}
