//! Real answers of the admin port have the forms that `/openapi/v3` says.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{
    admin::Admin,
    etcdctl::Etcdctl,
    scenario::{self, report, wait_for},
    servers::Up,
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(240);
const SOON: Duration = Duration::from_secs(60);
const CONFIG: &str = "default: main\nstores:\n- {name: main, slot: 1}\n- {name: other, slot: 2}\npartitions:\n\
                      - {metadata: {name: pods}, resource: pods, serviceGroupId: main, durability: buffered}\n";

/// The document, and which of its answers were seen.
struct Spec {
    document: Value,
    seen: BTreeSet<String>,
}

impl Spec {
    /// Compares an answer with what the document says of the operation.
    fn check(
        &mut self,
        method: &str,
        path: &str,
        code: u16,
        media: &str,
        body: &Value,
    ) -> anyhow::Result<()> {
        let method = method.to_lowercase();
        let operation = &self.document["paths"][path][&method];
        let response = &operation["responses"][code.to_string()];
        let schema = &response["content"][media]["schema"];
        ensure!(schema.is_object(), "{method} {path}: {code} {media} is not in the document: {body}");
        // References lead into the document's components, of which every field must be known.
        let mut whole = json!({ "components": self.document["components"], "allOf": [schema] });
        close(&mut whole["components"]["schemas"]);
        let validator = jsonschema::draft202012::new(&whole)?;
        let errors: Vec<String> =
            validator.iter_errors(body).map(|error| format!("{}: {error}", error.instance_path())).collect();
        ensure!(errors.is_empty(), "{method} {path}: {code}: {}\n{body:#}", errors.join("\n"));
        self.seen.insert(format!("{method} {path} {code}"));
        Ok(())
    }
}

/// Forbids fields that a schema does not name.
fn close(schemas: &mut Value) {
    for schema in schemas.as_object_mut().into_iter().flat_map(serde_json::Map::values_mut) {
        if schema.get("properties").is_some() {
            schema["unevaluatedProperties"] = json!(false);
        }
    }
}

struct Asking {
    admin: Admin,
    spec: Spec,
}

impl Asking {
    /// Sends a request and compares the answer, which must have this code.
    async fn ask(
        &mut self,
        (method, path, filled): (&str, &str, &str),
        body: &Value,
        expected: u16,
    ) -> anyhow::Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (code, text) = self.admin.ask(method, filled, &body).await?;
        ensure!(code == expected, "{method} {filled} {body}: {code}, not {expected}: {text}");
        let answer: Value =
            serde_json::from_str(&text).with_context(|| format!("{method} {filled}: {text}"))?;
        self.spec.check(method, path, code, "application/json", &answer)?;
        Ok(answer)
    }

    async fn get(&mut self, path: &str) -> anyhow::Result<Value> {
        self.ask(("GET", path, path), &Value::Null, 200).await
    }

    async fn post(&mut self, path: &str, query: &str, body: Value, expected: u16) -> anyhow::Result<Value> {
        self.ask(("POST", path, &format!("{path}{query}")), &body, expected).await
    }
}

#[test]
fn answers_have_the_forms_of_the_document() {
    scenario::run("answers_have_the_forms_of_the_document", LIMIT, |dir| async move {
        let file = dir.join("two.yaml");
        std::fs::write(&file, CONFIG)?;
        let flags = [format!("--config={}", file.display()), "--standbys".to_owned()];
        let up = Up::start(&dir, "up", &flags).await?;
        let admin = Admin::at(&up.admin);
        let etcdctl = Etcdctl::new(&up.address);
        for key in ["pods/ns/a", "pods/ns/b", "secrets/ns/c"] {
            etcdctl.ok(&["put", &format!("/registry/{key}"), "value"]).await?;
        }
        let document = admin.ok("GET", "/openapi/v3", &Value::Null).await?;
        ensure!(document["openapi"] == "3.1.0", "{document}");
        let mut asking = Asking { admin: admin.clone(), spec: Spec { document, seen: BTreeSet::new() } };
        // The members of a store are shown once its standby is known.
        wait_for("standbys in sync", SOON, || async {
            let stores = admin.ok("GET", "/api/v1/stores", &Value::Null).await?;
            let in_sync = |store: &Value| store["members"].is_array() && store["standbyTrouble"].is_null();
            Ok(stores["stores"].as_array().is_some_and(|all| all.iter().all(in_sync)).then_some(()))
        })
        .await?;
        for path in [
            "/api/v1",
            "/api/v1/version",
            "/openapi/v3",
            "/api/v1/schema",
            "/api/v1/stores",
            "/api/v1/status",
            "/api/v1/partitions",
            "/api/v1/adoption",
            "/api/v1/durability",
            "/api/v1/cluster",
            "/api/v1/datapartitionconfigs",
            "/api/v1/servicegroups",
            "/api/v1/moves",
            "/api/v1/kinds",
            "/api/v1/clients",
            "/api/v1/slow",
            "/api/v1/heat",
            "/health",
            "/version",
        ] {
            asking.get(path).await?;
        }
        asked(&mut asking, &etcdctl).await?;
        objects(&mut asking).await?;
        changes(&mut asking).await?;
        snapshots(&mut asking).await?;
        report(&format!("e2e openapi answers={}", asking.spec.seen.len()));
        Ok(())
    });
}

