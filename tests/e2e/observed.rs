//! What an operator sees: traffic by Kind and client, sizes and digests of Kinds, and the metrics of etcd's own
//! dashboards.

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{
    RangeRequest, WatchCreateRequest, WatchRequest, WatchResponse, watch_request::RequestUnion,
};
use kindred_router_core::digest::Digest;
use kindred_tests::{
    admin::Admin,
    client::Client,
    process::our_binary,
    scenario::{self, report, wait_for},
    servers::{Shard, Up},
};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use crate::e2e::ops::{below, delete_op, get_op, mod_is, put, put_op, range, txn};

const LIMIT: Duration = Duration::from_secs(60);
const WITHIN: Duration = Duration::from_secs(10);

const POD: &str = "/registry/pods/a/one";
const OTHER: &str = "/registry/pods/b/two";

/// The value of a sample with all these labels; zero if there is none.
fn sample(text: &str, name: &str, labels: &[&str]) -> f64 {
    let start = format!("{name}{{");
    let wanted = |line: &&str| line.starts_with(&start) && labels.iter().all(|label| line.contains(label));
    let values = text.lines().filter(wanted).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

async fn metrics(admin: &str) -> anyhow::Result<String> {
    let (status, text) = Admin::at(admin).ask("GET", "/metrics", "").await?;
    ensure!(status == 200, "{status} {text}");
    Ok(text)
}

/// The first answer of a watch of one key that says more than that the watch was made.
async fn first_answer(client: &Client, key: &str, start_revision: i64) -> anyhow::Result<WatchResponse> {
    let (to, requests) = tokio::sync::mpsc::channel(1);
    let create = WatchCreateRequest { key: key.to_owned().into(), start_revision, ..Default::default() };
    to.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
    let mut answers = client.watch.clone().watch(ReceiverStream::new(requests)).await?.into_inner();
    loop {
        let answer = answers.message().await?.context("an answer")?;
        if answer.canceled || !answer.events.is_empty() {
            return Ok(answer);
        }
    }
}

/// Opens a watch of the pods, and waits until it exists. It ends when the task that reads is aborted.
async fn watch_pods(client: &Client) -> anyhow::Result<JoinHandle<()>> {
    let (to, requests) = tokio::sync::mpsc::channel(4);
    let create = WatchCreateRequest {
        key: "/registry/pods/".into(),
        range_end: "/registry/pods0".into(),
        ..Default::default()
    };
    to.send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
    let mut answers = client.watch.clone().watch(ReceiverStream::new(requests)).await?.into_inner();
    let created = answers.message().await?.context("created")?;
    ensure!(created.created, "{created:?}");
    Ok(tokio::spawn(async move {
        while let Ok(Some(_)) = answers.message().await {}
        drop(to);
    }))
}

#[test]
fn traffic_is_counted_by_kind_verb_and_client() {
    scenario::run("observed-traffic", LIMIT, |dir| async move { traffic(&dir).await });
}

async fn traffic(dir: &Path) -> anyhow::Result<()> {
    let up = Up::start(dir, "kindred", &[]).await?;
    let client = up.client().await?;
    let watching = watch_pods(&client).await?;
    // As a kube-apiserver: create, update, a conflict, delete.
    let created = txn(&client, vec![mod_is(POD, 0)], vec![put_op(POD, "1")], vec![]).await?;
    let at = created.header.context("a header")?.revision;
    ensure!(txn(&client, vec![mod_is(POD, at)], vec![put_op(POD, "2")], vec![get_op(POD)]).await?.succeeded);
    ensure!(!txn(&client, vec![mod_is(POD, at)], vec![put_op(POD, "3")], vec![get_op(POD)]).await?.succeeded);
    let again = txn(&client, vec![mod_is(POD, 0)], vec![put_op(POD, "1")], vec![get_op(POD)]).await?;
    let at = again.header.context("a header")?.revision;
    ensure!(at > 0);
    let now = range(&client, below("/registry/pods/")).await?.kvs[0].mod_revision;
    ensure!(txn(&client, vec![mod_is(POD, now)], vec![delete_op(POD)], vec![get_op(POD)]).await?.succeeded);
    put(&client, "/registry/leases/kube-system/x", "l").await?;
    put(&client, "of no Kind", "r").await?;
    range(&client, below("/registry/")).await?;
    let future = RangeRequest { revision: i64::MAX - 1, ..below("/registry/pods/") };
    ensure!(range(&client, future).await.is_err());
    // The end of a call is counted behind its answer.
    let text = wait_for("the counts", WITHIN, || async {
        let text = metrics(&up.admin).await?;
        let failed = sample(&text, "kindred_kind_requests_total", &["code=\"OutOfRange\""]);
        Ok((failed > 0.0).then_some(text))
    })
    .await?;
    let calls = |kind: &str, verb: &str, code: &str| {
        let labels = [format!("kind=\"{kind}\""), format!("verb=\"{verb}\""), format!("code=\"{code}\"")];
        sample(&text, "kindred_kind_requests_total", &labels.each_ref().map(String::as_str)) as u64
    };
    for (kind, verb, code, expected) in [
        ("pods", "create", "OK", 2),
        ("pods", "update", "OK", 2),
        ("pods", "delete", "OK", 1),
        ("pods", "list", "OK", 1),
        ("pods", "list", "OutOfRange", 1),
        ("pods", "watch", "OK", 1),
        ("leases", "put", "OK", 1),
        ("<all else>", "put", "OK", 1),
        ("<several>", "list", "OK", 1),
    ] {
        ensure!(calls(kind, verb, code) == expected, "{verb} of {kind} {code}: {text}");
    }
    let of_pods = ["kind=\"pods\""];
    ensure!(sample(&text, "kindred_kind_watches", &of_pods) == 1.0);
    let pods = wait_for("the events", WITHIN, || async {
        let kinds = kinds(&up.admin).await?;
        let pods = kinds.into_iter().find(|kind| kind["kind"] == "pods").context("pods")?;
        Ok((pods["traffic"]["messages"].as_u64() >= Some(1)).then_some(pods))
    })
    .await?;
    ensure!(pods["traffic"]["verbs"]["create"]["ok"] == 2 && pods["stores"][0] == "pods", "{pods}");
    ensure!(pods["keys"] == 0 && pods["historyBytes"].as_u64() > Some(0), "{pods}");
    let (_, clients) = Admin::at(&up.admin).ask("GET", "/api/v1/clients", "").await?;
    let clients: Value = serde_json::from_str(&clients)?;
    let own = clients["clients"].as_array().context("clients")?;
    let own = own.iter().find(|client| client["client"] == "127.0.0.1").context("127.0.0.1")?;
    ensure!(own["failed"].as_u64() >= Some(1) && own["calls"].as_u64() >= Some(10), "{own}");
    watching.abort();
    drop(client);
    wait_for("the end of the watch", WITHIN, || async {
        let text = metrics(&up.admin).await?;
        Ok((sample(&text, "kindred_kind_watches", &of_pods) == 0.0).then_some(()))
    })
    .await?;
    // A stream is handled when it ends, so that started without handled are those that are open.
    wait_for("the end of the stream", WITHIN, || async {
        let text = metrics(&up.admin).await?;
        let of =
            |name| sample(&text, name, &["grpc_service=\"etcdserverpb.Watch\"", "grpc_type=\"bidi_stream\""]);
        let (started, handled) = (of("grpc_server_started_total"), of("grpc_server_handled_total"));
        Ok((started == 1.0 && handled == 1.0).then_some(()))
    })
    .await
}

async fn kinds(admin: &str) -> anyhow::Result<Vec<Value>> {
    let (status, text) = Admin::at(admin).ask("GET", "/api/v1/kinds", "").await?;
    ensure!(status == 200, "{status} {text}");
    let kinds: Value = serde_json::from_str(&text)?;
    Ok(kinds["kinds"].as_array().context("kinds")?.clone())
}

async fn digest(admin: &str, path: &str) -> anyhow::Result<(u16, Value)> {
    let (status, text) = Admin::at(admin).ask("GET", &format!("/api/v1/kinds/{path}"), "").await?;
    Ok((status, serde_json::from_str(&text).with_context(|| text.clone())?))
}

/// The digest of what a client reads.
async fn read(client: &Client, revision: i64) -> anyhow::Result<(String, u64)> {
    let list = range(client, RangeRequest { revision, ..below("/registry/pods/") }).await?;
    let mut digest = Digest::default();
    for kv in &list.kvs {
        digest.add(&kv.key["/registry/pods/".len()..], kv.mod_revision);
    }
    Ok((digest.to_hex(), list.kvs.len() as u64))
}

#[test]
fn a_kind_on_several_stores_has_one_digest_at_a_revision() {
    scenario::run("observed-digest", LIMIT, |dir| async move {
        let config = dir.join("split.yaml");
        std::fs::write(
            &config,
            "default: a\nstores:\n- {name: a, slot: 1}\n- {name: b, slot: 2}\npartitions:\n\
             - {metadata: {name: pods-a}, resource: pods, serviceGroupId: a, rangeEnd: b, isRangeEndValid: true}\n\
             - {metadata: {name: pods-b}, resource: pods, serviceGroupId: b, rangeStart: b, isRangeStartValid: true}\n",
        )?;
        let up = Up::start(&dir, "kindred", &[format!("--config={}", config.display())]).await?;
        let client = up.client().await?;
        put(&client, POD, "1").await?;
        let before = put(&client, OTHER, "1").await?;
        let (of_old, keys) = read(&client, 0).await?;
        let (status, shown) = digest(&up.admin, "pods/digest").await?;
        ensure!(status == 200 && shown["digest"] == of_old.as_str() && shown["keys"] == keys, "{shown}");
        ensure!(keys == 2 && shown["revision"].as_i64() >= Some(before), "{shown}");
        let at = shown["revision"].as_i64().context("a revision")?;
        put(&client, POD, "2").await?;
        let (of_new, _) = read(&client, 0).await?;
        ensure!(of_new != of_old);
        ensure!(digest(&up.admin, "pods/digest").await?.1["digest"] == of_new.as_str());
        let then = digest(&up.admin, &format!("pods/digest?revision={at}")).await?.1;
        ensure!(then["digest"] == of_old.as_str() && then["revision"] == at, "{then}");
        for (path, code, said) in [
            ("podz/digest", 404, "did you mean"),
            ("pods/digest?revision=-1", 400, "below zero"),
            ("pods/digest?revision=1", 503, "compacted"),
        ] {
            let (status, refused) = digest(&up.admin, path).await?;
            ensure!(status == code && refused.to_string().contains(said), "{path}: {status} {refused}");
        }
        Ok(())
    });
}

/// The rows of the table about etcd's mixin in `docs/metrics.md`: a metric, and whether routers and shards have it.
fn mixin() -> anyhow::Result<Vec<(String, [bool; 2])>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let text = std::fs::read_to_string(page)?;
    let (_, table) = text.split_once("## What etcd's dashboards").context("the table")?;
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, router, shard, why_not, _] = cells[..] else { anyhow::bail!("{line}") };
        let has = [router == "yes", shard == "yes"];
        ensure!(has == [true; 2] || !why_not.is_empty(), "{line}");
        Ok((name.trim_matches('`').to_owned(), has))
    })
    .collect()
}

