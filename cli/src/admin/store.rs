//! `kindred store`.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::{
    Failure,
    args::{StoreAdd, StoreCommand},
    client::{Client, Form, escaped},
    objects, output,
    output::text,
};

/// How long a new store may take to answer the router.
const UP_WITHIN: Duration = Duration::from_secs(30);

/// Does it.
pub async fn run(client: &Client, command: &StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::Add(args) => add(client, args).await,
        StoreCommand::Remove(args) => {
            let path = format!("/api/v1/servicegroups/{}", escaped(&args.name));
            client.change(Method::DELETE, &path, None).await?;
            output::print(&format!("store {} removed\n", args.name))
        }
        StoreCommand::List(args) => objects::shown(client, "/api/v1/servicegroups", args.output).await,
    }
}

async fn add(client: &Client, args: &StoreAdd) -> Result<(), Failure> {
    let mut group = json!({
        "apiVersion": "v1", "kind": "ServiceGroup", "metadata": { "name": args.name },
        "type": if args.etcd { "etcd" } else { "shard" },
    });
    // A store without an address is one that `kindred up` runs.
    if !args.local {
        group["endpoints"] = json!(args.endpoint);
    }
    let made = client.change(Method::POST, "/api/v1/servicegroups", Some(&group)).await?;
    let slot = made["slot"].as_u64().map(|slot| format!(", slot {slot}")).unwrap_or_default();
    output::print(&format!("store {} added{slot}\n", args.name))?;
    if args.no_wait {
        return Ok(());
    }
    let began = Instant::now();
    let mut last = Value::Null;
    while began.elapsed() < UP_WITHIN {
        let stores = client.get("/api/v1/stores", Form::Objects).await?;
        let is_it = |store: &&Value| store["name"] == args.name.as_str();
        if let Some(store) = stores["stores"].as_array().into_iter().flatten().find(is_it) {
            if store["state"] == "up" {
                let endpoints = store["endpoints"].as_array().into_iter().flatten().map(text);
                let at = endpoints.collect::<Vec<_>>().join(",");
                return output::print(&format!("store {} is up at {at}\n", args.name));
            }
            last = store.clone();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let why = last["lastError"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
    let what_to_do = if args.local {
        "is `kindred up` running this cluster? Its log says why a shard did not start"
    } else {
        "start it, or correct its endpoints by kindred edit servicegroups"
    };
    Err(Failure::Refused(format!(
        "store {} is known, but not up within {} s{why}; {what_to_do}",
        args.name,
        UP_WITHIN.as_secs()
    )))
}
