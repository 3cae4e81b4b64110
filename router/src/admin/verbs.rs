//! The changes that operators ask for, `/api/v1/{move,split,merge,drain,replace,apply}`, and `/api/v1/plan`, which only
//! reports what they would do. Every such change of the cluster's state is made by [`make`]: the state and the records
//! of its moves are written in one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Query;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use kindred_partition_config::ids::{MoveId, StoreName};
use kindred_partition_config::model::DataPartitionConfig;
use kindred_partition_config::shape;
use kindred_partition_config::state::{Change, ClusterState, ConfigChange, StoreState};
use kindred_partition_config::transfers::Transfer;
use kindred_partition_config::validate::{FieldError, FieldErrors};
use kindred_router_core::moves::conflict::{self, Begins, Conflict};
use kindred_router_core::moves::record::MoveRecord;
use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::api::{self, Options};
use super::changes::{Edit, update_group};
use super::objects::{Resource, ServiceGroup};
use super::replace::{Replace, ReplaceBody};
use super::sizes::{self, Planned};
use super::status::ApiError;
use crate::meta::change::change_state;
use crate::meta::live::Live;
use crate::meta::store::MetaStore;
use crate::meta::{ChangeError, Cluster, MetaError};
use crate::moves::begin::{begin, used_numbers};
use crate::moves::mover::Mover;
use crate::moves::records;

/// How often a change is planned anew because others changed the configuration meanwhile.
const PLANS_MAX: u32 = 5;
const PLAN_AGAIN: Duration = Duration::from_millis(200);

/// The records of moves in meta, each with its mod revision.
pub type Known = BTreeMap<MoveId, (MoveRecord, i64)>;

#[derive(Debug, Clone)]
pub enum Verb {
    /// Moves all of a Kind to one store.
    Move(MoveBody),
    /// Gives the names from one on to another store.
    Split(SplitBody),
    /// Joins ranges of a Kind.
    Merge(MergeBody),
    /// Moves everything away from a store.
    Drain(DrainBody),
    /// Puts a new store in place of a lost one.
    Replace(Replace),
    /// Changes several objects at once.
    Apply(ApplyBody),
    /// Changes one object.
    Edit(Box<Edit>),
}

/// The body of `move`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveBody {
    kind: String,
    to: StoreName,
    /// Wait, copied and compared, for a request to switch.
    #[serde(default)]
    hold: bool,
}

/// The body of `split`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SplitBody {
    kind: String,
    at: String,
    to: StoreName,
}

/// The body of `merge`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MergeBody {
    kind: String,
    #[serde(default)]
    at: Option<String>,
    #[serde(default)]
    to: Option<StoreName>,
}

/// The body of `drain`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainBody {
    store: StoreName,
    #[serde(default)]
    to: Option<StoreName>,
    /// As of `move`.
    #[serde(default)]
    hold: bool,
}

/// The body of `apply`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyBody {
    /// Configs and service groups to create or update.
    #[serde(default)]
    #[schemars(schema_with = "items_schema")]
    items: Vec<Value>,
    /// Names of configs to delete.
    #[serde(default)]
    delete: Vec<String>,
    /// Delete the configs that are not among the items.
    #[serde(default)]
    prune: bool,
    /// The expected default store; checked, not changed.
    #[serde(default)]
    default: Option<StoreName>,
}

/// The schema of items, which are read one by one so that all that is wrong with them is reported.
fn items_schema(schemas: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let of = [schemas.subschema_for::<DataPartitionConfig>(), schemas.subschema_for::<ServiceGroup>()];
    schemars::json_schema!({ "type": "array", "items": { "anyOf": of } })
}

/// The body of `plan`: that of `apply`, or several changes, each planned independently.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct PlanBody {
    #[serde(default)]
    verbs: Vec<PlannedVerb>,
    #[serde(flatten)]
    apply: ApplyBody,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PlannedVerb {
    Move(MoveBody),
    Split(SplitBody),
    Merge(MergeBody),
    Drain(DrainBody),
}

