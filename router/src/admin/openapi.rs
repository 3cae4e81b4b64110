//! `/openapi/v3`: the admin API as an OpenAPI document. Its schemas are those of the types that requests are read as, and of
//! the answers' forms. A test compares its paths with the routes, and real answers with its schemas.

mod document;

use std::sync::OnceLock;

use kindred_partition_config::model::DataPartitionConfig;
use schemars::JsonSchema;
use serde_json::Value;

use self::document::Document;
use super::advice::{AdviceList, Kept, Told};
use super::answers as a;
use super::heat::Heat;
use super::objects::ServiceGroup;
use super::reconcile;
use super::replace::ReplaceBody;
use super::snapshots::Renewal;
use super::verbs::{ApplyBody, DrainBody, MergeBody, MoveBody, PlanBody, SplitBody};
use crate::standbys::failover::FailoverBody;
use crate::traffic::trace::TraceLine;

/// The document.
pub fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let mut document = Document::new();
        probes(&mut document);
        shown(&mut document);
        asked(&mut document);
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
    for (path, what) in [
        ("/livez/{check}", "One check of /livez, by its name or one of etcd's, for which all count"),
        ("/readyz/{check}", "One check of /readyz, by its name or one of etcd's, for which all count"),
    ] {
        let one = document.get(path, what).in_path("check", "The check's name.");
        one.text(200, "it passed").text(503, "it failed").text(404, "there is no such check");
    }
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

/// What clients ask, and how much there is of each Kind.
fn asked(document: &mut Document) {
    document
        .get(
            "/api/v1/kinds",
            "Every Kind with its stores, its size and what clients of this router asked of it",
        )
        .answer::<a::KindList>(200, "the Kinds");
    let digest = document.get("/api/v1/kinds/{name}/digest", "The digest of a Kind at one revision");
    digest
        .in_path("name", "The name of the Kind.")
        .query("revision", "The revision to read at; without it, the present one.")
        .answer::<a::KindDigest>(200, "the digest")
        .errors(&[400, 404, 503]);
    document
        .get("/api/v1/clients", "What each client of this router asked")
        .answer::<a::ClientList>(200, "the clients");
    document.get("/api/v1/slow", "The last calls that took long").answer::<a::SlowCallList>(200, "the calls");
    let since = "Only steps that ended after this time, in seconds since the Unix epoch.";
    let heat =
        document.get("/api/v1/heat", "The traffic of the last hour by Kind, a quarter of an hour at once");
    heat.query("since", since).answer::<Heat>(200, "the steps").errors(&[400]);
    document
        .get("/api/v1/advice", "What `kindred advise` decided, the newest first")
        .answer::<AdviceList>(200, "the decisions");
    let tell = document.post("/api/v1/advice", "Tell a decision of `kindred advise`");
    tell.body::<Told>()
        .answer::<Kept>(201, "the decision as it is kept; one that is told again counts up")
        .errors(&[400, 409, 422, 501, 503]);
    let live = document.get("/api/v1/live", "What the page shows, every two seconds");
    live.events(200, "server-sent events: `hello`, then `look` after `look`").errors(&[503]);
    let (shown, whole) =
        ("The calls of clients as lines of JSON", "The same with the requests themselves, which have values");
    for (method, summary) in [("get", shown), ("post", whole)] {
        let mut operation = document.operation(method, "/api/v1/trace", summary);
        for (name, what) in FILTER {
            operation = operation.query(name, what);
        }
        operation.lines::<TraceLine>(200, "a call a line").errors(&[400, 503]);
    }
}

/// What a trace may be asked for.
const FILTER: [(&str, &str); 8] = [
    ("kind", "Only calls of this Kind."),
    ("client", "Only calls of this client: the common name of its certificate, or its address."),
    ("verb", "Only calls of this verb, such as `list` or `update`."),
    ("key", "Only keys that begin with this."),
    ("minMillis", "Only calls that took so many milliseconds."),
    ("errors", "`true`: only calls that failed."),
    ("sample", "One of so many calls."),
    ("seconds", "The end of the trace, in seconds."),
];

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
        .of_change()
        .body::<Body>()
        .answer::<a::Change>(200, "what would be done (a dry run)")
        .answer::<One>(201, "the object")
        .errors(&[400, 409, 422, 501, 503]);
    let get = document.get(&one, &format!("One of {plural}"));
    get.in_path("name", name).answer_or_table::<One>(200, "the object").errors(&[404]);
    let put = document.put(&one, &format!("Update one of {plural}"));
    put.in_path("name", name)
        .of_change()
        .body::<Body>()
        .answer::<One>(200, "the object")
        .answer::<a::Change>(200, "what would be done (a dry run)")
        .errors(&[400, 404, 409, 422, 501, 503]);
    let delete = document.delete(&one, &format!("Delete one of {plural}"));
    delete
        .in_path("name", name)
        .of_change()
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
    post.of_change()
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::discovery;
    use super::document::SCHEMAS;
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
}
