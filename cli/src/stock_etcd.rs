//! A look at a stock etcd before it is adopted, or before a cluster leaves for it. [`judge`] decides what is found.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindScheme;
use kindred_proto::etcdserverpb::{
    self as pb, kv_client::KvClient, lease_client::LeaseClient, maintenance_client::MaintenanceClient,
};
use kindred_transport::tls::EtcdTlsArgs;
use kindred_transport::{Connector, Endpoint, grpc};
use kindred_wire::error::EtcdError;
use kindred_wire::fence::FENCE_KEY;
use tonic::{Request, Status, transport::Channel};

pub mod judge;

/// The number of keys that are named.
const NAMED: usize = 5;
/// The time limit of each request.
const LIMIT: Duration = Duration::from_secs(10);

/// A stock etcd.
#[derive(Debug)]
pub struct StockEtcd {
    members: Vec<(String, Channel)>,
    any: Channel,
}

/// What an etcd says.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// The status of each given member, or why there is none.
    pub members: Vec<(String, Result<pb::StatusResponse, String>)>,
    pub auth: bool,
    /// The names of raised alarms.
    pub alarms: Vec<String>,
    pub revision: i64,
    /// The keys of each Kind, in the order of keys.
    pub kinds: Vec<(String, u64)>,
    /// The keys that belong to no Kind.
    pub others: u64,
    /// Its first keys, at most [`NAMED`].
    pub first: Vec<Bytes>,
    pub leases: u64,
    /// The value of the key in which kindred keeps what it has moved.
    pub fence: Option<Bytes>,
}

impl Look {
    /// The number of keys.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.others + self.kinds.iter().map(|(_, keys)| keys).sum::<u64>()
    }

    /// The largest database of its members, in bytes: its file and what of it is used.
    #[must_use]
    pub fn size(&self) -> (u64, u64) {
        let sizes = self.members.iter().filter_map(|(_, status)| status.as_ref().ok());
        let sizes = sizes.map(|status| (status.db_size, status.db_size_in_use));
        let (file, used) = sizes.max().unwrap_or_default();
        (u64::try_from(file).unwrap_or_default(), u64::try_from(used).unwrap_or_default())
    }
}

impl StockEtcd {
    /// An etcd with these client URLs, which `flag` gave.
    ///
    /// # Errors
    /// When a URL is invalid, or a TLS file is unusable.
    pub fn new(flag: &str, urls: &[String], tls: &EtcdTlsArgs) -> anyhow::Result<Self> {
        let connector = Connector::with_tls(tls.load()?);
        let endpoints: Result<Vec<_>, _> =
            urls.iter().map(|url| Endpoint::parse_field(flag, url.trim())).collect();
        let endpoints = endpoints?;
        let member = |endpoint: &Endpoint| Ok((endpoint.to_string(), connector.channel(endpoint)?));
        let members: Result<Vec<_>, kindred_transport::connect::ConnectError> =
            endpoints.iter().map(member).collect();
        Ok(Self { members: members?, any: connector.channel_any(&endpoints)? })
    }

    /// Asks everything.
    ///
    /// # Errors
    /// The first request that fails. A member that does not answer is in the result.
    pub async fn look(&self, etcd_prefix: &str) -> Result<Look, Status> {
        let mut look = Look::default();
        for (name, channel) in &self.members {
            let status = MaintenanceClient::new(channel.clone()).status(timed(pb::StatusRequest {})).await;
            let status = status.map(tonic::Response::into_inner);
            look.auth |= status.as_ref().is_err_and(asks_for_a_user);
            let status = status.map_err(|status| said(&status));
            look.members.push((name.clone(), status));
        }
        if look.members.iter().all(|(_, status)| status.is_err()) {
            return Ok(look);
        }
        let fence = pb::RangeRequest { key: Bytes::from_static(FENCE_KEY), ..Default::default() };
        let fence = match self.range(fence).await {
            Err(status) if asks_for_a_user(&status) => {
                look.auth = true;
                return Ok(look);
            }
            answer => answer?,
        };
        let alarms =
            pb::AlarmRequest { action: pb::alarm_request::AlarmAction::Get.into(), ..Default::default() };
        let alarms = MaintenanceClient::new(self.any.clone()).alarm(timed(alarms)).await?.into_inner().alarms;
        look.alarms = alarms.iter().map(|alarm| alarm.alarm().as_str_name().to_owned()).collect();
        look.revision = fence.header.map_or(0, |header| header.revision);
        look.fence = fence.kvs.into_iter().next().map(|kv| kv.value);
        self.count_kinds(&KindScheme::new(etcd_prefix), &mut look).await?;
        look.first = self.first().await?;
        let leases = LeaseClient::new(self.any.clone()).max_decoding_message_size(usize::MAX);
        let leases = leases.clone().lease_leases(timed(pb::LeaseLeasesRequest {})).await?;
        look.leases = leases.into_inner().leases.len() as u64;
        Ok(look)
    }

