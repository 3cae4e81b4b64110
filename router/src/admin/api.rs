//! `/api/v1/datapartitionconfigs` and `/api/v1/servicegroups`: list, get, create, update, delete, watch; JSON or YAML.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kindred_partition_config::ids::StoreName;
use kindred_partition_config::model::StoreType;
use kindred_partition_config::state::{ClusterState, StoreState};
use kindred_partition_config::validate::FieldError;
use kindred_partition_config::{parse, shape};
use kindred_router_core::parts::store_ix;
use kindred_transport::Drain;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::changes::Edit;
use super::objects::{Object, Resource};
use super::status::ApiError;
use super::verbs::{self, Verb};
use super::{schema, watch};
use crate::leases::heirs::left_at;
use crate::meta::Cluster;
use crate::moves::mover::Mover;

/// How long the removal of a store waits until its leases have gone to another home.
const LEASES_GO_WITHIN: Duration = Duration::from_secs(5);
/// How often these leases are counted meanwhile.
const LEASES_AGAIN: Duration = Duration::from_millis(100);

/// The query parameters of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Options {
    /// Asks for a watch in place of a list.
    #[serde(default)]
    pub watch: Option<String>,
    /// The version that a watch begins at, or that a deleted object must have.
    #[serde(default)]
    pub resource_version: Option<String>,
    /// `All` asks for the plan of a change, without making it.
    #[serde(default)]
    pub dry_run: Option<String>,
    /// `true` lets moves delete what a stock etcd has in their ranges and kindred has not put there.
    #[serde(default)]
    pub delete_its_keys: Option<String>,
}

impl Options {
    /// Whether moves may delete keys of others.
    ///
    /// # Errors
    /// When the value is unknown.
    pub fn may_delete(&self) -> Result<bool, ApiError> {
        match self.delete_its_keys.as_deref() {
            None | Some("" | "false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(ApiError::BadRequest(format!(
                "deleteItsKeys: {other:?} is not known; write deleteItsKeys=true"
            ))),
        }
    }

    /// Whether the request is a dry run.
    ///
    /// # Errors
    /// When the value is unknown: a change must not be made by mistake.
    pub fn is_dry_run(&self) -> Result<bool, ApiError> {
        match self.dry_run.as_deref() {
            None | Some("") => Ok(false),
            Some("All") => Ok(true),
            Some(other) => {
                Err(ApiError::BadRequest(format!("dryRun: {other:?} is not known; write dryRun=All")))
            }
        }
    }
}

