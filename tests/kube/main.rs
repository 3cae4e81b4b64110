//! A real kube-apiserver on `kindred up`, over mTLS, driven with kubectl; then every shard is asked what it holds.
//!
//! `KINDRED_KUBE_STORE=etcd` runs the same against one real etcd without TLS: the test of this test.

mod apiserver;
mod placement;
mod workload;

use std::{path::Path, time::Duration};

use kindred_tests::{
    certs::Authority,
    scenario,
    servers::{Etcd, Up},
};

const LIMIT: Duration = Duration::from_secs(600);

/// What the apiserver stores in, with the flags that let it in.
pub struct Store {
    pub flags: Vec<String>,
    pub up: Option<Up>,
    // Ended when dropped.
    _etcd: Option<Etcd>,
}

impl Store {
    async fn start(dir: &Path) -> anyhow::Result<Self> {
        if std::env::var("KINDRED_KUBE_STORE").is_ok_and(|store| store == "etcd") {
            let etcd = Etcd::start(dir, "etcd").await?;
            let flags = vec![format!("--etcd-servers=http://{}", etcd.address)];
            return Ok(Self { flags, up: None, _etcd: Some(etcd) });
        }
        let authority = Authority::new(dir, "authority")?;
        let server = authority.leaf("server")?;
        let client = authority.leaf("apiserver")?;
        let up = Up::start(
            dir,
            "kindred",
            &[
                format!("--cert-file={}", server.cert.display()),
                format!("--key-file={}", server.key.display()),
                format!("--trusted-ca-file={}", authority.cert.display()),
                "--client-cert-auth".to_owned(),
            ],
        )
        .await?;
        let flags = vec![
            format!("--etcd-servers=https://{}", up.address),
            format!("--etcd-cafile={}", authority.cert.display()),
            format!("--etcd-certfile={}", client.cert.display()),
            format!("--etcd-keyfile={}", client.key.display()),
        ];
        Ok(Self { flags, up: Some(up), _etcd: None })
    }
}

#[test]
fn kubernetes_on_kindred() {
    scenario::run("kubernetes", LIMIT, |dir| async move {
        let store = Store::start(&dir).await?;
        let mut apiserver = apiserver::Apiserver::start(&dir, &store.flags).await?;
        workload::run(&dir, &mut apiserver).await?;
        if let Some(up) = &store.up {
            placement::check(up).await?;
        }
        apiserver.process.stop().await?;
        Ok(())
    });
}
