//! `kindred store`.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::{
    args::{StoreAdd, StoreCommand, StoreReplace},
    client::{Client, Form, escaped},
    failure::Failure,
    output,
    output::text,
    show::show,
    standby, verbs,
};

/// The time in which a store must answer the router, where no flag says it.
pub(super) const UP_WITHIN: Duration = Duration::from_secs(30);
/// The interval of polls.
const EVERY: Duration = Duration::from_millis(200);
/// The interval between lines while nothing changes.
const LINE_EVERY: Duration = Duration::from_secs(5);

pub async fn run(client: &Client, command: &StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::Add(args) => add(client, args).await,
        StoreCommand::Replace(args) => replace(client, args).await,
        StoreCommand::Remove(args) => {
            let path = format!("/api/v1/servicegroups/{}", escaped(&args.name));
            client.change(Method::DELETE, &path, None).await?;
            output::print(&format!("store {} removed\n", args.name))
        }
        StoreCommand::Standby(command) => standby::run(client, command).await,
        StoreCommand::Failover(args) => standby::failover(client, args).await,
        StoreCommand::List(args) => show(client, "/api/v1/servicegroups", args.output).await,
    }
}

async fn add(client: &Client, args: &StoreAdd) -> Result<(), Failure> {
    let mut group = json!({
        "apiVersion": "v1", "kind": "ServiceGroup", "metadata": { "name": args.name },
        "type": if args.etcd { "etcd" } else { "shard" },
    });
    // `kindred up` runs the stores without an address.
    if !args.local {
        group["endpoints"] = json!(args.endpoint);
    }
    let made = client.change(Method::POST, "/api/v1/servicegroups", Some(&group)).await?;
    let slot = made["slot"].as_u64().map(|slot| format!(", slot {slot}")).unwrap_or_default();
    output::print(&format!("store {} added{slot}\n", args.name))?;
    if args.no_wait {
        return Ok(());
    }
    let what_to_do = "start it, or correct its endpoints by kindred edit servicegroups";
    wait_up(client, &args.name, args.local, args.timeout, what_to_do).await
}

async fn replace(client: &Client, args: &StoreReplace) -> Result<(), Failure> {
    let body = json!({ "store": args.name, "endpoints": args.endpoint, "force": args.force });
    let query = if args.dry_run { "?dryRun=All" } else { "" };
    let made = client.change(Method::POST, &format!("/api/v1/replace{query}"), Some(&body)).await?;
    if args.dry_run {
        return output::print(&verbs::said(&made));
    }
    let path = format!("/api/v1/servicegroups/{}", escaped(&args.name));
    let slot = text(&client.get(&path, Form::Objects).await?["slot"]);
    let name = &args.name;
    output::print(&format!(
        "store {name} is replaced by an empty one, slot {slot}: it opens in about 20 s, and watches of its keys begin anew\n"
    ))?;
    if args.no_wait {
        return Ok(());
    }
    let what_to_do = format!("start it empty, with --slot {slot} and --in-cluster");
    wait_up(client, name, args.local, args.timeout, &what_to_do).await
}

/// Says what the command waits for.
fn waits(store: &Value, local: bool, within: Duration) -> String {
    let endpoints: Vec<_> = store["endpoints"].as_array().into_iter().flatten().map(text).collect();
    let for_what = match endpoints.as_slice() {
        [] if local => "`kindred up` to start it".to_owned(),
        [] => "it to answer the router".to_owned(),
        at => format!("it to answer the router at {}", at.join(",")),
    };
    format!("waiting up to {} s for {for_what} (--no-wait does not)\n", within.as_secs())
}

/// The lines that are printed while a command waits: one when what it hears changes, and one every few seconds.
#[derive(Debug)]
pub(super) struct Waiting {
    began: Instant,
    within: Duration,
    heard: String,
    line_at: Instant,
}

impl Waiting {
    pub(super) fn new(within: Duration) -> Self {
        let now = Instant::now();
        Self { began: now, within, heard: String::new(), line_at: now }
    }

    /// The line to print after hearing this, if one is due.
    fn line(&mut self, heard: &str, now: Instant) -> Option<String> {
        let same = self.heard == heard;
        if heard.is_empty() || (same && now.duration_since(self.line_at) < LINE_EVERY) {
            return None;
        }
        heard.clone_into(&mut self.heard);
        self.line_at = now;
        let (waited, within) = (now.duration_since(self.began).as_secs(), self.within.as_secs());
        Some(format!("{heard} ({waited} s of {within} s)\n"))
    }

    /// Prints the line that is due.
    pub(super) fn tell(&mut self, heard: &str) -> Result<(), Failure> {
        self.line(heard, Instant::now()).map_or(Ok(()), |line| output::print(&line))
    }

    /// Waits for the next poll. False when the time is over, or the user interrupts.
    pub(super) async fn goes_on(&self) -> bool {
        if self.began.elapsed() >= self.within {
            return false;
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => true,
            interrupted = tokio::signal::ctrl_c() => interrupted.is_err(),
        }
    }
}

/// What a router says of a store that is not up.
fn heard(store: &Value) -> String {
    let state = store["state"].as_str().unwrap_or("not known to this router yet");
    let why = store["lastError"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
    format!("it is {state}{why}")
}

/// Waits until a router reports that a store is up.
pub(super) async fn wait_up(
    client: &Client,
    name: &str,
    local: bool,
    within: Duration,
    what_to_do: &str,
) -> Result<(), Failure> {
    let mut waiting = Waiting::new(within);
    let mut last = Value::Null;
    let mut told = false;
    loop {
        let stores = client.get("/api/v1/stores", Form::Objects).await?;
        let is_it = |store: &&Value| store["name"] == name;
        if let Some(store) = stores["stores"].as_array().into_iter().flatten().find(is_it) {
            if store["state"] == "up" {
                let endpoints = store["endpoints"].as_array().into_iter().flatten().map(text);
                let at = endpoints.collect::<Vec<_>>().join(",");
                return output::print(&format!("store {name} is up at {at}\n"));
            }
            last = store.clone();
        }
        if !told {
            output::print(&waits(&last, local, within))?;
            told = true;
        }
        waiting.tell(&heard(&last))?;
        if !waiting.goes_on().await {
            break;
        }
    }
    let why = last["lastError"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
    let up = "is `kindred up` running this cluster? Its log says why a shard did not start";
    let what_to_do = if local { up } else { what_to_do };
    Err(Failure::StillRunning(format!(
        "store {name} is known, but not up within {} s{why}; {what_to_do}",
        within.as_secs()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_when_something_changes_and_every_few_seconds() {
        let mut waiting = Waiting::new(Duration::from_secs(30));
        let after = |waiting: &Waiting, millis| waiting.began + Duration::from_millis(millis);
        let mut lines = Vec::new();
        for (millis, said) in [
            (0, ""),
            (200, "connecting"),
            (400, "connecting"),
            (5300, "connecting"),
            (5400, "down"),
            (5600, "down"),
        ] {
            let now = after(&waiting, millis);
            lines.extend(waiting.line(said, now));
        }
        assert_eq!(
            lines,
            ["connecting (0 s of 30 s)\n", "connecting (5 s of 30 s)\n", "down (5 s of 30 s)\n"]
        );
    }
}
