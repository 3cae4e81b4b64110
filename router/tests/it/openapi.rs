//! `/openapi/v3` has the routes of the admin port, all of them and no other.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::fake::Fake;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use kindred_router::admin::{self, openapi, page};
use kindred_transport::admin::Admin;
use tower::ServiceExt as _;

const METHODS: [&str; 5] = ["get", "post", "put", "delete", "patch"];

/// The paths of a router. axum shows them only for debugging.
fn paths(routes: &Router) -> BTreeSet<String> {
    let shown = format!("{routes:?}");
    let own = shown.split("fallback_router").next().unwrap_or_default();
    let quoted = own.split('"').skip(1).step_by(2);
    // The page for people is no part of the API.
    quoted.filter(|text| text.starts_with('/') && !page::is_shell(text)).map(str::to_owned).collect()
}

/// What a path with parameters may be in a request.
fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "{id}" => "7",
        "{verb}" => "abort",
        part if part.starts_with('{') => "none",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

async fn status(routes: &Router, method: &str, path: &str) -> StatusCode {
    let request = Request::builder().method(method.to_uppercase().as_str()).uri(filled(path));
    // No route accepts this body, so nothing is changed.
    let request = request.body(Body::from("[")).unwrap();
    routes.clone().oneshot(request).await.unwrap().status()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_has_every_route_and_no_other() {
    let stores = [Fake::start(1).await, Fake::start(4).await];
    let (bound, _drain, _channel) = crate::support::router(&stores[0].url, &stores[1].url).await;
    let parts = bound.app.admin(bound.app.mover(), &bound.app.kv(1 << 20));
    let routes = admin::routes(parts, Admin::new());
    let documented: BTreeMap<&String, BTreeSet<&str>> = openapi::document()["paths"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(path, operations)| {
            (path, operations.as_object().unwrap().keys().map(String::as_str).collect())
        })
        .collect();
    let there = paths(&routes);
    assert!(there.len() > 25 && there.contains("/readyz"), "axum shows its paths in another way: {there:?}");
    assert_eq!(there, documented.keys().map(|path| (*path).clone()).collect());
    for (path, methods) in documented {
        for method in METHODS {
            let has = status(&routes, method, path).await != StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(has, methods.contains(method), "{method} {path}");
        }
    }
    assert_eq!(status(&routes, "get", "/api/v2").await, StatusCode::NOT_FOUND);
}
