//! A snapshot of the whole key space: a revision that every shard keeps readable while the snapshot is renewed, whatever
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
use crate::admin::client::Client;
use crate::admin::failure::Failure;

/// Renewals during the lifetime of a snapshot, so that several may fail.
const RENEWALS: u32 = 6;

/// A snapshot, as the router's answer describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    name: String,
    /// The revision T of the snapshot at the shards.
    pub revision: String,
    ttl_seconds: u64,
    pub cluster_id: String,
    /// kube-apiserver's `--etcd-prefix`.
    pub etcd_prefix: String,
    /// The addresses of the etcd API.
    pub client_urls: Vec<String>,
    /// The key space, divided where one read cannot cross.
    pub ranges: Vec<SnapshotRange>,
    /// The stores, as the router reports them.
    pub stores: Value,
    pub state: Value,
}

/// A part of the key space that a single read can cover.
#[derive(Debug, Deserialize)]
pub struct SnapshotRange {
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

impl SnapshotRange {
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
                "store {store} is a stock etcd, and has compacted its revision {} while it was read; the snapshot is lost: raise --rate, \
                 or have that etcd keep a longer history, and run it again",
                self.revision
            ),
            None => format!(
                "revision {} is not readable any more: a shard was restarted, a Kind moved, or this command could reach no \
                 router for a while; the snapshot is lost: run it again",
                self.revision
            ),
        })
    }
}

impl Snapshot {
    /// Asks a router for a new snapshot.
    ///
    /// # Errors
    /// When the router cannot be reached, or cannot make all shards keep a revision.
    pub async fn take(client: &Client) -> Result<Self, Failure> {
        let snapshot = client.change(Method::POST, "/api/v1/snapshots", None).await?;
        serde_json::from_value(snapshot).map_err(|error| {
            Failure::Refused(format!("the router's answer is no snapshot: {error}; is it of this version?"))
        })
    }

    /// Renews the snapshot until `work` is done, then releases it.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn renewed_during<T>(
        &self,
        client: &Client,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let done = tokio::select! {
            done = work => done,
            never = self.renewed(client) => never,
        };
        // If this request is lost, the snapshot expires by itself.
        let _ = client.change(Method::DELETE, &format!("/api/v1/snapshots/{}", self.name), None).await;
        done
    }

    /// Renews the snapshot for ever. A failed renewal is not reported here, because another router may renew it next
    /// time, and reads fail if the snapshot is lost.
    async fn renewed<T>(&self, client: &Client) -> T {
        let pause = Duration::from_secs(self.ttl_seconds) / RENEWALS;
        loop {
            tokio::time::sleep(pause).await;
            let body = json!({ "revision": self.revision });
            let path = format!("/api/v1/snapshots/{}", self.name);
            // The snapshot survives some failed renewals. If it is lost, the next read fails.
            let _ = client.change(Method::POST, &path, Some(&body)).await;
        }
    }

    /// Passes every key at the snapshot to `each`, in key order.
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
            let wrong = || Failure::Refused(format!("the router's answer is no snapshot: {range:?}"));
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
