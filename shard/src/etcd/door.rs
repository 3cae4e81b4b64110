//! Decides which calls a shard accepts from which callers.
//!
//! A shard alone is an etcd: any client that reaches its port may do everything. A shard in a cluster, or one that can
//! recognize its routers, serves these only (R27, `kindred_transport::who`).

use std::sync::Arc;

use http::HeaderMap;
use kindred_transport::{listener::ConnectionInfo, who::Routers};
use tonic::Status;

/// The call by which a standby copies its primary.
const FOLLOW: &str = "/kindred.shard.v1.Standbys/Follow";

/// Admits or refuses callers.
#[derive(Debug, Clone)]
pub struct Door {
    routers: Routers,
    /// Names of certificates of the store's members, which may follow it.
    members: Arc<[String]>,
    guarded: bool,
}

impl Door {
    /// The door of a shard that recognizes its routers by `routers`.
    #[must_use]
    pub fn new(routers: Routers, in_cluster: bool) -> Self {
        let guarded = in_cluster || routers.are_known();
        Self { routers, members: Arc::default(), guarded }
    }

    /// Admits standbys with a certificate of one of these names, which need no router's then.
    #[must_use]
    pub fn with_members(self, names: Vec<String>) -> Self {
        Self { members: names.into(), ..self }
    }

    /// Whether callers are distinguished at all.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.guarded
    }

    /// Refuses a call at `path` of anybody who is neither a router nor a member of the store that follows it.
    ///
    /// # Errors
    /// PermissionDenied, with what to do.
    pub fn admits_at(
        &self,
        path: &str,
        from: Option<&ConnectionInfo>,
        headers: &HeaderMap,
    ) -> Result<(), Status> {
        let follows = path == FOLLOW
            && from.and_then(|from| from.client.as_ref()).is_some_and(|client| client.has_any(&self.members))
            && self.routers.secret_is_in(headers);
        if follows { Ok(()) } else { self.admits(from, headers) }
    }

    /// Refuses a call of anybody who is no router.
    ///
    /// # Errors
    /// PermissionDenied, with what to do.
    pub fn admits(&self, from: Option<&ConnectionInfo>, headers: &HeaderMap) -> Result<(), Status> {
        if !self.guarded || from.is_some_and(|from| self.routers.include(from, headers)) {
            return Ok(());
        }
        if let Some(from) = from {
            tracing::debug!(peer = %from.peer, "a call was refused");
        }
        Err(Status::permission_denied(
            "kindred: this shard is part of a cluster and serves its routers only: ask a router, or give the router the \
             shard's --cluster-secret-file or a certificate of its --router-names",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever reached a shard of a cluster could read: any certificate of its CA, as Prometheus', and any process of
    /// the machine. A shard has Secrets, and the meta store the key by which tokens are signed.
    #[test]
    fn f80_strangers_read_nothing_at_a_shard_of_a_cluster() {
        let here = ConnectionInfo {
            peer: kindred_transport::listener::Peer::Tcp(([127, 0, 0, 1], 1).into()),
            tls: false,
            client: None,
        };
        let stranger = HeaderMap::new();
        let refused = Door::new(Routers::default(), true).admits(Some(&here), &stranger).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        Door::new(Routers::default(), false).admits(Some(&here), &stranger).unwrap();
    }
}
