//! The members of the meta store, of which any can be asked.
//!
//! A member may be dead, or hung, or cut off from the others, while its connection looks sound. A failover of a store
//! waits for calls to meta, so no call waits for one member alone: when it says nothing for [`PATIENCE`], the next
//! one is asked too, and the first answer counts. Whoever answers is asked first from then on, and the watch follows.
//!
//! An etcd that has just lost its leader drops what it had handed to it, and never says so. So members are asked again in
//! turn until the time is over. What is asked must therefore bear being done twice; see
//! [`MetaClient::commit`](super::client::MetaClient::commit).

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use kindred_transport::connect::{ConnectError, RouterChannel as Channel};
use kindred_transport::{Connector, Endpoint};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Response, Status};

use super::MetaError;
use crate::stores::failure::Failure;

/// How long the others are not asked while a member says nothing.
pub const PATIENCE: Duration = Duration::from_millis(250);

/// A channel to each member, and which one is asked first.
#[derive(Debug, Clone)]
pub struct Members {
    channels: Arc<[(Endpoint, Channel)]>,
    first: Arc<watch::Sender<usize>>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer<T> {
    pub message: T,
    /// Whether the same was asked before, and what became of that is not known.
    pub is_repeated: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Unanswered {
    /// A member refused.
    Refused(Status),
    /// No member has got the request.
    NotSent(String),
    /// A member may have got it, and may have done it.
    Unknown(String),
}

impl Members {
    /// # Errors
    /// When there is no endpoint, or TLS cannot be set up.
    pub fn new(endpoints: &[Endpoint], connector: &Connector) -> Result<Self, ConnectError> {
        let channel = |endpoint: &Endpoint| {
            let channel = connector.router_channel(std::slice::from_ref(endpoint))?;
            Ok::<_, ConnectError>((endpoint.clone(), channel))
        };
        let channels: Vec<_> = endpoints.iter().map(channel).collect::<Result<_, _>>()?;
        if channels.is_empty() {
            return Err(ConnectError::NoEndpoint);
        }
        Ok(Self { channels: channels.into(), first: Arc::default() })
    }

    /// The member that is asked first, and its channel.
    #[must_use]
    pub fn first(&self) -> (usize, Channel) {
        let at = *self.first.borrow();
        (at, self.channels[at].1.clone())
    }

    /// Whether there is no other member to go to.
    #[must_use]
    pub fn is_one(&self) -> bool {
        self.channels.len() == 1
    }

    /// Tells when another member is asked first.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<usize> {
        self.first.subscribe()
    }

    /// From now on a member that answers is asked first.
    fn prefer(&self, member: usize) {
        self.turn(|_| member);
    }

    /// A member did not do what it should: the next one is asked first, unless another one is already.
    pub fn leave(&self, member: usize) {
        self.turn(|first| if first == member { (member + 1) % self.channels.len() } else { first });
    }

    fn turn(&self, to: impl Fn(usize) -> usize) {
        let turned = self.first.send_if_modified(|first| {
            let next = to(*first);
            std::mem::replace(first, next) != next
        });
        if turned {
            let (member, _) = &self.channels[*self.first.borrow()];
            tracing::info!(%member, "another member of the meta store is asked first");
        }
    }

    /// Asks until there is an answer, for at most `limit`.
    ///
    /// # Errors
    /// What is known of the request without an answer.
    pub async fn ask<T, F>(
        &self,
        limit: Duration,
        call: impl Fn(Channel) -> F,
    ) -> Result<Answer<T>, Unanswered>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let members = self.channels.len();
        let end = Instant::now() + limit;
        let mut under_way = FuturesUnordered::new();
        let mut round = Round { failures: vec![None; members], in_a_row: 0, in_doubt: false };
        let mut at = *self.first.borrow();
        loop {
            let (member, channel) = (at % members, self.channels[at % members].1.clone());
            let asked = call(channel);
            under_way.push(async move { (member, asked.await) });
            at += 1;
            let patience = Instant::now() + PATIENCE;
            // Waits until another attempt is due.
            loop {
                let event = tokio::select! {
                    biased;
                    Some(event) = under_way.next() => Some(event),
                    () = tokio::time::sleep_until(end) => {
                        round.in_doubt |= !under_way.is_empty();
                        return Err(round.failed(self, Some(limit)));
                    }
                    () = tokio::time::sleep_until(patience), if members > 1 => None,
                };
                let Some((member, result)) = event else { break };
                match result {
                    Ok(answer) => {
                        self.prefer(member);
                        let is_repeated = round.in_doubt || !under_way.is_empty();
                        return Ok(Answer { message: answer.into_inner(), is_repeated });
                    }
                    Err(status) => {
                        if let Some(refused) = round.note(member, status) {
                            round.in_doubt |= !under_way.is_empty();
                            return Err(match round.in_doubt {
                                true => Unanswered::Unknown(refused.message().to_owned()),
                                false => Unanswered::Refused(refused),
                            });
                        }
                        if under_way.is_empty() && (members == 1 || round.nobody_is_there()) {
                            return Err(round.failed(self, None));
                        }
                        // When all have failed in a row, for instance because they elect a leader, they get time.
                        if !round.in_a_row.is_multiple_of(members) {
                            break;
                        }
                    }
                }
            }
        }
    }
}

