//! `/openapi/v3`: the admin API as an OpenAPI document. Its schemas are those of the types that requests are read as, and of
//! the answers' forms. A test compares its paths with the routes, and real answers with its schemas.

use std::sync::OnceLock;

use kindred_partition_config::model::DataPartitionConfig;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::answers as a;
use super::objects::ServiceGroup;
use super::reconcile;
use super::replace::ReplaceBody;
use super::snapshots::Renewal;
use super::verbs::{ApplyBody, DrainBody, MergeBody, MoveBody, PlanBody, SplitBody};
use crate::standbys::failover::FailoverBody;

const SCHEMAS: &str = "#/components/schemas/";

/// The document.
pub fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let mut document = Document::new();
        probes(&mut document);
        shown(&mut document);
        objects(&mut document);
        verbs(&mut document);
        snapshots(&mut document);
        document.end()
    })
}

fn probes(document: &mut Document) {
    document
        .get("/livez", "Whether the process lives")
        .text(200, "it does")
        .text(503, "only a restart helps");
    let ready = document.get("/readyz", "Whether the router is ready, and what is wrong with single stores");
    ready
        .query("verbose", "Show every check.")
        .query("exclude", "The name of a check that does not count.")
        .text(200, "it is")
        .text(503, "it is not; the failed checks");
    let health = document.get("/health", "Readiness in etcd's form");
    health.answer::<a::Health>(200, "ready").answer::<a::Health>(503, "not ready");
    document
        .get("/version", "The version of etcd whose API is served")
        .answer::<a::EtcdVersion>(200, "the versions");
    document.get("/metrics", "Metrics in Prometheus' text format").text(200, "the metrics");
}

fn shown(document: &mut Document) {
    document
        .get("/api/v1", "The types of objects, with their verbs")
        .answer::<a::ResourceList>(200, "the types");
    document
        .get("/api/v1/version", "What this router and its stores run")
        .answer::<a::Versions>(200, "the versions");
    document.get("/openapi/v3", "This document").anything(200, "an OpenAPI 3.1 document");
    document.get("/api/v1/schema", "The JSON schema of objects").anything(200, "a JSON schema");
    document.get("/api/v1/stores", "Every store with its state").answer::<a::StoreList>(200, "the stores");
    document
        .get("/api/v1/status", "What is wrong with the cluster's state")
        .answer::<a::ClusterStatus>(200, "the status");
    document.get("/api/v1/partitions", "The map in use").answer::<a::PartitionList>(200, "the map");
    document
        .get("/api/v1/adoption", "Who writes directly to etcds that are being adopted")
        .answer::<a::Adoption>(200, "the writes");
    let durability =
        document.get("/api/v1/durability", "How durable each Kind is, and what a crash would lose");
    durability.answer::<a::DurabilityList>(200, "the durability at each shard");
    document
        .get("/api/v1/cluster", "The identity of the cluster")
        .answer::<a::ClusterIdentity>(200, "the identity");
}

fn objects(document: &mut Document) {
    object::<DataPartitionConfig, DataPartitionConfig, a::DataPartitionConfigList>(
        document,
        "datapartitionconfigs",
    );
    object::<ServiceGroup, a::ServiceGroupShown, a::ServiceGroupList>(document, "servicegroups");
    let moves = document.get("/api/v1/moves", "The moves, those that are over included");
    moves.answer_or_table::<a::MoveList>(200, "the moves").errors(&[501]);
    let one = document.get("/api/v1/moves/{id}", "A move");
    one.in_path("id", "The number of the move.")
        .answer_or_table::<a::Move>(200, "the move")
        .errors(&[400, 404, 501]);
    let asked =
        document.post("/api/v1/moves/{id}/{verb}", "Ask a move to abort, reverse, complete or switch");
    asked
        .in_path("id", "The number of the move.")
        .in_path_of("verb", "What to do.", &["abort", "reverse", "complete", "switch"])
        .answer::<a::Status>(200, "the coordinator has accepted it")
        .errors(&[400, 404, 409, 501, 503]);
}