#[test]
fn what_etcds_own_dashboards_ask_for_is_there_or_has_a_reason() {
    scenario::run("observed-mixin", LIMIT, |dir| async move {
        let config = dir.join("one.yaml");
        std::fs::write(&config, "default: main\nstores:\n- {name: main, slot: 1}\n")?;
        let up = Up::start(&dir, "kindred", &[format!("--config={}", config.display())]).await?;
        put(&up.client().await?, POD, "1").await?;
        let shard = Shard::start(&dir, "shard", &[]).await?;
        put(&shard.client().await?, POD, "1").await?;
        let shard = wait_for("the shard's metrics", WITHIN, || async {
            let text = metrics(&shard.admin).await?;
            Ok(text.contains("kindred_shard_kind_keys{kind=\"pods\"} 1").then_some(text))
        })
        .await?;
        let router = metrics(&up.admin).await?;
        let rows = mixin()?;
        for (name, has) in &rows {
            for (text, has) in [&router, &shard].into_iter().zip(has) {
                let found = text.lines().any(|line| {
                    line.strip_prefix(name.as_str())
                        .is_some_and(|rest| rest.starts_with(['{', ' ', '_']) && !rest.starts_with("_total"))
                });
                ensure!(found == *has, "{name}: documented as {has}, found {found}");
            }
        }
        // The labels by which they are chosen.
        for labels in [
            ["grpc_type=\"unary\"", "grpc_service=\"etcdserverpb.KV\"", "grpc_method=\"Put\""],
            [
                "grpc_type=\"bidi_stream\"",
                "grpc_service=\"etcdserverpb.Lease\"",
                "grpc_method=\"LeaseKeepAlive\"",
            ],
        ] {
            let found = router.lines().any(|line| {
                line.starts_with("grpc_server_started_total{")
                    && labels.iter().all(|label| line.contains(label))
            });
            ensure!(found, "{labels:?}");
        }
        report(&format!("e2e mixin metrics={}", rows.len()));
        Ok(())
    });
}

