//! Reads all keys of every shard over etcd's API. Each key is on the shard that the map names, and on no other. All
//! keys together are those that the router and the apiserver answer with.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::Context;
use kindred_partition_config::key::KeyRange;
use kindred_proto::etcdserverpb::{RangeRequest, kv_client::KvClient};
use kindred_tests::{
    client::{Channel, Client},
    kube_client::{full_name, items},
    scenario::{report, wait_for},
};
use kindred_transport::{
    connect::Connector,
    tls::{ClientTls, ClientTlsSettings},
};

use crate::kube::{
    cluster::{Cluster, Kindred},
    load::many,
    objects::{
        ALL_EVENTS, ALL_PODS, ALL_WIDGETS, NAMESPACES, NODE_COLLECTION, NODE_LEASES, collection, event,
        spread,
    },
};

/// The time until two reads agree. They may differ while events expire.
const EQUAL_LIMIT: Duration = Duration::from_secs(30);

/// Collections of the apiserver, with the prefixes of their keys.
const SHOWN: [(&str, &str); 7] = [
    (ALL_PODS, "/registry/pods/"),
    (NODE_COLLECTION, "/registry/minions/"),
    (NODE_LEASES, "/registry/leases/kube-node-lease/"),
    (ALL_EVENTS, "/registry/events/"),
    (ALL_WIDGETS, "/registry/example.com/widgets/"),
    ("/api/v1/secrets", "/registry/secrets/"),
    ("/api/v1/services", "/registry/services/specs/"),
];

type Keys = BTreeSet<String>;

/// Connects to a router or shard, which takes a router's secret.
fn connect(kindred: &Kindred, address: &str, tls: &ClientTlsSettings) -> anyhow::Result<KvClient<Channel>> {
    let connector = Connector::with_tls(Some(ClientTls::load(tls.clone())?));
    let channel = connector.channel(&format!("https://{address}").parse()?)?;
    Ok(Client::over_as_router(channel, &kindred.up.secret())?.kv)
}

async fn keys(client: &mut KvClient<Channel>, range: &KeyRange) -> anyhow::Result<Vec<String>> {
    // In etcd's API a zero byte means "no upper bound", and the empty key does not exist.
    let not_empty = |key: &[u8]| if key.is_empty() { vec![0] } else { key.to_vec() };
    let (start, end) = match range {
        KeyRange::Single(key) => (key.to_vec(), Vec::new()),
        KeyRange::Span { start, end } => (not_empty(start), not_empty(end.as_deref().unwrap_or_default())),
    };
    let request =
        RangeRequest { key: start.into(), range_end: end.into(), keys_only: true, ..Default::default() };
    let answer = client.range(request).await?.into_inner();
    answer.kvs.into_iter().map(|kv| Ok(String::from_utf8(kv.key.to_vec())?)).collect()
}

/// The keys of every shard, by the shard's name.
async fn shards(kindred: &Kindred) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let mut held = BTreeMap::new();
    for (name, address) in kindred.up.stores()? {
        let mut shard = connect(kindred, &address, &kindred.shard_tls)?;
        let all = keys(&mut shard, &KeyRange::everything()).await.with_context(|| format!("shard {name}"))?;
        held.insert(name, all);
    }
    Ok(held)
}

/// The keys that the router answers with, read for each Kind and for each range between Kinds.
async fn router(kindred: &Kindred) -> anyhow::Result<Keys> {
    let mut client = connect(kindred, &kindred.up.address, &kindred.client_tls)?;
    let mut shown = Keys::new();
    let mut asked = BTreeSet::new();
    for partition in kindred.config.map.partitions() {
        let range = match &partition.kind {
            // One read covers all parts of a Kind, as a list does.
            Some(kind) if !partition.is_pseudo() => kind.range(),
            _ => partition.range.clone(),
        };
        if asked.insert(range.start().clone()) {
            let listed = keys(&mut client, &range).await.with_context(|| format!("range {range:?}"))?;
            shown.extend(listed);
        }
    }
    Ok(shown)
}

pub async fn check(cluster: &Cluster) -> anyhow::Result<()> {
    let Some(kindred) = cluster.kindred() else { return Ok(()) };
    let tally = &cluster.tally;
    let client = &cluster.first.client;
    // Without new events there might be none left when the shards are read.
    many(NAMESPACES.len() * 3, |index| async move {
        let home = NAMESPACES[index % NAMESPACES.len()];
        let name = spread("placed", 9 * index);
        // The answer is ignored: an earlier check of the same cluster may have created the event.
        client.create(&collection(home, "events"), &event(home, &name)).await
    })
    .await?;

    let (held, union) = wait_for("router and shards to show the same", EQUAL_LIMIT, || async {
        let shown = router(kindred).await?;
        let held = shards(kindred).await?;
        let union: Keys = held.values().flatten().cloned().collect();
        Ok((union == shown && union.iter().any(|key| key.starts_with("/registry/events/")))
            .then_some((held, union)))
    })
    .await?;
    let total: usize = held.values().map(Vec::len).sum();
    tally.equal(&union.len(), &total, "keys that are on one shard only")?;
    for (store, keys) in &held {
        for key in keys {
            let place = kindred.store_of(key);
            tally.check(place == store, format_args!("{key} is on {store}, its place is {place}"))?;
        }
    }
    let used: BTreeSet<&str> = union.iter().map(|key| kindred.store_of(key)).collect();
    tally.equal(&used.len(), &kindred.config.stores.len(), "stores that hold something")?;
    for (path, prefix) in SHOWN {
        shown_by_the_apiserver(cluster, kindred, path, prefix).await?;
    }
    let counts: Vec<String> = held.iter().map(|(store, keys)| format!("{store}={}", keys.len())).collect();
    report(&format!("kube placement keys {} misplaced=0", counts.join(" ")));
    Ok(())
}

/// Waits until an apiserver's list has the same objects as the shards.
async fn shown_by_the_apiserver(
    cluster: &Cluster,
    kindred: &Kindred,
    path: &str,
    prefix: &str,
) -> anyhow::Result<()> {
    let equal = wait_for("an apiserver and the shards to show the same", EQUAL_LIMIT, || async {
        let list = cluster.first.client.get(path).await?;
        if list.status == 429 {
            // The killed shard had other Kinds than events, and the apiserver fills their watch cache again.
            return Ok(None);
        }
        let listed: Keys = items(&list.ok()?)?.iter().map(full_name).collect();
        let held = shards(kindred).await?;
        let keys: Keys =
            held.values().flatten().filter_map(|key| key.strip_prefix(prefix)).map(str::to_owned).collect();
        let listed: Keys = match prefix.strip_suffix("kube-node-lease/") {
            Some(_) => listed.iter().filter_map(|name| name.rsplit('/').next()).map(str::to_owned).collect(),
            None => listed,
        };
        Ok((keys == listed).then_some(()))
    });
    let outcome = equal.await;
    cluster.tally.check(outcome.is_ok(), format_args!("{path} and the keys below {prefix}: {outcome:?}"))
}
