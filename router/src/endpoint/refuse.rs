//! Refuses methods that kindred does not serve by their path, with a text that says what to do instead.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use kindred_transport::grpc;
use kindred_wire::refusal::KindredError;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// A method that is not served: its name in the path, its name in errors, and what to do instead.
pub type Refused = (&'static str, &'static str, &'static str);

pub const MAINTENANCE: &[Refused] = &[
    ("MoveLeader", "Maintenance/MoveLeader", "a router has no leader; move Kinds with `kindred move`"),
    ("Downgrade", "Maintenance/Downgrade", "replace the binary; neighbouring minor versions work together"),
];

pub const CLUSTER: &[Refused] = &[
    ("MemberAdd", "Cluster/MemberAdd", "start another router; add stores in the configuration"),
    ("MemberRemove", "Cluster/MemberRemove", "stop the router; remove stores in the configuration"),
    ("MemberUpdate", "Cluster/MemberUpdate", "restart the router with other --advertise-client-urls"),
    ("MemberPromote", "Cluster/MemberPromote", "routers have no learners"),
];

/// Wraps a service and refuses some of its methods.
#[derive(Debug, Clone)]
pub struct Refuse<S> {
    inner: S,
    refused: &'static [Refused],
}

impl<S> Refuse<S> {
    /// Refuses these methods and passes all others on.
    pub fn new(inner: S, refused: &'static [Refused]) -> Self {
        Self { inner, refused }
    }
}

impl<S: NamedService> NamedService for Refuse<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Refuse<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        match self.refused.iter().find(|(name, _, _)| *name == method) {
            Some((_, what, instead)) => {
                let status = grpc::refusal(&KindredError::Unsupported { what, instead });
                Box::pin(std::future::ready(Ok(status.into_http())))
            }
            None => Box::pin(self.inner.call(request)),
        }
    }
}