/// Enough pods for a list that is long, and clients that list them at once.
const LONG_PODS: usize = 200;
const LONG_POD_BYTES: usize = 20 << 10;
const LISTERS: usize = 8;
const LISTS: usize = 4;

#[test]
fn lists_that_are_long_take_turns_and_all_end() {
    scenario::run("observed-lists", LIMIT, |dir| async move {
        let config = dir.join("turns.yaml");
        std::fs::write(
            &config,
            "default: main\nstores:\n- {name: main, slot: 1}\nup: {router: {long-lists: 1}}\n",
        )?;
        let up = Up::start(&dir, "kindred", &[format!("--config={}", config.display())]).await?;
        let client = up.client().await?;
        let value = "v".repeat(LONG_POD_BYTES);
        for pod in 0..LONG_PODS {
            put(&client, &format!("/registry/pods/a/{pod:05}"), &value).await?;
        }
        let mut listers = tokio::task::JoinSet::new();
        for _ in 0..LISTERS {
            let client = up.client().await?;
            listers.spawn(async move {
                for _ in 0..LISTS {
                    let list = range(&client, below("/registry/pods/")).await?;
                    ensure!(list.kvs.len() == LONG_PODS && list.count == LONG_PODS as i64, "{}", list.count);
                }
                anyhow::Ok(())
            });
        }
        // What is short does not wait with them.
        for renewal in 0..50 {
            put(&client, "/registry/leases/kube-system/x", &renewal.to_string()).await?;
        }
        while let Some(lister) = listers.join_next().await {
            lister??;
        }
        let text = metrics(&up.admin).await?;
        let waited = sample(&text, "kindred_kind_list_wait_seconds_count", &["kind=\"pods\""]) as usize;
        ensure!(waited == LISTERS * LISTS, "{waited} lists had a turn");
        for state in ["running", "waiting"] {
            let left = sample(&text, "kindred_router_long_lists", &[&format!("state=\"{state}\"")]);
            ensure!(left == 0.0, "{left} lists are {state}");
        }
        ensure!(sample(&text, "kindred_kind_lists_refused_total", &[]) == 0.0);
        Ok(())
    });
}

