//! Routers and members find each other by addresses, and an address may be another store's. Whoever is not meant says who it is,
//! and does nothing (R21).

use std::time::Duration;

use anyhow::{Context, ensure};
use kindred_proto::shard_v1::{MemberRequest, MemberResponse, member_response::Role};
use kindred_tests::{
    scenario::{self, wait_for},
    servers::{Etcd, Shard},
};
use serde_json::json;

use crate::failover::{
    cluster::{Cluster, Router, STORE, config, router, shard},
    members::LIMIT,
};

async fn member(shard: &Shard) -> anyhow::Result<MemberResponse> {
    Ok(shard.client().await?.standbys.member(MemberRequest::default()).await?.into_inner())
}

/// Waits until a router says this of its stores.
async fn says(router: &Router, what: &str) -> anyhow::Result<()> {
    wait_for(what, LIMIT, || async {
        let said = router.admin.ok("GET", "/api/v1/stores", &json!({})).await?;
        Ok(said.to_string().contains(what).then_some(()))
    })
    .await
}

/// The process of another store whose address was mistyped was told that it is a member of this one, ended, and refused to
/// serve for ever.
#[test]
fn f63_a_mistyped_address_harms_no_other_store() {
    scenario::run("failover_mistyped", 2 * LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir).await?;
        let of_default = format!("http://{}", cluster.default.address);
        let refused = cluster.set_standbys(&[of_default], json!({})).await;
        let refused = refused.err().context("the address of another store was taken")?;
        ensure!(format!("{refused:#}").contains("is an address of store"), "{refused:#}");

        // No document knows these. The second has the slot and the name of this store, and belongs to no cluster.
        let stranger = shard(&dir, "stranger", "other", 9, &[]).await?;
        let same = ["--name=pods".to_owned(), "--slot=2".to_owned()];
        let alone = Shard::start(&dir, "alone", &same).await?;
        for (mut other, what) in [
            (stranger, "this is store \\\"other\\\" with slot 9"),
            (alone, "serves and belongs to no cluster"),
        ] {
            cluster.set_standbys(&[format!("http://{}", other.address)], json!({})).await?;
            for router in &cluster.routers {
                says(router, what).await?;
            }
            let shown = member(&other).await?;
            ensure!(shown.role() == Role::Primary && shown.term == 0, "{shown:?}");
            ensure!(other.process.is_running()?, "the other store has ended");
        }
        Ok(())
    });
}

/// A router of another cluster, with the same secret and the same addresses, changed terms, had standbys promoted, and owned
/// the store after its next start.
#[test]
fn f63_a_router_of_another_cluster_changes_nothing() {
    scenario::run("failover_foreign", 2 * LIMIT + Duration::from_secs(30), |dir| async move {
        let mut cluster = Cluster::start(&dir).await?;
        cluster.add_standbys(&dir, &["second"], json!({})).await?;
        cluster.in_sync(1).await?;
        let before = cluster.group().await?["members"].clone();

        let address = |url: &str| url.trim_start_matches("http://").to_owned();
        let mut same = config(&cluster.default.address, &address(&cluster.members[0].url));
        same["stores"][1]["standby"] = json!({ "endpoints": [cluster.members[1].url] });
        let file = dir.join("same.json");
        std::fs::write(&file, same.to_string())?;
        let meta = Etcd::start(&dir, "meta-of-another").await?;
        let foreign = router(&dir, "foreign", &meta, &file, &[]).await?;
        says(&foreign, "belongs to the cluster of lineage").await?;
        let body = json!({ "store": STORE, "to": cluster.members[1].url, "force": true });
        let (status, said) = foreign.admin.ask("POST", "/api/v1/failover", &body.to_string()).await?;
        ensure!(status >= 400, "{status} {said}");

        cluster.in_sync(1).await?;
        let after = cluster.group().await?["members"].clone();
        ensure!(before == after, "{before} became {after}");
        Ok(())
    });
}
