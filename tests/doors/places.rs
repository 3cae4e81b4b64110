//! The layouts whose doors are tried: the files of `deploy/certificates`, `kindred up` with and without `--auto-tls`, and shards alone.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use kindred_tests::{
    admin::Admin,
    certs::{Authority, Leaf},
    process::{Process, Spec},
    servers::{Shard, Up},
};
use kindred_transport::tls::ClientTlsSettings;

use crate::{
    deploy::files::certificates,
    doors::{
        ask::Identity,
        calls::{self, Call, Class},
    },
};

const ANY: &str = "127.0.0.1:0";
const TOKENS: &str = "looks-on-0123456789 view\nchanges-0123456789 admin\n";

/// A port, with what can be asked of it and who asks.
pub struct Door {
    pub layout: &'static str,
    pub port: &'static str,
    pub url: String,
    pub calls: Vec<(Class, Call)>,
    pub identities: Vec<Identity>,
}

/// Processes that run, and their doors.
pub struct Place {
    pub doors: Vec<Door>,
    _processes: Vec<Box<dyn std::any::Any>>,
}

fn shows(name: &'static str, ca: &Path, leaf: Option<(PathBuf, PathBuf)>) -> Identity {
    let tls = ClientTlsSettings {
        trusted_ca_file: Some(ca.to_owned()),
        identity: leaf,
        ..ClientTlsSettings::default()
    };
    Identity { name, tls: Some(tls), ..Identity::default() }
}

fn page(of: &Identity) -> Identity {
    Identity { name: "a page of somebody else", page: true, ..of.clone() }
}

fn with_header(of: &Identity, name: &'static str, header: (&'static str, &str)) -> Identity {
    let mut headers = of.headers.clone();
    headers.push((header.0, header.1.to_owned()));
    Identity { name, headers, ..of.clone() }
}

/// A client whose certificate another authority has signed.
fn of_another_authority(dir: &Path, ca: &Path) -> anyhow::Result<Identity> {
    let Leaf { cert, key } = Authority::new(dir, "another-authority")?.leaf("kindred-router")?;
    Ok(shows("certificate of another authority", ca, Some((cert, key))))
}

/// `ready_field` as a URL; the first one, where there are several.
fn url(process: &Process, field: &str, scheme: &str) -> anyhow::Result<String> {
    let at = process.ready_field(field)?;
    let at = at.split(',').next().unwrap_or_default();
    let bare = at.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    Ok(format!("{scheme}://{bare}"))
}