/// The routes of a type of objects.
fn object<Body: JsonSchema, One: JsonSchema, List: JsonSchema>(document: &mut Document, plural: &str) {
    let (all, one) = (format!("/api/v1/{plural}"), format!("/api/v1/{plural}/{{name}}"));
    let name = "The name of the object.";
    let version = "The version that a watch goes on from; without it a watch begins with all objects.";
    let list = document.get(&all, &format!("List or watch {plural}"));
    list.query("watch", "`true` asks for a stream of events, one a line.")
        .query("resourceVersion", version)
        .answer_or_table::<List>(200, "the objects")
        .stream::<a::WatchEvent>(200)
        .errors(&[400, 410]);
    let create = document.post(&all, &format!("Create one of {plural}"));
    create
        .dry_run()
        .body::<Body>()
        .answer::<a::Change>(200, "what would be done (a dry run)")
        .answer::<One>(201, "the object")
        .errors(&[400, 409, 422, 501, 503]);
    let get = document.get(&one, &format!("One of {plural}"));
    get.in_path("name", name).answer_or_table::<One>(200, "the object").errors(&[404]);
    let put = document.put(&one, &format!("Update one of {plural}"));
    put.in_path("name", name)
        .dry_run()
        .body::<Body>()
        .answer::<One>(200, "the object")
        .answer::<a::Change>(200, "what would be done (a dry run)")
        .errors(&[400, 404, 409, 422, 501, 503]);
    let delete = document.delete(&one, &format!("Delete one of {plural}"));
    delete
        .in_path("name", name)
        .dry_run()
        .query("resourceVersion", "The version that the object must have.")
        .answer::<a::Status>(200, "it is deleted")
        .answer::<a::Change>(200, "what would be done (a dry run)")
        .errors(&[400, 404, 409, 422, 501, 503]);
}

fn verbs(document: &mut Document) {
    verb::<MoveBody>(document, "move", "Move a Kind to a store while it is in use");
    verb::<SplitBody>(document, "split", "Let another store serve the names of a Kind from one on");
    verb::<MergeBody>(document, "merge", "Join ranges of a Kind");
    verb::<DrainBody>(document, "drain", "Move everything away from a store");
    verb::<ApplyBody>(document, "apply", "Create, update and delete several objects, all or none");
    verb::<ReplaceBody>(document, "replace", "Put a new, empty store in place of one that is lost");
    let plan = document.post("/api/v1/plan", "Show what a change would do");
    plan.body::<PlanBody>().answer::<a::Change>(200, "what would be done").errors(&[400, 409, 422]);
    let reconcile =
        document.post("/api/v1/reconcile", "Compare what the stores own with the map, and repair it");
    reconcile
        .body::<reconcile::Body>()
        .answer::<a::Reconciliation>(200, "what differs, or what was done")
        .errors(&[400, 409, 501, 503]);
    let failover = document.post("/api/v1/failover", "Let another member serve a store");
    failover.body::<FailoverBody>().answer::<a::Failover>(200, "it serves").errors(&[400, 422, 501, 503]);
}

fn verb<Body: JsonSchema>(document: &mut Document, name: &str, summary: &str) {
    let post = document.post(&format!("/api/v1/{name}"), summary);
    post.dry_run()
        .body::<Body>()
        .answer::<a::Change>(200, "what is done; the moves that it needs have begun")
        .errors(&[400, 404, 409, 422, 501, 503]);
}

