//! Mutual TLS: which clients each port accepts.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::ensure;
use kindred_tests::{
    certs::{Authority, Leaf},
    etcdctl::Etcdctl,
    process::our_binary,
    scenario::{self, report},
    servers::Up,
};
use tokio::process::Command;

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

/// Runs `kindred` with these words, and with a certificate of `--auto-tls` or none. Returns its exit status and its
/// output.
async fn kindred(up: &Up, own: Option<&str>, words: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let file = |name: &str| up.data_dir.join("auto-tls").join(name);
    let mut command = Command::new(our_binary("kindred")?);
    command.args(words).env("KINDRED_ADMIN", format!("https://{}", up.admin));
    command.env("KINDRED_CACERT", file("ca.crt")).stdin(Stdio::null());
    if let Some(own) = own {
        command.env("KINDRED_CERT", file(&format!("{own}.crt")));
        command.env("KINDRED_KEY", file(&format!("{own}.key")));
    }
    let output = tokio::time::timeout(Duration::from_secs(30), command.output()).await??;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn f32_f33_with_auto_tls_nobody_unknown_does_anything_at_any_port() {
    scenario::run("auto_tls_doors", LIMIT, |dir| async move {
        let up = Up::start(&dir, "kindred", &["--auto-tls".to_owned()]).await?;
        let file = |name: &str| up.data_dir.join("auto-tls").join(name);
        let leaf =
            |name: &str| Leaf { cert: file(&format!("{name}.crt")), key: file(&format!("{name}.key")) };
        let (ca, client, router, admin) = (file("ca.crt"), leaf("client"), leaf("router"), leaf("admin"));
        let at = |address: &str, leaf: Option<&Leaf>| {
            Etcdctl::new(&format!("https://{address}")).with(&flags(&ca, leaf))
        };
        let key = "/registry/pods/a/1";
        at(&up.address, Some(&client)).ok(&["put", key, "one"]).await?;

        // The meta store and the shards serve only the routers, which know the secret.
        let mut doors = up.stores()?;
        doors.extend(up.addresses("meta")?.into_iter().map(|address| ("meta".to_owned(), address)));
        for (name, address) in &doors {
            for (who, etcdctl, verb) in [
                ("nobody", at(address, None), "get"),
                ("nobody", at(address, None), "put"),
                ("no TLS", Etcdctl::new(address).with(&flags(&ca, None)[1..]), "get"),
                ("a client", at(address, Some(&client)), "get"),
                ("a client", at(address, Some(&client)), "put"),
                ("a client", at(address, Some(&client)), "del"),
                ("an admin", at(address, Some(&admin)), "get"),
                ("a router without the secret", at(address, Some(&router)), "get"),
                ("a router without the secret", at(address, Some(&router)), "put"),
            ] {
                let words = if verb == "put" { vec![verb, key, "x"] } else { vec![verb, key] };
                let output = etcdctl.output(&words, "").await?;
                ensure!(!output.success, "{who} may {verb} at {name}: {output:?}");
            }
        }
        let found = at(&up.address, Some(&client)).ok(&["get", key, "--print-value-only"]).await?;
        ensure!(found.trim() == "one", "{found}");

        // The admin port serves nothing without a certificate either.
        let a_move = ["move", "pods", "--to", "default", "--no-wait"];
        for words in [&["status"][..], &["health"], &["get", "stores"], &a_move] {
            let (code, said) = kindred(&up, None, words).await?;
            ensure!(code != Some(0), "nobody may {words:?}: {said}");
        }
        let (code, said) = kindred(&up, Some("client"), &["status"]).await?;
        ensure!(code == Some(0), "{said}");
        let (code, said) = kindred(&up, Some("client"), &a_move).await?;
        ensure!(code == Some(1) && said.contains("admin"), "{code:?} {said}");
        let (code, said) = kindred(&up, Some("admin"), &["health"]).await?;
        ensure!(code == Some(0), "{said}");
        let (code, said) = kindred(&up, Some("admin"), &["move", "pods", "--to", "default"]).await?;
        ensure!(code == Some(0), "{said}");
        let found = at(&up.address, Some(&client)).ok(&["get", key, "--print-value-only"]).await?;
        ensure!(found.trim() == "one", "{found}");
        report(&format!("e2e auto_tls_doors doors={}", doors.len()));
        Ok(())
    });
}
