//! The routers of the cluster, each under a lease of its own in meta: what `member list` shows.
//!
//! A client that takes the list for its endpoints, as etcd's clients do with `--sync`, goes to any of them from then on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kindred_transport::address::{Host, ListenAddr, Target};
use serde::{Deserialize, Serialize};

use super::client::{Entries, Expect, Write};
use super::{Cluster, Meta, MetaError, PREFIX, STATE};
use crate::identity::Identity;

/// How long a router that was killed stays in the list.
const TTL: Duration = Duration::from_secs(30);
const RENEW: Duration = Duration::from_secs(10);
/// How long a stop may wait until the router is out of the list.
const LEAVE: Duration = Duration::from_millis(500);

/// A router, as the others list it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    pub id: u64,
    pub name: String,
    pub client_urls: Vec<String>,
}

impl Member {
    /// The router itself.
    #[must_use]
    pub fn of(identity: &Identity) -> Self {
        let Identity { member_id, name, client_urls, .. } = identity;
        Self { id: *member_id, name: name.clone(), client_urls: client_urls.clone() }
    }

    /// Whether other machines cannot reach it.
    fn is_local(&self) -> bool {
        let local = |url: &String| url.parse::<ListenAddr>().is_ok_and(|address| address.is_local());
        !self.client_urls.is_empty() && self.client_urls.iter().all(local)
    }

    /// Whether others may be told of it: an address such as 0.0.0.0 is that of every machine.
    fn has_addresses(&self) -> bool {
        let is_any = |url: &String| {
            let address = url.parse::<ListenAddr>();
            address.is_ok_and(|address| match address.target() {
                Target::Tcp { host: Host::Ip(ip), .. } => ip.to_canonical().is_unspecified(),
                _ => false,
            })
        };
        !self.client_urls.is_empty() && !self.client_urls.iter().any(is_any)
    }
}

/// Where a router is listed. Its name and addresses make its id, so two that have addresses of their own never share a key.
fn key(id: u64) -> String {
    format!("{}{id:016x}", prefix())
}

fn prefix() -> String {
    format!("{PREFIX}routers/")
}

/// The routers that meta knows and this one, by id. One that only its own machine reaches is left out, unless this one is
/// such as well.
#[must_use]
pub fn members(cluster: &Cluster, me: &Member) -> Vec<Member> {
    let known = cluster.meta.as_ref().map(|meta| meta.entries().borrow().clone());
    listed(known.as_deref(), me)
}

fn listed(entries: Option<&Entries>, me: &Member) -> Vec<Member> {
    let prefix = prefix();
    let keys = entries.into_iter().flat_map(|entries| entries.keys.range(prefix.clone()..));
    let known = keys.take_while(|(key, _)| key.starts_with(&prefix));
    // One of a later version may say what is not understood here.
    let known = known.filter_map(|(_, stored)| serde_json::from_slice::<Member>(&stored.value).ok());
    let reachable = known.filter(|member| member.has_addresses() && (me.is_local() || !member.is_local()));
    let mut all: BTreeMap<u64, Member> = reachable.map(|member| (member.id, member)).collect();
    all.insert(me.id, me.clone());
    all.into_values().collect()
}

/// The router that all call the leader, as clients of etcd expect one. It has no other task.
#[must_use]
pub fn leader(cluster: &Cluster, me: &Member) -> u64 {
    members(cluster, me).first().map_or(me.id, |member| member.id)
}

/// Keeps this router in the list, until `stopping`.
pub async fn announce(meta: Arc<Meta>, me: Member, stopping: impl Future<Output = ()>) {
    if !me.has_addresses() {
        return;
    }
    let (key, value) = (key(me.id), serde_json::to_vec(&me).unwrap_or_default());
    let listed = async {
        loop {
            if let Err(error) = announced(&meta, &key, &value).await {
                tracing::debug!(%error, "this router is not in the list of routers");
            }
            tokio::time::sleep(RENEW).await;
        }
    };
    tokio::select! {
        () = listed => {}
        () = stopping => {}
    }
    // Otherwise it stays in the list until its lease ends.
    let gone = vec![Write { key, value: None, lease: 0 }];
    if let Ok(ours) = of_this_cluster(&meta) {
        let _ = tokio::time::timeout(LEAVE, meta.client.commit(&[ours], gone)).await;
    }
}

/// Puts the router into the list, and renews its lease while it is there.
async fn announced(meta: &Meta, key: &str, value: &[u8]) -> Result<(), MetaError> {
    // Before anything is written.
    of_this_cluster(meta)?;
    let lease = meta.client.grant(TTL).await?;
    let put = Write { lease, ..Write::put(key, value.to_vec()) };
    let Some(at) = meta.client.commit(&[of_this_cluster(meta)?], vec![put]).await? else { return Ok(()) };
    meta.heard(at).await;
    loop {
        tokio::time::sleep(RENEW).await;
        // A meta store that was restored may have the lease and not the key.
        let is_listed = meta.entries().borrow().keys.contains_key(key);
        match meta.client.renew(lease).await {
            Ok(true) if is_listed => {}
            Ok(_) => return Ok(()),
            // It may have been renewed.
            Err(error) => tracing::debug!(%error, "the lease in the list of routers was not renewed"),
        }
    }
}

/// The condition that meta still has the state that this router follows. Nothing is written to the meta store of another cluster.
fn of_this_cluster(meta: &Meta) -> Result<Expect, MetaError> {
    if let Some(why) = meta.stray().or_else(|| meta.problem()) {
        return Err(MetaError::Unavailable(why));
    }
    match meta.entries().borrow().keys.get(STATE) {
        Some(state) => Ok(Expect { key: STATE.to_owned(), mod_revision: state.mod_revision }),
        None => Err(MetaError::Unavailable("it has no state of this cluster yet".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::client::Stored;

    fn member(id: u64, url: &str) -> Member {
        Member { id, name: format!("router-{id}"), client_urls: vec![url.to_owned()] }
    }

    fn entries(of: &[&Member]) -> Entries {
        let mut entries = Entries::default();
        for member in of {
            let value = serde_json::to_vec(member).unwrap().into();
            entries.keys.insert(key(member.id), Stored { value, mod_revision: 1 });
        }
        let odd = Stored { value: "of a later version".into(), mod_revision: 1 };
        entries.keys.insert(format!("{}~", prefix()), odd.clone());
        entries.keys.insert("/kindred/state".to_owned(), odd);
        entries
    }

    /// Every router listed itself alone, and each said that it is the leader.
    #[test]
    fn f61_all_routers_are_listed_and_name_the_same_leader() {
        let [a, b, c] = [(3, "https://a:2379"), (7, "https://b:2379"), (2, "http://127.0.0.1:2379")]
            .map(|(id, url)| member(id, url));
        let known = entries(&[&a, &b, &c]);
        let ids = |me: &Member| listed(Some(&known), me).iter().map(|member| member.id).collect::<Vec<_>>();
        assert_eq!((ids(&a), ids(&b)), (vec![3, 7], vec![3, 7]));
        assert_eq!(ids(&c), [2, 3, 7], "what is on the same machine reaches all");
        assert_eq!(listed(Some(&entries(&[&a])), &b), [a.clone(), b], "before meta has it");
        assert_eq!(listed(None, &a), std::slice::from_ref(&a));
        // By which nobody is reached, and which several machines have.
        let any = member(5, "https://0.0.0.0:2379");
        assert!(!any.has_addresses() && !member(5, "http://[::]:2379").has_addresses());
        assert_eq!(listed(Some(&entries(&[&a, &any])), &a), [a]);
    }
}
