//! How feeds tell a session that they have more, and which ones do, so that it looks at no others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kindred_router_core::watch_session::Rung;
use tokio::sync::Notify;

/// All bells of one session, and the queue of those that have rung.
#[derive(Debug, Default)]
pub struct Bells {
    notify: Notify,
    rung: Mutex<Vec<Arc<Bell>>>,
}

/// The bell of one feed at one session. Once rung, it is not queued again before the session has heard it.
#[derive(Debug)]
pub struct Bell {
    of: Weak<Bells>,
    who: Rung,
    rings: AtomicBool,
}

impl Bells {
    /// A new bell that rings under this name.
    #[must_use]
    pub fn bell(self: &Arc<Self>, who: Rung) -> Arc<Bell> {
        Arc::new(Bell { of: Arc::downgrade(self), who, rings: AtomicBool::new(false) })
    }

    /// Waits until a bell has rung since the last wait.
    pub async fn rung(&self) {
        self.notify.notified().await;
    }

    /// Takes the bells that have rung, each once. Look at their feeds only afterwards, or news may be missed.
    #[must_use]
    pub fn heard(&self) -> Vec<Rung> {
        let rung = std::mem::take(&mut *self.rung.lock().unwrap_or_else(PoisonError::into_inner));
        rung.iter()
            .map(|bell| {
                bell.rings.store(false, Ordering::Release);
                bell.who
            })
            .collect()
    }
}

impl Bell {
    /// Tells the session that the feed has more.
    pub fn ring(self: &Arc<Self>) {
        if !self.rings.swap(true, Ordering::AcqRel)
            && let Some(of) = self.of.upgrade()
        {
            of.rung.lock().unwrap_or_else(PoisonError::into_inner).push(self.clone());
            of.notify.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use kindred_router_core::watch_session::FeedNo;

    use super::*;

    #[tokio::test]
    async fn f27_only_who_has_more_is_heard_and_each_once() {
        let bells = Arc::new(Bells::default());
        let [first, second] = [1, 2].map(|no| Rung::Feed(FeedNo(no)));
        let [one, two, other] = [first, second, Rung::Watch(1)].map(|who| bells.bell(who));
        two.ring();
        other.ring();
        two.ring();
        bells.rung().await;
        assert_eq!(bells.heard(), [second, Rung::Watch(1)]);
        assert!(bells.heard().is_empty());
        two.ring();
        one.ring();
        assert_eq!(bells.heard(), [second, first]);
    }
}