/// What clients ask: digests, and the lines of traces.
async fn asked(asking: &mut Asking, etcdctl: &Etcdctl) -> anyhow::Result<()> {
    let digest = "/api/v1/kinds/{name}/digest";
    for (name, code) in [("pods", 200), ("pods?revision=x", 400), ("podz", 404), ("pods?revision=1", 503)] {
        let (name, query) = name.split_once('?').unwrap_or((name, ""));
        let filled = format!("/api/v1/kinds/{name}/digest?{query}");
        asking.ask(("GET", digest, &filled), &Value::Null, code).await?;
    }
    asking.ask(("GET", "/api/v1/heat", "/api/v1/heat?since=x"), &Value::Null, 400).await?;
    let told = json!({ "what": "move pods to other", "why": "main is full", "outcome": "waited", "reason": "it is noon" });
    let wrong = json!({ "what": "", "why": "main is full", "outcome": "waited" });
    for (told, code) in [(told.clone(), 201), (told, 201), (wrong, 422), (json!({ "what": 7 }), 422)] {
        asking.post("/api/v1/advice", "", told, code).await?;
    }
    let kept = asking.ask(("GET", "/api/v1/advice", "/api/v1/advice"), &Value::Null, 200).await?;
    ensure!(kept["items"][0]["times"] == 2 && kept["items"].as_array().map(Vec::len) == Some(1), "{kept}");
    asking.ask(("GET", "/api/v1/trace", "/api/v1/trace?knid=pods"), &Value::Null, 400).await?;
    for method in ["GET", "POST"] {
        let tracing = asking.admin.ask(method, "/api/v1/trace?seconds=1", "");
        let calling = async {
            // On a quick machine a hundred calls take less than the second of the trace.
            let end = tokio::time::Instant::now() + SOON;
            while tokio::time::Instant::now() < end {
                etcdctl.ok(&["get", "--prefix", "/registry/pods/"]).await?;
            }
            anyhow::Ok(())
        };
        // The calls go on as long as the trace may last.
        let traced = tokio::select! {
            traced = tracing => traced?,
            called = calling => { called?; anyhow::bail!("the trace does not end") }
        };
        let (code, lines) = traced;
        ensure!(code == 200 && !lines.is_empty(), "{method} {code} {lines}");
        for line in lines.lines() {
            let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            ensure!(
                line["request"].is_string() == (method == "POST") && line["rangeEnd"].is_string(),
                "{line}"
            );
            asking.spec.check(method, "/api/v1/trace", 200, "application/x-ndjson", &line)?;
        }
    }
    Ok(())
}

async fn objects(asking: &mut Asking) -> anyhow::Result<()> {
    for (plural, name) in [("datapartitionconfigs", "pods"), ("servicegroups", "main")] {
        let (all, one) = (format!("/api/v1/{plural}"), format!("/api/v1/{plural}/{{name}}"));
        let (of_one, of_none) = (format!("/api/v1/{plural}/{name}"), format!("/api/v1/{plural}/none"));
        let object = asking.ask(("GET", &one, &of_one), &Value::Null, 200).await?;
        asking.ask(("PUT", &one, &of_one), &object, 200).await?;
        asking.ask(("PUT", &one, &format!("{of_one}?dryRun=All")), &object, 200).await?;
        asking.ask(("GET", &one, &of_none), &Value::Null, 404).await?;
        asking.ask(("DELETE", &one, &of_none), &Value::Null, 404).await?;
        asking.ask(("DELETE", &one, &format!("{of_none}?dryRun=Some")), &Value::Null, 400).await?;
        asking
            .ask(("GET", &all, &format!("{all}?watch=true&resourceVersion=1000000")), &Value::Null, 410)
            .await?;
        asking.post(&all, "", object.clone(), 409).await?;
        asking.post(&all, "", json!([]), 422).await?;
        asking.post(&all, "", json!({ "metadata": {}, "slto": 3, "endpoints": 7 }), 422).await?;
        asking.ask(("POST", &all, &all), &json!("{"), 422).await?;
    }
    let nodes = json!({ "metadata": { "name": "nodes" }, "resource": "nodes", "serviceGroupId": "main" });
    let path = "/api/v1/datapartitionconfigs";
    asking.post(path, "?dryRun=All", nodes.clone(), 200).await?;
    asking.post(path, "", nodes, 201).await?;
    let one = "/api/v1/datapartitionconfigs/{name}";
    asking.ask(("DELETE", one, "/api/v1/datapartitionconfigs/nodes?dryRun=All"), &Value::Null, 200).await?;
    asking.ask(("DELETE", one, "/api/v1/datapartitionconfigs/nodes"), &Value::Null, 200).await?;
    // A table is another form of the same answer.
    for path in ["/api/v1/datapartitionconfigs", "/api/v1/servicegroups", "/api/v1/moves"] {
        let (_, table) =
            asking.admin.ask_for("GET", path, "application/json;as=Table;v=v1;g=meta.k8s.io", "").await?;
        let table: Value = serde_json::from_str(&table)?;
        ensure!(table["kind"] == "Table", "{table}");
        asking.spec.check("GET", path, 200, "application/json", &table)?;
    }
    Ok(())
}

