//! How a store answers when it is asked to stand at a revision (R22).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kindred_partition_config::ids::Revision;
use kindred_partition_config::kind::KindPrefix;
use tokio::sync::Notify;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Stands {
    /// Told when a question has ended.
    stood: Notify,
    /// Whether there is an unanswered question.
    silent: AtomicBool,
    unanswered: Mutex<Unanswered>,
    /// Answers that did not wait for it.
    unordered: AtomicU64,
}

#[derive(Debug, Default)]
struct Unanswered {
    /// The question that was not answered in time. No answer waits for the store before that is.
    question: Option<(KindPrefix, Revision)>,
    /// It is being asked again.
    again: bool,
}

impl Stands {
    /// Told when a question has ended.
    #[must_use]
    pub fn stood(&self) -> &Notify {
        &self.stood
    }

    /// Whether no answer waits for it, because a question was not answered.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire)
    }

    /// Notes that a question was not answered in time.
    pub fn silent(&self, kind: &KindPrefix, to: Revision) {
        self.lock().question = Some((kind.clone(), to));
        self.silent.store(true, Ordering::Release);
    }

    /// Notes that it answers questions, or that it is another process now.
    pub fn heard(&self) {
        self.lock().question = None;
        self.silent.store(false, Ordering::Release);
    }

    /// The question that is to be asked again, unless that is under way.
    pub fn again(&self) -> Option<(KindPrefix, Revision)> {
        let mut unanswered = self.lock();
        let question = unanswered.question.clone().filter(|_| !unanswered.again)?;
        unanswered.again = true;
        Some(question)
    }

    /// Notes whether the question that was asked again was answered.
    pub fn asked_again(&self, answered: bool) {
        self.lock().again = false;
        if answered {
            self.heard();
        }
    }

    /// Counts an answer that did not wait for it.
    pub fn skipped(&self) {
        self.unordered.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of answers that did not wait for it.
    #[must_use]
    pub fn unordered(&self) -> u64 {
        self.unordered.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Unanswered> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::kind::KindScheme;

    use super::*;

    #[test]
    fn the_question_that_was_not_answered_is_asked_again_by_one() {
        let pods = KindScheme::default().resolve("pods").unwrap();
        let stands = Stands::default();
        assert_eq!((stands.is_silent(), stands.again()), (false, None));
        stands.silent(&pods, Revision(7));
        assert!(stands.is_silent());
        assert_eq!(stands.again(), Some((pods, Revision(7))));
        assert_eq!(stands.again(), None, "it is under way");
        stands.asked_again(false);
        assert!(stands.is_silent() && stands.again().is_some());
        stands.asked_again(true);
        assert_eq!((stands.is_silent(), stands.again()), (false, None));
    }
}