pub fn routes(mover: &Arc<Mover>) -> Router {
    let verb = |name: &'static str| {
        let mover = mover.clone();
        post(move |query: Query<Options>, headers: HeaderMap, body: Bytes| async move {
            answered(run(&mover, Verb::of(name, &body), &query).await, &headers)
        })
    };
    let (plan, replacing) = (mover.clone(), mover.clone());
    Router::new()
        .route("/api/v1/move", verb("move"))
        .route("/api/v1/split", verb("split"))
        .route("/api/v1/merge", verb("merge"))
        .route("/api/v1/drain", verb("drain"))
        .route("/api/v1/apply", verb("apply"))
        .route(
            "/api/v1/replace",
            post(move |query: Query<Options>, headers: HeaderMap, body: Bytes| async move {
                let verb =
                    read(&body).and_then(|body: ReplaceBody| Ok(Verb::Replace(body.checked(&replacing)?)));
                answered(run(&replacing, verb, &query).await, &headers)
            }),
        )
        .route(
            "/api/v1/plan",
            post(move |headers: HeaderMap, body: Bytes| async move {
                let planned = match read_plan(&body) {
                    Ok(verbs) => planned(&plan, &verbs).await,
                    Err(error) => Err(error),
                };
                answered(planned, &headers)
            }),
        )
}

fn answered(result: Result<Value, ApiError>, headers: &HeaderMap) -> Response {
    match result {
        Ok(value) => api::shown(headers, StatusCode::OK, &value),
        Err(error) => error.into_response(),
    }
}

fn read<T: DeserializeOwned + JsonSchema>(body: &[u8]) -> Result<T, ApiError> {
    api::body(body)
}

fn read_plan(body: &[u8]) -> Result<Vec<Verb>, ApiError> {
    let plan: PlanBody = read(body)?;
    if plan.verbs.is_empty() {
        return Ok(vec![Verb::Apply(plan.apply)]);
    }
    let verbs = plan.verbs.into_iter().map(|verb| match verb {
        PlannedVerb::Move(body) => Verb::Move(body),
        PlannedVerb::Split(body) => Verb::Split(body),
        PlannedVerb::Merge(body) => Verb::Merge(body),
        PlannedVerb::Drain(body) => Verb::Drain(body),
    });
    Ok(verbs.collect())
}

async fn run(mover: &Arc<Mover>, verb: Result<Verb, ApiError>, options: &Options) -> Result<Value, ApiError> {
    let verb = verb?;
    if options.is_dry_run()? {
        return planned(mover, &[verb]).await;
    }
    let made = make(mover, &verb, options.may_delete()?).await?;
    let ids: Vec<u64> = made.moves.iter().map(|id| id.0).collect();
    Ok(json!({
        "kind": "Change", "apiVersion": "v1", "dryRun": false, "objects": objects(&made.before, &made.state),
        "moves": ids, "plan": Planned::shown(made.planned.as_slice()),
    }))
}

/// The plans of these changes, each made independently for the present state.
///
/// # Errors
/// When one of them is refused.
pub async fn planned(mover: &Arc<Mover>, verbs: &[Verb]) -> Result<Value, ApiError> {
    let state = mover.keeper.cluster.state();
    let (mut changed, mut sized) = (Vec::new(), Vec::new());
    for verb in verbs {
        let change = verb.beside(&state, &known_moves(&mover.keeper.cluster))?;
        changed.extend(objects(&state, &change.state));
        sized.push(sizes::moves(mover, &change).await);
    }
    Ok(json!({
        "kind": "Change", "apiVersion": "v1", "dryRun": true, "objects": changed, "moves": [],
        "plan": Planned::shown(&sized),
    }))
}

/// The result of a change.
#[derive(Debug)]
pub struct Made {
    /// The state before it.
    pub before: ClusterState,
    /// The state after it.
    pub state: Arc<ClusterState>,
    /// The moves that began.
    pub moves: Vec<MoveId>,
    /// The estimated costs of its moves; `None` if the change was refused by the state that this router knew.
    planned: Option<Planned>,
}

