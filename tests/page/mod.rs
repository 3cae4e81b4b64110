//! The page of the admin port in a real Chromium: what it shows, what its buttons do, and who may see and press them. The
//! browser is driven by the scripts in `tests/page/browser`, which `tests/peers/install page` lets run. Where Chromium or
//! Node is missing, the tests say so and check nothing.

mod load;
mod script;

use std::{fmt::Write as _, path::Path, process::Command, time::Duration};

use anyhow::ensure;
use kindred_tests::{
    certs::Authority,
    process::our_binary,
    scenario::{self, report},
    servers::Up,
};
use kindred_transport::{
    connect::Connector,
    tls::{ClientTls, ClientTlsSettings},
};
use load::Load;
use script::{Script, driver};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(60);
const CONFIG: &str = include_str!("config.yaml");
/// Ranges and Kinds of the large cluster.
const RANGES: usize = 1000;
const KINDS: usize = 500;
/// What a client may call itself and its objects.
const MARKUP: &str = "<img src=x onerror=hacked=1>";

fn config(dir: &Path, text: &str) -> anyhow::Result<String> {
    let file = dir.join("config.yaml");
    std::fs::write(&file, text)?;
    Ok(format!("--config={}", file.display()))
}

#[test]
fn scales_formats_and_sorting_of_the_page() {
    let Some(driver) = driver() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page/unit");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let output = Command::new(&driver).arg("--test").args(&files).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let passed = said.lines().find_map(|line| line.trim_start_matches(['#', 'ℹ', ' ']).strip_prefix("pass "));
    assert!(
        passed.is_some_and(|passed| passed.trim().parse::<u32>().is_ok_and(|passed| passed > 5)),
        "{said}"
    );
}

/// A cluster with Kinds, under load.
async fn busy(dir: &Path) -> anyhow::Result<(Up, Load)> {
    let up = Up::start(dir, "page", &[config(dir, CONFIG)?]).await?;
    let client = up.client().await?;
    let kinds = ["pods", "configmaps", "secrets", "events", "services/specs", "example.com/widgets"];
    for (at, kind) in kinds.into_iter().enumerate() {
        load::fill(&client, &format!("/registry/{kind}/ns/"), 40 * (at + 1), 300).await?;
    }
    load::fill(&client, &format!("/registry/{MARKUP}s/ns/"), 3, 10).await?;
    Ok((up, Load::start(&client)))
}

#[test]
fn the_page_shows_what_the_cluster_has_and_does() {
    let Some(driver) = driver() else { return };
    scenario::run("page", LIMIT, |dir| async move {
        let (mut up, load) = busy(&dir).await?;
        let pid = |store| up.shard_pid(store);
        let settings = json!({
            "base": format!("http://{}", up.admin), "gateway": format!("http://{}", up.address),
            "markup": MARKUP,
            "pids": { "default": pid("default")?, "pods2": pid("pods2")? },
        });
        Script::new(&driver, "cluster.mjs", &settings).run().await?;
        load.finish().await?;

        // A page that looks on does not hold up the end.
        let mut looking = Script::new(&driver, "ends.mjs", &settings).begin()?;
        looking.said("the page is live").await?;
        let status = up.process.stop().await?;
        ensure!(status.success(), "{status}");
        looking.ended().await?;
        let log = std::fs::read_to_string(dir.join("page.err.log"))?;
        ensure!(!log.contains("were closed at the end of the grace period"), "the page held up the router");
        Ok(())
    });
}

#[test]
fn a_move_of_the_command_is_shown_and_buttons_begin_and_end_others() {
    let Some(driver) = driver() else { return };
    scenario::run("page-moves", LIMIT, |dir| async move {
        let (up, load) = busy(&dir).await?;
        let settings = json!({ "base": format!("http://{}", up.admin), "cli": our_binary("kindred")? });
        Script::new(&driver, "moves.mjs", &settings).run().await?;
        load.finish().await
    });
}

#[test]
fn f32_nobody_unknown_sees_or_does_anything_on_the_page() {
    let Some(driver) = driver() else { return };
    scenario::run("page-tokens", LIMIT, |dir| async move {
        let authority = Authority::new(&dir, "authority")?;
        let (server, client) = (authority.leaf("server")?, authority.leaf(MARKUP)?);
        let (viewer, admin) = ("page-viewer-0123456789", "page-admin-0123456789");
        let tokens = dir.join("tokens.txt");
        std::fs::write(&tokens, format!("{viewer} view\n{admin} admin\n"))?;
        let flag = |name: &str, file: &Path| format!("--{name}={}", file.display());
        let flags = [
            config(&dir, CONFIG)?,
            flag("cert-file", &server.cert),
            flag("key-file", &server.key),
            flag("trusted-ca-file", &authority.cert),
            "--client-cert-auth".to_owned(),
            flag("admin-cert-file", &server.cert),
            flag("admin-key-file", &server.key),
            flag("admin-token-file", &tokens),
        ];
        let up = Up::start(&dir, "tokens", &flags).await?;
        let tls = ClientTls::load(ClientTlsSettings {
            trusted_ca_file: Some(authority.cert.clone()),
            identity: Some((client.cert, client.key)),
            ..ClientTlsSettings::default()
        })?;
        let channel = Connector::with_tls(Some(tls)).channel(&format!("https://{}", up.address).parse()?)?;
        load::fill(&kindred_tests::client::Client::over(channel), "/registry/pods/ns/", 20, 100).await?;
        let settings = json!({
            "base": format!("https://{}", up.admin), "viewer": viewer, "admin": admin, "markup": MARKUP,
        });
        Script::new(&driver, "tokens.mjs", &settings).run().await
    });
}

#[test]
fn a_thousand_ranges_of_five_hundred_kinds_are_shown() {
    let Some(driver) = driver() else { return };
    scenario::run("page-large", LIMIT, |dir| async move {
        let up = Up::start(&dir, "large", &[config(&dir, &large())?]).await?;
        let client = up.client().await?;
        for kind in 0..KINDS {
            load::fill(&client, &format!("/registry/example.com/kind{kind:03}s/ns/"), 2, 20).await?;
        }
        let settings = json!({ "base": format!("http://{}", up.admin), "kinds": KINDS, "ranges": RANGES });
        Script::new(&driver, "large.mjs", &settings).run().await
    });
}

/// A configuration with two ranges of each Kind, on two stores.
fn large() -> String {
    let mut text = CONFIG.split("partitions:").next().unwrap_or_default().to_owned() + "partitions:\n";
    for kind in 0..RANGES / 2 {
        for (half, bound, store) in [
            ("a", "rangeEnd: ns/1, isRangeEndValid: true", "pods"),
            ("b", "rangeStart: ns/1, isRangeStartValid: true", "pods2"),
        ] {
            let _ = writeln!(
                text,
                "- {{metadata: {{name: k{kind:03}{half}}}, resource: kind{kind:03}s.example.com, {bound}, serviceGroupId: {store}}}"
            );
        }
    }
    text
}

#[test]
fn the_pictures_in_the_documentation_are_small() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images");
    for picture in std::fs::read_dir(folder).unwrap() {
        let picture = picture.unwrap();
        let bytes = picture.metadata().unwrap().len();
        assert!(bytes < 150 << 10, "{}: {bytes} bytes", picture.path().display());
    }
}

/// Says that the tests were not run.
fn not_run() {
    report("NOT RUN: the page in a browser: this machine lacks Chromium or Node. See tests/peers/README.md");
}
