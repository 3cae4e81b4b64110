//! `kindred adopt`: which etcds it takes, and how it finds who still uses one directly.

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{DeleteRangeRequest, LeaseGrantRequest, PutRequest};
use kindred_tests::{
    certs::{Authority, Leaf},
    client::Client,
    etcdctl::{self, Etcdctl, Output},
    process::our_binary,
    scenario::{self, wait_for},
    servers::{Etcd, Up},
};

const LIMIT: Duration = Duration::from_secs(120);
const STEP_LIMIT: Duration = Duration::from_secs(30);
const KEY: &str = "/registry/configmaps/a/b";
/// Of a client with a prefix of its own.
const CALICO: &str = "/calico/node/1";

async fn kindred(words: &[&str]) -> anyhow::Result<Output> {
    etcdctl::run(&our_binary("kindred")?, words, "").await
}

async fn put(client: &Client, key: &str, value: &str) -> anyhow::Result<()> {
    let put = PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
    client.kv.clone().put(put).await.with_context(|| format!("put {key}")).map(drop)
}

async fn delete(client: &Client, key: &str) -> anyhow::Result<()> {
    let delete = DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
    let deleted = client.kv.clone().delete_range(delete).await?.into_inner().deleted;
    ensure!(deleted == 1, "{key} was not there");
    Ok(())
}

fn with_leaf(authority: &Authority, leaf: &Leaf) -> Vec<String> {
    vec![
        format!("--etcd-trusted-ca-file={}", authority.cert.display()),
        format!("--etcd-cert-file={}", leaf.cert.display()),
        format!("--etcd-key-file={}", leaf.key.display()),
    ]
}

/// As of kubeadm: the etcd has an authority of its own, and clients of kindred have another.
#[test]
fn an_etcd_with_certificates_of_its_own_is_adopted() {
    scenario::run("adopt-tls", LIMIT, |dir| async move {
        let authority = Authority::new(&dir, "etcd-authority")?;
        let etcd = Etcd::start_tls(&dir, "old", &authority).await?;
        let (from, router) = (format!("https://{}", etcd.address), authority.leaf("kindred-client")?);
        let stranger = kindred(&["adopt", "--check", "--from", &from]).await?.failed()?;
        ensure!(stranger.contains("cannot be adopted as it is"), "{stranger}");
        let mut flags = with_leaf(&authority, &router);
        flags.push("--auto-tls".to_owned());
        let up = Up::adopt(&dir, "kindred", &from, &flags).await?;
        let file = |name: &str| up.data_dir.join("auto-tls").join(name).display().to_string();
        let of_clients =
            ["--cacert=", "--cert=", "--key="].iter().zip(["ca.crt", "client.crt", "client.key"]);
        let of_clients: Vec<String> =
            of_clients.map(|(flag, name)| format!("{flag}{}", file(name))).collect();
        let served = Etcdctl::new(&format!("https://{}", up.address)).with(&of_clients);
        served.ok(&["put", KEY, "through"]).await?;
        let direct = [
            format!("--cacert={}", authority.cert.display()),
            format!("--cert={}", router.cert.display()),
            format!("--key={}", router.key.display()),
        ];
        let direct = Etcdctl::new(&from).with(&direct);
        ensure!(direct.ok(&["get", KEY, "--print-value-only"]).await?.trim() == "through");
        Ok(())
    });
}

#[test]
fn what_is_in_the_way_of_an_adoption_is_said() {
    scenario::run("adopt-check", LIMIT, |dir| async move {
        let etcd = Etcd::start(&dir, "old").await?;
        let from = format!("http://{}", etcd.address);
        let check = async |more: &[&str]| {
            let mut words = vec!["adopt", "--check", "--from", &from];
            words.extend(more);
            kindred(&words).await
        };
        put(&etcd.client().await?, KEY, "1").await?;
        etcd.client().await?.lease.clone().lease_grant(LeaseGrantRequest { id: 0, ttl: 60 }).await?;
        let good = check(&[]).await?.ok()?;
        ensure!(good.contains("1 key: /registry/configmaps/ 1") && good.contains("1 lease;"), "{good}");
        let elsewhere = check(&["--etcd-prefix=/elsewhere"]).await?.ok()?;
        ensure!(elsewhere.contains("is --etcd-prefix right?"), "{elsewhere}");
        let nobody = kindred(&["adopt", "--check", "--from", "http://127.0.0.1:1"]).await?.failed()?;
        ensure!(nobody.contains("127.0.0.1:1"), "{nobody}");
        let file = dir.join("config.yaml");
        let file = file.to_str().context("a path")?;
        let other = kindred(&["adopt", "--from", &from, "--config", file]).await?.failed()?;
        ensure!(other.contains("--write-config"), "{other}");
        kindred(&["adopt", "--from", &from, "--write-config", file]).await?.ok()?;
        let written = std::fs::read_to_string(file)?;
        ensure!(written.contains("adopting: true") && written.contains(&from), "{written}");
        let etcdctl = Etcdctl::new(&etcd.address);
        etcdctl.ok(&["user", "add", "root:secret"]).await?;
        etcdctl.ok(&["user", "grant-role", "root", "root"]).await?;
        etcdctl.ok(&["auth", "enable"]).await?;
        let output = check(&[]).await?;
        ensure!(output.stdout.contains("authentication is enabled"), "{output:?}");
        output.failed()?;
        Ok(())
    });
}

