//! The services of the router, behind the gate: methods for some callers alone are refused to others before anything of
//! the call is read. Methods whose requests decide check these themselves.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use http::{Request, Response};
use kindred_router_core::auth::methods::who;
use kindred_transport::server::Services;
use tonic::body::Body;
use tower::{Service, ServiceExt as _};

use super::credentials::Credentials;
use super::gate::Gate;

/// Services behind the gate.
#[derive(Debug, Clone)]
pub struct Guarded<S> {
    services: S,
    gate: Arc<Gate>,
}

impl<S: Services> Guarded<S> {
    #[must_use]
    pub fn new(services: S, gate: Arc<Gate>) -> Self {
        Self { services, gate }
    }
}

type Answer = Result<Response<Body>, Infallible>;

impl<S: Services> Service<Request<Body>> for Guarded<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Pin<Box<dyn Future<Output = Answer> + Send>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.services.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if self.gate.is_off() {
            return Either::Left(self.services.call(request));
        }
        // The ready one goes along, as a clone need not be ready.
        let clone = self.services.clone();
        let (services, gate) = (std::mem::replace(&mut self.services, clone), self.gate.clone());
        let credentials = Credentials::in_parts(request.headers(), request.extensions());
        let who = who(request.uri().path());
        Either::Right(Box::pin(async move {
            match gate.may_call(who, || credentials).await {
                Ok(()) => services.oneshot(request).await,
                Err(status) => Ok(status.into_http()),
            }
        }))
    }
}
