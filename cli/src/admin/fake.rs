//! Tests of commands against a fake admin API in this process: what they send, what they print, how they end.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::{
    Router,
    body::Bytes,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use clap::Parser;
use serde_json::{Value, json};

use super::{args::Connect, client::Client, context, dispatch, failure::Failure, output, store};
use crate::cli::{Cli, Command};

/// The requests that the fake received, and its next answers for each request line.
#[derive(Debug, Default)]
struct Script {
    asked: Vec<(String, Value)>,
    answers: Vec<(String, VecDeque<(u16, Value)>)>,
}

struct Fake {
    url: String,
    script: Arc<Mutex<Script>>,
}

impl Fake {
    /// Starts a fake with answers for request lines, in order; the last one repeats.
    async fn start(answers: &[(&str, &[(u16, Value)])]) -> Self {
        let answers = answers.iter().map(|(line, all)| ((*line).to_owned(), all.iter().cloned().collect()));
        let script = Arc::new(Mutex::new(Script { asked: Vec::new(), answers: answers.collect() }));
        let shared = script.clone();
        let app = Router::new().fallback(move |request: Request| answer(shared.clone(), request));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, script }
    }

    /// Runs a command and returns its output.
    async fn run(&self, words: &[&str]) -> (Result<(), Failure>, String) {
        run(&self.url, words).await
    }

    fn asked(&self) -> Vec<(String, Value)> {
        self.script.lock().unwrap().asked.clone()
    }
}

async fn run(url: &str, words: &[&str]) -> (Result<(), Failure>, String) {
    let line: Vec<&str> = ["kindred", "--admin", url].iter().chain(words).copied().collect();
    let Cli { connect, command } = Cli::try_parse_from(line).unwrap();
    let Command::Admin(command) = command else { panic!("{words:?} asks no router") };
    output::CAPTURED.take();
    let ended = dispatch(*command, &connect).await;
    (ended, output::CAPTURED.take())
}

async fn answer(script: Arc<Mutex<Script>>, request: Request) -> Response {
    let table = request.headers()["accept"].to_str().unwrap().contains("as=Table");
    let line = format!("{} {}{}", request.method(), request.uri(), if table { " as a table" } else { "" });
    let body: Bytes = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let mut script = script.lock().unwrap();
    script.asked.push((line.clone(), serde_json::from_slice(&body).unwrap_or_default()));
    let Some((_, answers)) = script.answers.iter_mut().find(|(of, _)| *of == line) else {
        return (StatusCode::NOT_FOUND, "no route").into_response();
    };
    let (code, value) = if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() };
    (StatusCode::from_u16(code).unwrap(), axum::Json(value)).into_response()
}

fn refusal(code: u16, message: &str) -> (u16, Value) {
    (code, json!({ "kind": "Status", "status": "Failure", "message": message, "code": code }))
}

fn moved(phase: &str, goal: &str, keys: u64) -> (u16, Value) {
    let there = matches!(phase, "Switched" | "Done") && goal == "there";
    let shown = json!({
        "kind": "Move", "metadata": { "name": "7" }, "resource": "pods", "phase": phase, "goal": goal,
        "over": matches!(phase, "Done" | "Aborted"), "reason": if goal == "abort" { json!("on request") } else { Value::Null },
        "legs": [{ "from": "pods", "to": "pods2", "moved": there }],
        "progress": { "router": "r", "keysCopied": keys, "bytesCopied": keys * 100, "pauseMicros": 5200 },
    });
    (200, shown)
}

fn begun() -> (u16, Value) {
    let plan = json!({ "moves": [{ "resource": "pods", "keys": 2000, "bytes": 200_000, "legs": [{
        "from": "pods", "to": "pods2", "keys": 2000, "bytes": 200_000, "millis": 40, "pauseMicros": 4000,
        "writtenPerSecond": 2048, "limited": true, "roomBytes": 1 << 20, "takesBytes": 300_000,
    }] }], "rate": { "bytesPerSecond": 5 << 20, "from": "measured" } });
    let objects = json!([{ "object": "datapartitionconfigs/pods", "change": "configured" }]);
    (200, json!({ "kind": "Change", "dryRun": false, "objects": objects, "moves": [7], "plan": plan }))
}

const MOVE: &str = "GET /api/v1/moves/7";

