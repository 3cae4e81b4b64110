//! Raw etcd clients over `kindred-proto`, so that tests see exactly the messages on the wire.

use std::{fs, path::Path, time::Duration};

use anyhow::Context;
use kindred_proto::{
    etcdserverpb::{
        cluster_client::ClusterClient, kv_client::KvClient, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient, watch_client::WatchClient,
    },
    shard_v1::{standbys_client::StandbysClient, units_client::UnitsClient},
};
use kindred_wire::protocol::ROUTER;
use tonic::{
    Request, Status,
    metadata::AsciiMetadataValue,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{self, Endpoint},
};

const CONNECT_LIMIT: Duration = Duration::from_secs(30);
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
const STREAM_WINDOW_BYTES: u32 = 8 << 20;

/// A connection, on which a client may show the secret of a cluster as its routers do.
pub type Channel = InterceptedService<transport::Channel, Shows>;

/// Shows a secret with each call, if there is one.
#[derive(Debug, Clone, Default)]
pub struct Shows(Option<AsciiMetadataValue>);

impl Interceptor for Shows {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(secret) = &self.0 {
            request.metadata_mut().insert(ROUTER, secret.clone());
        }
        Ok(request)
    }
}

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

    /// The same to a store of a cluster, as a router that knows the secret in this file.
    ///
    /// # Errors
    /// If no server listens there, or the file has no secret.
    pub async fn as_router(address: &str, secret: &Path) -> anyhow::Result<Self> {
        let channel =
            endpoint(address)?.connect().await.with_context(|| format!("connecting to {address}"))?;
        Self::over_as_router(channel, secret)
    }

    /// The same over an existing channel.
    ///
    /// # Errors
    /// If the file has no secret.
    pub fn over_as_router(channel: transport::Channel, secret: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(secret).with_context(|| secret.display().to_string())?;
        Ok(Self::showing(channel, Shows(Some(text.trim().parse()?))))
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
    pub fn over(channel: transport::Channel) -> Self {
        Self::showing(channel, Shows::default())
    }

    fn showing(channel: transport::Channel, shows: Shows) -> Self {
        let channel = InterceptedService::new(channel, shows);
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
