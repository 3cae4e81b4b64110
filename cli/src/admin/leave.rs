//! `kindred leave --to`: moves everything to one stock etcd, Kind by Kind, while it is in use, and compares both at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use http::Method;
use kindred_partition_config::kind::ALL_ELSE;
use kindred_proto::mvccpb::KeyValue;
use kindred_transport::tls::ClientTlsArgs;
use kindred_wire::fence::FENCE_KEY;
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use super::backup::{etcd::Etcd, rate::Rate, snapshot::Snapshot};
use super::{
    args::{Connect, Output, Run},
    client::{Client, Form},
    context,
    failure::Failure,
    login::Login,
    output::{self, counted, text},
    store, verbs,
    wait::{self, Until},
};
use crate::leave::args::Begin;
use crate::stock_etcd::{self, StockEtcd, judge};

mod earlier;

/// Why a part is not rehearsed.
const WAY_BACK: &str =
    "it has moved lately, and its way back is open: to rehearse it, close that by kindred move complete\n";
/// Routers look for leases that the etcd does not have every 30 s.
const LEASES_MAX: Duration = Duration::from_secs(60);

/// Runs the command and returns its exit status.
pub fn run(args: &Begin, outer: &Connect) -> ExitCode {
    super::run_to_end(leave(args, outer))
}

async fn leave(args: &Begin, outer: &Connect) -> Result<(), Failure> {
    let address = context::address(&args.connect.over(outer))?;
    let client = Client::new(&address)?;
    let urls: BTreeSet<String> =
        args.to.iter().map(|url| url.trim().trim_end_matches('/').to_owned()).collect();
    let groups = client.get("/api/v1/servicegroups", Form::Objects).await?;
    let known = known(&groups, &urls);
    let is_new = known.is_none();
    check(args, !is_new).await?;
    can_read(&client, args, &address).await?;
    let leases_before = direct(args).await?.leases().await?;
    let home = match known {
        Some(name) => name,
        None => {
            let endpoints: Vec<&str> = args.to.iter().map(|url| url.trim()).collect();
            let group = json!({
                "apiVersion": "v1", "kind": "ServiceGroup", "metadata": { "name": args.store }, "type": "etcd",
                "endpoints": endpoints,
            });
            client.change(Method::POST, "/api/v1/servicegroups", Some(&group)).await?;
            output::print(&format!("store {} added\n", args.store))?;
            args.store.clone()
        }
    };
    let what_to_do = "see --etcd-trusted-ca-file of kindred router, and kindred edit servicegroups";
    store::wait_up(&client, &home, false, store::UP_WITHIN, what_to_do).await?;
    let run = Run {
        timeout: args.timeout,
        delete_its_keys: args.delete_its_keys,
        output: Output::Table,
        ..Run::default()
    };
    earlier::end(&client, &home, &run, args.rehearse).await?;
    let open = client.get("/api/v1/moves", Form::Objects).await?;
    let mut moved = 0;
    for kind in elsewhere(&client, &home).await? {
        let Kind { name, stores } = kind;
        if args.rehearse && earlier::has_way_back(&open, &name) {
            output::print(&format!("{name}: {WAY_BACK}"))?;
            continue;
        }
        if stores.len() > 1 {
            if args.rehearse {
                output::print(&format!(
                    "{name}: on {}, and one of them takes all of it first\n",
                    stores.join(", ")
                ))?;
                continue;
            }
            // A Kind goes to an etcd from one store.
            verbs::change(&client, "/api/v1/move", &json!({ "kind": name, "to": stores[0] }), &run).await?;
            earlier::end(&client, &home, &run, false).await?;
        }
        let body = json!({ "kind": name, "to": home, "hold": args.rehearse });
        go(&client, "/api/v1/move", &body, &run, args.rehearse).await?;
        moved += 1;
    }
    let groups = client.get("/api/v1/servicegroups", Form::Objects).await?;
    let default = groups["items"].as_array().into_iter().flatten().find(|group| group["default"] == true);
    let default = default.map(|group| text(&group["metadata"]["name"])).unwrap_or_default();
    if default != home && args.rehearse && earlier::has_way_back(&open, ALL_ELSE) {
        output::print(&format!("{ALL_ELSE}: {WAY_BACK}"))?;
    } else if default != home {
        let body = json!({ "store": default, "to": home, "hold": args.rehearse });
        go(&client, "/api/v1/drain", &body, &run, args.rehearse).await?;
        moved += 1;
    }
    if args.rehearse {
        if is_new {
            client.change(Method::DELETE, &format!("/api/v1/servicegroups/{home}"), None).await?;
            end_leases(&direct(args).await?, &leases_before).await?;
        }
        return output::print(&format!(
            "rehearsed: {} copied, compared and given up; everything is where it was\n",
            counted(moved, "part")
        ));
    }
    let served = compare(&client, args, &address).await?;
    leases_came(&served, args).await?;
    output::print(&format!(
        "everything is on {home}: point apiservers there one by one; both ways are in use at once until kindred is stopped\n"
    ))
}