#[tokio::test]
async fn a_move_is_followed_until_it_has_switched() {
    let phases = [
        moved("Copying", "there", 900),
        moved("CatchingUp", "there", 2000),
        moved("Switched", "there", 2040),
    ];
    let fake = Fake::start(&[("POST /api/v1/move", &[begun()]), (MOVE, &phases)]).await;
    let (ended, printed) = fake.run(&["move", "pods", "--to", "pods2"]).await;
    assert_eq!(ended, Ok(()));
    assert_eq!(fake.asked()[0].1, json!({ "kind": "pods", "to": "pods2" }));
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(
        lines[..4],
        [
            "datapartitionconfigs/pods configured",
            "KIND   FROM   TO      KEYS     BYTES        ROOM       WRITTEN/S   TIME       WRITE PAUSE",
            "pods   pods   pods2   ~2,000   ~195.3 KiB   ~1.0 MiB   ~2.0 KiB    ~40.0 ms   ~4.0 ms",
            "time at 5.0 MiB a second: as the router made its last copy",
        ]
    );
    assert!(printed.contains("move 7: pods is on pods2; 2,040 keys, 199.2 KiB in "), "{printed}");
    assert!(printed.contains("longest write pause 5.2 ms"), "{printed}");
}

#[tokio::test]
async fn a_plan_says_where_there_is_no_room_and_that_it_would_never_end() {
    let leg = |figures: Value| {
        let mut leg = json!({ "from": "a", "to": "b", "keys": 10, "bytes": 100, "pauseMicros": 4000, "writtenPerSecond": 9 });
        leg.as_object_mut().unwrap().extend(figures.as_object().unwrap().clone());
        leg
    };
    let full = leg(json!({ "millis": null, "limited": true, "roomBytes": 50, "takesBytes": 100 }));
    let open = leg(json!({ "millis": 1000, "limited": false, "roomBytes": null, "takesBytes": null }));
    let away = json!({ "from": "a", "to": "c" });
    let problem = "store \"b\" has room for 50 bytes of pods, and 100 are to move there";
    let plan = json!({
        "moves": [{ "resource": "pods", "legs": [full, open, away], "problems": [problem, "store \"c\" is away"] }],
        "rate": { "bytesPerSecond": 1 << 20, "from": "limit" },
    });
    let answer = json!({ "kind": "Change", "dryRun": true, "objects": [], "moves": [], "plan": plan });
    let fake = Fake::start(&[("POST /api/v1/move?dryRun=All", &[(200, answer)])]).await;
    let (ended, printed) = fake.run(&["move", "pods", "--to", "b", "--dry-run"]).await;
    assert_eq!(ended, Ok(()));
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(
        lines,
        [
            "KIND   FROM   TO   KEYS      BYTES     ROOM       WRITTEN/S   TIME      WRITE PAUSE",
            "pods   a      b    ~10       ~100 B    ~50 B      ~9 B        never     ~4.0 ms",
            "pods   a      b    ~10       ~100 B    no limit   ~9 B        ~1.0 s    ~4.0 ms",
            "pods   a      c    unknown   unknown   unknown    unknown     unknown   unknown",
            "time at 1.0 MiB a second: the router's --move-bytes-per-second",
            "pods: store \"b\" has room for 50 bytes of pods, and 100 are to move there",
            "pods: store \"c\" is away",
        ]
    );
}

#[tokio::test]
async fn the_ends_of_a_wait_have_their_exit_status() {
    let aborted = Fake::start(&[
        ("POST /api/v1/drain", &[begun()]),
        (MOVE, &[moved("Copying", "there", 1), moved("Aborted", "abort", 1)]),
    ])
    .await;
    let (ended, _) = aborted.run(&["drain", "pods"]).await;
    let failure = ended.unwrap_err();
    assert_eq!(failure, Failure::Aborted("move 7 was aborted: on request; pods is on pods".to_owned()));
    assert_eq!(failure.code(), 4);

    let slow =
        Fake::start(&[("POST /api/v1/merge", &[begun()]), (MOVE, &[moved("Copying", "there", 1)])]).await;
    let (ended, _) = slow.run(&["merge", "pods", "--timeout", "0s"]).await;
    assert_eq!(ended.unwrap_err().code(), 5);
    let (ended, printed) = slow.run(&["merge", "pods", "--no-wait"]).await;
    assert_eq!(ended, Ok(()));
    assert!(printed.contains("move 7 has begun"), "{printed}");

    let refuses = Fake::start(&[(
        "POST /api/v1/move",
        &[refusal(422, "kind: pdos is no Kind that is configured; did you mean pods?")],
    )])
    .await;
    let (ended, printed) = refuses.run(&["move", "pdos", "--to", "x"]).await;
    assert_eq!((ended.unwrap_err().code(), printed.as_str()), (1, ""));

    let away = Fake::start(&[("POST /api/v1/move", &[refusal(503, "the meta store cannot be used")])]).await;
    assert_eq!(away.run(&["move", "pods", "--to", "x"]).await.0.unwrap_err().code(), 3);
    let closed = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let (ended, _) = run(&closed, &["status"]).await;
    assert_eq!(ended.unwrap_err().code(), 3);
    // The first address that answers is used.
    let (ended, _) = run(&format!("{closed},{}", slow.url), &["get", "moves", "7", "-o", "json"]).await;
    assert_eq!(ended, Ok(()));
}