/// Makes a change and begins its moves, in one transaction in meta. With `deletes` moves to a stock etcd may delete the keys
/// of others that it has where they go.
///
/// # Errors
/// When it is refused, or meta did not accept it; nothing was changed unless the error says that this is unknown.
pub async fn make(mover: &Arc<Mover>, verb: &Verb, deletes: bool) -> Result<Made, ApiError> {
    let mut plans = 1;
    loop {
        let unplanned = AtomicBool::new(false);
        let made = make_planned(mover, verb, deletes, &unplanned).await;
        if plans == PLANS_MAX || !unplanned.load(Ordering::Relaxed) {
            return made;
        }
        plans += 1;
        tokio::time::sleep(PLAN_AGAIN).await;
    }
}

/// As [`make`]. Nothing goes to a stock etcd that was not planned, by the state that this router knew, and so was not checked:
/// that is refused, and tells by `unplanned`.
async fn make_planned(
    mover: &Arc<Mover>,
    verb: &Verb,
    deletes: bool,
    unplanned: &AtomicBool,
) -> Result<Made, ApiError> {
    // Estimate before the change, because the copy begins right after it. A change that is refused here is refused
    // again below, by the state in meta.
    let (mut planned, mut used, mut transfers) = (None, 0, Vec::new());
    let cluster = &mover.keeper.cluster;
    if let Ok(change) = verb.beside(&cluster.state(), &known_moves(cluster)) {
        used = used_numbers(mover, &change).await;
        planned = Some(sizes::moves(mover, &change).await);
        transfers = change.transfers;
    }
    planned.iter().try_for_each(|planned| planned.fits(&verb.target_field(), deletes))?;
    let meta = cluster.meta.clone().ok_or(ChangeError::<ApiError>::Meta(MetaError::None))?;
    let live = Live { keeper: mover.keeper.clone(), meta };
    let is_planned = |change: &Change| {
        let to_etcd = |transfer: &&Transfer| change.state.is_etcd(transfer.to);
        let all = change.transfers.iter().filter(to_etcd).all(|transfer| transfers.contains(transfer));
        if deletes || all {
            return Ok(());
        }
        unplanned.store(true, Ordering::Relaxed);
        Err(ApiError::Conflict("the configuration has changed meanwhile: ask again".to_owned()))
    };
    Ok(Made { planned, ..write(&live, verb, used, is_planned).await? })
}

/// Writes a change and the records of its moves, whose numbers are above `used` (from [`used_numbers`]), if `allowed`.
///
/// # Errors
/// As of [`make`].
pub async fn write(
    meta: &impl MetaStore,
    verb: &Verb,
    used: u64,
    allowed: impl Fn(&Change) -> Result<(), ApiError>,
) -> Result<Made, ChangeError<ApiError>> {
    let mut last = None;
    let state = change_state(meta, |state| {
        let known = records(&meta.entries());
        let change = verb.beside(state, &known)?;
        allowed(&change)?;
        let (next, moves) = begin(state, &change, &known, used, verb.holds());
        let same = objects(state, &next.state).is_empty() && next.state.map == state.map && moves.is_empty();
        last = Some((state.clone(), moves));
        Ok(if same { state.clone().into() } else { next })
    })
    .await?;
    let (before, moves) = last.unwrap_or_else(|| ((*state).clone(), Vec::new()));
    Ok(Made { before, state, moves, planned: None })
}

/// The records of moves as last seen. If meta has newer ones, a transaction that begins a move fails and is retried.
pub(super) fn known_moves(cluster: &Cluster) -> BTreeMap<MoveId, (MoveRecord, i64)> {
    let entries = cluster.meta.as_ref().map(|meta| meta.entries().borrow().clone());
    entries.map(|entries| records(&entries)).unwrap_or_default()
}

/// The objects that differ between two states, and how.
fn objects(before: &ClusterState, after: &ClusterState) -> Vec<Value> {
    let mut changed = Vec::new();
    for resource in [Resource::Groups, Resource::Configs] {
        let (old, new) = (resource.all(before), resource.all(after));
        let name = |object: &str| format!("{}/{object}", resource.plural());
        for object in &new {
            let how = match old.iter().find(|other| other.name == object.name) {
                None => "created",
                Some(other) if unversioned(&other.value) != unversioned(&object.value) => "configured",
                Some(_) => continue,
            };
            changed.push(json!({ "object": name(&object.name), "change": how }));
        }
        for object in old.iter().filter(|object| new.iter().all(|other| other.name != object.name)) {
            changed.push(json!({ "object": name(&object.name), "change": "deleted" }));
        }
    }
    changed
}