#[test]
fn a_trace_shows_calls_as_they_end_and_values_only_when_asked() {
    scenario::run("observed-trace", LIMIT, |dir| async move {
        let config = dir.join("one.yaml");
        std::fs::write(&config, "default: main\nstores:\n- {name: main, slot: 1}\n")?;
        let up = Up::start(&dir, "kindred", &[format!("--config={}", config.display())]).await?;
        let client = up.client().await?;
        let trace = |flags: &[&str]| {
            let mut command = tokio::process::Command::new(our_binary("kindred")?);
            command.args(["trace", "--seconds=3", "--kind=secrets"]).args(flags);
            command.arg(format!("--admin=http://{}", up.admin)).kill_on_drop(true);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            anyhow::Ok(command.spawn()?)
        };
        let (shown, whole) = (trace(&[])?, trace(&["--values", "--verb=put"])?);
        // Both have begun before the call that is looked for, or the calls would have to be repeated.
        let ends =
            tokio::spawn(async move { (shown.wait_with_output().await, whole.wait_with_output().await) });
        while !ends.is_finished() {
            put(&client, "/registry/secrets/a/s", "topsecret").await?;
            put(&client, POD, "1").await?;
            range(&client, below("/registry/secrets/")).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (shown, whole) = ends.await?;
        let lines = |output: std::process::Output| -> anyhow::Result<Vec<Value>> {
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout)?;
            text.lines().map(|line| serde_json::from_str(line).context(line.to_owned())).collect()
        };
        let (shown, whole) = (lines(shown?)?, lines(whole?)?);
        ensure!(
            shown.iter().all(|line| line["kind"] == "secrets" && line.get("request").is_none()),
            "{shown:?}"
        );
        for verb in ["put", "list"] {
            ensure!(
                shown.iter().any(|line| line["verb"] == verb && line["code"] == "OK"),
                "{verb}: {shown:?}"
            );
        }
        let hex: String = "topsecret".bytes().map(|byte| format!("{byte:02x}")).collect();
        let has_value = |line: &Value| line["request"].as_str().is_some_and(|request| request.contains(&hex));
        ensure!(!whole.is_empty() && whole.iter().all(has_value), "{whole:?}");
        let (status, refused) = Admin::at(&up.admin).ask("GET", "/api/v1/trace?verb=gut", "").await?;
        ensure!(status == 400 && refused.contains("write one of"), "{status} {refused}");
        let (status, refused) = Admin::at(&up.admin).ask("GET", "/api/v1/trace?knid=pods", "").await?;
        ensure!(status == 400 && refused.contains("knid"), "{status} {refused}");
        Ok(())
    });
}

