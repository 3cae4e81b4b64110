//! Raw etcd clients over `kindred-proto`, so that tests see exactly the messages on the wire.

use std::time::Duration;

use anyhow::Context;
use kindred_proto::{
    etcdserverpb::{
        cluster_client::ClusterClient, kv_client::KvClient, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient, watch_client::WatchClient,
    },
    shard_v1::{standbys_client::StandbysClient, units_client::UnitsClient},
};
use tonic::transport::{Channel, Endpoint};

const CONNECT_LIMIT: Duration = Duration::from_secs(30);
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
const STREAM_WINDOW_BYTES: u32 = 8 << 20;

/// One connection, and a client of each service on it. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    /// For services that have no client here.
    pub channel: Channel,
    pub kv: KvClient<Channel>,
    pub watch: WatchClient<Channel>,
    pub lease: LeaseClient<Channel>,
    pub cluster: ClusterClient<Channel>,
    pub maintenance: MaintenanceClient<Channel>,
    /// Only shards have this service.
    pub units: UnitsClient<Channel>,
    /// Only shards have this service.
    pub standbys: StandbysClient<Channel>,
}

impl Client {
    /// Connects to `host:port`, without TLS.
    ///
    /// # Errors
    /// If no server listens there.
    pub async fn connect(address: &str) -> anyhow::Result<Self> {
        let channel =
            endpoint(address)?.connect().await.with_context(|| format!("connecting to {address}"))?;
        Ok(Self::over(channel))
    }

    /// A client that connects when it is first used, and again whenever the connection is lost.
    ///
    /// # Errors
    /// If `address` is not `host:port`.
    pub fn lazy(address: &str) -> anyhow::Result<Self> {
        Ok(Self::over(endpoint(address)?.connect_lazy()))
    }

    /// A client over an existing channel.
    #[must_use]
    pub fn over(channel: Channel) -> Self {
        Self {
            channel: channel.clone(),
            kv: KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            watch: WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            lease: LeaseClient::new(channel.clone()),
            cluster: ClusterClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            units: UnitsClient::new(channel.clone()),
            standbys: StandbysClient::new(channel),
        }
    }
}

fn endpoint(address: &str) -> anyhow::Result<Endpoint> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(CONNECT_LIMIT)
        .tcp_nodelay(true)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES))
}
