//! etcd's locks and elections as services (`v3lockpb.Lock`, `v3electionpb.Election`), on top of the KV, Lease and Watch of
//! the process itself. They keep their keys as etcd's do (`client/v3/concurrency`), so clients that use the services and
//! clients that use the library exclude each other, here and after a move from or to an etcd.
//!
//! | module | what |
//! | --- | --- |
//! | [`store`] | the calls that both are made of |
//! | [`lock`] | `v3lockpb.Lock` |
//! | [`election`] | `v3electionpb.Election` |

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use kindred_proto::v3electionpb::election_server::ElectionServer;
use kindred_proto::v3lockpb::lock_server::LockServer;
use kindred_transport::server::Services;
use tonic::body::Body;
use tonic::codec::CompressionEncoding::Gzip;
use tower::{Service, ServiceExt as _};

pub mod election;
pub mod lock;
pub mod store;

use election::Election;
use lock::Lock;
use store::Store;

type Both<S> = (LockServer<Lock<S>>, ElectionServer<Election<S>>);

/// The services of a process with the recipes.
#[derive(Debug, Clone)]
pub struct Recipes<S> {
    services: S,
    recipes: Option<Both<S>>,
}

impl<S: Services> Recipes<S> {
    #[must_use]
    pub fn around(services: S) -> Self {
        let store = Store::new(services.clone());
        let (lock, election) = (Lock::new(store.clone()), Election::new(store));
        let lock = LockServer::new(lock).accept_compressed(Gzip);
        Self { services, recipes: Some((lock, ElectionServer::new(election).accept_compressed(Gzip))) }
    }

    /// The services without the recipes, for a process whose clients are routers.
    #[must_use]
    pub fn without(services: S) -> Self {
        Self { services, recipes: None }
    }
}

impl<S: Services> Service<Request<Body>> for Recipes<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        match &self.recipes {
            Some((lock, _)) if path.starts_with("/v3lockpb.Lock/") => Box::pin(lock.clone().oneshot(request)),
            Some((_, election)) if path.starts_with("/v3electionpb.Election/") => {
                Box::pin(election.clone().oneshot(request))
            }
            _ => Box::pin(self.services.clone().oneshot(request)),
        }
    }
}
