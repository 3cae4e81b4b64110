//! A cut of the whole key space: a revision that every shard keeps readable while the cut is renewed, whatever
//! clients compact.

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

/// Renewals during the lifetime of a cut, so that several may fail.
const RENEWALS: u32 = 6;

/// A cut, as the router's answer describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cut {
    name: String,
    /// The revision T of the cut at the shards.
    pub revision: String,
    ttl_seconds: u64,
    pub cluster_id: String,
    /// kube-apiserver's `--etcd-prefix`.
    pub etcd_prefix: String,
    /// The addresses of the etcd API.
    pub client_urls: Vec<String>,
    /// The key space, divided where one read cannot cross.
    pub ranges: Vec<CutRange>,
    /// The stores, as the router reports them.
    pub stores: Value,
    pub state: Value,
}

/// A part of the key space that a single read can cover.
#[derive(Debug, Deserialize)]
pub struct CutRange {
    start: String,
    end: Option<String>,
    /// The revision to read at.
    pub revision: String,
    /// The stock etcd that serves it, if one does.
    pub etcd: Option<String>,
}

/// Decodes a key from hexadecimal digits.
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
    /// Asks a router for a new cut.
    ///
    /// # Errors
    /// When the router cannot be reached, or cannot make all shards keep a revision.
    pub async fn take(client: &Client) -> Result<Self, Failure> {
        let cut = client.change(Method::POST, "/api/v1/cuts", None).await?;
        serde_json::from_value(cut).map_err(|error| {
            Failure::Refused(format!("the router's answer is no cut: {error}; is it of this version?"))
        })
    }

    /// Renews the cut until `work` is done, then releases it.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn keep<T>(
        &self,
        client: &Client,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let done = tokio::select! {
            done = work => done,
            never = self.renewed(client) => never,
        };
        // If this request is lost, the cut expires by itself.
        let _ = client.change(Method::DELETE, &format!("/api/v1/cuts/{}", self.name), None).await;
        done
    }

    /// Renews the cut for ever. A failed renewal is not reported here, because another router may renew it next
    /// time, and reads fail if the cut is lost.
    async fn renewed<T>(&self, client: &Client) -> T {
        let pause = Duration::from_secs(self.ttl_seconds) / RENEWALS;
        loop {
            tokio::time::sleep(pause).await;
            let body = json!({ "revision": self.revision });
            let path = format!("/api/v1/cuts/{}", self.name);
            // The cut survives some failed renewals. If it is lost, the next read fails.
            let _ = client.change(Method::POST, &path, Some(&body)).await;
        }
    }

    /// Passes every key at the cut to `each`, in key order.
    ///
    /// # Errors
    /// When reading fails, and those of `each`.
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
