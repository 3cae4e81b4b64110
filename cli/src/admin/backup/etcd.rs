//! An ordinary client of the cluster's etcd API.

use bytes::Bytes;
pub use kindred_database::reading::Interval;
use kindred_database::reading::{Reading, TRIES, may_pass, pause, timed};
use kindred_proto::etcdserverpb::{self as pb, kv_client::KvClient, lease_client::LeaseClient};
use kindred_proto::mvccpb::KeyValue;
use kindred_transport::{Connector, Endpoint, grpc, tls::ClientTlsArgs};
use kindred_wire::error::EtcdError;
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Status, transport::Channel};

use crate::admin::failure::Failure;
use crate::admin::login::{Login, Token};

/// Calls with the token of the user.
pub type Calls = InterceptedService<Channel, Token>;

/// A client of the etcd API.
#[derive(Debug, Clone)]
pub struct Etcd {
    kv: KvClient<Calls>,
    lease: LeaseClient<Calls>,
    shown: String,
}

impl Etcd {
    /// A client of these endpoints, as this user. It uses one that answers.
    ///
    /// # Errors
    /// When an address is invalid, a TLS file is unusable, or the user is refused.
    pub async fn connect(urls: &[String], tls: &ClientTlsArgs, login: &Login) -> Result<Self, Failure> {
        let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
        let endpoints: Result<Vec<_>, _> =
            urls.iter().map(|url| Endpoint::parse_field("--endpoints", url.trim())).collect();
        let endpoints = endpoints.map_err(|error| usage(&error))?;
        let connector = Connector::with_tls(tls.load().map_err(|error| usage(&error))?);
        let channel = connector.channel_any(&endpoints).map_err(|error| usage(&error))?;
        let shown = urls.join(",");
        let token = Token::of(login, channel.clone()).await?.map_err(|status| failed(&shown, &status))?;
        let calls = InterceptedService::new(channel, token);
        Ok(Self {
            kv: KvClient::new(calls.clone()).max_decoding_message_size(usize::MAX),
            lease: LeaseClient::new(calls).max_decoding_message_size(usize::MAX),
            shown,
        })
    }

    /// Reads keys in key order, either at a revision or as they are at the time of each read.
    #[must_use]
    pub fn read(&self, interval: Interval, at: Option<i64>) -> Reading<Calls> {
        Reading::new(self.kv.clone(), interval, at)
    }

    /// The first key in an interval, if there is one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn first_key(&self, interval: &Interval) -> Result<Option<Bytes>, Failure> {
        let (key, range_end) = interval.on_wire();
        let request = pb::RangeRequest { key, range_end, limit: 1, keys_only: true, ..Default::default() };
        let answer = self.again(|| async { self.kv.clone().range(timed(request.clone())).await }).await;
        Ok(answer.map_err(|status| self.failed(&status))?.kvs.into_iter().next().map(|kv| kv.key))
    }

    /// Reads a key at its latest revision.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn get(&self, key: &Bytes) -> Result<Option<KeyValue>, Failure> {
        let request = pb::RangeRequest { key: key.clone(), ..Default::default() };
        let answer = self.again(|| async { self.kv.clone().range(timed(request.clone())).await }).await;
        Ok(answer.map_err(|status| self.failed(&status))?.kvs.into_iter().next())
    }

    /// Runs a transaction that can safely be resent, because its compares fail once it was executed. Returns
    /// whether they succeeded.
    ///
    /// # Errors
    /// The store's status.
    pub async fn txn(&self, txn: &pb::TxnRequest) -> Result<bool, Status> {
        Ok(self.again(|| async { self.kv.clone().txn(timed(txn.clone())).await }).await?.succeeded)
    }

    /// The ids of all leases.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn leases(&self) -> Result<Vec<i64>, Failure> {
        let listed = self
            .again(|| async { self.lease.clone().lease_leases(timed(pb::LeaseLeasesRequest {})).await })
            .await;
        Ok(listed.map_err(|status| self.failed(&status))?.leases.into_iter().map(|lease| lease.id).collect())
    }

    /// A lease's granted TTL and its remaining time; `None` if there is no such lease.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn lease(&self, id: i64) -> Result<Option<(i64, i64)>, Failure> {
        let request = pb::LeaseTimeToLiveRequest { id, keys: false };
        let told = self.again(|| async { self.lease.clone().lease_time_to_live(timed(request)).await }).await;
        let told = told.map_err(|status| self.failed(&status))?;
        Ok((told.ttl >= 0 && told.granted_ttl > 0).then_some((told.granted_ttl, told.ttl)))
    }

    /// Tells whether a lease has keys.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn lease_has_keys(&self, id: i64) -> Result<bool, Failure> {
        let request = pb::LeaseTimeToLiveRequest { id, keys: true };
        let told = self.again(|| async { self.lease.clone().lease_time_to_live(timed(request)).await }).await;
        Ok(!told.map_err(|status| self.failed(&status))?.keys.is_empty())
    }

    /// Ends a lease, unless it has ended.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn revoke(&self, id: i64) -> Result<(), Failure> {
        let request = pb::LeaseRevokeRequest { id };
        match self.again(|| async { self.lease.clone().lease_revoke(timed(request)).await }).await {
            Err(status) if status.code() != Code::NotFound => Err(self.failed(&status)),
            _ => Ok(()),
        }
    }

    /// Grants a lease with this id; false if the id is taken.
    ///
    /// # Errors
    /// When the grant is refused.
    pub async fn grant(&self, id: i64, ttl: i64) -> Result<bool, Failure> {
        let request = pb::LeaseGrantRequest { id, ttl };
        match self.again(|| async { self.lease.clone().lease_grant(timed(request)).await }).await {
            Ok(_) => Ok(true),
            Err(status) if grpc::etcd_error(&status) == Some(EtcdError::LeaseExists) => Ok(false),
            Err(status) => Err(self.failed(&status)),
        }
    }

    /// Translates the status of a failed call for the user.
    #[must_use]
    pub fn failed(&self, status: &Status) -> Failure {
        failed(&self.shown, status)
    }

    async fn again<T, F, Fut>(&self, call: F) -> Result<T, Status>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mut tries = 0;
        loop {
            match call().await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if may_pass(&status) && tries < TRIES => {
                    tries += 1;
                    pause(tries).await;
                }
                Err(status) => return Err(status),
            }
        }
    }
}

fn failed(urls: &str, status: &Status) -> Failure {
    let hint = match grpc::etcd_error(status) {
        Some(EtcdError::UserEmpty) => "; users and roles are in force: give --user",
        _ => "",
    };
    let text = format!("{urls}: {}{hint}", status.message());
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
            Failure::Unreachable(text)
        }
        _ => Failure::Refused(text),
    }
}