/// What a request has met with so far.
struct Round {
    /// The last failure of each member, and whether it was that it cannot be connected to.
    failures: Vec<Option<(String, bool)>>,
    in_a_row: usize,
    /// Whether a member may have done what was asked.
    in_doubt: bool,
}

impl Round {
    /// Notes a failure. Returns it if it is an answer that counts.
    fn note(&mut self, member: usize, status: Status) -> Option<Status> {
        self.in_a_row += 1;
        let (why, unsent) = match Failure::of(status) {
            Failure::Answered(status) if !is_silence(&status) => return Some(status),
            Failure::Answered(status) => (status.message().to_owned(), false),
            Failure::NotConnected(why) | Failure::NotSent(why) => (why, true),
            Failure::Lost(why) => (why, false),
        };
        self.in_doubt |= !unsent;
        self.failures[member] = Some((why, unsent));
        None
    }

    fn nobody_is_there(&self) -> bool {
        self.failures.iter().all(|failure| failure.as_ref().is_some_and(|(_, unsent)| *unsent))
    }

    fn failed(self, members: &Members, limit: Option<Duration>) -> Unanswered {
        let mut why: Vec<String> = Vec::new();
        if let Some(limit) = limit {
            why.push(format!("no answer within {} s", limit.as_secs()));
        }
        let named = members.channels.len() > 1;
        why.extend(self.failures.iter().zip(&*members.channels).filter_map(|(failure, (endpoint, _))| {
            let (why, _) = failure.as_ref()?;
            // A connection that cannot be made names its endpoint itself.
            let named = named && !why.starts_with(&endpoint.to_string());
            Some(if named { format!("{endpoint}: {why}") } else { why.clone() })
        }));
        let why = why.join("; ");
        if self.in_doubt { Unanswered::Unknown(why) } else { Unanswered::NotSent(why) }
    }
}

impl Unanswered {
    /// What became of a read.
    pub fn of_read(self) -> MetaError {
        match self {
            Self::Refused(status) => MetaError::Refused(status.message().to_owned()),
            Self::NotSent(why) | Self::Unknown(why) => MetaError::Unavailable(why),
        }
    }

    /// What became of a write.
    pub fn of_write(self) -> MetaError {
        match self {
            Self::Refused(status) => MetaError::Refused(status.message().to_owned()),
            Self::NotSent(why) => MetaError::Unavailable(why),
            Self::Unknown(why) => MetaError::Unknown(why),
        }
    }
}

