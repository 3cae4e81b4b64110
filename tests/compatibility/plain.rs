//! What tools ask an etcd by plain HTTP on its clients' port: probes, metrics, and the version, without which kubeadm
//! refuses an external etcd.

use std::{path::Path, time::Duration};

use anyhow::ensure;
use kindred_tests::{
    scenario,
    servers::{Etcd, Shard, Up},
};

use crate::web::ask;

#[test]
fn the_clients_port_answers_plain_http_as_etcds() {
    scenario::run("plain_http", Duration::from_secs(60), |dir| async move { plain(&dir).await });
}

async fn plain(dir: &Path) -> anyhow::Result<()> {
    let etcd = Etcd::start(dir, "etcd").await?;
    let shard = Shard::start(dir, "shard", &[]).await?;
    let up = Up::start(dir, "up", &[]).await?;
    for address in [&etcd.address, &shard.address, &up.address] {
        let get = |path: &'static str| ask(address, "GET", path, "", usize::MAX);
        let version = get("/version").await?.values()?.remove(0);
        for field in ["etcdserver", "etcdcluster", "storage"] {
            ensure!(version[field].as_str().is_some_and(|version| version.starts_with("3.7.")), "{version}");
        }
        let health = get("/health").await?;
        ensure!(health.code == 200 && health.values()?[0]["health"] == "true", "{health:?}");
        for probe in ["/livez", "/readyz"] {
            let answer = get(probe).await?;
            ensure!(answer.code == 200 && answer.body.trim() == "ok", "{probe}: {answer:?}");
        }
        ensure!(get("/readyz?verbose").await?.body.contains("[+]"));
        let metrics = get("/metrics").await?;
        ensure!(metrics.code == 200 && metrics.content.starts_with("text/plain"), "{metrics:?}");
        ensure!(metrics.body.contains("# TYPE "), "no metrics");
        let nowhere = get("/nowhere").await?;
        ensure!((nowhere.code, nowhere.body.trim()) == (404, "404 page not found"), "{nowhere:?}");
        let posted = ask(address, "POST", "/version", "", usize::MAX).await?;
        ensure!(posted.code == 405, "{posted:?}");
        // Two requests on one connection, and one that is no HTTP at all.
        ensure!(ask(address, "GET", "/version", "", usize::MAX).await.is_ok());
        ensure!(
            ask(address, "NONSENSE\r\n\r\n", "", "", usize::MAX)
                .await
                .map_or(true, |answer| answer.code == 400)
        );
    }
    Ok(())
}