/// A meta store, a store and a router, with the certificates that `deploy/certificates` makes, as the files of `deploy/` and the
/// chart start them.
pub async fn certificates_of_deploy(dir: &Path) -> anyhow::Result<Place> {
    let layout = "the files of deploy/ and the chart";
    let pki = dir.join("pki");
    certificates(&pki, &[]);
    let file = |name: &str| pki.join(name);
    let flag = |flag: &str, name: &str| format!("--{flag}={}", file(name).display());
    let admin = |of: &str| {
        vec![
            flag("admin-cert-file", &format!("{of}.crt")),
            flag("admin-key-file", &format!("{of}.key")),
            flag("admin-client-ca-file", "admin-ca.crt"),
            "--admin-client-names=kindred-admin".to_owned(),
            "--admin-anonymous-probes".to_owned(),
        ]
    };
    let shard = |name: &str, more: &[&str]| {
        let mut args: Vec<String> = vec![
            format!("--name={name}"),
            format!("--listen={ANY}"),
            format!("--admin-listen={ANY}"),
            format!("--data-dir={}", dir.join(name).display()),
            flag("cert-file", "shard.crt"),
            flag("key-file", "shard.key"),
            flag("trusted-ca-file", "ca.crt"),
            "--client-cert-auth".to_owned(),
            "--router-names=kindred-router".to_owned(),
        ];
        args.extend(admin("shard"));
        args.extend(more.iter().map(|more| (*more).to_owned()));
        Spec::shard(name, args)
    };
    let meta = Process::start(dir, shard("meta", &["--slot=0", "--revisions=dense"])?).await?;
    let in_cluster = ["--slot=1", "--in-cluster", "--member-names=kindred-shard"];
    let store = Process::start(dir, shard("store", &in_cluster)?).await?;
    let config = dir.join("kindred.yaml");
    let endpoint = url(&store, "listen", "https")?;
    fs::write(
        &config,
        format!("default: store\nstores:\n- {{name: store, slot: 1, endpoints: [\"{endpoint}\"]}}\n"),
    )?;
    let tokens = dir.join("tokens");
    fs::write(&tokens, TOKENS)?;
    let mut args = vec![
        "--name=router".to_owned(),
        format!("--config={}", config.display()),
        format!("--meta={}", url(&meta, "listen", "https")?),
        format!("--listen={ANY}"),
        format!("--admin={ANY}"),
        format!("--admin-token-file={}", tokens.display()),
        flag("cert-file", "server.crt"),
        flag("key-file", "server.key"),
        flag("trusted-ca-file", "clients-ca.crt"),
        "--client-cert-auth".to_owned(),
        flag("store-cert-file", "router.crt"),
        flag("store-key-file", "router.key"),
        flag("store-trusted-ca-file", "ca.crt"),
    ];
    args.extend(admin("router"));
    let router = Process::start(dir, Spec::router("router", args)?).await?;
    let who = |ca: &str| -> anyhow::Result<Vec<Identity>> {
        let leaf = |name: &'static str, words: &'static str| {
            shows(words, &file(ca), Some((file(&format!("{name}.crt")), file(&format!("{name}.key")))))
        };
        let nobody = shows("nobody", &file(ca), None);
        Ok(vec![
            with_header(&nobody, "token to look", ("authorization", "Bearer looks-on-0123456789")),
            with_header(&nobody, "token to change", ("authorization", "Bearer changes-0123456789")),
            nobody,
            of_another_authority(dir, &file(ca))?,
            leaf("apiserver-client", "apiserver"),
            leaf("metrics", "Prometheus"),
            leaf("admin", "admin"),
            page(&leaf("admin", "")),
            leaf("shard", "member of the store"),
            leaf("router", "router"),
        ])
    };
    let router_admin = url(&router, "admin", "https")?;
    let settings = ClientTlsSettings {
        trusted_ca_file: Some(file("ca.crt")),
        identity: Some((file("admin.crt"), file("admin.key"))),
        ..ClientTlsSettings::default()
    };
    let document = Admin::over_tls(router_admin.trim_start_matches("https://"), settings)?;
    let document = document.ask("GET", "/openapi/v3", "").await?.1;
    let of_router_admin = calls::of_router_admin(&serde_json::from_str(&document)?)?;
    let grpc = || -> anyhow::Result<_> { Ok([calls::methods()?, calls::of_clients()].concat()) };
    let door = |port, url: String, calls, ca: &str| {
        anyhow::Ok(Door { layout, port, url, calls, identities: who(ca)? })
    };
    let doors = vec![
        door("clients' port of a router", url(&router, "listen", "https")?, grpc()?, "clients-ca.crt")?,
        door("admin port of a router", router_admin, of_router_admin, "ca.crt")?,
        door("port of a store", endpoint, grpc()?, "ca.crt")?,
        door("admin port of a store", url(&store, "admin", "https")?, calls::of_shard_admin(), "ca.crt")?,
        door("port of the meta store", url(&meta, "listen", "https")?, grpc()?, "ca.crt")?,
    ];
    Ok(Place { doors, _processes: vec![Box::new(meta), Box::new(store), Box::new(router)] })
}

/// `kindred up`, plain on the loopback interface.
pub async fn up(dir: &Path) -> anyhow::Result<Place> {
    let up = Up::start(dir, "up", &["--config=".to_owned() + &one_store(dir)?]).await?;
    let secret = fs::read_to_string(up.secret())?;
    let local = Identity { name: "process of the machine", ..Identity::default() };
    let identities = vec![
        local.clone(),
        page(&local),
        with_header(&local, "says that it is a router", ("kindred-router", "-")),
        with_header(&local, "has the cluster's secret", ("kindred-router", secret.trim())),
    ];
    let document = Admin::at(&up.admin).ask("GET", "/openapi/v3", "").await?.1;
    let of_router_admin = calls::of_router_admin(&serde_json::from_str(&document)?)?;
    let (_, store) = up.stores()?.into_iter().next().context("a store")?;
    let meta = up.addresses("meta")?.into_iter().next().context("a meta store")?;
    let grpc = || -> anyhow::Result<_> { Ok([calls::methods()?, calls::of_clients()].concat()) };
    let layout = "`kindred up`";
    let door = |port, at: &str, calls| Door {
        layout,
        port,
        url: format!("http://{at}"),
        calls,
        identities: identities.clone(),
    };
    let doors = vec![
        door("clients' port of a router", &up.address, grpc()?),
        door("admin port of a router", &up.admin, of_router_admin),
        door("port of a store", &store, grpc()?),
        door("port of the meta store", &meta, grpc()?),
    ];
    Ok(Place { doors, _processes: vec![Box::new(up)] })
}