#[tokio::test]
async fn reverse_complete_and_abort_wait_for_their_own_end() {
    let list = |items: Vec<Value>| (200, json!({ "kind": "MoveList", "items": items }));
    let one = list(vec![moved("Switched", "there", 1).1]);
    let fake = Fake::start(&[
        ("GET /api/v1/moves", &[one]),
        ("POST /api/v1/moves/7/reverse", &[(200, json!({}))]),
        (
            MOVE,
            &[moved("Switched", "there", 1), moved("CatchingUp", "back", 1), moved("Switched", "back", 1)],
        ),
    ])
    .await;
    let (ended, printed) = fake.run(&["move", "reverse"]).await;
    assert_eq!(ended, Ok(()));
    assert!(printed.contains("move 7: pods is on pods;"), "{printed}");

    let fake = Fake::start(&[
        ("POST /api/v1/moves/7/complete", &[(200, json!({}))]),
        (MOVE, &[moved("Switched", "there", 1), moved("Completing", "there", 1), moved("Done", "there", 1)]),
    ])
    .await;
    let (ended, printed) = fake.run(&["moves", "complete", "7"]).await;
    assert_eq!(ended, Ok(()));
    assert!(printed.contains("move 7 is done: pods is on pods2, and there is no way back"), "{printed}");

    let fake = Fake::start(&[
        ("POST /api/v1/moves/7/abort", &[(200, json!({}))]),
        (MOVE, &[moved("Copying", "there", 1), moved("Aborting", "abort", 1), moved("Aborted", "abort", 1)]),
    ])
    .await;
    assert_eq!(fake.run(&["move", "abort", "7"]).await.0, Ok(()));

    let none = Fake::start(&[("GET /api/v1/moves", &[list(vec![moved("Done", "there", 1).1])])]).await;
    assert_eq!(none.run(&["move", "abort"]).await.0.unwrap_err().code(), 1);
    let mut other = moved("Copying", "there", 1).1;
    other["metadata"]["name"] = json!("8");
    let two =
        Fake::start(&[("GET /api/v1/moves", &[list(vec![moved("Copying", "there", 1).1, other])])]).await;
    let failure = two.run(&["move", "abort"]).await.0.unwrap_err();
    assert_eq!(failure, Failure::Usage("several moves are under way: name one of 7, 8".to_owned()));
}