pub fn routes(mover: &Arc<Mover>, drain: &Drain) -> Router {
    let of = |resource: Resource| {
        let (list_of, drain) = (mover.keeper.cluster.clone(), drain.clone());
        let get_of = list_of.clone();
        let (creating, updating, deleting) = (mover.clone(), mover.clone(), mover.clone());
        let plural = resource.plural();
        Router::new()
            .route(
                &format!("/api/v1/{plural}"),
                get(move |query: Query<Options>, headers: HeaderMap| async move {
                    list((&list_of, &drain), resource, &query, &headers)
                })
                .post(move |query: Query<Options>, headers: HeaderMap, body: Bytes| async move {
                    create(&creating, resource, &query, &headers, &body).await
                }),
            )
            .route(
                &format!("/api/v1/{plural}/{{name}}"),
                get(move |name: Path<String>, headers: HeaderMap| async move {
                    let state = get_of.state();
                    match resource.one(&state, &name) {
                        Some(object) => {
                            shown(&headers, StatusCode::OK, &get_value(&headers, resource, &state, object))
                        }
                        None => missing(resource, &name).into_response(),
                    }
                })
                .put(
                    move |name: Path<String>, query: Query<Options>, headers: HeaderMap, body: Bytes| async move {
                        update(&updating, resource, (&name, &query), &headers, &body).await
                    },
                )
                .delete(
                    move |name: Path<String>, query: Query<Options>, headers: HeaderMap| async move {
                        delete(&deleting, resource, &name, query.0, &headers).await
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

fn list(
    (cluster, drain): (&Cluster, &Drain),
    resource: Resource,
    query: &Options,
    headers: &HeaderMap,
) -> Response {
    let state = cluster.state();
    if matches!(query.watch.as_deref(), Some("" | "1" | "true")) {
        return watch::response(cluster, drain, resource, query.resource_version.as_deref());
    }
    let value = match wants(headers, "as=Table") {
        true => resource.table(&state, &resource.all(&state)),
        false => resource.list(&state),
    };
    shown(headers, StatusCode::OK, &value)
}

fn get_value(headers: &HeaderMap, resource: Resource, state: &ClusterState, object: Object) -> Value {
    if wants(headers, "as=Table") { resource.table(state, &[object]) } else { object.value }
}

async fn create(
    mover: &Arc<Mover>,
    resource: Resource,
    options: &Options,
    headers: &HeaderMap,
    body: &[u8],
) -> Response {
    let edit = match resource {
        Resource::Configs => self::body(body).map(Edit::CreateConfig),
        Resource::Groups => self::body(body).map(|group| Edit::CreateGroup(Box::new(group))),
    };
    match edit {
        Ok(edit) => edited(mover, edit, StatusCode::CREATED, options, headers).await,
        Err(error) => error.into_response(),
    }
}

async fn update(
    mover: &Arc<Mover>,
    resource: Resource,
    (name, options): (&str, &Options),
    headers: &HeaderMap,
    body: &[u8],
) -> Response {
    let edit = match resource {
        Resource::Configs => self::body(body).map(Edit::UpdateConfig),
        Resource::Groups => self::body(body).map(|group| Edit::UpdateGroup(Box::new(group))),
    };
    match edit {
        Ok(edit) if edit.object().1 != name => ApiError::BadRequest(format!(
            "the object is called {:?}, the path says {name:?}; names never change",
            edit.object().1
        ))
        .into_response(),
        Ok(edit) => edited(mover, edit, StatusCode::OK, options, headers).await,
        Err(error) => error.into_response(),
    }
}

async fn delete(
    mover: &Arc<Mover>,
    resource: Resource,
    name: &str,
    options: Options,
    headers: &HeaderMap,
) -> Response {
    let edit = Edit::Delete(resource, name.to_owned(), options.resource_version.clone());
    if resource == Resource::Groups
        && let Err(error) = leases_gone(mover, name).await
    {
        return error.into_response();
    }
    match made(mover, edit, &options).await {
        Err(error) => error.into_response(),
        Ok(Made::Plan(plan)) => shown(headers, StatusCode::OK, &plan),
        Ok(Made::State(_)) => shown(
            headers,
            StatusCode::OK,
            &serde_json::json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" }),
        ),
    }
}

/// Waits until no lease has its home at a drained store (R12). If the store does not answer, its leases are not waited
/// for: other stores know those of which they hold keys.
async fn leases_gone(mover: &Mover, name: &str) -> Result<(), ApiError> {
    let state = mover.keeper.cluster.state();
    let Some((at, object)) = state.store(&StoreName(name.to_owned())) else { return Ok(()) };
    if object.store_type == StoreType::Etcd || usize::from(at.0) >= mover.stores.len() {
        return Ok(());
    }
    let store = mover.stores.get(store_ix(at));
    let until = Instant::now() + LEASES_GO_WITHIN;
    loop {
        let left = left_at(store).await.unwrap_or(0);
        let drains = object.state == StoreState::Draining;
        match left {
            0 => return Ok(()),
            _ if drains && Instant::now() < until => tokio::time::sleep(LEASES_AGAIN).await,
            _ => return Err(vec![leases_left(left, name, drains)].into()),
        }
    }
}

/// The error of a store that cannot be removed because leases have their home there.
fn leases_left(left: u64, name: &str, drains: bool) -> FieldError {
    let one = left == 1;
    let message = match one {
        true => format!("1 lease has its home at store {name:?}"),
        false => format!("{left} leases have their home at store {name:?}"),
    };
    let what_to_do = match (drains, one) {
        (true, true) => {
            "it goes to another store, or ends, when that one and those with its keys are up: try again then"
                .to_owned()
        }
        (true, false) => {
            "they go to another store, or end, when that one and those with their keys are up: try again then"
                .to_owned()
        }
        (false, one) => {
            let them = if one { "it" } else { "them" };
            format!("run kindred drain {name}, which takes {them} to another store")
        }
    };
    FieldError { path: format!("servicegroups/{name}"), message, what_to_do }
}

async fn edited(
    mover: &Arc<Mover>,
    edit: Edit,
    code: StatusCode,
    options: &Options,
    headers: &HeaderMap,
) -> Response {
    let (resource, name) = edit.object();
    match made(mover, edit, options).await {
        Err(error) => error.into_response(),
        Ok(Made::Plan(plan)) => shown(headers, StatusCode::OK, &plan),
        Ok(Made::State(state)) => match resource.one(&state, &name) {
            Some(object) => shown(headers, code, &object.value),
            None => missing(resource, &name).into_response(),
        },
    }
}

enum Made {
    State(Arc<ClusterState>),
    Plan(Value),
}

async fn made(mover: &Arc<Mover>, edit: Edit, options: &Options) -> Result<Made, ApiError> {
    let verb = Verb::Edit(Box::new(edit));
    if options.is_dry_run()? {
        return verbs::planned(mover, std::slice::from_ref(&verb)).await.map(Made::Plan);
    }
    Ok(Made::State(verbs::make(mover, &verb, options.may_delete()?).await?.state))
}

pub(super) fn text(body: &[u8]) -> Result<&str, ApiError> {
    std::str::from_utf8(body).map_err(|error| ApiError::BadRequest(format!("the body is not UTF-8: {error}")))
}

/// Reads a request's body.
///
/// # Errors
/// When it is no document, or all fields that do not fit.
pub(super) fn body<T: DeserializeOwned + JsonSchema>(body: &[u8]) -> Result<T, ApiError> {
    let reading = read(shape::read::<T>(text(body)?))?;
    reading.whole().map_err(|errors| ApiError::Invalid(errors.into()))
}

pub(super) fn read<T>(parsed: Result<T, parse::ParseError>) -> Result<T, ApiError> {
    parsed.map_err(|error| ApiError::BadRequest(format!("the body is not such an object: {error}")))
}

pub(super) fn wants(headers: &HeaderMap, word: &str) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|accept| accept.contains(word))
}

/// The answer in the format that the client accepts: YAML if asked for, else JSON.
pub(super) fn shown(headers: &HeaderMap, code: StatusCode, value: &Value) -> Response {
    if wants(headers, "yaml")
        && let Ok(text) = parse::to_yaml(value)
    {
        return (code, [(header::CONTENT_TYPE, "application/yaml")], text).into_response();
    }
    (code, axum::Json(value)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lease_has_its_home_and_several_have_theirs() {
        let said = |left, drains| leases_left(left, "pods", drains).to_string();
        assert_eq!(
            [said(1, false), said(2, false), said(1, true), said(2, true)],
            [
                "servicegroups/pods: 1 lease has its home at store \"pods\"; run kindred drain pods, which takes it to another \
                 store",
                "servicegroups/pods: 2 leases have their home at store \"pods\"; run kindred drain pods, which takes them to \
                 another store",
                "servicegroups/pods: 1 lease has its home at store \"pods\"; it goes to another store, or ends, when that one \
                 and those with its keys are up: try again then",
                "servicegroups/pods: 2 leases have their home at store \"pods\"; they go to another store, or end, when that one \
                 and those with their keys are up: try again then",
            ]
        );
    }
}
