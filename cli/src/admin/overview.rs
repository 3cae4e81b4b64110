//! `kindred status`.

use kindred_partition_config::kind::ALL_ELSE;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{
    args::{Output, StatusArgs},
    client::{Client, Form},
    failure::Failure,
    output::{self, Table, bytes, count, text, time},
    standby,
};

/// Prints the stores, the map and the moves in progress.
pub async fn status(client: &Client, args: &StatusArgs) -> Result<(), Failure> {
    let stores = client.get("/api/v1/stores", Form::Objects).await?;
    let map = client.get("/api/v1/partitions", Form::Objects).await?;
    let moves = client.get("/api/v1/moves", Form::Objects).await;
    // A router without a meta store has no moves and cannot make any.
    let (moves, fixed) = match moves {
        Ok(moves) => (moves, None),
        Err(Failure::Refused(why)) => (json!({ "items": [] }), Some(why)),
        Err(failure) => return Err(failure),
    };
    let durability = client.get("/api/v1/durability", Form::Objects).await?;
    let status = client.get("/api/v1/status", Form::Objects).await?;
    if args.output != Output::Table {
        let all = json!({
            "durability": durability["stores"], "stores": stores["stores"], "generation": map["generation"], "partitions": map["partitions"],
            "moves": moves["items"], "problems": status["problems"],
        });
        return output::print(&output::rendered(&all, args.output)?);
    }
    let mut out = problems(&status);
    out += &list_stores(&stores).render();
    if let Some(members) = standby::members(&stores) {
        out += &format!("\n{}{}", members.render(), standby::troubles(&stores));
    }
    out += &unmet(&stores);
    out += &format!("\nMap {}\n", text(&map["generation"]));
    out += &by_kind(&map).render();
    out.push('\n');
    out += &losses(&durability, SystemTime::now()).render();
    out += &failing(&durability);
    out.push('\n');
    out += &match (list_moves(&moves), fixed) {
        (_, Some(why)) => format!("Moves: {why}\n"),
        (None, None) => "No move is under way.\n".to_owned(),
        (Some(table), None) => table.render(),
    };
    output::print(&out)
}

fn list_stores(value: &Value) -> Table {
    let mut table = Table::new(&["store", "type", "slot", "state", "default", "endpoints", "last error"]);
    for store in value["stores"].as_array().into_iter().flatten() {
        let endpoints = store["endpoints"].as_array().into_iter().flatten().map(text);
        table.row(vec![
            text(&store["name"]),
            text(&store["type"]),
            text(&store["slot"]),
            text(&store["state"]),
            text(&store["default"]),
            endpoints.collect::<Vec<_>>().join(","),
            if store["state"] == "up" { String::new() } else { text(&store["lastError"]) },
        ]);
    }
    table
}

/// The problems of the cluster as a whole, as lines.
fn problems(value: &Value) -> String {
    let lines =
        value["problems"].as_array().into_iter().flatten().map(|line| format!("Problem: {}\n", text(line)));
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { lines + "\n" }
}

