//! `kindred adopt status` and `finish`. A router shows the changes at an etcd that it did not make itself. What no router made
//! was written directly.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::{
    args::{Connect, Output},
    client::{Client, Form, escaped},
    context,
    failure::Failure,
    output::{self, Table, counted, text},
};
use crate::adopt::args::{FinishArgs, StatusArgs, Step};

const EVERY: Duration = Duration::from_secs(1);
/// The number of keys that are named.
const NAMED: usize = 10;

/// Runs a step and returns its exit status.
pub fn run(step: &Step, outer: &Connect) -> ExitCode {
    super::run_to_end(async {
        match step {
            Step::Status(args) => status(&Routers::new(&args.connect.over(outer))?, args).await,
            Step::Finish(args) => finish(&Routers::new(&args.connect.over(outer))?, args).await,
        }
    })
}

/// All routers that were named.
struct Routers(Vec<(String, Client)>);

/// What is known of an etcd that is being adopted.
#[derive(Debug, Default, Clone, PartialEq)]
struct Etcd {
    /// For how long all routers have seen every change; `None` if one does not see them.
    watched: Option<Duration>,
    /// Changes that are younger are not shown yet.
    unsettled: Duration,
    /// The direct writes: their revision, key and age.
    direct: BTreeMap<u64, (String, Duration)>,
}

impl Etcd {
    /// Whether nothing was written directly in this time, which ends where routers do not show changes yet.
    fn is_quiet(&self, quiet: Duration) -> bool {
        let back = quiet + self.unsettled;
        self.watched.is_some_and(|watched| watched >= back)
            && self.direct.values().all(|(_, age)| *age > back)
    }

    /// Leaves out the keys that may be written directly.
    fn without(mut self, except: &[String]) -> Self {
        self.direct.retain(|_, (key, _)| !except.iter().any(|prefix| key.starts_with(prefix)));
        self
    }
}

impl Routers {
    fn new(connect: &Connect) -> Result<Self, Failure> {
        let address = context::address(connect)?;
        let urls = address.urls.split(',').map(str::trim).filter(|url| !url.is_empty());
        let one = |url: &str| {
            Ok((url.to_owned(), Client::new(&context::Address { urls: url.to_owned(), ..address.clone() })?))
        };
        let routers: Vec<_> = urls.map(one).collect::<Result<_, Failure>>()?;
        match routers.is_empty() {
            true => {
                Err(Failure::Usage("--admin: no address; give one such as http://127.0.0.1:2381".to_owned()))
            }
            false => Ok(Self(routers)),
        }
    }

    fn first(&self) -> &Client {
        &self.0[0].1
    }

    /// Asks every router, and keeps what none of them made.
    async fn adopted(&self) -> Result<BTreeMap<String, Etcd>, Failure> {
        let mut said = Vec::new();
        for (_, client) in &self.0 {
            said.push(client.get("/api/v1/adoption", Form::Objects).await?);
        }
        Ok(joined(&said))
    }
}

/// What all routers said.
fn joined(said: &[Value]) -> BTreeMap<String, Etcd> {
    let mut etcds: BTreeMap<String, Etcd> = BTreeMap::new();
    for (at, router) in said.iter().enumerate() {
        for store in router["stores"].as_array().into_iter().flatten() {
            let watched = store["watchedSeconds"].as_f64().map(Duration::from_secs_f64);
            let unsettled = Duration::from_secs_f64(store["unsettledSeconds"].as_f64().unwrap_or_default());
            let writes = store["writesOfOthers"].as_array().into_iter().flatten();
            let direct: BTreeMap<u64, (String, Duration)> = writes
                .filter_map(|write| {
                    let age = Duration::from_secs_f64(write["secondsAgo"].as_f64()?);
                    Some((write["revision"].as_u64()?, (text(&write["key"]), age)))
                })
                .collect();
            let etcd = etcds.entry(text(&store["store"])).or_default();
            if at == 0 {
                *etcd = Etcd { watched, unsettled, direct };
            } else {
                etcd.unsettled = etcd.unsettled.max(unsettled);
                etcd.watched = etcd.watched.zip(watched).map(|(one, other)| one.min(other));
                etcd.direct.retain(|revision, _| direct.contains_key(revision));
            }
        }
    }
    etcds
}

async fn status(routers: &Routers, args: &StatusArgs) -> Result<(), Failure> {
    let etcds = routers.adopted().await?;
    if args.output != Output::Table {
        let shown = etcds.iter().map(|(name, etcd)| {
            let writes = etcd.direct.iter().map(|(revision, (key, age))| {
                json!({ "revision": revision, "key": key, "secondsAgo": age.as_secs_f64() })
            });
            json!({
                "store": name, "watchedSeconds": etcd.watched.map(|watched| watched.as_secs_f64()),
                "directWrites": writes.collect::<Vec<_>>(),
            })
        });
        let shown = json!({ "routers": routers.0.len(), "stores": shown.collect::<Vec<_>>() });
        return output::print(&output::rendered(&shown, args.output)?);
    }
    if etcds.is_empty() {
        return output::print("no etcd is being adopted\n");
    }
    for (name, etcd) in &etcds {
        output::print(&shown(name, etcd, routers.0.len()))?;
    }
    Ok(())
}

