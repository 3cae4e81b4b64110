//! Decides which calls a shard accepts from which callers.
//!
//! A shard alone is an etcd: any client that reaches its port may do everything. A shard in a cluster, or one that can
//! recognize its routers, accepts changes and the calls of `kindred.shard.v1` only from routers. Other callers may read
//! through etcd's API if they are allowed that (`kindred_transport::who`).

use http::HeaderMap;
use kindred_transport::{
    listener::ConnectionInfo,
    who::{Routers, Standing},
};
use tonic::{Request, Status};

/// Admits or refuses callers.
#[derive(Debug, Clone)]
pub struct Door {
    routers: Routers,
    guarded: bool,
}

impl Door {
    /// The door of a shard that recognizes its routers by `routers`.
    #[must_use]
    pub fn new(routers: Routers, in_cluster: bool) -> Self {
        let guarded = in_cluster || routers.are_known();
        Self { routers, guarded }
    }

    /// Whether callers are distinguished at all.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        self.guarded
    }

    /// Refuses a call that its sender may not make.
    ///
    /// # Errors
    /// PermissionDenied, with what to do.
    pub fn admits(
        &self,
        path: &str,
        from: Option<&ConnectionInfo>,
        headers: &HeaderMap,
    ) -> Result<(), Status> {
        self.admits_to(needed(path), from, headers)
    }

    /// Refuses a call, whose message shows that it needs a router, from any other caller.
    ///
    /// # Errors
    /// As [`Door::admits`].
    pub fn admits_router<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let from = ConnectionInfo::of(request.extensions());
        self.admits_to(Standing::Router, from, request.metadata().as_ref())
    }

    /// Refuses a call that needs this standing from a caller with less.
    ///
    /// # Errors
    /// As [`Door::admits`].
    pub fn admits_to(
        &self,
        needed: Standing,
        from: Option<&ConnectionInfo>,
        headers: &HeaderMap,
    ) -> Result<(), Status> {
        if !self.guarded {
            return Ok(());
        }
        let standing = from.map_or(Standing::Stranger, |from| self.routers.standing(from, headers));
        if standing >= needed {
            return Ok(());
        }
        if let Some(from) = from {
            tracing::debug!(peer = %from.peer, ?needed, ?standing, "a call was refused");
        }
        Err(Status::permission_denied(match needed {
            Standing::Router => {
                "kindred: this shard is part of a cluster and takes writes and internal calls from its routers only: ask a \
                 router, or give the router the shard's --cluster-secret-file or a certificate of its --router-names"
            }
            Standing::Reader | Standing::Stranger => {
                "kindred: this shard is part of a cluster and does not know you: ask a router"
            }
        }))
    }
}

/// The standing that a call requires.
#[must_use]
pub fn needed(path: &str) -> Standing {
    // The list of units reveals no data and changes nothing.
    if path == "/kindred.shard.v1.Units/List" {
        return Standing::Reader;
    }
    if path.starts_with("/kindred.") {
        return Standing::Router;
    }
    let Some((service, method)) = path.strip_prefix("/etcdserverpb.").and_then(|rest| rest.split_once('/'))
    else {
        return Standing::Reader;
    };
    let reads = match service {
        "KV" => matches!(method, "Range" | "RangeStream"),
        "Lease" => matches!(method, "LeaseTimeToLive" | "LeaseLeases"),
        // Reading alarms is allowed; the service checks the message for changes.
        "Maintenance" => matches!(method, "Status" | "Hash" | "HashKV" | "Alarm"),
        // Their changes are not served by any shard, and are refused as such.
        "Watch" | "Cluster" | "Auth" => true,
        _ => false,
    };
    if reads { Standing::Reader } else { Standing::Router }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f33_what_changes_anything_needs_a_router() {
        for path in [
            "/kindred.shard.v1.Shard/Hello",
            "/kindred.shard.v1.Units/Drop",
            "/kindred.shard.v2.Anything/New",
            "/etcdserverpb.KV/Put",
            "/etcdserverpb.KV/Txn",
            "/etcdserverpb.KV/DeleteRange",
            "/etcdserverpb.KV/Compact",
            "/etcdserverpb.KV/Later",
            "/etcdserverpb.Lease/LeaseGrant",
            "/etcdserverpb.Lease/LeaseRevoke",
            "/etcdserverpb.Lease/LeaseKeepAlive",
            "/etcdserverpb.Maintenance/Defragment",
            "/etcdserverpb.Later/Thing",
        ] {
            assert_eq!(needed(path), Standing::Router, "{path}");
        }
        for path in
            ["/etcdserverpb.KV/Range", "/etcdserverpb.Watch/Watch", "/grpc.health.v1.Health/Check", "/"]
        {
            assert_eq!(needed(path), Standing::Reader, "{path}");
        }
    }
}
