//! Asks each shard, through its own etcd API, which keys it holds: each kind where the default configuration says, and
//! nowhere else.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use kindred_tests::{etcdctl::Etcdctl, scenario::report, servers::Up};

/// The kinds that have a shard of their own.
const PLACED: [(&str, &str); 4] = [
    ("/registry/leases/", "leases"),
    ("/registry/minions/", "nodes"),
    ("/registry/pods/", "pods"),
    ("/registry/events/", "events"),
];

pub async fn check(up: &Up) -> anyhow::Result<()> {
    // With TLS, shards let in only the router, with the certificate that `kindred up` made for it.
    let certificates = up.data_dir.join("auto-tls");
    let flags = [("cacert", "ca.crt"), ("cert", "client.crt"), ("key", "client.key")]
        .map(|(flag, file)| format!("--{flag}={}", certificates.join(file).display()));
    let mut counts = BTreeMap::new();
    for (store, address) in up.stores()? {
        let shard = Etcdctl::new(&format!("https://{address}")).with(&flags);
        let keys =
            shard.ok(&["get", "", "--from-key", "--keys-only"]).await.with_context(|| store.clone())?;
        let mut count = 0;
        for key in keys.lines().filter(|line| !line.is_empty()) {
            let wanted = PLACED.iter().find(|(prefix, _)| key.starts_with(prefix));
            let wanted = wanted.map_or("default", |(_, store)| store);
            ensure!(wanted == store, "{key} is on {store}, its place is {wanted}");
            count += 1;
        }
        counts.insert(store, count);
    }
    for store in ["default", "leases", "nodes", "pods", "events"] {
        let count = counts.get(store).with_context(|| format!("no store {store}"))?;
        ensure!(*count > 0, "nothing on {store}");
    }
    let listed: Vec<String> = counts.iter().map(|(store, count)| format!("{store}={count}")).collect();
    report(&format!("kube placement keys {} misplaced=0", listed.join(" ")));
    Ok(())
}