fn shown(name: &str, etcd: &Etcd, routers: usize) -> String {
    let Some(watched) = etcd.watched else {
        return format!("store {name}: a router does not see its changes yet; ask again\n");
    };
    let seconds = watched.as_secs();
    let asked = counted(routers as u64, "router");
    if etcd.direct.is_empty() {
        return format!("store {name}: in {seconds} s, nothing was written but by {asked}\n");
    }
    let mut keys: BTreeMap<&str, (u64, Duration)> = BTreeMap::new();
    for (key, age) in etcd.direct.values() {
        let known = keys.entry(key).or_insert((0, *age));
        known.0 += 1;
        known.1 = known.1.min(*age);
    }
    let mut keys: Vec<_> = keys.into_iter().collect();
    keys.sort_by_key(|(_, (_, age))| *age);
    let mut table = Table::new(&["key", "writes", "last"]);
    for (key, (writes, age)) in keys.iter().take(NAMED) {
        table.row(vec![(*key).to_owned(), writes.to_string(), format!("{} s ago", age.as_secs())]);
    }
    let more = match keys.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("and {more} more\n"),
    };
    format!(
        "store {name}: in {seconds} s, {} to it were made by none of {asked}. A Lease apiserver-… is of the apiserver that \
         still uses it\n{}{more}",
        counted(etcd.direct.len() as u64, "write"),
        table.render()
    )
}

async fn finish(routers: &Routers, args: &FinishArgs) -> Result<(), Failure> {
    if args.except.iter().any(String::is_empty) {
        return Err(Failure::Usage(
            "--except: an empty prefix is that of every key; leave it out".to_owned(),
        ));
    }
    let began = Instant::now();
    let mut told = false;
    let names: Vec<String> = loop {
        let etcds = routers.adopted().await?;
        let etcds: BTreeMap<_, _> =
            etcds.into_iter().map(|(name, etcd)| (name, etcd.without(&args.except))).collect();
        if args.force || etcds.values().all(|etcd| etcd.is_quiet(args.quiet)) {
            break etcds.into_keys().collect();
        }
        if began.elapsed() >= args.timeout {
            let busy = etcds.iter().filter(|(_, etcd)| !etcd.is_quiet(args.quiet));
            let why: String = busy.map(|(name, etcd)| shown(name, etcd, routers.0.len())).collect();
            return Err(Failure::Refused(format!(
                "{why}point every apiserver at kindred, and whoever else writes, and name all routers by --admin; where keys are to stay at the etcd \
                 for good, name them by --except; nothing was changed"
            )));
        }
        if !told {
            let quiet = args.quiet.as_secs();
            output::print(&format!("waiting for {quiet} s without a write that no router made\n"))?;
            told = true;
        }
        tokio::time::sleep(EVERY).await;
    };
    if names.is_empty() {
        return output::print("no etcd is being adopted\n");
    }
    let client = routers.first();
    for name in &names {
        let path = format!("/api/v1/servicegroups/{}", escaped(name));
        let mut group = client.get(&path, Form::Objects).await?;
        group["adopting"] = json!(false);
        client.change(Method::PUT, &path, Some(&group)).await?;
        output::print(&format!("store {name} is adopted: Kinds can move away from it\n"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(watched: Option<f64>, writes: &[(u64, &str, f64)]) -> Value {
        let writes = writes
            .iter()
            .map(|(revision, key, age)| json!({ "revision": revision, "key": key, "secondsAgo": age }));
        let store = json!({
            "store": "etcd", "watchedSeconds": watched, "unsettledSeconds": 2.0, "writesOfOthers": writes.collect::<Vec<_>>(),
        });
        json!({ "router": "r", "stores": [store] })
    }

    #[test]
    fn a_write_is_direct_if_no_router_made_it() {
        let lease = "/registry/leases/kube-system/apiserver-a";
        let one = said(Some(60.0), &[(5, "/registry/pods/a/b", 9.0), (7, lease, 4.0)]);
        let other = said(Some(40.0), &[(6, "/registry/pods/a/c", 8.0), (7, lease, 4.5)]);
        let alone = joined(std::slice::from_ref(&one))["etcd"].clone();
        assert_eq!(alone.direct.len(), 2, "the other router's write counts, as it was not asked");
        let both = joined(&[one.clone(), other.clone()])["etcd"].clone();
        assert_eq!(both.watched, Some(Duration::from_secs(40)));
        assert_eq!(both.direct.keys().collect::<Vec<_>>(), [&7]);
        assert!(both.is_quiet(Duration::from_secs(1)) && !both.is_quiet(Duration::from_secs(2)));
        assert!(both.without(&["/registry/leases/".to_owned()]).is_quiet(Duration::from_secs(30)));
        let both = joined(&[one, other])["etcd"].clone();
        assert!(!both.is_quiet(Duration::from_secs(50)), "nobody looked for so long");
        let text = shown("etcd", &both, 2);
        assert!(
            text.contains("in 40 s, 1 write to it were made by none of 2 routers") && text.contains(lease),
            "{text}"
        );
    }

    /// Routers do not show what is younger than two seconds, so a shorter `--quiet` saw nothing of a client that never stopped.
    #[test]
    fn f87_a_quiet_time_begins_before_what_routers_do_not_show_yet() {
        let busy = joined(&[said(Some(60.0), &[(5, "/registry/pods/a/b", 2.1)])])["etcd"].clone();
        assert!(!busy.is_quiet(Duration::from_secs(1)));
        let fresh = joined(&[said(Some(2.5), &[])])["etcd"].clone();
        assert!(!fresh.is_quiet(Duration::from_secs(1)) && fresh.is_quiet(Duration::from_millis(500)));
    }

    #[test]
    fn a_router_that_does_not_look_says_nothing() {
        let blind = joined(&[said(Some(60.0), &[]), said(None, &[])])["etcd"].clone();
        assert!(!blind.is_quiet(Duration::ZERO));
        assert!(shown("etcd", &blind, 2).contains("does not see"));
    }
}
