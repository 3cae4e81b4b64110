//! What tools ask an etcd by plain HTTP on its clients' port: probes, metrics, and the version, without which kubeadm
//! refuses an external etcd.

use std::{path::Path, process::Command, time::Duration};

use anyhow::ensure;
use kindred_proto::etcdserverpb::{AlarmRequest, AlarmType, alarm_request::AlarmAction};
use kindred_tests::{
    client::Client,
    etcdctl,
    peers::peer,
    ports::Port,
    scenario,
    servers::{Etcd, Shard, Up},
};

use crate::compatibility::web::ask;

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
        for check in ["/livez/serializable_read", "/readyz/linearizable_read", "/readyz/data_corruption"] {
            let answer = get(check).await?;
            ensure!(answer.code == 200, "{check}: {answer:?}");
        }
        for nowhere in ["/livez/linearizable_read/x", "/readyz/nothing"] {
            let answer = get(nowhere).await?;
            ensure!(
                (answer.code, answer.body.trim()) == (404, "404 page not found"),
                "{nowhere}: {answer:?}"
            );
        }
        ensure!(get("/readyz?verbose").await?.body.contains("[+]"));
        let metrics = get("/metrics").await?;
        ensure!(metrics.code == 200 && metrics.content.starts_with("text/plain"), "{metrics:?}");
        ensure!(metrics.body.contains("# TYPE "), "no metrics");
        let nowhere = get("/nowhere").await?;
        ensure!((nowhere.code, nowhere.body.trim()) == (404, "404 page not found"), "{nowhere:?}");
        alarms(address).await?;
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

/// `/health` said nothing of an alarm (row 62).
async fn alarms(address: &str) -> anyhow::Result<()> {
    let health = async |query: &str| {
        let answer = ask(address, "GET", &format!("/health{query}"), "", usize::MAX).await?;
        let said = answer.values()?.remove(0);
        anyhow::Ok((answer.code, said["reason"].as_str().unwrap_or_default().to_owned()))
    };
    let client = Client::connect(address).await?;
    for (action, expected) in [
        (AlarmAction::Activate, (503, "ALARM NOSPACE".to_owned())),
        (AlarmAction::Deactivate, (200, String::new())),
    ] {
        let alarm = AlarmRequest { action: action.into(), member_id: 1, alarm: AlarmType::Nospace.into() };
        client.maintenance.clone().alarm(alarm).await?;
        let found = health("").await?;
        ensure!(found == expected, "{address}: {action:?}: {found:?}");
        let excluded = health("?serializable=true&exclude=NOSPACE").await?;
        ensure!(excluded.0 == 200, "{address}: {excluded:?}");
    }
    Ok(())
}

/// As an etcd's of kubeadm: clients need certificates, and the kubelet's probe has none.
#[test]
fn metrics_urls_answer_probes_without_a_certificate_and_nothing_else() {
    scenario::run("metrics_urls", Duration::from_secs(60), |dir| async move {
        let port = Port::free()?;
        let at = format!("127.0.0.1:{}", port.number());
        let flags = ["--auto-tls".to_owned(), format!("--listen-metrics-urls=http://{at}")];
        let up = Up::start(&dir, "up", &flags).await?;
        for probe in ["/livez", "/readyz", "/health", "/version", "/metrics"] {
            let answer = ask(&at, "GET", probe, "", usize::MAX).await?;
            ensure!(answer.code == 200, "{probe}: {answer:?}");
        }
        for other in ["/api/v1/stores", "/api/v1/moves", "/v3/kv/range", "/"] {
            let answer = ask(&at, "GET", other, "", usize::MAX).await?;
            ensure!(answer.code == 404, "{other}: {answer:?}");
        }
        let posted = ask(&at, "POST", "/v3/kv/range", "{\"key\":\"Zm9v\"}", usize::MAX).await?;
        ensure!(posted.code == 404, "{posted:?}");
        ensure!(ask(&up.address, "GET", "/health", "", usize::MAX).await.is_err(), "TLS is asked for");
        Ok(())
    });
}

/// kine, which is a part of k3s, hands an etcd's URL through, and k3s keeps its bootstrap data there.
#[test]
fn k3s_uses_kindred_as_its_datastore() {
    scenario::run("k3s", Duration::from_secs(120), |dir| async move {
        let (etcd, up) = (Etcd::start(&dir, "etcd").await?, Up::start(&dir, "up", &[]).await?);
        for address in [&etcd.address, &up.address] {
            let program = peer("k3s-datastore-check")?;
            let checked = etcdctl::run(&program, &[&format!("http://{address}")], "").await?.ok()?;
            ensure!(checked.trim() == "ok", "{checked}");
        }
        Ok(())
    });
}

#[test]
fn kubeadm_takes_kindred_for_an_external_etcd() {
    scenario::run("kubeadm", Duration::from_secs(60), |dir| async move { kubeadm(&dir).await });
}

/// kubeadm's own preflight check, plain and with the certificates of a cluster.
async fn kubeadm(dir: &Path) -> anyhow::Result<()> {
    let plain = Up::start(dir, "plain", &[]).await?;
    let made = kindred_transport::auto_tls::create(&dir.join("pki"), &[])?;
    let flags = [
        ("cert-file", &made.server_cert),
        ("key-file", &made.server_key),
        ("trusted-ca-file", &made.ca_cert),
    ];
    let flags = flags.map(|(flag, file)| format!("--{flag}={}", file.display()));
    let secure = Up::start(dir, "secure", &[&flags[..], &["--client-cert-auth".to_owned()]].concat()).await?;
    let certificates =
        [&made.ca_cert, &made.client_cert, &made.client_key].map(|file| file.display().to_string());
    let check = |endpoint: String, certificates: &[String]| {
        let mut command = Command::new(peer("kubeadm-etcd-check")?);
        let output = command.arg(endpoint).args(certificates).output()?;
        anyhow::Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    let (passed, said) = check(format!("http://{}", plain.address), &[])?;
    ensure!(passed && said.contains("ExternalEtcdVersion passed"), "{said}");
    let (passed, said) = check(format!("https://{}", secure.address), &certificates)?;
    ensure!(passed && said.contains("ExternalEtcdVersion passed"), "{said}");
    Ok(())
}
