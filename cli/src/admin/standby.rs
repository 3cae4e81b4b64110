//! `kindred store standby` and `kindred store failover`.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::{
    args::{Failover, StandbyAdd, StandbyCommand, StandbyRemove},
    client::{Client, Form, escaped},
    failure::Failure,
    output::{self, Table, text},
    store::Waiting,
};

pub async fn run(client: &Client, command: &StandbyCommand) -> Result<(), Failure> {
    match command {
        StandbyCommand::Add(args) => add(client, args).await,
        StandbyCommand::Remove(args) => remove(client, args).await,
    }
}

fn path(name: &str) -> String {
    format!("/api/v1/servicegroups/{}", escaped(name))
}

fn endpoints(standby: &Value) -> Vec<String> {
    standby["endpoints"].as_array().into_iter().flatten().map(text).collect()
}

async fn add(client: &Client, args: &StandbyAdd) -> Result<(), Failure> {
    let path = path(&args.name);
    let mut group = client.get(&path, Form::Objects).await?;
    let mut all = endpoints(&group["standby"]);
    if !all.contains(&args.endpoint) {
        all.push(args.endpoint.clone());
    }
    if !group["standby"].is_object() {
        group["standby"] = json!({});
    }
    group["standby"]["endpoints"] = json!(all);
    if let Some(mode) = args.mode {
        group["standby"]["mode"] = json!(mode.word());
    }
    if let Some(on_loss) = args.on_loss {
        group["standby"]["onLoss"] = json!(on_loss.word());
    }
    client.change(Method::PUT, &path, Some(&group)).await?;
    output::print(&format!("store {} is to have a standby at {}\n", args.name, args.endpoint))?;
    if args.no_wait {
        return Ok(());
    }
    wait_in_sync(client, &args.name, args.timeout).await
}

/// Waits until all standbys of a store have everything.
async fn wait_in_sync(client: &Client, name: &str, within: Duration) -> Result<(), Failure> {
    let mut waiting = Waiting::new(within);
    let mut told = false;
    loop {
        let stores = client.get("/api/v1/stores", Form::Objects).await?;
        let store = stores["stores"].as_array().into_iter().flatten().find(|store| store["name"] == name);
        let store = store.cloned().unwrap_or_default();
        let asked = store["members"].as_array().is_some_and(|members| members.len() > 1);
        if asked && store["standbyTrouble"].is_null() {
            return output::print(&format!("all standbys of store {name} are in sync\n"));
        }
        let within = within.as_secs();
        if !std::mem::replace(&mut told, true) {
            output::print(&format!(
                "waiting up to {within} s until it has everything (--no-wait does not)\n"
            ))?;
        }
        let why = store["standbyTrouble"].as_str().unwrap_or("its members were not asked yet");
        waiting.tell(why)?;
        if !waiting.goes_on().await {
            return Err(Failure::StillRunning(format!(
                "store {name} is known to have the standby, and it is not in sync after {within} s: {why}; the routers go on, see \
                 kindred status"
            )));
        }
    }
}

async fn remove(client: &Client, args: &StandbyRemove) -> Result<(), Failure> {
    let path = path(&args.name);
    let mut group = client.get(&path, Form::Objects).await?;
    let all = endpoints(&group["standby"]);
    let known =
        || if all.is_empty() { "it has none".to_owned() } else { format!("it has {}", all.join(", ")) };
    let left: Vec<&String> = match &args.endpoint {
        Some(endpoint) if !all.contains(endpoint) => {
            return Err(Failure::Refused(format!(
                "servicegroups/{}.standby.endpoints: store {} has no standby at {endpoint}; {}",
                args.name,
                args.name,
                known()
            )));
        }
        Some(endpoint) => all.iter().filter(|known| *known != endpoint).collect(),
        None if all.len() > 1 => {
            return Err(Failure::Refused(format!("say which one with --endpoint: {}", known())));
        }
        None => Vec::new(),
    };
    if left.is_empty() {
        group["standby"] = Value::Null;
    } else {
        group["standby"]["endpoints"] = json!(left);
    }
    client.change(Method::PUT, &path, Some(&group)).await?;
    let gone = args.endpoint.clone().unwrap_or_else(|| all.join(","));
    output::print(&format!(
        "store {} has no standby at {gone} any more; its process may be stopped\n",
        args.name
    ))
}