fn unversioned(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    object
}

impl Verb {
    /// The verb of this name, `move`, `split`, `merge`, `drain` or `apply`, with the request's body.
    ///
    /// # Errors
    /// When the body is not a valid one, or there is no such verb.
    pub fn of(name: &str, body: &[u8]) -> Result<Self, ApiError> {
        Ok(match name {
            "move" => Self::Move(read(body)?),
            "split" => Self::Split(read(body)?),
            "merge" => Self::Merge(read(body)?),
            "drain" => Self::Drain(read(body)?),
            "apply" => Self::Apply(read(body)?),
            other => return Err(ApiError::NotFound(format!("there is no verb {other:?}"))),
        })
    }

    /// Whether its moves wait before they switch.
    fn holds(&self) -> bool {
        match self {
            Self::Move(body) => body.hold,
            Self::Drain(body) => body.hold,
            _ => false,
        }
    }

    /// The unfinished move of the Kind that this verb would move, if the configs already say what the verb asks. The
    /// change then looks empty, but must not be reported as done: the move may be on its way back, and restores the
    /// configs only when it ends.
    fn under_way<'k>(
        &self,
        state: &ClusterState,
        change: &Change,
        known: &'k Known,
    ) -> Option<&'k MoveRecord> {
        let Self::Move(MoveBody { kind, .. }) = self else { return None };
        if !change.transfers.is_empty() || !objects(state, &change.state).is_empty() {
            return None;
        }
        let kind = state.scheme().resolve(kind).ok()?.to_string();
        let record = known.values().map(|(record, _)| record);
        let mut of_kind = record.filter(|record| record.kind.as_ref() == Some(&kind));
        of_kind.find(|record| !record.phase.is_over())
    }

    /// The change, without transfers that moves under way already make.
    ///
    /// # Errors
    /// When it is refused.
    pub fn beside(&self, state: &ClusterState, known: &Known) -> Result<Change, ApiError> {
        let begins = match self {
            Self::Move(_) | Self::Split(_) | Self::Merge(_) | Self::Drain(_) => Begins::WhatIsNotThere,
            // This may drain the store.
            Self::Edit(edit) if matches!(**edit, Edit::UpdateGroup(_)) => Begins::WhatIsNotThere,
            Self::Replace(_) | Self::Apply(_) | Self::Edit(_) => Begins::WhatItChanges,
        };
        let records = known.values().map(|(record, _)| record);
        let refused = |conflict: Conflict| ApiError::Conflict(conflict.to_string());
        let change = conflict::beside(state, self.change(state)?, records, begins).map_err(refused)?;
        match self.under_way(state, &change, known) {
            Some(record) => Err(refused(Conflict::said_already(state, record))),
            None => Ok(change),
        }
    }

    /// The request's field that names the target of the keys.
    fn target_field(&self) -> String {
        match self {
            Self::Move(_) | Self::Split(_) | Self::Merge(_) | Self::Drain(_) => "to".to_owned(),
            Self::Apply(_) | Self::Replace(_) => "items".to_owned(),
            Self::Edit(edit) => {
                let (resource, name) = edit.object();
                format!("{}/{name}", resource.plural())
            }
        }
    }

    /// The change of the state.
    ///
    /// # Errors
    /// All that is wrong with it, by field.
    pub fn change(&self, state: &ClusterState) -> Result<Change, ApiError> {
        Ok(match self {
            Self::Move(body) => state.move_kind(&body.kind, &body.to)?,
            Self::Split(body) => state.split(&body.kind, &body.at, &body.to)?,
            Self::Merge(body) => state.merge(&body.kind, body.at.as_deref(), body.to.as_ref())?,
            Self::Drain(body) => state.drain_store(&body.store, body.to.as_ref())?,
            Self::Replace(replace) => return replace.change(state),
            Self::Apply(body) => return body.change(state),
            Self::Edit(edit) => return edit.change(state),
        })
    }
}

