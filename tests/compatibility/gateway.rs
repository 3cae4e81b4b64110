//! The JSON gateway: each request, in this order, to etcd, to a shard alone that counts as etcd does, and to a router.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use anyhow::{Context, ensure};
use kindred_tests::{
    ports::Port,
    scenario::{self, report, wait_for},
    servers::{Etcd, Shard, Up},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

use crate::compatibility::{
    documented::documented,
    web::{Answer, Answering, ask, normal, same},
};

/// A path, the body, and how many lines of the answer to read (0: all).
type Request = (&'static str, &'static str, usize);

const REQUESTS: &[Request] = &[
    ("/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#, 0),
    ("/v3/kv/put", r#"{"key":"Zm9v","value":"YmF6","prev_kv":true}"#, 0),
    ("/v3/kv/put", r#"{"key":"Zm9vMg==","value":"/+8="}"#, 0),
    // URL-safe base64, and without padding.
    ("/v3/kv/put", r#"{"key":"Zm9vMg","value":"_-8"}"#, 0),
    ("/v3/kv/put", r#"{"key":"bm8gdmFsdWU="}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v"}"#, 0),
    (
        "/v3/kv/range",
        r#"{"key":"Zm9v","rangeEnd":"Zm9w","sortOrder":"DESCEND","sort_target":"KEY","limit":"1"}"#,
        0,
    ),
    ("/v3/kv/range", r#"{"key":"Zm9v","range_end":"Zm9w","count_only":true,"limit":5}"#, 0),
    (
        "/v3/kv/range",
        r#"{"key":"Zm9v","range_end":"Zm9w","keys_only":true,"sort_order":2,"sort_target":3}"#,
        0,
    ),
    ("/v3/kv/range", r#"{"key":"AA==","range_end":"AA==","serializable":true}"#, 0),
    ("/v3/kv/range", r#"{"key":"bm90aGluZw=="}"#, 0),
    ("/v3beta/kv/range", r#"{"key":"Zm9v"}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","unknown":{"a":[1]}}"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","limit":null}"#, 0),
    ("/v3/kv/range", "", 0),
    ("/v3/kv/range", "{", 0),
    ("/v3/kv/range", r#"{"key":"Zm9v"} more"#, 0),
    ("/v3/kv/range", r#"{"key":"Zm9v","revision":"9000000000000000000"}"#, 0),
    (
        "/v3/kv/txn",
        r#"{"compare":[{"key":"Zm9v","result":"EQUAL","target":"VERSION","version":"2"}],"success":[{"request_range":{"key":"Zm9v"}},{"requestPut":{"key":"Zm9v","value":"MQ=="}}],"failure":[]}"#,
        0,
    ),
    (
        "/v3/kv/txn",
        r#"{"compare":[{"key":"Zm9v","target":"VALUE","value":"Mg=="}],"failure":[{"request_delete_range":{"key":"Zm9vMg==","prev_kv":true}},{"request_txn":{"success":[{"request_range":{"key":"Zm9v"}}]}}]}"#,
        0,
    ),
    ("/v3/kv/deleterange", r#"{"key":"bm8gdmFsdWU=","prev_kv":true}"#, 0),
    ("/v3/kv/deleterange", r#"{"key":"bm8gdmFsdWU="}"#, 0),
    ("/v3/lease/grant", r#"{"TTL":"600","ID":"77"}"#, 0),
    ("/v3/lease/grant", r#"{"TTL":600,"ID":77}"#, 0),
    ("/v3/kv/put", r#"{"key":"bGVhc2Vk","value":"MQ==","lease":"77"}"#, 0),
    ("/v3/kv/put", r#"{"key":"bGVhc2Vk","value":"MQ==","lease":"78"}"#, 0),
    ("/v3/lease/timetolive", r#"{"ID":"77","keys":true}"#, 0),
    ("/v3/kv/lease/timetolive", r#"{"ID":"78"}"#, 0),
    ("/v3/lease/keepalive", r#"{"ID":"77"}"#, 0),
    ("/v3/lease/keepalive", r#"{"ID":"78"}"#, 0),
    ("/v3/lease/leases", "{}", 0),
    ("/v3/kv/lease/leases", "", 0),
    ("/v3/lease/revoke", r#"{"ID":"77"}"#, 0),
    ("/v3/kv/lease/revoke", r#"{"ID":"77"}"#, 0),
    ("/v3/kv/range", r#"{"key":"bGVhc2Vk"}"#, 0),
    ("/v3/watch", r#"{"create_request":{"key":"Zm9v","progress_notify":true}}"#, 1),
    (
        "/v3/watch",
        r#"{"create_request":{"key":"Zm9v","watch_id":"7"}}{"createRequest":{"key":"Zm9v","watchId":8}}"#,
        2,
    ),
    (
        "/v3/watch",
        r#"{"create_request":{"key":"Zm9v","watch_id":"7"}} {"cancel_request":{"watch_id":"7"}}"#,
        2,
    ),
    ("/v3/auth/status", "{}", 0),
    ("/v3/auth/authenticate", r#"{"name":"root","password":"root"}"#, 0),
    ("/v3/nothing", "{}", 0),
    ("/v3/lease/grant", r#"{"TTL":"600","ID":"91"}"#, 0),
    ("/v3/lease/grant", r#"{"TTL":"600","ID":"92"}"#, 0),
    ("/v3/lock/lock", r#"{"name":"bG9jaw==","lease":"91"}"#, 0),
    ("/v3/lock/lock", r#"{"name":"bG9jaw==","lease":"91"}"#, 0),
    ("/v3/lock/lock", r#"{"name":"bG9jaw==","lease":"93"}"#, 0),
    ("/v3/kv/range", r#"{"key":"bG9jaw==","range_end":"bG9jaw==","keys_only":true}"#, 0),
    ("/v3/lock/unlock", r#"{"key":"bG9jay81Yg=="}"#, 0),
    ("/v3/lock/unlock", r#"{"key":"bG9jay81Yg=="}"#, 0),
    ("/v3/lock/lock", r#"{"name":"bG9jaw==","lease":"92"}"#, 0),
    ("/v3/election/leader", r#"{"name":"ZWxlY3Rpb24="}"#, 0),
    ("/v3/election/campaign", r#"{"name":"ZWxlY3Rpb24=","lease":"91","value":"MQ=="}"#, 0),
    ("/v3/election/campaign", r#"{"name":"ZWxlY3Rpb24=","lease":"91","value":"Mg=="}"#, 0),
    ("/v3/election/leader", r#"{"name":"ZWxlY3Rpb24="}"#, 0),
    ("/v3/election/observe", r#"{"name":"ZWxlY3Rpb24="}"#, 1),
    ("/v3/election/proclaim", r#"{"value":"Mw=="}"#, 0),
    (
        "/v3/election/proclaim",
        r#"{"leader":{"name":"ZWxlY3Rpb24=","key":"ZWxlY3Rpb24vNWI=","rev":"1","lease":"91"},"value":"Mw=="}"#,
        0,
    ),
    ("/v3/election/resign", "{}", 0),
    (
        "/v3/election/resign",
        r#"{"leader":{"name":"ZWxlY3Rpb24=","key":"ZWxlY3Rpb24vNWI=","rev":"1","lease":"91"}}"#,
        0,
    ),
    ("/v3/lease/revoke", r#"{"ID":"91"}"#, 0),
    ("/v3/election/leader", r#"{"name":"ZWxlY3Rpb24="}"#, 0),
    ("/v3/kv/nothing", "{}", 0),
    // Compaction is last: what is compacted depends on what was done.
    ("/v3/kv/compaction", r#"{"revision":"9000000000000000000"}"#, 0),
];

#[test]
fn the_json_gateway_answers_as_etcds() {
    scenario::run("gateway", Duration::from_secs(60), |dir| async move { compare(&dir).await });
}

/// A client that sends its requests chunked, and closes the connection without their end, left its watch and stream at the
/// router for as long as that ran.
#[test]
fn f62_a_watch_of_the_gateway_ends_with_its_client() {
    scenario::run("gateway_left", Duration::from_secs(60), |dir| async move {
        let up = Up::start(&dir, "up", &[]).await?;
        for _ in 0..3 {
            let mut client = TcpStream::connect(&up.address).await?;
            let create = r#"{"create_request":{"key":"YWJjZGVm"}}"#;
            let request = format!(
                "POST /v3/watch HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{create}\r\n",
                create.len()
            );
            client.write_all(request.as_bytes()).await?;
            let mut answer = BufReader::new(client).lines();
            while !answer.next_line().await?.context("the connection ended")?.contains("created") {}
        }
        wait_for("the watches to end", Duration::from_secs(20), async || {
            let metrics = ask(&up.address, "GET", "/metrics", "", usize::MAX).await?.body;
            let of = |name: &str| {
                metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
            };
            let left = of("etcd_debugging_mvcc_watch_stream_total").context("streams")?
                + of("etcd_debugging_mvcc_watcher_total").context("watchers")?;
            Ok((left == 0.0).then_some(()))
        })
        .await
    });
}

async fn compare(dir: &Path) -> anyhow::Result<()> {
    // etcd's gateway calls itself at the address that it was told to listen at.
    let port = Port::free()?;
    let listen = format!("--listen-client-urls=http://127.0.0.1:{}", port.number());
    let etcd = Etcd::start_with(dir, "etcd", &[&listen]).await?;
    let shard = Shard::start(dir, "shard", &["--revisions=dense".to_owned()]).await?;
    let up = Up::start(dir, "up", &[]).await?;
    let mut compared: BTreeMap<&str, (u32, BTreeSet<u16>)> = BTreeMap::new();
    for (path, body, lines) in REQUESTS.iter().copied() {
        let lines = if lines == 0 { usize::MAX } else { lines };
        let theirs = ask(&etcd.address, "POST", path, body, lines).await?;
        let row = compared.entry(path).or_default();
        row.0 += 1;
        row.1.insert(theirs.code);
        for (name, address, revisions) in [("shard", &shard.address, true), ("router", &up.address, false)] {
            let ours = ask(address, "POST", path, body, lines).await?;
            let what = format!("{name}, {path} {body}");
            check(&theirs, &ours, revisions).with_context(|| format!("{what}: {theirs:?} {ours:?}"))?;
        }
    }
    for address in [&etcd.address, &shard.address, &up.address] {
        let got = ask(address, "GET", "/v3/kv/range", "", usize::MAX).await?;
        ensure!((got.code, got.values()?[0]["code"].as_i64()) == (501, Some(12)), "{got:?}");
    }
    events(&shard.address, &up.address, &etcd.address).await?;
    report(&format!("{} requests", REQUESTS.len()));
    documented("docs/compatibility.md", "compared", &table(&compared))
}

/// The table of the documentation: the requests that were compared, by their paths.
fn table(compared: &BTreeMap<&str, (u32, BTreeSet<u16>)>) -> String {
    let mut text =
        "| path | requests compared | etcd's HTTP status | shard alone | router |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for (path, (requests, codes)) in compared {
        let codes: Vec<String> = codes.iter().map(u16::to_string).collect();
        text += &format!("| `{path}` | {requests} | {} | equal | equal |\n", codes.join(", "));
    }
    text
}

fn check(theirs: &Answer, ours: &Answer, revisions: bool) -> anyhow::Result<()> {
    ensure!((theirs.code, &theirs.content) == (ours.code, &ours.content), "another status or content");
    let (theirs, ours) = (theirs.values()?, ours.values()?);
    ensure!(theirs.len() == ours.len(), "another number of lines");
    for (theirs, ours) in theirs.iter().zip(&ours) {
        same("a line", &normal(theirs, revisions), &normal(ours, revisions))?;
    }
    Ok(())
}

/// A watch whose events come while it is open. How many come in one line is not looked at.
async fn events(shard: &str, router: &str, etcd: &str) -> anyhow::Result<()> {
    let mut seen = Vec::new();
    for address in [etcd, shard, router] {
        let create = r#"{"create_request":{"key":"d2F0Y2hlZA==","range_end":"d2F0Y2hlZQ==","prev_kv":true}}"#;
        let mut watching = Answering::to(address, "POST", "/v3/watch", create).await?;
        let created = watching.next().await?;
        ensure!(created["result"]["created"] == true, "{created}");
        for body in [r#"{"key":"d2F0Y2hlZA==","value":"MQ=="}"#, r#"{"key":"d2F0Y2hlZA==","value":"Mg=="}"#] {
            ask(address, "POST", "/v3/kv/put", body, usize::MAX).await?;
        }
        ask(address, "POST", "/v3/kv/deleterange", r#"{"key":"d2F0Y2hlZA=="}"#, usize::MAX).await?;
        let mut events = Vec::new();
        while events.len() < 3 {
            let line = watching.next().await?;
            let of = line["result"]["events"].as_array().with_context(|| line.to_string())?;
            events.extend(of.iter().map(|event| normal(event, false)));
        }
        seen.push(events);
    }
    ensure!(seen[0] == seen[1] && seen[0] == seen[2], "{seen:#?}");
    ensure!(seen[0][2]["type"] == "DELETE", "{:#?}", seen[0]);
    Ok(())
}