fn one_store(dir: &Path) -> anyhow::Result<String> {
    let config = dir.join("one.yaml");
    fs::write(&config, "default: store\nstores:\n- {name: store, slot: 1}\n")?;
    Ok(config.display().to_string())
}

/// `kindred up --auto-tls`.
pub async fn auto_tls(dir: &Path) -> anyhow::Result<Place> {
    let flags = ["--auto-tls".to_owned(), "--config=".to_owned() + &one_store(dir)?];
    let up = Up::start(dir, "up", &flags).await?;
    let secret = fs::read_to_string(up.secret())?;
    let pki = up.data_dir.join("auto-tls");
    let ca = pki.join("ca.crt");
    let leaf = |name: &str, words| {
        shows(words, &ca, Some((pki.join(format!("{name}.crt")), pki.join(format!("{name}.key")))))
    };
    let (router, client) = (leaf("router", "router's certificate alone"), leaf("client", "client"));
    let with_secret = |of: &Identity, name| with_header(of, name, ("kindred-router", secret.trim()));
    let identities = vec![
        shows("nobody", &ca, None),
        of_another_authority(dir, &ca)?,
        client.clone(),
        with_secret(&client, "client with the cluster's secret"),
        leaf("admin", "admin"),
        page(&leaf("admin", "")),
        with_secret(&router, "router"),
        router,
    ];
    let settings = leaf("admin", "").tls.context("TLS")?;
    let document = Admin::over_tls(&up.admin, settings)?.ask("GET", "/openapi/v3", "").await?.1;
    let of_router_admin = calls::of_router_admin(&serde_json::from_str(&document)?)?;
    let (_, store) = up.stores()?.into_iter().next().context("a store")?;
    let meta = up.addresses("meta")?.into_iter().next().context("a meta store")?;
    let grpc = || -> anyhow::Result<_> { Ok([calls::methods()?, calls::of_clients()].concat()) };
    let door = |port, at: &str, calls| Door {
        layout: "`kindred up --auto-tls`",
        port,
        url: format!("https://{at}"),
        calls,
        identities: identities.clone(),
    };
    let doors = vec![
        door("clients' port of a router", &up.address, grpc()?),
        door("admin port of a router", &up.admin, of_router_admin),
        door("port of a store", &store, grpc()?),
        door("port of the meta store", &meta, grpc()?),
    ];
    Ok(Place { doors, _processes: vec![Box::new(up)] })
}

/// Shards without a router, which are etcds to everybody who may connect.
pub async fn shards_alone(dir: &Path) -> anyhow::Result<Place> {
    let authority = Authority::new(dir, "authority")?;
    let (own, client) = (authority.leaf("shard")?, authority.leaf("client")?);
    let plain = Shard::start(dir, "plain", &[]).await?;
    let flags = [
        format!("--cert-file={}", own.cert.display()),
        format!("--key-file={}", own.key.display()),
        format!("--trusted-ca-file={}", authority.cert.display()),
        "--client-cert-auth".to_owned(),
    ];
    let tls = Shard::start(dir, "tls", &flags).await?;
    let grpc = || -> anyhow::Result<_> { Ok([calls::methods()?, calls::of_clients()].concat()) };
    let local = Identity { name: "process of the machine", ..Identity::default() };
    let certified = shows("client", &authority.cert, Some((client.cert, client.key)));
    let layout = "a shard alone";
    let strangers = vec![shows("nobody", &authority.cert, None), of_another_authority(dir, &authority.cert)?];
    let with_page = |of: Identity| vec![page(&of), of];
    let doors = vec![
        Door {
            layout,
            port: "clients' port, plain",
            url: format!("http://{}", plain.address),
            calls: grpc()?,
            identities: with_page(local.clone()),
        },
        Door {
            layout,
            port: "admin port",
            url: format!("http://{}", plain.admin),
            calls: calls::of_shard_admin(),
            identities: with_page(local),
        },
        Door {
            layout,
            port: "clients' port, TLS",
            url: format!("https://{}", tls.address),
            calls: grpc()?,
            identities: [strangers, with_page(certified)].concat(),
        },
    ];
    Ok(Place { doors, _processes: vec![Box::new(plain), Box::new(tls)] })
}