/// The durability that stores cannot provide, as lines.
fn unmet(value: &Value) -> String {
    let mut lines = String::new();
    for store in value["stores"].as_array().into_iter().flatten() {
        let (name, durability) = (text(&store["name"]), &store["durability"]);
        for unmet in durability["unmet"].as_array().into_iter().flatten() {
            let kind = output::kind(unmet);
            let [wanted, has, reason] = ["wanted", "has", "reason"].map(|field| text(&unmet[field]));
            lines += &format!("Store {name} keeps {kind} as {has}, not {wanted}: {reason}\n");
        }
        if let Some(problem) = durability["problem"].as_str() {
            lines += &format!("Store {name} was not told how durable each Kind is to be: {problem}\n");
        }
    }
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// The durability of each Kind, and what a crash of its store would lose at present.
fn losses(value: &Value, now: SystemTime) -> Table {
    let mut table =
        Table::new(&["kind", "store", "mode", "keys", "a crash takes", "write-ahead log", "checkpoint"]);
    for store in value["stores"].as_array().into_iter().flatten() {
        if let Some(problem) = store["problem"].as_str() {
            let problem = problem.to_owned();
            let unknown = || "unknown".to_owned();
            table.row(vec![
                String::new(),
                text(&store["store"]),
                unknown(),
                unknown(),
                problem,
                String::new(),
                String::new(),
            ]);
        }
        for kind in store["kinds"].as_array().into_iter().flatten() {
            let mode = text(&kind["mode"]);
            let log = store["logs"].as_array().into_iter().flatten().find(|log| log["mode"] == kind["mode"]);
            let takes = match (mode.as_str(), kind["notDurableBytes"].as_u64()) {
                ("none", _) => "everything".to_owned(),
                ("fsync", _) => "nothing".to_owned(),
                (_, Some(0)) => "nothing now".to_owned(),
                (_, Some(lost)) => {
                    let age = Duration::from_millis(kind["notDurableMillis"].as_u64().unwrap_or_default());
                    format!("{} of the last {}", bytes(lost), time(age))
                }
                (_, None) => "unknown".to_owned(),
            };
            let wal = log.and_then(|log| log["walBytes"].as_u64()).map(bytes).unwrap_or_default();
            let finished = store["checkpoint"]["finishedAt"].as_u64().filter(|_| log.is_some());
            let ago = finished
                .map(|at| now.duration_since(UNIX_EPOCH + Duration::from_secs(at)).unwrap_or_default());
            table.row(vec![
                output::kind(kind),
                text(&store["store"]),
                mode,
                kind["keys"].as_u64().map(count).unwrap_or_default(),
                takes,
                wal,
                ago.map(|ago| format!("{} ago", time(ago))).unwrap_or_default(),
            ]);
        }
    }
    table
}

/// The logs that cannot be written, as lines.
fn failing(value: &Value) -> String {
    let mut lines = String::new();
    for store in value["stores"].as_array().into_iter().flatten() {
        for log in store["logs"].as_array().into_iter().flatten() {
            if let Some(why) = log["failing"].as_str() {
                let [name, mode] = [&store["store"], &log["mode"]].map(text);
                lines += &format!("Store {name} cannot write its log of mode {mode}: {why}\n");
            }
        }
    }
    lines
}

/// The stores that serve the names of each Kind. `get partitions` shows every key range.
fn by_kind(map: &Value) -> Table {
    let mut table = Table::new(&["kind", "from", "up to", "stores", "epoch"]);
    let mut rest: Vec<String> = Vec::new();
    for partition in map["partitions"].as_array().into_iter().flatten() {
        let stores: Vec<_> = partition["stores"].as_array().into_iter().flatten().map(text).collect();
        let Some(kind) = partition["kind"].as_str() else {
            rest.extend(stores.into_iter().filter(|store| !rest.contains(store)).collect::<Vec<_>>());
            continue;
        };
        let name = |bound: &Value| bound.as_str().and_then(|key| key.strip_prefix(kind)).map(str::to_owned);
        // A Kind's pseudo-key belongs to the Kind, so it gets no row.
        let Some(from) = name(&partition["start"]) else { continue };
        let up_to = name(&partition["end"]).filter(|name| !name.is_empty());
        let open = |name: String| if name.is_empty() { "<open>".to_owned() } else { name };
        table.row(vec![
            output::kind(partition),
            open(from),
            open(up_to.unwrap_or_default()),
            stores.join(","),
            text(&partition["epoch"]),
        ]);
    }
    table.row(vec![ALL_ELSE.to_owned(), String::new(), String::new(), rest.join(","), String::new()]);
    table
}

/// The moves that are not over; `None` if there are none.
fn list_moves(value: &Value) -> Option<Table> {
    let mut table = Table::new(&["move", "kind", "from", "to", "phase", "goal", "router"]);
    let mut any = false;
    for item in value["items"].as_array().into_iter().flatten().filter(|item| item["over"] != true) {
        any = true;
        let legs = || item["legs"].as_array().into_iter().flatten();
        let mut from: Vec<_> = legs().map(|leg| text(&leg["from"])).collect();
        let mut to: Vec<_> = legs().map(|leg| text(&leg["to"])).collect();
        from.dedup();
        to.dedup();
        table.row(vec![
            text(&item["metadata"]["name"]),
            text(&item["resource"]),
            from.join(","),
            to.join(","),
            text(&item["phase"]),
            text(&item["goal"]),
            text(&item["progress"]["router"]),
        ]);
    }
    any.then_some(table)
}