fn wrong(path: String, message: impl Into<String>, what_to_do: impl Into<String>) -> FieldError {
    FieldError { path, message: message.into(), what_to_do: what_to_do.into() }
}

impl ApplyBody {
    fn change(&self, state: &ClusterState) -> Result<Change, ApiError> {
        let (groups, configs) = self.read()?;
        let (mut errors, mut refused) = (Vec::new(), Vec::new());
        if let Some(default) = self.default.as_ref().filter(|default| **default != state.default) {
            let message = format!("the default store is {:?}, not {:?}", state.default.0, default.0);
            let what_to_do = format!("to give its keys to another store run kindred drain {}", state.default);
            errors.push(wrong("default".to_owned(), message, what_to_do));
        }
        // Stores first, because configs of the same request may name them.
        let mut with_stores = state.clone();
        for group in &groups {
            match with_group(&with_stores, group) {
                Ok(next) => with_stores = next,
                Err(ApiError::Invalid(why)) => {
                    errors.extend(why);
                    refused.push(format!("{:?}", group.metadata.name));
                }
                Err(ApiError::BadRequest(why)) => {
                    let path = format!("servicegroups/{}", group.metadata.name);
                    errors.push(wrong(path, why, "correct it"));
                }
                Err(other) => return Err(other),
            }
        }
        let changes = if self.prune {
            vec![ConfigChange::Replace(configs)]
        } else {
            let deletes = self.delete.iter();
            let deletes =
                deletes.map(|name| ConfigChange::Delete { name: name.clone(), resource_version: None });
            let puts = configs.into_iter().map(|config| match state.config(&config.metadata.name) {
                Some(_) => ConfigChange::Update(config),
                None => ConfigChange::Create(config),
            });
            deletes.chain(puts).collect()
        };
        let change = with_stores.apply_configs(&changes);
        // A config that names a store which was refused is not wrong because of that.
        let due = |error: &FieldError| refused.iter().any(|name| error.message.contains(name));
        match change {
            Ok(change) if errors.is_empty() => Ok(change),
            Ok(_) => Err(errors.into()),
            Err(why) => {
                errors.extend(why.into_iter().filter(|error| !due(error)));
                Err(errors.into())
            }
        }
    }

    /// Parses the items by their kinds.
    fn read(&self) -> Result<(Vec<ServiceGroup>, Vec<DataPartitionConfig>), ApiError> {
        let (mut groups, mut configs, mut errors) = (Vec::new(), Vec::new(), FieldErrors::default());
        for (at, item) in self.items.iter().enumerate() {
            let name = item["metadata"]["name"].as_str().map_or_else(|| at.to_string(), str::to_owned);
            let path = format!("items/{name}");
            match item["kind"].as_str() {
                Some("ServiceGroup") => groups.extend(read_item(item, &path, &mut errors)),
                Some("DataPartitionConfig") => {
                    configs.extend(read_item(item, &path, &mut errors).map(as_kept));
                }
                other => errors.push(wrong(
                    format!("items/{name}.kind"),
                    format!(
                        "{:?} is neither DataPartitionConfig nor ServiceGroup",
                        other.unwrap_or_default()
                    ),
                    "correct it",
                )),
            }
        }
        Ok(errors.into_result((groups, configs))?)
    }
}

/// The object of an item; `None` after errors were added.
fn read_item<T: DeserializeOwned + JsonSchema>(
    item: &Value,
    path: &str,
    errors: &mut FieldErrors,
) -> Option<T> {
    let serde_says = || serde_json::from_value::<T>(item.clone()).err().map(|error| error.to_string());
    match shape::read_value(item.clone()).whole() {
        Ok(object) => Some(object),
        Err(none) if none.is_empty() => {
            let why = serde_says().unwrap_or_default();
            errors.push(wrong(path.to_owned(), why, "see /openapi/v3 for its fields"));
            None
        }
        Err(several) => {
            let located = several.into_iter().map(|error| {
                let path =
                    if error.path == "document" { path.to_owned() } else { format!("{path}.{}", error.path) };
                FieldError { path, ..error }
            });
            errors.extend(located);
            None
        }
    }
}