async fn changes(asking: &mut Asking) -> anyhow::Result<()> {
    let to_other = json!({ "kind": "pods", "to": "other" });
    asking.post("/api/v1/plan", "", json!({ "verbs": [{ "move": to_other }] }), 200).await?;
    asking.post("/api/v1/move", "?dryRun=All", to_other.clone(), 200).await?;
    asking.post("/api/v1/move", "", json!({ "kind": "pdos", "to": 3, "x": 1 }), 422).await?;
    asking.post("/api/v1/move", "", json!({ "kind": "pdos", "to": "other" }), 422).await?;
    let made = asking.post("/api/v1/move", "", to_other, 200).await?;
    let id = made["moves"][0].as_u64().context("a move")?;
    let (one, path) = ("/api/v1/moves/{id}", format!("/api/v1/moves/{id}"));
    asking.ask(("GET", one, &path), &Value::Null, 200).await?;
    let admin = asking.admin.clone();
    wait_for("the move to switch", SOON, || async {
        let shown = admin.ok("GET", &path, &Value::Null).await?;
        Ok((shown["phase"] == "Switched").then_some(()))
    })
    .await?;
    asking.ask(("GET", one, &path), &Value::Null, 200).await?;
    asking.get("/api/v1/moves").await?;
    let verb = "/api/v1/moves/{id}/{verb}";
    asking.ask(("POST", verb, &format!("{path}/abort")), &Value::Null, 409).await?;
    asking.ask(("POST", verb, &format!("{path}/complete")), &Value::Null, 200).await?;
    asking.ask(("POST", verb, "/api/v1/moves/x/abort"), &Value::Null, 400).await?;
    asking.ask(("POST", verb, "/api/v1/moves/99/abort"), &Value::Null, 404).await?;
    wait_for("the move to end", SOON, || async {
        let shown = admin.ok("GET", &path, &Value::Null).await?;
        Ok((shown["over"] == true).then_some(()))
    })
    .await?;
    asking
        .post("/api/v1/split", "?dryRun=All", json!({ "kind": "pods", "at": "m", "to": "main" }), 200)
        .await?;
    asking.post("/api/v1/merge", "?dryRun=All", json!({ "kind": "pods" }), 422).await?;
    asking.post("/api/v1/drain", "?dryRun=All", json!({ "store": "other" }), 200).await?;
    asking.post("/api/v1/apply", "?dryRun=All", json!({ "delete": ["pods"] }), 200).await?;
    let two =
        json!([{ "kind": "Pod" }, { "kind": "ServiceGroup", "metadata": { "name": "s" }, "slot": "x" }]);
    let refused = asking.post("/api/v1/apply", "", json!({ "items": two }), 422).await?;
    ensure!(refused["details"]["causes"].as_array().is_some_and(|causes| causes.len() == 2), "{refused}");
    asking.post("/api/v1/replace", "", json!({ "store": "main" }), 422).await?;
    asking.post("/api/v1/reconcile", "", json!({}), 200).await?;
    asking.post("/api/v1/failover", "", json!({ "store": "none" }), 422).await?;
    asking.post("/api/v1/failover", "", json!({ "store": "main" }), 200).await?;
    asking.get("/api/v1/stores").await?;
    Ok(())
}

async fn snapshots(asking: &mut Asking) -> anyhow::Result<()> {
    for path in ["/api/v1/snapshots", "/api/v1/cuts"] {
        let taken = asking.post(path, "", Value::Null, 201).await?;
        let (one, of_it) =
            (format!("{path}/{{name}}"), format!("{path}/{}", taken["name"].as_str().context("name")?));
        asking.ask(("POST", &one, &of_it), &json!({ "revision": taken["revision"] }), 200).await?;
        asking.ask(("POST", &one, &of_it), &json!({ "revision": "x" }), 400).await?;
        asking.ask(("DELETE", &one, &of_it), &Value::Null, 200).await?;
        asking.ask(("DELETE", &one, &format!("{path}/none")), &Value::Null, 404).await?;
    }
    Ok(())
}
