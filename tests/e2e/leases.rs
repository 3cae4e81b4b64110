//! Leases through `etcdctl`: grant, keep-alive, time-to-live, revoke and expiry.

use std::time::Duration;

use anyhow::{Context, ensure};
use kindred_tests::{
    etcdctl::Etcdctl,
    scenario::{self, report, wait_for},
};

use crate::e2e::Server;

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn etcdctl_leases() {
    scenario::run("etcdctl_leases", LIMIT, |dir| async move {
        let server = Server::start(&dir).await?;
        let etcdctl = Etcdctl::new(server.address());
        let id = grant(&etcdctl, "600").await?;
        let option = format!("--lease={id}");
        // The keys are of two Kinds, so that the lease spans shards of kindred.
        etcdctl.ok(&["put", &option, "/registry/pods/a/1", "one"]).await?;
        etcdctl.ok(&["put", &option, "/registry/events/a/1", "one"]).await?;
        let kept = etcdctl.ok(&["lease", "keep-alive", "--once", &id]).await?;
        ensure!(kept.contains("keepalived with TTL(600)"), "{kept}");
        let shown = etcdctl.ok(&["lease", "timetolive", &id, "--keys"]).await?;
        for part in ["granted with TTL(600s)", "/registry/pods/a/1", "/registry/events/a/1"] {
            ensure!(shown.contains(part), "{shown}");
        }
        let listed = etcdctl.ok(&["lease", "list"]).await?;
        ensure!(listed.contains(&id), "{listed}");
        let revoked = etcdctl.ok(&["lease", "revoke", &id]).await?;
        ensure!(revoked.contains("revoked"), "{revoked}");
        for key in ["/registry/pods/a/1", "/registry/events/a/1"] {
            ensure!(etcdctl.ok(&["get", key]).await?.is_empty(), "{key} outlived its lease");
        }
        let gone = etcdctl.output(&["put", &option, "/registry/pods/a/1", "one"], "").await?.failed()?;
        ensure!(gone.contains("requested lease not found"), "{gone}");

        let short = grant(&etcdctl, "2").await?;
        etcdctl.ok(&["put", &format!("--lease={short}"), "/registry/pods/a/2", "short"]).await?;
        wait_for("a key to expire with its lease", Duration::from_secs(30), || async {
            Ok(etcdctl.ok(&["get", "/registry/pods/a/2"]).await?.is_empty().then_some(()))
        })
        .await?;
        report("e2e etcdctl_leases granted=2 revoked=1 expired=1");
        Ok(())
    });
}

/// Grants a lease and returns its id as etcdctl prints it.
async fn grant(etcdctl: &Etcdctl, ttl: &str) -> anyhow::Result<String> {
    let granted = etcdctl.ok(&["lease", "grant", ttl]).await?;
    Ok(granted.split_whitespace().nth(1).context("lease id")?.to_owned())
}