#[test]
fn limits_of_a_kind_hold_from_the_moment_they_are_applied() {
    scenario::run("observed-limits", LIMIT, |dir| async move {
        let up = Up::start(&dir, "kindred", &[]).await?;
        let (client, admin) = (up.client().await?, Admin::at(&up.admin));
        let writes = async |kind: &str| {
            let mut refused = 0;
            for at in 0..30 {
                match put(&client, &format!("/registry/{kind}/a/x{at}"), "1").await {
                    Ok(_) => {}
                    Err(error) => {
                        ensure!(error.to_string().contains("etcdserver: too many requests"), "{error}");
                        refused += 1;
                    }
                }
            }
            Ok(refused)
        };
        ensure!(writes("events").await? == 0);
        let path = "/api/v1/datapartitionconfigs/events";
        let mut config = admin.ok("GET", path, &Value::Null).await?;
        config["limits"]["writesPerSecond"] = 1.into();
        let config = admin.ok("PUT", path, &config).await?;
        ensure!(config["limits"]["writesPerSecond"] == 1, "{config}");
        // One passes, and one more for each second that this takes.
        wait_for("the limit", WITHIN, || async { Ok((writes("events").await? > 5).then_some(())) }).await?;
        ensure!(writes("pods").await? == 0, "other Kinds have no limit");
        ensure!(range(&client, below("/registry/events/")).await?.kvs.len() == 30, "reads have none");
        ensure!(sample(&metrics(&up.admin).await?, "kindred_kind_limited_total", &["kind=\"events\""]) > 5.0);
        let mut config = admin.ok("GET", path, &Value::Null).await?;
        config.as_object_mut().context("an object")?.remove("limits");
        admin.ok("PUT", path, &config).await?;
        wait_for("no limit", WITHIN, || async { Ok((writes("events").await? == 0).then_some(())) }).await
    });
}

