//! mTLS: who is let in and who is not.

use std::{path::Path, time::Duration};

use anyhow::ensure;
use kindred_tests::{
    certs::{Authority, Leaf},
    etcdctl::Etcdctl,
    scenario::{self, report},
    servers::Up,
};

const LIMIT: Duration = Duration::from_secs(120);

fn flags(authority: &Path, leaf: Option<&Leaf>) -> Vec<String> {
    let mut flags = vec![
        format!("--cacert={}", authority.display()),
        "--dial-timeout=3s".to_owned(),
        "--command-timeout=3s".to_owned(),
    ];
    if let Some(leaf) = leaf {
        flags.push(format!("--cert={}", leaf.cert.display()));
        flags.push(format!("--key={}", leaf.key.display()));
    }
    flags
}

#[test]
fn mutual_tls() {
    scenario::run("mutual_tls", LIMIT, |dir| async move {
        let authority = Authority::new(&dir, "authority")?;
        let stranger = Authority::new(&dir, "stranger")?;
        let server_leaf = authority.leaf("server")?;
        let admitted = authority.leaf("apiserver")?;
        let other_name = authority.leaf("somebody")?;
        let forged = stranger.leaf("forged")?;
        let server_flags = [
            format!("--cert-file={}", server_leaf.cert.display()),
            format!("--key-file={}", server_leaf.key.display()),
            format!("--trusted-ca-file={}", authority.cert.display()),
            "--client-cert-auth".to_owned(),
            "--client-cert-allowed-cn=apiserver".to_owned(),
        ];
        let server = Up::start(&dir, "kindred", &server_flags).await?;
        let endpoint = format!("https://{}", server.address);
        let etcdctl = |flags: Vec<String>| Etcdctl::new(&endpoint).with(&flags);

        let good = etcdctl(flags(&authority.cert, Some(&admitted)));
        ensure!(good.ok(&["put", "/registry/pods/a/1", "one"]).await?.trim() == "OK");
        ensure!(good.ok(&["get", "/registry/pods/a/1", "--print-value-only"]).await?.trim() == "one");
        let refused = [
            ("no client certificate", etcdctl(flags(&authority.cert, None))),
            ("a client certificate of another authority", etcdctl(flags(&authority.cert, Some(&forged)))),
            ("another common name", etcdctl(flags(&authority.cert, Some(&other_name)))),
            ("a client that trusts another authority", etcdctl(flags(&stranger.cert, Some(&admitted)))),
            ("no TLS", Etcdctl::new(&server.address).with(&flags(&authority.cert, None)[1..])),
        ];
        for (who, etcdctl) in &refused {
            let output = etcdctl.output(&["put", "/registry/pods/a/1", "forged"], "").await?;
            ensure!(!output.success, "{who} was let in: {output:?}");
        }
        ensure!(good.ok(&["get", "/registry/pods/a/1", "--print-value-only"]).await?.trim() == "one");
        report(&format!("e2e mutual_tls accepted=1 refused={}", refused.len()));
        Ok(())
    });
}
