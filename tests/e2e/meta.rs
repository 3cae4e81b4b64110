//! Two routers of `kindred up` and their meta store. A config that was created at one router reaches the other. The
//! meta store dies and comes back. The next `kindred up` on the folder uses the changed state, not its `--config`.

use std::{fs, time::Duration};

use anyhow::ensure;
use bytes::Bytes;
use kindred_proto::etcdserverpb::PutRequest;
use kindred_tests::{
    admin::Admin,
    client::Client,
    scenario::{self, report, wait_for},
    servers::Up,
};

const LIMIT: Duration = Duration::from_secs(180);
const CHANGE_LIMIT: Duration = Duration::from_secs(60);
const CONFIGS: &str = "/api/v1/datapartitionconfigs";

async fn put(client: &mut Client, key: &'static str) -> anyhow::Result<()> {
    let request = PutRequest { key: Bytes::from(key), value: Bytes::from_static(b"x"), ..Default::default() };
    client.kv.put(request).await?;
    Ok(())
}

fn config(name: &str) -> String {
    format!("metadata: {{name: {name}}}\nresource: {name}\nserviceGroupId: default\n")
}

/// Waits until the router has the config.
async fn has(admin: &str, name: &str) -> anyhow::Result<()> {
    let path = format!("{CONFIGS}/{name}");
    wait_for("the config at the router", CHANGE_LIMIT, || async {
        Ok((Admin::at(admin).ask("GET", &path, "").await?.0 == 200).then_some(()))
    })
    .await
}

#[test]
fn two_routers_and_their_meta_store() {
    scenario::run("meta", LIMIT, |dir| async move {
        let mut up = Up::start(&dir, "kindred", &["--routers=2".to_owned()]).await?;
        let (admins, clients) = (up.addresses("admin")?, up.addresses("listen")?);
        ensure!(admins.len() == 2 && clients.len() == 2, "{admins:?} {clients:?}");
        let made = Admin::at(&admins[0]).ask("POST", CONFIGS, &config("secrets")).await?;
        ensure!(made.0 == 201, "{made:?}");
        has(&admins[1], "secrets").await?;
        let told = r#"{"what": "move pods", "why": "it is full", "outcome": "applied"}"#;
        let kept = Admin::at(&admins[0]).ask("POST", "/api/v1/advice", told).await?;
        ensure!(kept.0 == 201, "{kept:?}");
        wait_for("a decision at the other router", CHANGE_LIMIT, || async {
            let (code, body) = Admin::at(&admins[1]).ask("GET", "/api/v1/advice", "").await?;
            Ok((code == 200 && body.contains("move pods")).then_some(()))
        })
        .await?;

        // Reads and writes continue while the meta store is dead.
        up.kill_shard("meta")?;
        let mut puts = 0;
        for address in &clients {
            let mut client = Client::connect(address).await?;
            for key in ["/registry/secrets/a/1", "/registry/pods/a/1", "/registry/leases/a/1"] {
                put(&mut client, key).await?;
                puts += 1;
            }
        }
        // The meta store starts again empty, gets the state back from a router, and takes changes.
        wait_for("a change after the meta store's return", CHANGE_LIMIT, || async {
            let (code, body) = Admin::at(&admins[1]).ask("POST", CONFIGS, &config("configmaps")).await?;
            ensure!([201, 503].contains(&code), "{code} {body}");
            Ok((code == 201).then_some(()))
        })
        .await?;
        has(&admins[0], "configmaps").await?;
        ensure!(
            Admin::at(&admins[0]).ask("GET", &format!("{CONFIGS}/secrets"), "").await?.0 == 200,
            "it was lost"
        );

        // The next `kindred up` on the folder gets another configuration, and ignores it.
        up.process.stop().await?;
        let other = dir.join("other.yaml");
        fs::write(&other, "default: default\nstores:\n- {name: default, slot: 1}\n")?;
        let again = Up::start(&dir, "kindred", &[format!("--config={}", other.display())]).await?;
        let admin = &again.addresses("admin")?[0];
        for name in ["secrets", "configmaps", "pods"] {
            let (code, body) = Admin::at(admin).ask("GET", &format!("{CONFIGS}/{name}"), "").await?;
            ensure!(code == 200, "{name}: {code} {body}");
        }
        let mut client = Client::connect(&again.address).await?;
        put(&mut client, "/registry/pods/a/2").await?;
        report(&format!("e2e meta routers={} puts_without_meta={puts} kept_configs=3", admins.len()));
        Ok(())
    });
}