fn snapshots(document: &mut Document) {
    for (path, deprecated) in [("/api/v1/snapshots", false), ("/api/v1/cuts", true)] {
        let one = format!("{path}/{{name}}");
        let name = "The name of the snapshot.";
        let take = document.post(path, "Take a snapshot of the whole key space");
        take.deprecated(deprecated).answer::<a::SnapshotShown>(201, "the snapshot").errors(&[409, 501, 503]);
        let renew = document.post(&one, "Keep a snapshot for longer");
        renew
            .deprecated(deprecated)
            .in_path("name", name)
            .body::<Renewal>()
            .answer::<a::SnapshotRenewal>(200, "it is kept")
            .errors(&[400, 404]);
        let end = document.delete(&one, "End a snapshot");
        end.deprecated(deprecated)
            .in_path("name", name)
            .answer::<a::Status>(200, "it has ended")
            .errors(&[404]);
    }
}

/// The document while it is written.
struct Document {
    paths: Map<String, Value>,
    answers: SchemaGenerator,
    bodies: SchemaGenerator,
}

/// An operation while it is written.
struct Operation<'d> {
    document: &'d mut Document,
    path: String,
    method: &'static str,
}

impl Document {
    fn new() -> Self {
        let settings = |settings: SchemaSettings| {
            settings.with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Self {
            paths: Map::new(),
            answers: settings(SchemaSettings::draft2020_12().for_serialize()).into_generator(),
            bodies: settings(SchemaSettings::draft2020_12().for_deserialize()).into_generator(),
        }
    }

    fn get(&mut self, path: &str, summary: &str) -> Operation<'_> {
        self.operation("get", path, summary)
    }

    fn post(&mut self, path: &str, summary: &str) -> Operation<'_> {
        self.operation("post", path, summary)
    }

    fn put(&mut self, path: &str, summary: &str) -> Operation<'_> {
        self.operation("put", path, summary)
    }

    fn delete(&mut self, path: &str, summary: &str) -> Operation<'_> {
        self.operation("delete", path, summary)
    }

    fn operation(&mut self, method: &'static str, path: &str, summary: &str) -> Operation<'_> {
        let words = path.split('/').map(|part| part.trim_matches(['{', '}'])).filter(|part| !part.is_empty());
        let id = std::iter::once(method).chain(words).collect::<Vec<_>>().join("-");
        let of_path = self.paths.entry(path).or_insert_with(|| json!({}));
        of_path[method] = json!({ "operationId": id, "summary": summary, "parameters": [], "responses": {} });
        let operation = Operation { document: self, path: path.to_owned(), method };
        // Probes have answers for those whom the port does not know as well.
        if path.starts_with("/api") || path.starts_with("/openapi") {
            operation.errors(&[401, 403])
        } else {
            operation
        }
    }

    fn end(mut self) -> Value {
        let mut schemas = self.answers.take_definitions(true);
        let mut bodies = Value::Object(self.bodies.take_definitions(true));
        // A type that is both written and shown has two schemas: fields that may be left out are always shown.
        let both: Vec<String> = bodies
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, schema)| schemas.get(*name).is_some_and(|shown| shown != *schema))
            .map(|(name, _)| name.clone())
            .collect();
        let mut paths = Value::Object(self.paths);
        for name in &both {
            let (from, to) = (format!("{SCHEMAS}{name}"), format!("{SCHEMAS}{name}Written"));
            rename(&mut bodies, &from, &to);
            for_bodies(&mut paths, &mut |body| rename(body, &from, &to));
        }
        if let Value::Object(bodies) = bodies {
            for (name, schema) in bodies {
                let name = if both.contains(&name) { format!("{name}Written") } else { name };
                schemas.insert(name, schema);
            }
        }
        let mut schemas = Value::Object(schemas);
        as_written(&mut schemas);
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "kindred's admin API", "version": env!("CARGO_PKG_VERSION"),
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
                "description": "The admin port of a router. Who may do what there is in docs/threat-model.md. Bodies may be YAML, and \
                                answers are, where they are asked for with Accept: application/yaml.",
            },
            "security": [{}, { "token": [] }, { "certificate": [] }],
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "token": { "type": "http", "scheme": "bearer" }, "certificate": { "type": "mutualTLS" },
                },
            },
        })
    }
}