/// Drops the fields that only answers have.
fn as_kept(config: DataPartitionConfig) -> DataPartitionConfig {
    DataPartitionConfig { api_version: None, kind: None, ..config }
}

/// The state with the store created or changed as `group` says.
fn with_group(state: &ClusterState, group: &ServiceGroup) -> Result<ClusterState, ApiError> {
    let name = group.name();
    let Some((_, there)) = state.store(&name) else {
        return Ok(state.add_store(group.config())?.0);
    };
    let path = format!("servicegroups/{name}");
    let version = there.resource_version.to_string();
    if group.metadata.resource_version.as_ref().is_some_and(|asked| *asked != version) {
        return Err(ApiError::Conflict(format!(
            "{path}: the object has been modified (it is {version}); get it again and make the change to what is there now"
        )));
    }
    if group.state == Some(StoreState::Draining) && there.state == StoreState::Active {
        let what_to_do = format!("run kindred drain {name}");
        return Err(vec![wrong(
            format!("{path}.state"),
            "a store is not drained together with others",
            what_to_do,
        )]
        .into());
    }
    let mut group = group.clone();
    if group.endpoints.is_empty() {
        // A file need not contain the addresses that `kindred up` gives its shards.
        group.endpoints.clone_from(&there.endpoints);
    }
    Ok(update_group(state, &group)?.state)
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::parse::parse_config;

    use super::*;

    fn state() -> ClusterState {
        let config = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}]\n\
                      partitions: [{metadata: {name: pods}, resource: pods, serviceGroupId: a}]\n";
        ClusterState::bootstrap(&parse_config(config).unwrap()).unwrap()
    }

    fn apply(body: Value) -> Result<Change, ApiError> {
        Verb::Apply(serde_json::from_value(body).unwrap()).change(&state())
    }

    fn config(name: &str, store: &str) -> Value {
        json!({ "kind": "DataPartitionConfig", "apiVersion": "v1", "metadata": { "name": name }, "resource": name, "serviceGroupId": store })
    }

    fn said(error: ApiError) -> String {
        error.object()["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_store_and_the_config_that_names_it_come_together() {
        let group =
            json!({ "kind": "ServiceGroup", "metadata": { "name": "c" }, "endpoints": ["http://h:1"] });
        let change = apply(json!({ "items": [config("nodes", "c"), group] })).unwrap();
        assert_eq!(change.by_kind().len(), 1);
        assert_eq!(
            objects(&state(), &change.state),
            [
                json!({ "object": "servicegroups/c", "change": "created" }),
                json!({ "object": "datapartitionconfigs/nodes", "change": "created" }),
            ]
        );
        assert!(said(apply(json!({ "items": [config("nodes", "c")] })).unwrap_err()).contains("c"));
    }

    #[test]
    fn what_is_as_it_was_is_no_change() {
        let change = apply(json!({ "items": [config("pods", "a")] })).unwrap();
        assert_eq!((objects(&state(), &change.state), change.transfers), (Vec::new(), Vec::new()));
        let pruned =
            apply(json!({ "items": [config("nodes", "a")], "prune": true, "default": "a" })).unwrap();
        assert_eq!(objects(&state(), &pruned.state).len(), 2);
        let deleted = apply(json!({ "delete": ["pods"] })).unwrap();
        assert_eq!(
            objects(&state(), &deleted.state),
            [json!({ "object": "datapartitionconfigs/pods", "change": "deleted" })]
        );
    }

    #[test]
    fn refusals_name_the_field() {
        let wrong =
            said(apply(json!({ "items": [{ "kind": "Pod", "metadata": { "name": "x" } }] })).unwrap_err());
        assert!(wrong.contains("items/x.kind") && wrong.contains("\"Pod\""), "{wrong}");
        let mut typo = config("pods", "a");
        typo["rangeStrat"] = json!("x");
        let wrong = said(apply(json!({ "items": [typo] })).unwrap_err());
        assert!(wrong.contains("items/pods") && wrong.contains("rangeStrat"), "{wrong}");
        let drained = json!({ "kind": "ServiceGroup", "metadata": { "name": "b" }, "state": "draining" });
        assert!(said(apply(json!({ "items": [drained] })).unwrap_err()).contains("kindred drain b"));
        assert!(
            said(apply(json!({ "items": [], "default": "b" })).unwrap_err())
                .contains("the default store is \"a\"")
        );
        let verb = Verb::Move(serde_json::from_value(json!({ "kind": "pdos", "to": "b" })).unwrap());
        assert!(said(verb.change(&state()).unwrap_err()).contains("pods"), "a suggestion");
    }

    #[test]
    fn what_is_on_its_way_is_not_called_done() {
        let verb =
            |to: &str| Verb::Move(serde_json::from_value(json!({ "kind": "pods", "to": to })).unwrap());
        let change = verb("b").change(&state()).unwrap();
        let (_, transfers) = change.by_kind().pop_first().unwrap();
        let record = MoveRecord::new(MoveId(3), &transfers).unwrap();
        let known = BTreeMap::from([(record.id, (record, 1))]);
        // The configs name store b already.
        let next = change.state;
        let conflict = |verb: Verb, known: &Known| said(verb.beside(&next, known).unwrap_err());
        let why = conflict(verb("b"), &known);
        assert!(why.contains("says so already") && why.contains("kindred move abort 3"), "{why}");
        assert!(conflict(verb("a"), &known).contains("wants it at other stores"), "the configs change");
    }

    #[test]
    fn f51_a_switched_move_is_told_with_what_ends_it() {
        let verb = |to: &str| {
            Verb::Move(MoveBody { kind: "pods".to_owned(), to: StoreName(to.to_owned()), hold: false })
        };
        let change = verb("b").change(&state()).unwrap();
        let mut record = MoveRecord::new(MoveId(3), &change.transfers).unwrap();
        record = record.decided(0, kindred_partition_config::ids::Epoch(2));
        let next = change.state.with_transfers(&change.transfers).unwrap();
        let known = BTreeMap::from([(record.id, (record, 1))]);
        for to in ["a", "b"] {
            let why = said(verb(to).beside(&next, &known).unwrap_err());
            assert!(why.contains("kindred move complete 3"), "{why}");
            assert!(why.contains("kindred move reverse 3"), "{why}");
        }
        // The store that the move left cannot be removed before the move is over.
        let remove = || Verb::Edit(Box::new(Edit::Delete(Resource::Groups, "a".to_owned(), None)));
        let drained = next.drain_store(&StoreName("a".to_owned()), Some(&StoreName("b".to_owned()))).unwrap();
        let drained = drained.state.with_transfers(&drained.transfers).unwrap();
        let why = said(remove().beside(&drained, &known).unwrap_err());
        assert!(why.contains("store \"a\" is an end of move 3"), "{why}");
        assert!(why.contains("kindred move complete 3"), "{why}");
        assert!(remove().beside(&drained, &BTreeMap::new()).is_ok());
    }

    #[test]
    fn f51_a_kind_that_is_not_where_the_configs_say_is_moved_there() {
        let verb =
            Verb::Move(MoveBody { kind: "pods".to_owned(), to: StoreName("b".to_owned()), hold: false });
        // The configs say b and the map says a, because the move that was to bring the Kind there is gone.
        let change = verb.change(&state()).unwrap();
        let (again, known) = (verb.beside(&change.state, &BTreeMap::new()).unwrap(), BTreeMap::new());
        assert_eq!(
            (&again.transfers, again.state.configs.clone()),
            (&change.transfers, change.state.configs.clone())
        );
        assert_eq!(begin(&change.state, &again, &known, 0, false).1, [MoveId(1)]);
    }

    #[test]
    fn plans_are_verbs_or_objects() {
        let verbs =
            read_plan(br#"{"verbs": [{"move": {"kind": "pods", "to": "b"}}, {"drain": {"store": "b"}}]}"#);
        assert!(matches!(verbs.unwrap()[..], [Verb::Move(_), Verb::Drain(_)]));
        let items = read_plan(b"items: []\nprune: true\n").unwrap();
        assert!(matches!(&items[..], [Verb::Apply(body)] if body.prune));
    }
}