/// Whether the status leaves open what became of the request: no answer in time, or an etcd that lost its leader.
fn is_silence(status: &Status) -> bool {
    matches!(
        status.code(),
        tonic::Code::DeadlineExceeded
            | tonic::Code::Unavailable
            | tonic::Code::Cancelled
            | tonic::Code::Unknown
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kindred_proto::etcdserverpb::{RangeRequest, kv_client::KvClient};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(3);

    fn members(count: usize) -> Members {
        // Nothing listens there.
        let endpoints: Vec<_> =
            (1..=count).map(|at| format!("http://127.0.0.1:{at}").parse().unwrap()).collect();
        Members::new(&endpoints, &Connector::with_tls(None)).unwrap()
    }

    /// What a member does.
    #[derive(Clone, Copy)]
    enum Does {
        Answer,
        Hang,
        Fail(tonic::Code),
    }

    /// Asks members that do this, one attempt after the other; the last one for ever.
    async fn ask(members: &Members, does: &[Does]) -> (Result<Answer<usize>, Unanswered>, usize, Duration) {
        let (asked, began) = (Cell::new(0), Instant::now());
        let call = |_| {
            let at = asked.replace(asked.get() + 1);
            let does = does.get(at).or(does.last()).copied().unwrap();
            async move {
                match does {
                    Does::Answer => Ok(Response::new(at)),
                    Does::Hang => std::future::pending().await,
                    Does::Fail(code) => Err(Status::new(code, "it says so")),
                }
            }
        };
        let answer = members.ask(LIMIT, call).await;
        (answer, asked.get(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_says_nothing_is_not_waited_for_and_not_asked_first_again() {
        let members = members(3);
        let mut changes = members.changes();
        let (answer, _, took) = ask(&members, &[Does::Hang, Does::Answer]).await;
        let answer = answer.unwrap();
        assert!(answer.message == 1 && answer.is_repeated, "{answer:?}");
        assert!((PATIENCE..2 * PATIENCE).contains(&took), "{took:?}");
        assert!(changes.has_changed().unwrap() && *changes.borrow_and_update() == 1);
        let (answer, asked, took) = ask(&members, &[Does::Answer]).await;
        assert!(!answer.unwrap().is_repeated && asked == 1 && took.is_zero());
        assert_eq!(members.first().0, 1);
        assert!(!changes.has_changed().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn members_without_a_leader_are_asked_in_turn_until_they_have_one() {
        let members = members(3);
        let silence = [Does::Fail(tonic::Code::Unavailable); 6];
        let (answer, asked, took) = ask(&members, &[&silence[..], &[Does::Answer]].concat()).await;
        assert!(answer.unwrap().is_repeated);
        assert!(asked == 7 && took >= 2 * PATIENCE && took < 3 * PATIENCE, "{asked} {took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_have_been_done_is_told_from_what_was_not() {
        let refusal = Does::Fail(tonic::Code::InvalidArgument);
        let (answer, ..) = ask(&members(3), &[refusal]).await;
        assert!(matches!(answer, Err(Unanswered::Refused(_))), "{answer:?}");
        let (answer, ..) = ask(&members(3), &[Does::Hang, refusal]).await;
        assert!(matches!(answer, Err(Unanswered::Unknown(_))), "{answer:?}");
        let (answer, _, took) = ask(&members(3), &[Does::Hang]).await;
        assert!(matches!(answer, Err(Unanswered::Unknown(_))) && took == LIMIT, "{answer:?} {took:?}");
        // One alone is asked once.
        let (answer, asked, _) = ask(&members(1), &[Does::Hang]).await;
        assert!(matches!(answer, Err(Unanswered::Unknown(_))) && asked == 1, "{answer:?}");
        let (answer, asked, took) = ask(&members(1), &[Does::Fail(tonic::Code::Unavailable)]).await;
        assert!(matches!(answer, Err(Unanswered::Unknown(_))) && asked == 1 && took.is_zero(), "{answer:?}");
    }

    #[tokio::test]
    async fn where_nobody_listens_nothing_was_sent() {
        let members = members(3);
        let call = |channel| async move { KvClient::new(channel).range(RangeRequest::default()).await };
        let answer = members.ask(LIMIT, call).await;
        let Err(Unanswered::NotSent(why)) = answer else { panic!("{answer:?}") };
        for at in 1..=3 {
            assert!(why.contains(&format!("http://127.0.0.1:{at}: ")), "{why}");
        }
    }

    #[tokio::test]
    async fn a_member_is_left_once() {
        let members = members(3);
        members.leave(0);
        members.leave(0);
        members.leave(2);
        assert_eq!(members.first().0, 1);
    }
}
