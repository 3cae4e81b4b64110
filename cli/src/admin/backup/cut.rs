//! One cut of everything: a revision that the router keeps readable at every shard while it is renewed, whatever clients
//! compact meanwhile.

use std::time::Duration;

use http::Method;
use kindred_partition_config::key::Key;
use kindred_proto::mvccpb::KeyValue;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use serde::Deserialize;
use serde_json::{Value, json};

use super::etcd::{Etcd, Interval};
use super::rate::Rate;
use crate::admin::Failure;
use crate::admin::client::Client;

/// Renewals in the time for which a cut is kept: several may fail.
const RENEWALS: u32 = 6;

/// What a router answers to a new cut.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cut {
    name: String,
    /// Of what shards serve.
    pub revision: String,
    ttl_seconds: u64,
    /// Whose it is.
    pub cluster_id: String,
    /// Where Kinds begin.
    pub etcd_prefix: String,
    /// Where the etcd API is.
    pub client_urls: Vec<String>,
    /// The key space, as one read can go across it.
    pub ranges: Vec<CutRange>,
    /// The stores, as the router shows them.
    pub stores: Value,
    /// The cluster's state.
    pub state: Value,
}

/// A part of the key space that one read can go across.
#[derive(Debug, Deserialize)]
pub struct CutRange {
    start: String,
    end: Option<String>,
    /// Where to read.
    pub revision: String,
    /// The stock etcd that serves it.
    pub etcd: Option<String>,
}

/// The key whose bytes these hexadecimal digits are.
pub(super) fn unhex(text: &str) -> Option<Key> {
    let byte = |at: usize| text.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
    bytes.map(|bytes| Key(bytes.into()))
}

impl CutRange {
    fn interval(&self) -> Option<Interval> {
        let end = match &self.end {
            Some(end) => Some(unhex(end)?),
            None => None,
        };
        Some(Interval { start: unhex(&self.start)?, end })
    }

    fn lost(&self, etcd: &Etcd, status: &tonic::Status) -> Failure {
        if grpc::etcd_error(status) != Some(EtcdError::Compacted) {
            return etcd.failed(status);
        }
        Failure::Refused(match &self.etcd {
            Some(store) => format!(
                "store {store} is a stock etcd, and has compacted its revision {} while it was read; the cut is lost: raise --rate, \
                 or have that etcd keep a longer history, and run it again",
                self.revision
            ),
            None => format!(
                "revision {} is not readable any more: a shard was restarted, a Kind moved, or this command could reach no \
                 router for a while; the cut is lost: run it again",
                self.revision
            ),
        })
    }
}

impl Cut {
    /// Has a router begin one.
    ///
    /// # Errors
    /// When it cannot be reached, or cannot have all shards keep a revision.
    pub async fn take(client: &Client) -> Result<Self, Failure> {
        let cut = client.change(Method::POST, "/api/v1/cuts", None).await?;
        serde_json::from_value(cut).map_err(|error| {
            Failure::Refused(format!("the router's answer is no cut: {error}; is it of this version?"))
        })
    }

    /// Renews the cut as long as this work takes, and ends it then.
    ///
    /// # Errors
    /// Those of the work.
    pub async fn keep<T>(
        &self,
        client: &Client,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let done = tokio::select! {
            done = work => done,
            never = self.renewed(client) => never,
        };
        // Lost, it ends by itself.
        let _ = client.change(Method::DELETE, &format!("/api/v1/cuts/{}", self.name), None).await;
        done
    }

    /// Renews the cut for ever. That it cannot be renewed is told by what is read: another router may renew it next time.
    async fn renewed<T>(&self, client: &Client) -> T {
        let pause = Duration::from_secs(self.ttl_seconds) / RENEWALS;
        loop {
            tokio::time::sleep(pause).await;
            let body = json!({ "revision": self.revision });
            let path = format!("/api/v1/cuts/{}", self.name);
            // Several may fail before it is lost, and then the next read says so.
            let _ = client.change(Method::POST, &path, Some(&body)).await;
        }
    }

    /// Every key as it was, in key order.
    ///
    /// # Errors
    /// When it cannot be read to its end, and those of `each`.
    pub async fn read(
        &self,
        etcd: &Etcd,
        rate: &mut Rate,
        mut each: impl FnMut(&KeyValue) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for range in &self.ranges {
            let wrong = || Failure::Refused(format!("the router's answer is no cut: {range:?}"));
            let interval = range.interval().ok_or_else(wrong)?;
            let at: i64 = range.revision.parse().map_err(|_| wrong())?;
            let mut reading = etcd.read(interval, Some(at));
            loop {
                let kvs = reading.next().await.map_err(|status| range.lost(etcd, &status))?;
                if kvs.is_empty() {
                    break;
                }
                let mut size = 0;
                for kv in &kvs {
                    size += (kv.key.len() + kv.value.len()) as u64;
                    each(kv)?;
                }
                rate.spend(size).await;
            }
        }
        Ok(())
    }
}
