//! The `etcd-client` crate end to end.

use std::time::Duration;

use anyhow::{Context, ensure};
use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, EventType, GetOptions, PutOptions, Txn, TxnOp, WatchOptions,
};
use kindred_tests::scenario::{self, report};

use crate::e2e::Server;

const LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

#[test]
fn etcd_client_crate() {
    scenario::run("etcd_client_crate", LIMIT, |dir| async move {
        let server = Server::start(&dir).await?;
        let mut client = Client::connect([server.address()], None).await?;
        for name in ["1", "2", "3"] {
            client.put(format!("/registry/pods/a/{name}"), name, None).await?;
        }
        let prefix = || Some(GetOptions::new().with_prefix());
        let all = client.get("/registry/pods/", prefix()).await?;
        ensure!(all.kvs().len() == 3 && all.count() == 3);
        let page = client.get("/registry/pods/", Some(GetOptions::new().with_prefix().with_limit(2))).await?;
        ensure!(page.kvs().len() == 2 && page.more() && page.count() == 3);

        let start = all.header().context("header")?.revision() + 1;
        let options = WatchOptions::new().with_prefix().with_prev_key().with_start_revision(start);
        let mut stream = client.watch("/registry/pods/", Some(options)).await?;
        let expected = all.kvs()[0].mod_revision();
        let update = Txn::new()
            .when([Compare::mod_revision("/registry/pods/a/1", CompareOp::Equal, expected)])
            .and_then([TxnOp::put("/registry/pods/a/1", "new", None)])
            .or_else([TxnOp::get("/registry/pods/a/1", None)]);
        let won = client.txn(update.clone()).await?;
        ensure!(won.succeeded());
        let written = won.header().context("header")?.revision();
        let lost = client.txn(update).await?;
        ensure!(!lost.succeeded());
        client.delete("/registry/pods/a/2", Some(DeleteOptions::new().with_prev_key())).await?;

        let mut events = Vec::new();
        while events.len() < 2 {
            let message =
                tokio::time::timeout(ANSWER_LIMIT, stream.message()).await.context("no event")??;
            let message = message.context("the watch ended")?;
            for event in message.events() {
                let kv = event.kv().context("kv")?;
                let previous = event.prev_kv().context("prev_kv")?;
                events.push((event.event_type(), kv.mod_revision(), previous.value().to_vec()));
            }
        }
        ensure!(events[0] == (EventType::Put, written, b"1".to_vec()), "{events:?}");
        ensure!(events[1].0 == EventType::Delete && events[1].2 == b"2", "{events:?}");
        stream.request_progress().await?;
        let progress =
            tokio::time::timeout(ANSWER_LIMIT, stream.message()).await.context("no progress")??;
        let progress = progress.context("the watch ended")?;
        ensure!(progress.events().is_empty());
        ensure!(
            progress.header().context("header")?.revision() >= events[1].1,
            "progress below a sent event"
        );

        let lease = client.lease_grant(600, None).await?.id();
        client.put("/registry/pods/a/leased", "x", Some(PutOptions::new().with_lease(lease))).await?;
        let (mut keeper, mut kept) = client.lease_keep_alive(lease).await?;
        keeper.keep_alive().await?;
        let answer = tokio::time::timeout(ANSWER_LIMIT, kept.message()).await.context("no keep-alive")??;
        ensure!(answer.context("keep-alive ended")?.ttl() == 600);
        client.lease_revoke(lease).await?;
        ensure!(client.get("/registry/pods/a/leased", None).await?.kvs().is_empty());
        report("e2e etcd_client_crate kv=4 txns=2 watch_events=2 progress=1 leases=1");
        Ok(())
    });
}