#[tokio::test]
async fn objects_as_tables_json_and_yaml() {
    let table = json!({ "kind": "Table", "columnDefinitions": [{ "name": "Name" }, { "name": "Stores" }],
        "rows": [{ "cells": ["pods", "pods"] }] });
    let object = json!({ "kind": "DataPartitionConfig", "metadata": { "name": "pods" }, "resource": "pods" });
    let fake = Fake::start(&[
        ("GET /api/v1/datapartitionconfigs as a table", &[(200, table)]),
        ("GET /api/v1/datapartitionconfigs/pods", &[(200, object.clone())]),
        ("GET /api/v1/datapartitionconfigs/x%2Fy", &[refusal(404, "datapartitionconfigs \"x/y\" not found")]),
    ])
    .await;
    let (_, printed) = fake.run(&["get", "datapartitionconfigs"]).await;
    assert_eq!(printed, "NAME   STORES\npods   pods\n");
    let (_, printed) = fake.run(&["get", "dpc", "pods", "-o", "json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), object);
    let (_, printed) = fake.run(&["get", "config", "pods", "-o", "yaml"]).await;
    assert!(printed.contains("resource: pods\n"), "{printed}");
    let (ended, _) = fake.run(&["get", "dpc", "x/y", "-o", "json"]).await;
    assert_eq!(ended, Err(Failure::Refused("datapartitionconfigs \"x/y\" not found".to_owned())));
}

#[tokio::test]
async fn a_file_is_applied_or_planned_as_a_whole() {
    let nothing =
        json!({ "kind": "Change", "dryRun": true, "objects": [], "moves": [], "plan": { "moves": [] } });
    let fake = Fake::start(&[
        ("POST /api/v1/apply?dryRun=All", &[(200, nothing.clone())]),
        ("POST /api/v1/plan?dryRun=All", &[(200, nothing)]),
    ])
    .await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "kind: DataPartitionConfig\nmetadata: {name: a}\nresource: pods\n").unwrap();
    let path = file.path().to_str().unwrap();
    let (ended, printed) = fake.run(&["apply", "-f", path, "--dry-run"]).await;
    assert_eq!((ended, printed.as_str()), (Ok(()), "no key moves\n"));
    let (ended, _) = fake.run(&["plan", "-f", path]).await;
    assert_eq!(ended, Ok(()));
    let sent = fake.asked();
    assert_eq!(sent[0].1["items"][0]["metadata"]["name"], "a");
    assert_eq!(sent[0].1, sent[1].1);
    let (ended, _) = fake.run(&["plan", "-f", "/nowhere"]).await;
    assert_eq!(ended.unwrap_err().code(), 2);
    assert_eq!(fake.asked().len(), 2);
}

#[tokio::test]
async fn f43_a_store_is_waited_for_and_that_is_said_at_once() {
    let stores = |state: &str| {
        (200, json!({ "stores": [{ "name": "pods2", "state": state, "endpoints": ["http://h:1"] }] }))
    };
    let fake = Fake::start(&[
        ("POST /api/v1/servicegroups", &[(201, json!({ "slot": 6 }))]),
        ("GET /api/v1/stores", &[(200, json!({ "stores": [] })), stores("connecting"), stores("up")]),
    ])
    .await;
    let (ended, printed) = fake.run(&["store", "add", "pods2", "--local"]).await;
    let waits = "waiting up to 30 s for `kindred up` to start it (--no-wait does not)\n\
                 it is not known to this router yet (0 s of 30 s)\nit is connecting (0 s of 30 s)\n";
    let expected = format!("store pods2 added, slot 6\n{waits}store pods2 is up at http://h:1\n");
    assert_eq!((ended, printed), (Ok(()), expected));
    assert_eq!(fake.asked()[0].1.get("endpoints"), None);
    let words = ["store", "add", "e", "--endpoint", "http://h:2,http://h:3", "--etcd", "--no-wait"];
    assert_eq!(fake.run(&words).await.0, Ok(()));
    let sent = fake.asked().last().unwrap().1.clone();
    assert_eq!(
        (sent["endpoints"].clone(), sent["type"].clone()),
        (json!(["http://h:2", "http://h:3"]), json!("etcd"))
    );
}

#[tokio::test]
async fn f43_a_store_that_is_nowhere_is_given_up() {
    let away = json!({ "name": "e", "state": "down", "endpoints": ["http://h:2"], "lastError": "refused" });
    let fake = Fake::start(&[("GET /api/v1/stores", &[(200, json!({ "stores": [away] }))])]).await;
    let address = context::address(&Connect { admin: Some(fake.url.clone()), ..Connect::default() }).unwrap();
    let client = Client::new(&address).unwrap();
    output::CAPTURED.take();
    let ended = store::wait_up(&client, "e", false, Duration::ZERO, "start it").await;
    let waits = "waiting up to 0 s for it to answer the router at http://h:2 (--no-wait does not)\n\
                 it is down: refused (0 s of 0 s)\n";
    assert_eq!(output::CAPTURED.take(), waits);
    let why = "store e is known, but not up within 0 s: refused; start it";
    assert_eq!(ended, Err(Failure::StillRunning(why.to_owned())));
}

#[tokio::test]
async fn a_store_is_replaced_when_its_death_is_asserted() {
    let refused = refusal(422, "force: store \"pods\" did not give its keys away; say --force");
    let made =
        json!({ "kind": "Change", "dryRun": false, "objects": [], "moves": [], "plan": { "moves": [] } });
    let up = json!({ "stores": [{ "name": "pods", "state": "up", "endpoints": ["http://h:2"] }] });
    let fake = Fake::start(&[
        ("POST /api/v1/replace", &[refused, (200, made)]),
        ("GET /api/v1/servicegroups/pods", &[(200, json!({ "slot": 7 }))]),
        ("GET /api/v1/stores", &[(200, up)]),
    ])
    .await;
    let words = ["store", "replace", "pods", "--endpoint", "http://h:2"];
    let (ended, printed) = fake.run(&words).await;
    assert_eq!((ended.unwrap_err().code(), printed.as_str()), (1, ""));
    let (ended, printed) = fake.run(&[&words[..], &["--force"]].concat()).await;
    assert_eq!(ended, Ok(()));
    let sent = fake.asked();
    assert_eq!(sent[0].1, json!({ "store": "pods", "endpoints": ["http://h:2"], "force": false }));
    assert_eq!(sent[1].1["force"], true);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(
        lines[0].starts_with("store pods is replaced by an empty one, slot 7: it opens in about 20 s"),
        "{printed}"
    );
    assert_eq!(lines[1..], ["store pods is up at http://h:2"]);

    let objects = json!([{ "object": "servicegroups/pods", "change": "configured" }]);
    let plan =
        json!({ "kind": "Change", "dryRun": true, "objects": objects, "moves": [], "plan": { "moves": [] } });
    let fake = Fake::start(&[("POST /api/v1/replace?dryRun=All", &[(200, plan)])]).await;
    let (_, printed) = fake.run(&["store", "replace", "pods", "--local", "--force", "--dry-run"]).await;
    assert_eq!(printed, "servicegroups/pods configured (dry run)\nno key moves\n");
}

#[tokio::test]
async fn the_state_of_a_cluster() {
    let stores = json!({ "stores": [{ "name": "pods", "type": "shard", "slot": 4, "state": "up", "default": false,
        "endpoints": ["http://h:1"], "lastError": null }] });
    let map = json!({ "generation": 3, "partitions": [
        { "start": "", "end": "/registry/pods/m", "kind": null, "stores": ["default"], "ring": false, "epoch": 1 },
        { "start": "/registry/pods/m", "end": "/registry/pods0", "kind": "/registry/pods/", "resource": "pods",
          "stores": ["pods"], "ring": false, "epoch": 2 },
        { "start": "/registry/pods0", "end": null, "kind": null, "stores": ["default"], "ring": false, "epoch": 1 },
    ] });
    let kind = |kind: &str, mode: &str, keys: u64, bytes: Option<u64>| json!({ "kind": kind, "resource": kind.split('/').nth(2), "mode": mode, "keys": keys, "notDurableBytes": bytes, "notDurableMillis": bytes.map(|_| 4) });
    let durability = json!({ "stores": [
        { "store": "pods", "kinds": [kind("/registry/pods/", "buffered", 2000, Some(12 << 10)), kind("", "fsync", 3, None)],
          "logs": [{ "mode": "buffered", "walBytes": 1 << 20, "failing": "no space left" }], "checkpoint": null },
        { "store": "events", "kinds": [kind("/registry/events/", "none", 9, None)], "logs": [], "checkpoint": null },
        { "store": "gone", "problem": "no answer in time" },
    ] });
    let moves = [(200, json!({ "items": [moved("Copying", "there", 1).1] })), refusal(501, "no meta store")];
    let fake = Fake::start(&[
        ("GET /api/v1/stores", &[(200, stores)]),
        ("GET /api/v1/partitions", &[(200, map)]),
        (
            "GET /api/v1/status",
            &[(200, json!({ "problems": ["the map is wrong"] })), (200, json!({ "problems": [] }))],
        ),
        ("GET /api/v1/moves", &moves),
        ("GET /api/v1/durability", &[(200, durability.clone()), (200, durability)]),
    ])
    .await;
    let (_, printed) = fake.run(&["status"]).await;
    for part in [
        "Problem: the map is wrong\n\n",
        "pods         pods     buffered   2,000     12.0 KiB of the last 4.0 ms   1.0 MiB",
        "<all else>   pods     fsync      3         nothing",
        "events       events   none       9         everything",
        "Store pods cannot write its log of mode buffered: no space left\n",
        "             gone     unknown    unknown   no answer in time",
        "pods    shard   4      up",
        "Map 3\nKIND         FROM   UP TO    STORES    EPOCH\npods         m      <open>   pods      2\n",
        "MOVE   KIND   FROM   TO      PHASE     GOAL    ROUTER\n7 ",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let (ended, printed) = fake.run(&["status"]).await;
    assert_eq!(ended, Ok(()));
    assert!(printed.contains("Moves: no meta store\n"), "{printed}");
}

#[tokio::test]
async fn what_can_be_got_is_listed_and_nothing_is_told() {
    let index = json!({ "kind": "APIResourceList", "resources": [
        { "name": "moves", "shortNames": [], "kind": "Move", "verbs": ["get", "list"] },
        { "name": "partitions", "shortNames": ["map"], "kind": "Partition", "verbs": ["list"] },
    ] });
    let table = json!({ "kind": "Table", "columnDefinitions": [{ "name": "Move" }], "rows": [] });
    let list = json!({ "kind": "MoveList", "items": [] });
    let partition = |kind: Value, name: Value| json!({ "start": "a", "end": null, "kind": kind, "resource": name, "stores": ["s"], "ring": false, "epoch": 1 });
    let map = json!({ "generation": 1, "partitions": [
        partition(json!("/registry/apps/x/"), json!("x.apps")),
        partition(Value::Null, Value::Null),
        // A router of an earlier version.
        { "start": "a", "end": null, "kind": "/registry/pods/", "stores": ["s"], "ring": false, "epoch": 1 },
    ] });
    let fake = Fake::start(&[
        ("GET /api/v1", &[(200, index)]),
        ("GET /api/v1/moves as a table", &[(200, table)]),
        ("GET /api/v1/moves", &[(200, list)]),
        ("GET /api/v1/partitions", &[(200, map)]),
    ])
    .await;
    let (ended, printed) = fake.run(&["get"]).await;
    assert_eq!(ended, Ok(()));
    let expected = "NAME         SHORTNAMES   KIND        VERBS\n\
                    moves                     Move        get,list\n\
                    partitions   map          Partition   list\n";
    assert_eq!(printed, expected);
    assert!(fake.run(&["get", "-o", "json"]).await.1.contains("APIResourceList"));
    // The message is on standard error.
    assert_eq!(fake.run(&["get", "moves"]).await, (Ok(()), String::new()));
    assert!(fake.run(&["get", "moves", "-o", "yaml"]).await.1.contains("MoveList"));
    let (_, printed) = fake.run(&["get", "map"]).await;
    let kinds: Vec<_> = printed.lines().map(|line| line.split("   ").next().unwrap()).collect();
    assert_eq!(kinds, ["KIND", "x.apps", "<all else>", "/registry/pods/"], "{printed}");
}

#[tokio::test]
async fn versions_of_this_program_and_of_servers() {
    let store = json!({ "name": "pods", "type": "shard", "version": "0.0.9", "state": "up" });
    let away = json!({ "name": "old", "type": "etcd", "version": null, "state": "down" });
    let router =
        json!({ "name": "r", "version": "0.1.0", "commit": "abc", "rustc": "unknown", "target": "unknown" });
    let fake = Fake::start(&[(
        "GET /api/v1/version",
        &[(200, json!({ "router": router, "stores": [store.clone(), away] }))],
    )])
    .await;
    let own = format!("kindred {}\ncommit: ", env!("CARGO_PKG_VERSION"));
    let (ended, printed) = fake.run(&["version"]).await;
    assert_eq!((ended, printed.starts_with(&own), printed.lines().count()), (Ok(()), true, 4), "{printed}");
    assert_eq!(fake.asked(), [], "nobody is asked without --router");
    for words in [&["version", "--router"][..], &["version", "--router", &fake.url.clone()]] {
        let (ended, printed) = fake.run(words).await;
        assert_eq!(ended, Ok(()));
        let table = "PROCESS   NAME   VERSION   COMMIT   STATE\n\
                     router    r      0.1.0     abc\n\
                     shard     pods   0.0.9              up\n\
                     etcd      old    unknown            down\n";
        assert!(printed.starts_with(&own) && printed.ends_with(table), "{printed}");
    }
    let (_, printed) = fake.run(&["version", "--router", "-o", "json"]).await;
    let all: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        (&all["client"]["version"], &all["router"]["commit"]),
        (&json!(env!("CARGO_PKG_VERSION")), &json!("abc"))
    );
    // A router of an earlier version tells its stores'.
    let earlier = Fake::start(&[("GET /api/v1/stores", &[(200, json!({ "stores": [store] }))])]).await;
    let (ended, printed) = earlier.run(&["version", "--router"]).await;
    assert_eq!(ended, Ok(()));
    assert!(printed.contains("unknown") && printed.contains("0.0.9"), "{printed}");
    // Its own version is told even if nobody answers.
    let (ended, printed) = run("http://127.0.0.1:1", &["version", "--router"]).await;
    assert_eq!((ended.unwrap_err().code(), printed.lines().count()), (3, 4));
}

#[tokio::test]
async fn health_says_by_its_exit_status_whether_the_router_is_ready() {
    let health = async |url: &str| {
        let Command::Health(args) =
            Cli::try_parse_from(["kindred", "health", "--admin", url]).unwrap().command
        else {
            panic!("health is a command of its own");
        };
        crate::health::run(&args).await
    };
    let ready = (200, json!("[+]stores ok"));
    let not = (503, json!("[-]stores failed"));
    let fake = Fake::start(&[("GET /readyz?verbose", &[ready, not, refusal(401, "say who you are")])]).await;
    assert_eq!(health(&fake.url).await, Ok(()));
    let failure = health(&fake.url).await.unwrap_err();
    assert!(failure.code() == 1 && failure.to_string().contains("[-]stores failed"), "{failure}");
    assert_eq!(health(&fake.url).await.unwrap_err().code(), 1);
    assert_eq!(health("http://two words:1").await.unwrap_err().code(), 2);
    assert_eq!(health("http://127.0.0.1:1").await.unwrap_err().code(), 3);
    // One that takes the connection and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    assert_eq!(health(&url).await.unwrap_err().code(), 3);
}

#[test]
fn command_lines() {
    let parses = |words: &[&str]| Cli::try_parse_from(["kindred"].iter().chain(words)).is_ok();
    for line in [
        "move pods --to b",
        "move status",
        "moves status 3",
        "move status 3 -o json --admin http://h:1",
        "move reverse 3 --timeout 10m",
        "move --to b leases.coordination.k8s.io",
        "split pods --at m --to b",
        "merge pods --at m",
        "drain a --to b --no-wait -o json",
        "get sg",
        "get stores pods -o yaml --admin http://h:1",
        "apply -f x --dry-run",
        "edit dpc pods",
        "store add a --local",
        "store add a --endpoint http://h:1",
        "store remove a",
        "store replace a --local --force",
        "store replace a --endpoint http://h:1 --force --dry-run",
        "completion zsh",
        "get",
        "get -o json",
        "version",
        "version --router",
        "version --router http://h:1 -o yaml",
        "store add a --local --timeout 2m",
        "store replace a --local --force --timeout 90s",
        "store standby add a --endpoint http://h:1 --timeout 10m",
        "health",
    ] {
        assert!(parses(&line.split(' ').collect::<Vec<_>>()), "{line}");
    }
    for line in [
        "move pods",
        "move --to b",
        "move pods --to b status",
        "move status --dry-run",
        "move status 3 --no-wait",
        "move status --timeout 1m",
        "split pods --to b",
        "drain",
        "apply",
        "get pods",
        "store add a",
        "store add a --local --endpoint http://h:1",
        "store add a --local --etcd",
        "store replace a --force",
        "store replace a --local --endpoint http://h:1",
        "move pods --to b --timeout soon",
        "store add a --local --timeout 2m --no-wait",
        "version --router --admin",
        "status --admin a --context b",
    ] {
        assert!(!parses(&line.split(' ').collect::<Vec<_>>()), "{line}");
    }
}

#[test]
fn completion_knows_the_commands() {
    use clap::CommandFactory as _;
    for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "kindred", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(["drain", "reverse", "no-wait"].iter().all(|word| script.contains(word)), "{shell}");
    }
}

