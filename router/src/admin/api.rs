//! `/api/v1/datapartitionconfigs` and `/api/v1/servicegroups`: list, get, create, update, delete, watch; JSON or YAML.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kindred_partition_config::parse;
use serde::Deserialize;
use serde_json::Value;

use super::changes::{Edit, Moves};
use super::objects::{Object, Resource, ServiceGroup};
use super::status::ApiError;
use super::{schema, watch};
use crate::app::App;
use crate::moves::records;

/// What a query may ask.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Options {
    /// A watch in place of a list.
    #[serde(default)]
    pub watch: Option<String>,
    /// Where a watch begins, or what a delete is for.
    #[serde(default)]
    pub resource_version: Option<String>,
}

/// The routes.
pub fn routes(app: &Arc<App>) -> Router {
    let of = |resource: Resource| {
        let (list_app, get_app) = (app.clone(), app.clone());
        let (create_app, update_app, delete_app) = (app.clone(), app.clone(), app.clone());
        let plural = resource.plural();
        Router::new()
            .route(
                &format!("/api/v1/{plural}"),
                get(move |query: Query<Options>, headers: HeaderMap| async move {
                    list(&list_app, resource, &query, &headers)
                })
                .post(move |headers: HeaderMap, body: Bytes| async move {
                    create(&create_app, resource, &headers, &body).await
                }),
            )
            .route(
                &format!("/api/v1/{plural}/{{name}}"),
                get(move |name: Path<String>, headers: HeaderMap| async move {
                    let state = get_app.cluster.state();
                    match resource.one(&state, &name) {
                        Some(object) => {
                            shown(&headers, StatusCode::OK, &get_value(&headers, resource, &state, object))
                        }
                        None => missing(resource, &name).into_response(),
                    }
                })
                .put(move |name: Path<String>, headers: HeaderMap, body: Bytes| async move {
                    update(&update_app, resource, &name, &headers, &body).await
                })
                .delete(
                    move |name: Path<String>, query: Query<Options>, headers: HeaderMap| async move {
                        delete(&delete_app, resource, &name, query.0, &headers).await
                    },
                ),
            )
    };
    of(Resource::Configs)
        .merge(of(Resource::Groups))
        .route("/api/v1/schema", get(|State(()): State<()>| async { axum::Json(schema::schema()) }))
}

fn missing(resource: Resource, name: &str) -> ApiError {
    ApiError::NotFound(format!("{} {name:?} not found", resource.plural()))
}

fn list(app: &Arc<App>, resource: Resource, query: &Options, headers: &HeaderMap) -> Response {
    let state = app.cluster.state();
    if matches!(query.watch.as_deref(), Some("" | "1" | "true")) {
        return watch::response(app, resource, query.resource_version.as_deref());
    }
    let value = match wants(headers, "as=Table") {
        true => resource.table(&state, &resource.all(&state)),
        false => resource.list(&state),
    };
    shown(headers, StatusCode::OK, &value)
}

fn get_value(
    headers: &HeaderMap,
    resource: Resource,
    state: &kindred_partition_config::state::ClusterState,
    object: Object,
) -> Value {
    if wants(headers, "as=Table") { resource.table(state, &[object]) } else { object.value }
}

async fn create(app: &Arc<App>, resource: Resource, headers: &HeaderMap, body: &[u8]) -> Response {
    let edit = match resource {
        Resource::Configs => {
            text(body).and_then(|text| Ok(Edit::CreateConfig(read(parse::parse_partition(text))?)))
        }
        Resource::Groups => group(body).map(|group| Edit::CreateGroup(Box::new(group))),
    };
    match edit {
        Ok(edit) => edited(app, edit, StatusCode::CREATED, headers).await,
        Err(error) => error.into_response(),
    }
}

async fn update(
    app: &Arc<App>,
    resource: Resource,
    name: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Response {
    let edit = match resource {
        Resource::Configs => {
            text(body).and_then(|text| Ok(Edit::UpdateConfig(read(parse::parse_partition(text))?)))
        }
        Resource::Groups => group(body).map(|group| Edit::UpdateGroup(Box::new(group))),
    };
    match edit {
        Ok(edit) if edit.object().1 != name => ApiError::BadRequest(format!(
            "the object is called {:?}, the path says {name:?}; names never change",
            edit.object().1
        ))
        .into_response(),
        Ok(edit) => edited(app, edit, StatusCode::OK, headers).await,
        Err(error) => error.into_response(),
    }
}

async fn delete(
    app: &Arc<App>,
    resource: Resource,
    name: &str,
    options: Options,
    headers: &HeaderMap,
) -> Response {
    let edit = Edit::Delete(resource, name.to_owned(), options.resource_version);
    let changed = app.change_state(|state| edit.apply(state, &known_moves(app))).await;
    match changed {
        Ok(_) => shown(
            headers,
            StatusCode::OK,
            &serde_json::json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" }),
        ),
        Err(error) => ApiError::from(error).into_response(),
    }
}

async fn edited(app: &Arc<App>, edit: Edit, code: StatusCode, headers: &HeaderMap) -> Response {
    let (resource, name) = edit.object();
    match app.change_state(|state| edit.apply(state, &known_moves(app))).await {
        Ok(state) => match resource.one(&state, &name) {
            Some(object) => shown(headers, code, &object.value),
            None => missing(resource, &name).into_response(),
        },
        Err(error) => ApiError::from(error).into_response(),
    }
}

fn known_moves(app: &App) -> Moves {
    let entries = app.cluster.meta.as_ref().map(|meta| meta.entries().borrow().clone());
    entries.map(|entries| records(&entries)).unwrap_or_default()
}

fn text(body: &[u8]) -> Result<&str, ApiError> {
    std::str::from_utf8(body).map_err(|error| ApiError::BadRequest(format!("the body is not UTF-8: {error}")))
}

fn group(body: &[u8]) -> Result<ServiceGroup, ApiError> {
    read(parse::parse_object(text(body)?))
}

fn read<T>(parsed: Result<T, parse::ParseError>) -> Result<T, ApiError> {
    parsed.map_err(|error| ApiError::BadRequest(format!("the body is not such an object: {error}")))
}

fn wants(headers: &HeaderMap, word: &str) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|accept| accept.contains(word))
}

/// The answer as the client wants it: YAML if it says so, else JSON.
fn shown(headers: &HeaderMap, code: StatusCode, value: &Value) -> Response {
    if wants(headers, "yaml")
        && let Ok(text) = parse::to_yaml(value)
    {
        return (code, [(header::CONTENT_TYPE, "application/yaml")], text).into_response();
    }
    (code, axum::Json(value)).into_response()
}