    /// Counts the keys of each Kind; reads one key of each.
    async fn count_kinds(&self, scheme: &KindScheme, look: &mut Look) -> Result<(), Status> {
        let all = self.count(&KeyRange::everything()).await?;
        let mut from = scheme.root().to_vec();
        let end = after(scheme.root());
        loop {
            let first = pb::RangeRequest {
                key: from.clone().into(),
                range_end: end.clone().into(),
                limit: 1,
                keys_only: true,
                ..Default::default()
            };
            let Some(kv) = self.range(first).await?.kvs.into_iter().next() else { break };
            match scheme.kind_of(&kv.key) {
                Some(kind) if kv.key.starts_with(kind.as_key().as_ref()) => {
                    let name = String::from_utf8_lossy(kind.as_key().as_ref()).into_owned();
                    look.kinds.push((name, self.count(&kind.range()).await?));
                    from = kind.end().as_ref().to_vec();
                }
                _ => from = [&kv.key[..], &[0]].concat(),
            }
        }
        let fences = u64::from(look.fence.is_some());
        let of_kinds = look.kinds.iter().map(|(_, keys)| keys).sum::<u64>();
        look.others = all.saturating_sub(of_kinds + fences);
        Ok(())
    }

    async fn first(&self) -> Result<Vec<Bytes>, Status> {
        let (key, range_end) = KeyRange::everything().to_wire();
        let limit = NAMED as i64 + 1;
        let first = pb::RangeRequest { key, range_end, limit, keys_only: true, ..Default::default() };
        let keys = self.range(first).await?.kvs.into_iter().map(|kv| kv.key);
        Ok(keys.filter(|key| key != FENCE_KEY).take(NAMED).collect())
    }

    async fn count(&self, range: &KeyRange) -> Result<u64, Status> {
        let (key, range_end) = range.to_wire();
        let answer =
            self.range(pb::RangeRequest { key, range_end, count_only: true, ..Default::default() }).await?;
        Ok(u64::try_from(answer.count).unwrap_or_default())
    }

    async fn range(&self, request: pb::RangeRequest) -> Result<pb::RangeResponse, Status> {
        Ok(KvClient::new(self.any.clone()).range(timed(request)).await?.into_inner())
    }
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(LIMIT);
    request
}

/// Whether authentication is enabled, so that it tells nothing to a client without a user.
fn asks_for_a_user(status: &Status) -> bool {
    grpc::etcd_error(status) == Some(EtcdError::UserEmpty)
}

/// The words of a status.
#[must_use]
pub fn said(status: &Status) -> String {
    if status.message().is_empty() { format!("{:?}", status.code()) } else { status.message().to_owned() }
}

/// The end of all keys with a prefix that ends with a slash.
fn after(root: &[u8]) -> Vec<u8> {
    let mut end = root.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// The flags of a router for its stock etcds, by their names without dashes, as `up.router` of a configuration has them.
#[must_use]
pub fn router_flags(tls: &EtcdTlsArgs) -> Vec<(&'static str, PathBuf)> {
    let files = [
        ("etcd-trusted-ca-file", &tls.etcd_trusted_ca_file),
        ("etcd-cert-file", &tls.etcd_cert_file),
        ("etcd-key-file", &tls.etcd_key_file),
    ];
    files.into_iter().filter_map(|(flag, file)| Some((flag, file.clone()?))).collect()
}