#[test]
fn f28_the_history_of_a_kind_is_compacted_alone_and_its_watchers_hear_it() {
    scenario::run("observed-history", LIMIT, |dir| async move {
        let config = dir.join("one.yaml");
        std::fs::write(
            &config,
            "default: main\nstores:\n- {name: main, slot: 1}\npartitions:\n\
             - {metadata: {name: events}, resource: events, serviceGroupId: main}\n\
             - {metadata: {name: pods}, resource: pods, serviceGroupId: main}\n",
        )?;
        let up = Up::start(&dir, "kindred", &[format!("--config={}", config.display())]).await?;
        let (client, admin) = (up.client().await?, Admin::at(&up.admin));
        let path = "/api/v1/datapartitionconfigs/events";
        let mut config = admin.ok("GET", path, &Value::Null).await?;
        config["historyMax"] = "5s".into();
        let (status, refused) = admin.ask("PUT", path, &config.to_string()).await?;
        ensure!(
            status == 422 && refused.contains("historyMax") && refused.contains("10 seconds"),
            "{status} {refused}"
        );
        config["historyMax"] = "10s".into();
        admin.ok("PUT", path, &config).await?;
        let (event, pod) = ("/registry/events/a/x", "/registry/pods/a/x");
        put(&client, pod, "1").await?;
        let first = put(&client, event, "1").await?;
        let at_first =
            |key: &str| RangeRequest { key: key.to_owned().into(), revision: first, ..Default::default() };
        let compacted = async || match range(&client, at_first(event)).await {
            Ok(_) => Ok(None),
            Err(status) if status.message().contains("required revision has been compacted") => Ok(Some(())),
            Err(status) => anyhow::bail!("{status}"),
        };
        // Only writes make history, so only they are a reason to look at it.
        wait_for("a compaction of the Kind", LIMIT / 2, || async {
            put(&client, event, "2").await?;
            put(&client, pod, "2").await?;
            compacted().await
        })
        .await?;
        let answer = range(&client, at_first(pod)).await?;
        ensure!(answer.kvs[0].value == b"1"[..], "pods keep theirs: {answer:?}");
        let heard = first_answer(&client, event, first).await?;
        ensure!(heard.canceled && heard.compact_revision > first, "{heard:?}");
        let heard = first_answer(&client, pod, first).await?;
        ensure!(!heard.canceled, "{heard:?}");
        Ok(())
    });
}

#[test]
fn top_prints_kinds_and_stores_without_a_terminal() {
    scenario::run("observed-top", LIMIT, |dir| async move {
        let config = dir.join("one.yaml");
        std::fs::write(&config, "default: main\nstores:\n- {name: main, slot: 1}\n")?;
        let up = Up::start(&dir, "kindred", &[format!("--config={}", config.display())]).await?;
        put(&up.client().await?, POD, "1").await?;
        let shown = wait_for("the pod", WITHIN, || async {
            let mut command = tokio::process::Command::new(our_binary("kindred")?);
            command.args(["top", "--every=1", &format!("--admin=http://{}", up.admin)]);
            let output = command.output().await?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout)?;
            Ok(text.contains("pods ").then_some(text))
        })
        .await?;
        ensure!(shown.contains("CALLS/S") && shown.contains("main "), "{shown}");
        Ok(())
    });
}
