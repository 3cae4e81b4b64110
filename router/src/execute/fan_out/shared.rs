//! Small reads over several stores that many clients send at the same time: all apiservers probe a Kind with the same
//! request. [`Singleflight`] decides which requests share one round of questions to the stores.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::Epoch;
use kindred_router_core::plan::FanOut;
use kindred_router_core::singleflight::Singleflight;
use kindred_wire::rope::Rope;
use tokio::sync::oneshot;
use tonic::Status;

use super::live::ReadPath;
use crate::execute::Deadline;

/// The longest request in bytes that may be shared.
pub const BYTES_MAX: usize = 1 << 10;
/// How long the next round waits for one to end. A slower round waits for a store that hangs; later requests may find
/// it known to be down.
const SLOW: Duration = Duration::from_millis(500);

/// A request, and the generation of the map by which it is carried out.
type Question = (Bytes, Epoch);

#[derive(Debug)]
struct Waiter {
    deadline: Deadline,
    to: oneshot::Sender<Result<Rope, Status>>,
}

/// Small reads over several stores.
#[derive(Debug)]
pub struct SharedReads {
    path: Arc<ReadPath>,
    /// Those that are under way. Never locked across an await.
    under_way: Mutex<Singleflight<Question, Waiter>>,
}

impl SharedReads {
    #[must_use]
    pub fn new(path: Arc<ReadPath>) -> Arc<Self> {
        Arc::new(Self { path, under_way: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Singleflight<Question, Waiter>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`ReadPath::range_over`], for a request that several clients may send.
    ///
    /// # Errors
    /// As [`ReadPath::range_over`].
    pub async fn range_over(
        self: &Arc<Self>,
        fan_out: FanOut,
        generation: Epoch,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Rope, Status> {
        let question = (body, generation);
        let (to, answer) = oneshot::channel();
        let begins = self.lock().ask(question.clone(), Waiter { deadline, to });
        if let Some(waiter) = begins {
            UnderWay { shared: self.clone(), question, ended: false }.begin(fan_out, vec![waiter]);
        }
        match tokio::time::timeout_at(deadline.at(), answer).await {
            Ok(answer) => answer.map_err(|_| Status::internal("kindred: a read ended without an answer"))?,
            Err(_) => Err(deadline.passed()),
        }
    }
}

/// A running round of a question, and the rounds that follow it in the same task.
struct UnderWay {
    shared: Arc<SharedReads>,
    question: Question,
    ended: bool,
}

impl UnderWay {
    fn begin(self, fan_out: FanOut, waiters: Vec<Waiter>) {
        tokio::spawn(self.run(fan_out, waiters));
    }

    async fn run(mut self, fan_out: FanOut, mut waiters: Vec<Waiter>) {
        loop {
            // No new waiters join a running round. Each waits only until its own deadline, so the latest one counts.
            let Some(latest) = waiters.iter().map(|waiter| waiter.deadline).max_by_key(|it| it.at()) else {
                return;
            };
            let (body, generation) = self.question.clone();
            let path = self.shared.path.clone();
            let mut reading = pin!(path.range_over(&fan_out, generation, body, latest));
            let mut slow = pin!(tokio::time::sleep(SLOW));
            let answer = loop {
                tokio::select! {
                    answer = &mut reading => break answer,
                    // Dropping the read cancels its calls to the stores.
                    () = all_gone(&mut waiters) => break Err(Status::cancelled("the clients have gone")),
                    () = &mut slow, if !self.ended => self.step_aside(&fan_out),
                }
            };
            for waiter in waiters {
                // The client may be gone.
                let _ = waiter.to.send(answer.clone());
            }
            if self.ended {
                return;
            }
            match self.shared.lock().next(&self.question) {
                Some(next) => waiters = next,
                None => break,
            }
        }
        self.ended = true;
    }

    /// Starts the next round in a task of its own; this one goes on for its own waiters only.
    fn step_aside(&mut self, fan_out: &FanOut) {
        self.ended = true;
        if let Some(next) = self.shared.lock().next(&self.question) {
            let (shared, question) = (self.shared.clone(), self.question.clone());
            Self { shared, question, ended: false }.begin(fan_out.clone(), next);
        }
    }
}

/// If the task ends early (a panic), the rounds of the question are dropped, so that their waiters get an error and
/// later requests begin a new round.
impl Drop for UnderWay {
    fn drop(&mut self) {
        while !self.ended {
            self.ended = self.shared.lock().next(&self.question).is_none();
        }
    }
}

async fn all_gone(waiters: &mut [Waiter]) {
    for waiter in waiters {
        waiter.to.closed().await;
    }
}
