//! `/api/v1/trace`: the calls of clients as lines of JSON, as long as the connection is open.
//!
//! Whoever may read may trace with `GET`, which shows keys and sizes. The requests themselves have values, such as
//! secrets, so they are shown for `POST` alone, which the role admin may use.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use kindred_transport::Drain;

use super::status::ApiError;
use crate::traffic::Traffic;
use crate::traffic::trace::Filter;

type Asked = Result<Query<Filter>, QueryRejection>;

pub fn routes(traffic: &Arc<Traffic>, drain: &Drain) -> Router {
    let (reading, whole) = ((traffic.clone(), drain.clone()), (traffic.clone(), drain.clone()));
    let shown = get(move |filter: Asked| std::future::ready(trace(&reading, filter, false)))
        .post(move |filter: Asked| std::future::ready(trace(&whole, filter, true)));
    Router::new().route("/api/v1/trace", shown)
}

fn trace((traffic, drain): &(Arc<Traffic>, Drain), filter: Asked, whole: bool) -> Response {
    let filter = match filter {
        Ok(Query(filter)) => filter,
        Err(rejected) => return ApiError::from(rejected).into_response(),
    };
    if let Err(wrong) = filter.check() {
        return ApiError::BadRequest(wrong).into_response();
    }
    let seconds = filter.seconds;
    let lines = match traffic.tracers.begin(filter, whole) {
        Ok(lines) => lines,
        Err(why) => return ApiError::Unavailable(why).into_response(),
    };
    let stopping = drain.stopping();
    let end = async move {
        match seconds {
            0 => stopping.cancelled().await,
            seconds => {
                let _ = tokio::time::timeout(Duration::from_secs(seconds), stopping.cancelled()).await;
            }
        }
    };
    let lines = futures_util::stream::unfold((lines, Box::pin(end)), |(mut lines, mut end)| async move {
        let line = tokio::select! {
            () = end.as_mut() => None,
            line = lines.recv() => line,
        };
        line.map(|line: Bytes| (Ok::<_, Infallible>(line), (lines, end)))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}