impl Operation<'_> {
    fn value(&mut self) -> &mut Value {
        &mut self.document.paths[&self.path][self.method]
    }

    fn parameter(mut self, parameter: Value) -> Self {
        if let Some(parameters) = self.value()["parameters"].as_array_mut() {
            parameters.push(parameter);
        }
        self
    }

    fn query(self, name: &str, what: &str) -> Self {
        self.parameter(
            json!({ "name": name, "in": "query", "description": what, "schema": { "type": "string" } }),
        )
    }

    fn dry_run(self) -> Self {
        let what = "`All`: only show what would be done.";
        self.parameter(json!({ "name": "dryRun", "in": "query", "description": what, "schema": { "enum": ["", "All"] } }))
    }

    fn in_path(self, name: &str, what: &str) -> Self {
        let schema = json!({ "type": "string" });
        self.parameter(
            json!({ "name": name, "in": "path", "required": true, "description": what, "schema": schema }),
        )
    }

    fn in_path_of(self, name: &str, what: &str, values: &[&str]) -> Self {
        let schema = json!({ "type": "string", "enum": values });
        self.parameter(
            json!({ "name": name, "in": "path", "required": true, "description": what, "schema": schema }),
        )
    }

    fn deprecated(mut self, deprecated: bool) -> Self {
        if deprecated {
            self.value()["deprecated"] = json!(true);
        }
        self
    }

    fn body<T: JsonSchema>(mut self) -> Self {
        let schema = self.document.bodies.subschema_for::<T>().to_value();
        self.value()["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": schema }, "application/yaml": { "schema": schema } },
        });
        self
    }

    /// Adds a form of the answer with this code.
    fn form(mut self, code: u16, what: &str, media: &str, schema: Value) -> Self {
        let response = &mut self.value()["responses"][code.to_string()];
        if response.is_null() {
            *response = json!({ "description": what });
        }
        let shown = &mut response["content"][media]["schema"];
        *shown = match shown.take() {
            Value::Null => schema,
            Value::Object(mut several) if several.contains_key("anyOf") => {
                if let Some(Value::Array(all)) = several.get_mut("anyOf") {
                    all.push(schema);
                }
                Value::Object(several)
            }
            one => json!({ "anyOf": [one, schema] }),
        };
        self
    }

    fn answer<T: JsonSchema>(self, code: u16, what: &str) -> Self {
        let schema = self.document.answers.subschema_for::<T>().to_value();
        self.form(code, what, "application/json", schema)
    }

    fn answer_or_table<T: JsonSchema>(self, code: u16, what: &str) -> Self {
        self.answer::<T>(code, what).answer::<a::Table>(code, what)
    }

    fn stream<T: JsonSchema>(self, code: u16) -> Self {
        let schema = self.document.answers.subschema_for::<T>().to_value();
        self.form(code, "the events", "application/json;stream=watch", schema)
    }

    fn text(self, code: u16, what: &str) -> Self {
        self.form(code, what, "text/plain", json!({ "type": "string" }))
    }

    fn anything(self, code: u16, what: &str) -> Self {
        self.form(code, what, "application/json", json!({ "type": "object" }))
    }

    fn errors(mut self, codes: &[u16]) -> Self {
        for code in codes {
            let what = match code {
                400 => "the request cannot be understood",
                401 => "the port does not know who asks",
                403 => "who asks may not do this",
                404 => "there is no such object",
                409 => "it contradicts what is there or under way",
                410 => "the version is too old: list again",
                422 => "fields are wrong: each has a cause",
                501 => "this router has no meta store, or a store is too old",
                _ => "the meta store or a store cannot be used",
            };
            self = self.answer::<a::Status>(*code, what);
        }
        self
    }
}

/// Renames what `$ref`s name.
fn rename(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value {
                    Value::String(at) if name == "$ref" && at == from => to.clone_into(at),
                    value => rename(value, from, to),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, from, to)),
        _ => {}
    }
}