/// Answers of a router whose store `a` is busy with pods and nodes.
fn busy_cluster(at: f64, cpu: f64, calls: u64) -> Value {
    let kind = |name: &str, calls: u64| {
        json!({ "kind": name, "stores": ["a"], "byStore": [{ "store": "a", "bytes": 1000, "historyBytes": 10, "writtenPerSecond": calls }],
            "traffic": { "verbs": { "update": { "ok": calls, "failed": {} } } } })
    };
    json!({ "at": at, "kinds": [kind("pods", calls * 2), kind("nodes", calls)],
        "stores": [{ "store": "a", "heldBytes": 2000, "quotaBytes": 9000, "cpuSeconds": cpu }, { "store": "b", "heldBytes": 0, "quotaBytes": 9000, "cpuSeconds": 0.1 }] })
}

#[tokio::test]
async fn advice_has_a_reason_an_effect_and_a_plan_and_is_followed_on_request() {
    let shard = |name: &str| json!({ "name": name, "type": "shard", "state": "up" });
    let stores = json!({ "stores": [shard("a"), shard("b")] });
    let none = |field: &str| (200, json!({ field: [] }));
    let plan = begun().1;
    let under_way = json!({ "items": [moved("Switched", "there", 1).1] });
    let answers = [
        (
            "GET /api/v1/kinds",
            &[
                (200, busy_cluster(100.0, 10.0, 0)),
                (200, busy_cluster(110.0, 19.0, 1000)),
                (200, busy_cluster(110.0, 19.0, 1000)),
                (200, busy_cluster(110.0, 19.0, 1000)),
                (200, busy_cluster(110.0, 19.0, 1000)),
                (200, busy_cluster(120.0, 28.0, 2000)),
            ][..],
        ),
        ("GET /api/v1/stores", &[(200, stores)][..]),
        ("GET /api/v1/partitions", &[none("partitions")][..]),
        (
            "GET /api/v1/moves",
            &[none("items"), none("items"), none("items"), none("items"), (200, under_way)][..],
        ),
        ("POST /api/v1/move?dryRun=All", &[(200, plan)][..]),
        ("POST /api/v1/move", &[begun()][..]),
        (MOVE, &[moved("Switched", "there", 2040)][..]),
        ("POST /api/v1/advice", &[(201, json!({})), (404, json!({ "message": "not found" }))][..]),
    ];
    let fake = Fake::start(&answers).await;
    let (ended, printed) = fake.run(&["advise", "--seconds", "1", "--apply"]).await;
    assert_eq!(ended, Ok(()), "{printed}");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], "1. move pods to b");
    assert_eq!(lines[1], "   because store a uses 0.90 cores, 0.60 of them for pods");
    assert_eq!(lines[2], "   then a would use 0.30 cores, b 0.60");
    assert!(printed.contains("~4.0 ms") && printed.contains("now: move pods to b"), "{printed}");
    let mut made = fake.asked().into_iter().filter(|(line, _)| line.starts_with("POST")).collect::<Vec<_>>();
    let (line, told) = made.pop().unwrap();
    assert_eq!(
        (&*line, &told["what"], &told["outcome"]),
        ("POST /api/v1/advice", &json!("move pods to b"), &json!("applied"))
    );
    let body = json!({ "kind": "pods", "to": "b" });
    assert_eq!(
        made,
        [("POST /api/v1/move?dryRun=All".to_owned(), body.clone()), ("POST /api/v1/move".to_owned(), body)]
    );
    let (ended, printed) = fake.run(&["advise", "--seconds", "1", "-o", "json"]).await;
    assert_eq!(ended, Ok(()));
    assert_eq!(
        serde_json::from_str::<Value>(&printed).unwrap()["proposals"],
        json!([]),
        "nothing was asked meanwhile"
    );
    let (ended, printed) = fake.run(&["advise", "--seconds", "1", "--apply"]).await;
    assert!(printed.contains("move pods to b") && !printed.contains("now:"), "{printed}");
    assert!(printed.contains("the routers do not keep this decision"), "{printed}");
    assert!(matches!(ended, Err(Failure::Refused(text)) if text.contains("move 7 is not over")));
    let (_, told) = fake.asked().pop().unwrap();
    assert_eq!((&told["outcome"], &told["reason"]), (&json!("waited"), &json!("move 7 is not over")));
    for wrong in [["--cores", "0"], ["--room", "x"], ["--looks", "2"]] {
        let words: Vec<&str> = ["kindred", "advise"].into_iter().chain(wrong).collect();
        assert!(Cli::try_parse_from(words).is_err(), "{wrong:?}");
    }
    let (ended, _) = fake.run(&["advise", "--auto", "--quiet-hours", "8-20"]).await;
    assert!(matches!(ended, Err(Failure::Usage(text)) if text.contains("08:00-20:00")));
}
