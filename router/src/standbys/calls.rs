//! The calls to the members of a store.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kindred_partition_config::ids::{MemberId, Term};
use kindred_proto::shard_v1::{self as pb, member_response, standbys_client::StandbysClient};
use kindred_router_core::standbys::{Follower, Role, Said, Step};
use kindred_transport::connect::RouterChannel;
use kindred_transport::{Connector, Endpoint};
use tonic::{Response, Status};

/// How long a member may take to say what it is. A member that is only busy answers in time; one that hangs is not to hold
/// up the look at the others.
const ASK_MAX: Duration = Duration::from_millis(400);
/// How long a step may take.
const TELL_MAX: Duration = Duration::from_millis(500);
/// A promotion waits for the standby's disk.
const PROMOTE_MAX: Duration = Duration::from_secs(2);

/// The connections to the members of a store, by address.
#[derive(Debug)]
pub struct Calls {
    connector: Connector,
    channels: Mutex<HashMap<String, RouterChannel>>,
}

impl Calls {
    #[must_use]
    pub fn new(connector: Connector) -> Self {
        Self { connector, channels: Mutex::default() }
    }

    fn client(&self, url: &str) -> Result<StandbysClient<RouterChannel>, String> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(url) {
            return Ok(StandbysClient::new(channel.clone()));
        }
        let endpoint: Endpoint = url.parse().map_err(|error| format!("{error}"))?;
        let channel = self.connector.router_channel(&[endpoint]).map_err(|error| error.to_string())?;
        channels.insert(url.to_owned(), channel.clone());
        Ok(StandbysClient::new(channel))
    }

    /// Makes a call. A connection on which nothing came back is not used again: the process behind it may hang.
    async fn call<T>(
        &self,
        url: &str,
        limit: Duration,
        call: impl AsyncFnOnce(StandbysClient<RouterChannel>) -> Result<Response<T>, Status>,
    ) -> Result<T, String> {
        let client = self.client(url)?;
        match tokio::time::timeout(limit, call(client)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(crate::stores::failure::Failure::of(status).reason().to_owned()),
            Err(_) => {
                self.channels.lock().unwrap_or_else(PoisonError::into_inner).remove(url);
                Err(format!("no answer within {} ms", limit.as_millis()))
            }
        }
    }

    /// What the member at an address says of itself, if it is one of the store that is meant.
    ///
    /// # Errors
    /// Why it says nothing.
    pub async fn ask(&self, url: &str, meant: pb::Meant) -> Result<Said, String> {
        let lineage = meant.lineage.clone();
        let request = pb::MemberRequest { meant: Some(meant) };
        let ask = async |mut client: StandbysClient<_>| client.member(request).await;
        self.call(url, ASK_MAX, ask).await.map(|answer| said(answer, &lineage))
    }

    /// Tells a member of the store that is meant what a step says.
    ///
    /// # Errors
    /// Why it does not do it.
    pub async fn tell(&self, step: &Step, meant: pb::Meant) -> Result<(), String> {
        let meant = Some(meant);
        let ids = |members: &[MemberId]| members.iter().map(|id| id.0.clone()).collect();
        match step.clone() {
            Step::Count { url, term, members, recorded } => {
                let request = pb::CountRequest { term: term.0, members: ids(&members), recorded, meant };
                let call = async |mut client: StandbysClient<_>| client.count(request).await;
                self.call(&url, TELL_MAX, call).await.map(drop)
            }
            Step::Yield { url, term } => {
                let request = pb::YieldRequest { term: term.0, meant };
                let call = async |mut client: StandbysClient<_>| client.r#yield(request).await;
                self.call(&url, TELL_MAX, call).await.map(drop)
            }
            Step::Prepare { url, term, member } => {
                let request = pb::PrepareRequest { term: term.0, member: member.0, meant };
                let call = async |mut client: StandbysClient<_>| client.prepare(request).await;
                self.call(&url, TELL_MAX, call).await.map(drop)
            }
            Step::Promote { url, term, incarnation_above, yielded, forced } => {
                let forced_opens_at_micros = forced.unwrap_or_default();
                let request = pb::PromoteRequest {
                    term: term.0,
                    incarnation_above,
                    yielded,
                    forced_opens_at_micros,
                    meant,
                };
                let call = async |mut client: StandbysClient<_>| client.promote(request).await;
                self.call(&url, PROMOTE_MAX, call).await.map(drop)
            }
            Step::Supersede { url, term, primary } => {
                let request = pb::SupersedeRequest { term: term.0, primary_url: primary, meant };
                let call = async |mut client: StandbysClient<_>| client.supersede(request).await;
                self.call(&url, TELL_MAX, call).await.map(drop)
            }
            // The caller writes the record.
            Step::Write { .. } => Ok(()),
        }
    }
}

/// What a member says, to a router of a cluster with this lineage.
fn said(answer: pb::MemberResponse, lineage: &str) -> Said {
    let role = match answer.role() {
        member_response::Role::Primary => Role::Primary,
        member_response::Role::Standby => Role::Standby,
        member_response::Role::Superseded => Role::Superseded,
    };
    let millis = |millis: u32| Duration::from_millis(millis.into());
    let followers = answer.standbys.into_iter().map(|shown| Follower {
        id: MemberId(shown.member),
        follows: shown.follows,
        whole: shown.whole,
        has_shown: shown.has_shown,
        behind: shown.batches_behind,
        silent: millis(shown.silent_millis),
    });
    let mut counted: Vec<MemberId> = answer.counted.into_iter().map(MemberId).collect();
    counted.sort_unstable();
    Said {
        id: MemberId(answer.member),
        role,
        term: Term(answer.term),
        named: Term(answer.named_term),
        incarnation: answer.incarnation,
        in_doubt: answer.in_doubt,
        yielded: answer.yielded,
        counted,
        never_promoted: answer.never_promoted.into_iter().map(MemberId).collect(),
        followers: followers.collect(),
        // Members of earlier versions do not say it.
        bound: lineage.is_empty() || answer.lineage.is_none_or(|kept| kept == lineage),
        whole: answer.whole,
        connected: answer.connected,
        prepared: answer.prepared.then(|| millis(answer.wait_millis)),
        silent: millis(answer.silent_millis),
        follows: answer.primary_url,
        trouble: answer.trouble,
    }
}