/// Another member of a store serves from now on.
pub async fn failover(client: &Client, args: &Failover) -> Result<(), Failure> {
    let mut body = json!({ "store": args.name, "force": args.force });
    if let Some(to) = &args.to {
        body["to"] = json!(to);
    }
    let made = client.change(Method::POST, "/api/v1/failover", Some(&body)).await?;
    let (name, primary, millis) = (&args.name, text(&made["primary"]), text(&made["millis"]));
    output::print(&format!("store {name} is served by {primary}, after {millis} ms\n"))
}

/// The members of the stores that have standbys; `None` if there is none.
pub fn members(stores: &Value) -> Option<Table> {
    let mut table = Table::new(&["store", "member", "role", "state"]);
    let mut any = false;
    for store in stores["stores"].as_array().into_iter().flatten() {
        for member in store["members"].as_array().into_iter().flatten() {
            any = true;
            table.row(vec![
                text(&store["name"]),
                text(&member["endpoint"]),
                text(&member["role"]),
                state(member),
            ]);
        }
    }
    any.then_some(table)
}

/// The state of a member in words.
fn state(member: &Value) -> String {
    let is = |field: &str| member[field] == true;
    match member["role"].as_str() {
        _ if member["problem"].is_string() => text(&member["problem"]),
        Some("primary") if is("inDoubt") => "waits: a standby may have been promoted".to_owned(),
        Some("primary") => format!("serves, term {}", text(&member["term"])),
        Some("standby") if is("counts") => {
            let behind = member["silentMillis"].as_u64().unwrap_or_default();
            if behind < 1_000 { "in sync".to_owned() } else { format!("silent for {} ms", behind) }
        }
        Some("standby") if !is("whole") => "copies".to_owned(),
        Some("standby") if !is("connected") => "not connected to the primary".to_owned(),
        Some("standby") => match member["batchesBehind"].as_u64() {
            Some(behind) => format!("follows, {behind} batches behind"),
            None => "follows".to_owned(),
        },
        _ => text(&member["role"]),
    }
}

/// The stores that have less than they are to have, as lines.
pub fn troubles(stores: &Value) -> String {
    let mut lines = String::new();
    for store in stores["stores"].as_array().into_iter().flatten() {
        if let Some(trouble) = store["standbyTrouble"].as_str() {
            lines += &format!("Store {}: {trouble}\n", text(&store["name"]));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_each_member_is_said_in_words() {
        let stores = json!({ "stores": [
            { "name": "default" },
            { "name": "pods", "standbyTrouble": "it is the only copy: b: refused", "members": [
                { "endpoint": "a", "role": "primary", "term": 4 },
                { "endpoint": "b", "role": "unknown", "problem": "refused" },
                { "endpoint": "c", "role": "standby", "whole": true, "connected": true, "counts": true, "silentMillis": 90 },
                { "endpoint": "d", "role": "standby", "whole": false, "connected": true },
                { "endpoint": "e", "role": "standby", "whole": true, "connected": true, "batchesBehind": 3 },
                { "endpoint": "f", "role": "primary", "inDoubt": true },
            ] },
        ] });
        let table = members(&stores).expect("a store with members").render();
        for line in [
            "pods   a       primary  serves, term 4",
            "pods   b       unknown  refused",
            "pods   c       standby  in sync",
            "pods   d       standby  copies",
            "pods   e       standby  follows, 3 batches behind",
            "pods   f       primary  waits: a standby may have been promoted",
        ] {
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert!(table.lines().any(|shown| words(shown) == words(line)), "{line}:\n{table}");
        }
        assert_eq!(troubles(&stores), "Store pods: it is the only copy: b: refused\n");
        assert!(members(&json!({ "stores": [{ "name": "default" }] })).is_none());
    }
}