/// Each router knows its own writes only, so all of them are asked. A restart needs no etcd to begin.
#[test]
fn who_uses_an_adopted_etcd_directly_is_found_by_all_routers_together() {
    scenario::run("adopt-direct", LIMIT, |dir| async move { direct(&dir).await });
}

async fn direct(dir: &Path) -> anyhow::Result<()> {
    let mut etcd = Etcd::start(dir, "old").await?;
    let from = format!("http://{}", etcd.address);
    let up = Up::adopt(dir, "kindred", &from, &["--routers=2".to_owned()]).await?;
    let admins: Vec<String> = up.addresses("admin")?.iter().map(|admin| format!("http://{admin}")).collect();
    let all = format!("--admin={}", admins.join(","));
    let [one, two] = &up.addresses("listen")?[..] else { anyhow::bail!("two routers") };
    let (one, two) = (Client::connect(one).await?, Client::connect(two).await?);
    wait_for("all routers to look", STEP_LIMIT, || async {
        let said = kindred(&["adopt", "status", &all]).await?.ok()?;
        Ok((!said.contains("does not see")).then_some(()))
    })
    .await?;
    put(&one, KEY, "by one").await?;
    put(&two, "/registry/configmaps/a/c", "by two").await?;
    let direct = etcd.client().await?;
    put(&direct, "/registry/leases/kube-system/apiserver-x", "direct").await?;
    // Row 87: what had another prefix, and deletions, were not seen.
    put(&direct, CALICO, "not of Kubernetes").await?;
    let deleted = ["/registry/secrets/a/by-a-client", "/registry/secrets/a/by-the-router"];
    for key in deleted {
        put(&two, key, "x").await?;
    }
    delete(&direct, deleted[0]).await?;
    delete(&two, deleted[1]).await?;
    // The etcd deletes a key itself when its lease ends.
    let lease = LeaseGrantRequest { id: 0, ttl: 1 };
    let lease = one.lease.clone().lease_grant(lease).await?.into_inner().id;
    let of_lease = PutRequest { key: "/registry/events/a/e".into(), lease, ..Default::default() };
    one.kv.clone().put(of_lease).await?;
    let said = wait_for("the direct writes", STEP_LIMIT, || async {
        let said = kindred(&["adopt", "status", &all]).await?.ok()?;
        Ok((said.contains("apiserver-x") && said.contains(deleted[0])).then_some(said))
    })
    .await?;
    ensure!(said.contains(CALICO) && !said.contains("configmaps"), "{said}");
    ensure!(!said.contains(deleted[1]) && !said.contains("/registry/events"), "{said}");
    ensure!(said.contains("3 writes to it were made by none of 2 routers"), "{said}");
    // A router that is not asked cannot say that it made a write.
    let alone = kindred(&["adopt", "status", &format!("--admin={}", admins[0])]).await?.ok()?;
    ensure!(alone.contains("/registry/configmaps/a/c") && !alone.contains(KEY), "{alone}");
    let move_out = ["move", "configmaps", "--to", "shard", &all];
    kindred(&["store", "add", "shard", "--local", &all]).await?.ok()?;
    let refused = kindred(&move_out).await?.failed()?;
    ensure!(refused.contains("kindred adopt finish"), "{refused}");
    let early = kindred(&["adopt", "finish", "--quiet=1h", "--timeout=1s", &all]).await?.failed()?;
    ensure!(early.contains("nothing was changed"), "{early}");
    finish_beside_a_writer(&direct, &all).await?;
    ensure!(kindred(&["adopt", "status", &all]).await?.ok()?.contains("no etcd is being adopted"));
    kindred(&move_out).await?.ok()?;
    // While the etcd is away, a kindred that has adopted it starts, and serves what has moved.
    etcd.process.stop().await?;
    let mut up = up;
    up.process.stop().await?;
    up.process.restart().await?;
    put(&one, KEY, "again").await?;
    etcd.process.stop().await.map(drop).or(Ok(()))
}

/// A client goes on to write to the etcd. `--quiet 1s` saw nothing of it, and nobody looked at its prefix (row 87).
async fn finish_beside_a_writer(direct: &Client, all: &str) -> anyhow::Result<()> {
    let writes = async {
        loop {
            put(direct, CALICO, "again").await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let finishes = async {
        // Routers show its writes after two seconds.
        tokio::time::sleep(Duration::from_secs(4)).await;
        let busy = kindred(&["adopt", "finish", "--quiet=1s", "--timeout=4s", all]).await?.failed()?;
        ensure!(busy.contains(CALICO) && busy.contains("--except"), "{busy}");
        // The deletion of the events' key by its lease came meanwhile, and is nobody's.
        ensure!(!busy.contains("/registry/events"), "{busy}");
        kindred(&["adopt", "finish", "--quiet=3s", "--except=/calico/", all]).await?.ok()
    };
    let written: anyhow::Result<()> = tokio::select! {
        finished = finishes => finished.map(drop),
        written = writes => written,
    };
    written
}
