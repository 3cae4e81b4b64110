//! Consistent lists by Kubernetes' own storage and cache, as several of its versions have them: what was acknowledged through one
//! router is in a list through the next. `tests/peers/kube-consistency` is the client.
//!
//! Some clients of that package give it a prefix that ends in a slash, and it asks for the current revision by that key, which is on
//! one store of a Kind on several.

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{
    layouts::{Kind, Layout, Place, Wanted},
    peers::{Peer, PeerSet, listed},
    scenario::{self, env_number, report},
};
use serde_json::json;
use tokio::process::Command;

const LIMIT: Duration = Duration::from_secs(120);
/// A hundred cases.
const LONG_LIMIT: Duration = Duration::from_secs(900);
/// How long the clients of a case work.
const SECONDS: u64 = 4;
/// A case with fewer lists shows nothing.
const LISTS_MIN: u64 = 40;

/// The client's namespaces are in all three ranges.
const PODS: Kind = Kind { resource: "pods", cuts: ["h", "s"] };
/// How a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    AsApiservers,
    /// Its prefix ends in a slash.
    BySlash,
    /// It takes any list for a consistent one, which must be found.
    Sabotaged,
}

impl Asks {
    fn flag(self) -> Option<&'static str> {
        match self {
            Self::AsApiservers => None,
            Self::BySlash => Some("-slash"),
            Self::Sabotaged => Some("-sabotage"),
        }
    }
}

async fn check(dir: &Path, program: &Peer, place: Place, asks: Asks) -> anyhow::Result<()> {
    // A list of what one store would show by itself is then certainly below another one.
    let ahead = json!({ "up": { "stores": { "a": { "wall-clock-offset": "300ms" } } } });
    let sections = place.layout.is_spread().then_some(&ahead);
    let servers = place.start(dir, Wanted { kinds: &[PODS], sections, ..Wanted::default() }).await?;
    let output = Command::new(&program.path)
        .arg(format!("-endpoints={}", servers.addresses.join(",")))
        .arg(format!("-seconds={}", env_number("KINDRED_CONSISTENCY_SECONDS", SECONDS)?))
        .args(asks.flag())
        .kill_on_drop(true)
        .output()
        .await?;
    let (said, why) = (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
    let what = format!("consistency {} {place} {asks:?}: {}", program.name, said.trim());
    report(&what);
    ensure!(output.status.success(), "{what}\n{why}");
    let count = |name: &str| -> anyhow::Result<u64> {
        let word = said.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        Ok(word.with_context(|| format!("no {name} in {said}"))?.parse()?)
    };
    let (lists, stale, from_cache) = (count("lists")?, count("stale")?, count("from_cache")?);
    ensure!(lists >= LISTS_MIN, "{what}");
    ensure!(from_cache > 0 || asks == Asks::Sabotaged, "no list came from a cache: {what}");
    ensure!((stale > 0) == (asks == Asks::Sabotaged), "{what}\n{why}");
    Ok(())
}

#[test]
fn kubernetes_lists_what_was_acknowledged_through_another_router() {
    scenario::run("kube_consistency", LIMIT, |dir| async move {
        let programs = listed(PeerSet::KubeConsistency)?;
        let newest = programs.first().context("a version")?;
        let ring = Layout::Ring.behind(2);
        for (place, asks) in
            [(Place::ETCD, Asks::Sabotaged), (Place::ETCD, Asks::AsApiservers), (ring, Asks::BySlash)]
        {
            check(&dir, newest, place, asks).await?;
        }
        Ok(())
    });
}

#[test]
fn long_each_kubernetes_lists_what_was_acknowledged_in_every_layout() {
    scenario::run("kube_consistency_all", LONG_LIMIT, |dir| async move {
        for program in listed(PeerSet::KubeConsistency)? {
            for place in [Place::ETCD].into_iter().chain(Place::all()) {
                for asks in [Asks::AsApiservers, Asks::BySlash] {
                    check(&dir, &program, place, asks).await?;
                }
            }
        }
        Ok(())
    });
}