/// Makes sure that the comparison at the end may read kindred's keys, before anything has moved.
async fn can_read(client: &Client, args: &Begin, address: &context::Address) -> Result<(), Failure> {
    let who = client.get("/api/v1/cluster", Form::Objects).await?;
    let urls: Vec<String> = who["clientUrls"].as_array().into_iter().flatten().map(text).collect();
    let served = Etcd::connect(&urls, &address.tls, &args.login).await?;
    // One key, as no range may join a stock etcd with another store.
    let key = format!("{}/health", text(&who["etcdPrefix"]));
    served.get(&key.into()).await.map(drop)
}

/// Changes something and waits; with `rehearse`, until it could switch, and gives it up then.
async fn go(client: &Client, path: &str, body: &Value, run: &Run, rehearse: bool) -> Result<(), Failure> {
    if !rehearse {
        return verbs::change(client, path, body, run).await;
    }
    let answer = client.change(Method::POST, &verbs::with_options(path, run), Some(body)).await?;
    output::print(&verbs::said(&answer))?;
    let ids = answer["moves"].as_array().into_iter().flatten().filter_map(Value::as_u64);
    let planned = |at: usize| answer["plan"]["moves"][at]["keys"].as_u64();
    let moves: Vec<(u64, Option<u64>)> = ids.enumerate().map(|(at, id)| (id, planned(at))).collect();
    let ready = wait::all(client, moves.clone(), Until::Ready, run).await;
    let mut given_up = Ok(());
    for (id, _) in &moves {
        let asked = client.change(Method::POST, &format!("/api/v1/moves/{id}/abort"), None).await;
        given_up = given_up.and(asked.map(drop));
    }
    ready?;
    given_up?;
    wait::all(client, moves, Until::Aborted, run).await
}

/// A Kind with stores of its own.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    /// The prefix of its keys.
    name: String,
    stores: Vec<String>,
}

/// The Kinds that the map names, and that are not wholly at a store.
async fn elsewhere(client: &Client, home: &str) -> Result<Vec<Kind>, Failure> {
    Ok(not_at(&client.get("/api/v1/partitions", Form::Objects).await?, home))
}

fn not_at(partitions: &Value, home: &str) -> Vec<Kind> {
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for partition in partitions["partitions"].as_array().into_iter().flatten() {
        let Some(kind) = partition["kind"].as_str() else { continue };
        let stores = kinds.entry(kind.to_owned()).or_default();
        for store in partition["stores"].as_array().into_iter().flatten().map(text) {
            if !stores.contains(&store) {
                stores.push(store);
            }
        }
    }
    let kinds = kinds.into_iter().map(|(name, stores)| Kind { name, stores });
    kinds.filter(|kind| kind.stores != [home]).collect()
}

/// The store that has one of these URLs.
fn known(groups: &Value, urls: &BTreeSet<String>) -> Option<String> {
    let has = |group: &&Value| {
        let endpoints = group["endpoints"].as_array().into_iter().flatten().map(text);
        let mut endpoints = endpoints.map(|url| url.trim_end_matches('/').to_owned());
        group["type"] == "etcd" && endpoints.any(|url| urls.contains(&url))
    };
    groups["items"].as_array()?.iter().find(has).map(|group| text(&group["metadata"]["name"]))
}

async fn check(args: &Begin, has_begun: bool) -> Result<(), Failure> {
    let refused =
        |error: &dyn std::fmt::Display| Failure::Refused(format!("--to {}: {error}", args.to.join(",")));
    let etcd = StockEtcd::new("--to", &args.to, &args.etcd_tls).map_err(|error| refused(&error))?;
    let look = etcd.look("/registry").await.map_err(|status| refused(&stock_etcd::said(&status)))?;
    let mut findings = judge::to_leave(&look, judge::revision_at(SystemTime::now()), args.delete_its_keys);
    if has_begun {
        // Keys that have moved there are welcome.
        findings.retain(|finding| finding.of != "keys");
    }
    output::print(&judge::shown(&findings))?;
    match judge::may_go_on(&findings) {
        true => Ok(()),
        false => Err(refused(&"it cannot take the keys as it is; nothing was changed")),
    }
}

/// Ends the leases without keys that came to the etcd since; kindred does not know it any more.
async fn end_leases(direct: &Etcd, before: &[i64]) -> Result<(), Failure> {
    for lease in direct.leases().await?.into_iter().filter(|lease| !before.contains(lease)) {
        if !direct.lease_has_keys(lease).await? {
            direct.revoke(lease).await?;
        }
    }
    Ok(())
}

