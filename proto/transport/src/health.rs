//! `grpc.health.v1.Health`, as etcd serves it (`server/etcdserver/api/v3rpc/health.go`): of the process as a whole, which
//! has the empty name. Kubernetes' gRPC probes and clients' health checks ask for it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use tokio::time::{Interval, interval};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
pub use tonic_health::pb::health_server::HealthServer;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// A stream of a watch looks at the process this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tells whether the process serves.
#[derive(Clone)]
pub struct OfProcess {
    serves: Arc<dyn Fn() -> bool + Send + Sync>,
    stopping: CancellationToken,
}

impl OfProcess {
    /// The service of a process that serves while this says so. Streams end when it stops.
    #[must_use]
    pub fn service(
        serves: impl Fn() -> bool + Send + Sync + 'static,
        stopping: CancellationToken,
    ) -> HealthServer<Self> {
        HealthServer::new(Self { serves: Arc::new(serves), stopping })
    }

    /// The status of the process under its empty name; any other name is unknown.
    fn status(&self, service: &str) -> ServingStatus {
        match service {
            "" if (self.serves)() => ServingStatus::Serving,
            "" => ServingStatus::NotServing,
            _ => ServingStatus::ServiceUnknown,
        }
    }

    /// The next status that differs from the last.
    async fn change(
        &self,
        service: &str,
        last: Option<ServingStatus>,
        ticks: &mut Interval,
    ) -> ServingStatus {
        loop {
            ticks.tick().await;
            let status = self.status(service);
            if last != Some(status) {
                return status;
            }
        }
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for OfProcess {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match self.status(&request.get_ref().service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found("unknown service")),
            status => Ok(Response::new(answer(status))),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// The stream of an unknown service says so and goes on, as in grpc-go.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (of, service) = (self.clone(), request.into_inner().service);
        let changes = stream::unfold((of, service, None, interval(LOOK_EVERY)), |state| async move {
            let (of, service, last, mut ticks) = state;
            let status = of.change(&service, last, &mut ticks).await;
            Some((Ok(answer(status)), (of, service, Some(status), ticks)))
        });
        let stopped = stream::once(async { Err(Status::unavailable("the server is stopping")) });
        let changes = changes.take_until(self.stopping.clone().cancelled_owned()).chain(stopped);
        Ok(Response::new(Box::pin(changes)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn of(service: &str) -> Request<HealthCheckRequest> {
        Request::new(HealthCheckRequest { service: service.to_owned() })
    }

    /// A router did not know the service, and a shard said of any name that it serves.
    #[tokio::test(start_paused = true)]
    async fn f60_the_process_has_the_empty_name_and_no_other() {
        let (serves, stopping) = (Arc::new(AtomicBool::new(true)), CancellationToken::new());
        let asked = serves.clone();
        let process =
            OfProcess { serves: Arc::new(move || asked.load(Ordering::SeqCst)), stopping: stopping.clone() };
        assert_eq!(process.check(of("")).await.unwrap().into_inner().status(), ServingStatus::Serving);
        assert_eq!(process.check(of("nope")).await.unwrap_err().code(), tonic::Code::NotFound);
        let mut seen = process.watch(of("")).await.unwrap().into_inner();
        let mut unknown = process.watch(of("nope")).await.unwrap().into_inner();
        assert_eq!(seen.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
        assert_eq!(unknown.next().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
        serves.store(false, Ordering::SeqCst);
        assert_eq!(process.check(of("")).await.unwrap().into_inner().status(), ServingStatus::NotServing);
        assert_eq!(seen.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
        stopping.cancel();
        assert_eq!(seen.next().await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
        assert!(seen.next().await.is_none());
    }
}
