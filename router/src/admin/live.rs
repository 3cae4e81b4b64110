//! `/api/v1/live`: what the page shows, as server-sent events. One task looks at the cluster, for all viewers together,
//! and only while there are any.
//!
//! A viewer gets the newest look and never a queue: one that is slow misses looks. Viewers are bounded, and a stream ends
//! after a while, so that a token that was withdrawn is noticed when the page asks again.

mod alerts;
mod view;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use kindred_transport::admin::Role;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::status::ApiError;
pub use view::Sources;
use view::View;

/// How often the cluster is looked at.
const EVERY: Duration = Duration::from_secs(2);
/// The most viewers at a time.
const VIEWERS_MAX: usize = 32;
/// How long a stream lasts. A page opens another one then.
const LIFE: Duration = Duration::from_secs(300);

/// The look that all viewers share.
struct Live {
    sources: Arc<Sources>,
    seats: Arc<Semaphore>,
    latest: watch::Sender<Option<Bytes>>,
    /// The task that looks. Viewers come, and the task ends, under this lock.
    looking: Mutex<Option<JoinHandle<()>>>,
    stopping: CancellationToken,
}

pub fn routes(sources: Sources, stopping: CancellationToken) -> Router {
    let live = Arc::new(Live {
        sources: Arc::new(sources),
        seats: Arc::new(Semaphore::new(VIEWERS_MAX)),
        latest: watch::Sender::new(None),
        looking: Mutex::default(),
        stopping,
    });
    Router::new().route(
        "/api/v1/live",
        get(move |role: Option<Extension<Role>>, headers: HeaderMap| {
            // Without a guard nobody is known, and a page shows no buttons.
            let role = role.map_or(Role::View, |Extension(role)| role);
            std::future::ready(if is_foreign(&headers) { refused() } else { live.view(role) })
        }),
    )
}

/// Whether a page of another site sent the request. It could not read the answer, but would take places from those who can.
fn is_foreign(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none")
}

fn refused() -> Response {
    (StatusCode::FORBIDDEN, "a page of another site may not look on here\n").into_response()
}

impl Live {
    fn view(self: &Arc<Self>, role: Role) -> Response {
        let (seat, looks) = match self.join() {
            Ok(joined) => joined,
            Err(error) => return error.into_response(),
        };
        let stream = Stream {
            hello: Some(self.hello(role)),
            looks,
            stopping: self.stopping.clone(),
            until: Instant::now() + LIFE,
            _seat: seat,
        };
        let events = futures_util::stream::unfold(stream, |mut stream| async move {
            let event = stream.next().await?;
            Some((Ok::<_, Infallible>(event), stream))
        });
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream"),
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        (headers, Body::from_stream(events)).into_response()
    }

    /// What a viewer is told first.
    fn hello(&self, role: Role) -> Bytes {
        let role = if role == Role::Admin { "admin" } else { "view" };
        let router = &self.sources.mover.identity.name;
        let hello = json!({ "role": role, "router": router, "everySeconds": EVERY.as_secs(), "lifeSeconds": LIFE.as_secs() });
        Bytes::from(format!("event: hello\ndata: {hello}\n\n"))
    }

    fn join(self: &Arc<Self>) -> Result<(OwnedSemaphorePermit, watch::Receiver<Option<Bytes>>), ApiError> {
        let seat = self.seats.clone().try_acquire_owned().map_err(|_| {
            ApiError::Unavailable(format!(
                "{VIEWERS_MAX} pages show this router already: close one, or ask another router"
            ))
        })?;
        let mut looking = self.looking.lock();
        let mut looks = self.latest.subscribe();
        looks.mark_changed();
        if looking.as_ref().is_none_or(JoinHandle::is_finished) {
            *looking = Some(tokio::spawn(self.clone().look()));
        }
        Ok((seat, looks))
    }

    /// Looks until nobody does.
    async fn look(self: Arc<Self>) {
        let mut view = View::new(self.sources.clone());
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            {
                let mut looking = self.looking.lock();
                if self.latest.receiver_count() == 0 {
                    // The next viewer is not to begin with an old look.
                    self.latest.send_replace(None);
                    *looking = None;
                    return;
                }
            }
            let seen = view.look().await;
            self.latest.send_replace(Some(Bytes::from(format!("data: {seen}\n\n"))));
        }
    }
}

/// What one viewer is sent.
struct Stream {
    hello: Option<Bytes>,
    looks: watch::Receiver<Option<Bytes>>,
    stopping: CancellationToken,
    until: Instant,
    /// Its place among the viewers.
    _seat: OwnedSemaphorePermit,
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(hello) = self.hello.take() {
            return Some(hello);
        }
        loop {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return None,
                () = tokio::time::sleep_until(self.until) => return None,
                changed = self.looks.changed() => changed.ok()?,
            }
            if let Some(look) = self.looks.borrow_and_update().clone() {
                return Some(look);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(latest: &watch::Sender<Option<Bytes>>, stopping: &CancellationToken) -> Stream {
        let seats = Arc::new(Semaphore::new(1));
        Stream {
            hello: Some(Bytes::from_static(b"hello")),
            looks: latest.subscribe(),
            stopping: stopping.clone(),
            until: Instant::now() + LIFE,
            _seat: seats.try_acquire_owned().unwrap(),
        }
    }

    #[test]
    fn a_page_of_another_site_takes_no_place() {
        let from = |site: Option<&str>| {
            let named =
                site.map(|site| (header::HeaderName::from_static("sec-fetch-site"), site.parse().unwrap()));
            is_foreign(&named.into_iter().collect())
        };
        assert_eq!([None, Some("same-origin"), Some("none")].map(from), [false; 3]);
        assert_eq!([Some("cross-site"), Some("same-site"), Some("")].map(from), [true; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_viewer_misses_looks_and_a_stream_ends() {
        let (latest, stopping) = (watch::Sender::new(None), CancellationToken::new());
        let mut viewer = stream(&latest, &stopping);
        assert_eq!(viewer.next().await.unwrap(), "hello");
        for look in ["1", "2", "3"] {
            latest.send_replace(Some(Bytes::from(look)));
        }
        assert_eq!(viewer.next().await.unwrap(), "3");
        let began = Instant::now();
        assert_eq!(viewer.next().await, None);
        assert!(began.elapsed() >= LIFE - Duration::from_secs(1));
        let mut other = stream(&latest, &stopping);
        other.next().await;
        stopping.cancel();
        latest.send_replace(Some(Bytes::from("4")));
        assert_eq!(other.next().await, None, "a router that stops says nothing more");
    }
}