/// A client of the etcd itself.
async fn direct(args: &Begin) -> Result<Etcd, Failure> {
    let tls = ClientTlsArgs {
        cacert: args.etcd_tls.etcd_trusted_ca_file.clone(),
        cert: args.etcd_tls.etcd_cert_file.clone(),
        key: args.etcd_tls.etcd_key_file.clone(),
        ..ClientTlsArgs::default()
    };
    Etcd::connect(&args.to, &tls, &Login::default()).await
}

/// Waits until the etcd has all leases, also those without keys.
async fn leases_came(served: &Etcd, args: &Begin) -> Result<(), Failure> {
    let direct = direct(args).await?;
    let end = Instant::now() + LEASES_MAX;
    loop {
        let here: BTreeSet<i64> = served.leases().await?.into_iter().collect();
        let there: BTreeSet<i64> = direct.leases().await?.into_iter().collect();
        let Some(missing) = here.difference(&there).next() else {
            return output::print(&format!("{} at the etcd\n", counted(here.len() as u64, "lease")));
        };
        if Instant::now() >= end {
            return Err(Failure::Refused(format!(
                "lease {missing:x} did not come to the etcd within {} s: run this again",
                LEASES_MAX.as_secs()
            )));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Compares what kindred serves with what the etcd has, key by key, at one revision. Returns a client of kindred.
async fn compare(client: &Client, args: &Begin, address: &context::Address) -> Result<Etcd, Failure> {
    let snapshot = Snapshot::take(client).await?;
    let served = Etcd::connect(&snapshot.client_urls, &address.tls, &args.login).await?;
    let direct = direct(args).await?;
    let comparing = async {
        let (mut keys, mut rate) = (BTreeMap::new(), Rate::new(None));
        let one = snapshot.read(&served, &mut rate, |kv| {
            keys.insert(kv.key.clone(), digest(kv));
            Ok(())
        });
        one.await?;
        let all = keys.len() as u64;
        let mut different = None;
        let other = snapshot.read(&direct, &mut rate, |kv| {
            if kv.key == FENCE_KEY {
                return Ok(());
            }
            if keys.remove(&kv.key) != Some(digest(kv)) {
                different.get_or_insert_with(|| kv.key.clone());
            }
            Ok(())
        });
        other.await?;
        match different.or_else(|| keys.into_keys().next()) {
            None => Ok(all),
            Some(key) => Err(Failure::Refused(format!(
                "the etcd and kindred differ at key \"{}\": do not point anybody there; report this",
                key.escape_ascii()
            ))),
        }
    };
    let keys = tokio::select! {
        compared = snapshot.renewed_during(client, comparing) => compared?,
        _ = tokio::signal::ctrl_c() => return Err(Failure::Refused("interrupted".to_owned())),
    };
    output::print(&format!(
        "compared at one revision: {} are equal, with values, revisions and leases\n",
        counted(keys, "key")
    ))?;
    Ok(served)
}

/// A digest of all of a key.
fn digest(kv: &KeyValue) -> u64 {
    let mut hash = Xxh3::new();
    for number in [kv.create_revision, kv.mod_revision, kv.version, kv.lease] {
        hash.update(&number.to_le_bytes());
    }
    hash.update(&kv.value);
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_kinds_are_to_move() {
        let partitions = json!({ "partitions": [
            { "kind": null, "stores": ["default"] },
            { "kind": "/registry/events/", "stores": ["home"] },
            { "kind": "/registry/pods/", "stores": ["a"] },
            { "kind": "/registry/pods/", "stores": ["home"] },
            { "kind": "/registry/nodes/", "stores": ["a", "b"] },
        ]});
        let kind = |name: &str, stores: &[&str]| Kind {
            name: name.to_owned(),
            stores: stores.iter().map(|store| (*store).to_owned()).collect(),
        };
        let wanted = [kind("/registry/nodes/", &["a", "b"]), kind("/registry/pods/", &["a", "home"])];
        assert_eq!(not_at(&partitions, "home"), wanted);
    }

    #[test]
    fn a_store_with_the_url_is_the_one() {
        let groups = json!({ "items": [
            { "metadata": { "name": "a" }, "type": "shard", "endpoints": ["http://x:1"] },
            { "metadata": { "name": "b" }, "type": "etcd", "endpoints": ["http://x:1/", "http://y:1"] },
        ]});
        let urls = |url: &str| BTreeSet::from([url.to_owned()]);
        assert_eq!(known(&groups, &urls("http://x:1")), Some("b".to_owned()));
        assert_eq!(known(&groups, &urls("http://z:1")), None);
    }
}