fn for_bodies(paths: &mut Value, change: &mut impl FnMut(&mut Value)) {
    let operations = paths.as_object_mut().into_iter().flat_map(Map::values_mut);
    let operations = operations.filter_map(Value::as_object_mut).flat_map(Map::values_mut);
    operations.filter_map(|operation| operation.get_mut("requestBody")).for_each(change);
}

/// Writes the names of fields in descriptions as they are written in documents.
fn as_written(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value {
                    Value::String(text) if name == "description" => *text = camel(text),
                    value => as_written(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(as_written),
        _ => {}
    }
}

/// A description with its names in backquotes in camel case, and without the brackets of Rust's links.
fn camel(text: &str) -> String {
    let text = text.replace("[`", "`").replace("`]", "`");
    let parts = text.split('`').enumerate().map(|(at, part)| {
        let is_name = at % 2 == 1 && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if !is_name {
            return part.to_owned();
        }
        let mut words = part.split('_');
        let first = words.next().unwrap_or_default().to_owned();
        words.fold(first, |name, word| {
            let (head, tail) = word.split_at(word.len().min(1));
            name + &head.to_ascii_uppercase() + tail
        })
    });
    parts.collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::discovery;
    use super::*;

    fn refs(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| match value {
                Value::String(at) if name == "$ref" => drop(found.insert(at.clone())),
                value => refs(value, found),
            }),
            Value::Array(items) => items.iter().for_each(|item| refs(item, found)),
            _ => {}
        }
    }

    #[test]
    fn everything_that_is_named_is_there_and_is_needed() {
        let mut named = BTreeSet::new();
        refs(document(), &mut named);
        let there = document()["components"]["schemas"].as_object().unwrap().keys();
        let there: BTreeSet<String> = there.map(|name| format!("{SCHEMAS}{name}")).collect();
        assert_eq!(named, there);
        assert!(there.contains("#/components/schemas/DataPartitionConfigWritten"), "{there:?}");
    }

    #[test]
    fn each_operation_has_an_id_a_success_and_the_parameters_of_its_path() {
        let mut ids = BTreeSet::new();
        for (path, operations) in document()["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{method} {path}");
                let codes: Vec<_> = operation["responses"].as_object().unwrap().keys().collect();
                assert!(codes.iter().any(|code| code.starts_with('2')), "{method} {path}: {codes:?}");
                let parameters = operation["parameters"].as_array().unwrap();
                let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path");
                let mut names: Vec<_> =
                    in_path.map(|parameter| parameter["name"].as_str().unwrap()).collect();
                let mut wanted: Vec<_> =
                    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
                names.sort_unstable();
                wanted.sort_unstable();
                assert_eq!(names, wanted, "{method} {path}");
            }
        }
    }

    #[test]
    fn every_type_of_the_index_has_the_routes_of_its_verbs() {
        for resource in discovery::RESOURCES {
            let (all, one) = (format!("/api/v1/{}", resource.name), format!("/api/v1/{}/{{", resource.name));
            let paths = document()["paths"].as_object().unwrap();
            let one = paths.iter().find(|(path, _)| path.starts_with(&one)).map(|(_, operations)| operations);
            let has = |of: Option<&Value>, method: &str| of.is_some_and(|of| of.get(method).is_some());
            for (verb, there) in [
                ("list", has(paths.get(&all), "get")),
                ("create", has(paths.get(&all), "post")),
                ("get", has(one, "get")),
                ("update", has(one, "put")),
                ("delete", has(one, "delete")),
            ] {
                assert_eq!(resource.verbs.contains(&verb), there, "{} {verb}", resource.name);
            }
        }
    }

    #[test]
    fn descriptions_name_fields_as_documents_do() {
        assert_eq!(
            camel("with `range_start`, or [`Durability`], `--a_b`"),
            "with `rangeStart`, or `Durability`, `--a_b`"
        );
    }
}
