//! Users and roles at routers: `etcdctl user|role|auth` and what it permits, two routers of one meta store, a restart, and a
//! router that starts while its meta store is away.

mod random;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use kindred_tests::{
    certs::Authority,
    etcdctl::Etcdctl,
    process::{Process, Spec},
    scenario::{self, report, wait_for},
    servers::{Etcd, Shard},
};

const LIMIT: Duration = Duration::from_secs(300);
const SOON: Duration = Duration::from_secs(60);
const CLUSTER: &str = "--cluster-id=0x1ee7";
const CONFIG: &str = "default: default\nstores:\n- {name: default, slot: 1}\n- {name: pods, slot: 2}\n\
                      partitions:\n- metadata: {name: pods}\n  resource: pods\n  serviceGroupId: pods\n";
const DENIED: &str = "etcdserver: permission denied";
const NOBODY: &str = "etcdserver: user name is empty";

/// Two shards and a meta store, at which routers may be started.
struct World {
    meta: Etcd,
    shards: [Shard; 2],
    dir: std::path::PathBuf,
}

impl World {
    async fn start(dir: &Path) -> anyhow::Result<Self> {
        std::fs::write(dir.join("config.yaml"), CONFIG)?;
        let meta = Etcd::start(dir, "meta").await?;
        let mut shards = Vec::new();
        for (name, slot) in [("default", 1), ("pods", 2)] {
            let flags = [format!("--name={name}"), format!("--slot={slot}"), CLUSTER.to_owned()];
            shards.push(Shard::start(dir, name, &flags).await?);
        }
        let shards = shards.try_into().ok().context("two shards")?;
        Ok(Self { meta, shards, dir: dir.to_owned() })
    }

    async fn router(&self, name: &str, has_meta: bool) -> anyhow::Result<Process> {
        self.router_with(name, has_meta, &[]).await
    }

    async fn router_with(&self, name: &str, has_meta: bool, flags: &[String]) -> anyhow::Result<Process> {
        let mut args = vec![
            "--listen=127.0.0.1:0".to_owned(),
            "--admin=127.0.0.1:0".to_owned(),
            format!("--config={}", self.dir.join("config.yaml").display()),
            format!("--store=default={}", self.shards[0].address),
            format!("--store=pods={}", self.shards[1].address),
            CLUSTER.to_owned(),
        ];
        args.extend_from_slice(flags);
        if has_meta {
            args.push(format!("--meta={}", self.meta.address));
            args.push(format!("--meta-cache={}", self.dir.join(format!("{name}.json")).display()));
        }
        let spec = Spec::router(name, args)?;
        Process::start(&self.dir, spec).await
    }
}

fn address(router: &Process) -> anyhow::Result<String> {
    Ok(router.ready_field("listen")?.trim_start_matches("http://").to_owned())
}

fn ctl(router: &Process) -> anyhow::Result<Etcdctl> {
    Ok(Etcdctl::new(&address(router)?))
}

fn of(ctl: &Etcdctl, user: &str) -> Etcdctl {
    ctl.clone().with(&[format!("--user={user}:{user}-pw")])
}

/// The command must fail with this text.
async fn refused(ctl: &Etcdctl, args: &[&str], text: &str) -> anyhow::Result<()> {
    let output = ctl.output(args, "").await?;
    let said = format!("{}{}", output.stdout, output.stderr);
    ensure!(!output.success && said.contains(text), "{args:?} was to be refused with {text}: {said}");
    Ok(())
}

/// `root`, and `ann`, who reads all pods and writes those below `/registry/pods/a/`. Auth is on.
async fn enable(ctl: &Etcdctl) -> anyhow::Result<()> {
    for args in [
        &["user", "add", "root:root-pw"][..],
        &["user", "add", "ann:ann-pw"],
        &["role", "add", "pods"],
        &["role", "grant-permission", "pods", "read", "/registry/pods/", "--prefix"],
        &["role", "grant-permission", "pods", "readwrite", "/registry/pods/a/", "--prefix"],
        &["user", "grant-role", "ann", "pods"],
        &["auth", "enable"],
    ] {
        ctl.ok(args).await?;
    }
    Ok(())
}

#[test]
fn users_and_roles_as_etcdctl_sees_them() {
    scenario::run("auth", LIMIT, |dir| async move {
        let world = World::start(&dir).await?;
        let (a, b) = (world.router("a", true).await?, world.router("b", true).await?);
        let ctl = ctl(&a)?;
        refused(&ctl, &["auth", "enable"], "root user does not exist").await?;
        ctl.ok(&["put", "/registry/secrets/s", "hidden"]).await?;
        ctl.ok(&["put", "/registry/pods/b/1", "x"]).await?;
        enable(&ctl).await?;
        let (root, ann) = (of(&ctl, "root"), of(&ctl, "ann"));

        // Nobody gets in without a name, at either router.
        let other = self::ctl(&b)?;
        for (who, at) in [("a", &ctl), ("b", &other)] {
            for args in [
                &["get", "/registry/pods/b/1"][..],
                &["put", "/registry/pods/a/1", "x"],
                &["del", "/registry/pods/a/1"],
                &["lease", "grant", "60"],
                &["member", "list"],
                &["user", "list"],
                &["compaction", "1"],
            ] {
                refused(at, args, NOBODY).await.with_context(|| who.to_owned())?;
            }
        }
        refused(&of(&ctl, "bob"), &["get", "k"], "authentication failed").await?;
        let wrong = ctl.clone().with(&["--user=ann:wrong".to_owned()]);
        refused(&wrong, &["get", "k"], "authentication failed").await?;

        // What ann may, and what not, at both.
        let snapshot = dir.join("snapshot.db");
        let snapshot = snapshot.to_str().context("a path")?;
        for at in [&ann, &of(&other, "ann")] {
            at.ok(&["put", "/registry/pods/a/1", "mine"]).await?;
            let got = at.ok(&["get", "/registry/pods/", "--prefix", "--keys-only"]).await?;
            ensure!(got.contains("/registry/pods/a/1") && got.contains("/registry/pods/b/1"), "{got}");
            at.ok(&["put", "/registry/pods/a/1", "again", "--prev-kv"]).await?;
            at.ok(&["del", "/registry/pods/a/", "--prefix", "--prev-kv"]).await?;
            for args in [
                &["get", "/registry/secrets/s"][..],
                &["get", "/registry/", "--prefix"],
                &["get", "/registry/pods/", "--from-key"],
                &["get", "", "--prefix"],
                &["put", "/registry/pods/b/1", "stolen"],
                &["del", "/registry/pods/", "--prefix"],
                &["del", "/registry/pods/a/", "--from-key"],
                &["user", "list"],
                &["user", "get", "root"],
                &["role", "get", "root"],
                &["user", "add", "eve:eve-pw"],
                &["user", "grant-role", "ann", "root"],
                &["role", "grant-permission", "pods", "readwrite", "", "--prefix"],
                &["auth", "disable"],
                &["compaction", "1"],
                &["snapshot", "save", snapshot],
                &["endpoint", "hashkv"],
                &["defrag"],
            ] {
                refused(at, args, DENIED).await?;
            }
            at.ok(&["user", "get", "ann"]).await?;
            let role = at.ok(&["role", "get", "pods"]).await?;
            ensure!(role.contains("/registry/pods/a/"), "{role}");
            at.ok(&["alarm", "list"]).await?;
            at.ok(&["member", "list"]).await?;
        }
        ensure!(root.ok(&["get", "/registry/secrets/s"]).await?.contains("hidden"));
        ensure!(root.ok(&["get", "/registry/pods/b/1"]).await?.contains('x'));

        // etcdctl sends it to the leader of its endpoints.
        let all = Etcdctl::new(&format!("{},{}", address(&a)?, address(&b)?));
        refused(&of(&all, "ann"), &["move-leader", "1"], DENIED).await?;
        transactions(&ann).await?;
        watches(&ann).await?;
        leases(&root, &ann).await?;
        locks(&root, &ann).await?;
        gateway(&address(&a)?).await?;

        // A change at one router counts at the other one; a token that was revoked does not.
        root.ok(&["user", "revoke-role", "ann", "pods"]).await?;
        refused(&ann, &["get", "/registry/pods/b/1"], DENIED).await?;
        let there = of(&other, "ann");
        wait_for("the change at the other router", SOON, || async {
            let output = there.output(&["get", "/registry/pods/b/1"], "").await?;
            Ok((!output.success && output.stderr.contains(DENIED)).then_some(()))
        })
        .await?;
        of(&other, "root").ok(&["auth", "disable"]).await?;
        other.ok(&["get", "/registry/secrets/s"]).await?;
        wait_for("no users at the first router", SOON, || async {
            Ok(ctl.output(&["get", "/registry/secrets/s"], "").await?.success.then_some(()))
        })
        .await?;
        report("e2e auth routers=2 denied=yes");
        Ok(())
    });
}

async fn transactions(ann: &Etcdctl) -> anyhow::Result<()> {
    let says = |text: &'static str| async move { ann.output(&["txn"], text).await };
    let fine =
        says("ver(\"/registry/pods/b/1\") > \"0\"\n\nput /registry/pods/a/2 x\n\nget /registry/pods/b/1\n\n")
            .await?;
    ensure!(fine.success && fine.stdout.contains("SUCCESS"), "{fine:?}");
    for bad in [
        "ver(\"/registry/secrets/s\") > \"0\"\n\nput /registry/pods/a/2 x\n\n\n",
        "\nget /registry/secrets/s\n\n\n",
        "\nput /registry/pods/b/1 stolen\n\n\n",
        "ver(\"/registry/pods/b/1\") > \"0\"\n\nput /registry/pods/a/2 x\n\ndel /registry/pods/b/1\n\n",
    ] {
        let output = says(bad).await?;
        ensure!(!output.success && output.stderr.contains(DENIED), "{bad:?}: {output:?}");
    }
    ann.ok(&["del", "/registry/pods/a/2"]).await.map(drop)
}

async fn watches(ann: &Etcdctl) -> anyhow::Result<()> {
    let output = ann.output(&["watch", "/registry/secrets/", "--prefix"], "").await?;
    let said = format!("{}{}", output.stdout, output.stderr);
    ensure!(said.contains(DENIED), "{said}");
    Ok(())
}

/// A lease that has a key which ann may not write is not hers to use, keep or end.
async fn leases(root: &Etcdctl, ann: &Etcdctl) -> anyhow::Result<()> {
    let grant = |ctl: Etcdctl| async move {
        let granted = ctl.json(&["lease", "grant", "600"]).await?;
        let id = granted["ID"].as_i64().context("an id")?;
        anyhow::Ok(format!("{id:x}"))
    };
    let (own, others) = (grant(ann.clone()).await?, grant(root.clone()).await?);
    root.ok(&["put", "/registry/secrets/leased", "x", &format!("--lease={others}")]).await?;
    root.ok(&["put", "/registry/pods/b/leased", "x", &format!("--lease={others}")]).await?;
    ann.ok(&["put", "/registry/pods/a/3", "x", &format!("--lease={own}")]).await?;
    refused(ann, &["put", "/registry/pods/a/4", "x", &format!("--lease={others}")], DENIED).await?;
    refused(ann, &["lease", "keep-alive", "--once", &others], DENIED).await?;
    refused(ann, &["lease", "revoke", &others], DENIED).await?;
    refused(ann, &["lease", "timetolive", "--keys", &others], DENIED).await?;
    refused(ann, &["lease", "list"], DENIED).await?;
    ann.ok(&["lease", "timetolive", &others]).await?;
    ann.ok(&["lease", "keep-alive", "--once", &own]).await?;
    ann.ok(&["lease", "timetolive", "--keys", &own]).await?;
    ann.ok(&["lease", "revoke", &own]).await?;
    root.ok(&["lease", "revoke", &others]).await?;
    ensure!(root.ok(&["get", "/registry/secrets/leased"]).await?.is_empty());
    Ok(())
}

/// Locks are keys, which whoever locks must be able to write.
async fn locks(root: &Etcdctl, ann: &Etcdctl) -> anyhow::Result<()> {
    ann.ok(&["lock", "/registry/pods/a/lock", "true"]).await?;
    refused(ann, &["lock", "/registry/secrets/lock", "true"], DENIED).await?;
    root.ok(&["lock", "/registry/secrets/lock", "true"]).await.map(drop)
}

/// The JSON gateway takes the token from `Authorization`, and calls for nobody without it.
async fn gateway(address: &str) -> anyhow::Result<()> {
    let login = post(address, "/v3/auth/authenticate", "", r#"{"name":"ann","password":"ann-pw"}"#).await?;
    let token = login["token"].as_str().context("a token")?.to_owned();
    let [pod, secret] =
        ["/registry/pods/b/1", "/registry/secrets/s"].map(|key| format!("{{\"key\":\"{}\"}}", base64(key)));
    let got = post(address, "/v3/kv/range", &token, &pod).await?;
    ensure!(got["count"] == "1", "{got}");
    let got = post(address, "/v3/kv/range", &token, &secret).await?;
    ensure!(got["message"] == DENIED, "{got}");
    let got = post(address, "/v3/kv/range", "", &pod).await?;
    ensure!(got["message"] == NOBODY, "{got}");
    let got = post(address, "/v3/kv/range", "forged", &pod).await?;
    ensure!(got["message"] == "etcdserver: invalid auth token", "{got}");
    let got =
        post(address, "/v3/lock/lock", "", &format!("{{\"name\":\"{}\"}}", base64("/registry/pods/a/l")))
            .await?;
    ensure!(got["message"] == NOBODY, "{got}");
    let got = post(address, "/v3/maintenance/snapshot", &token, "{}").await?;
    ensure!(got.to_string().contains(DENIED), "{got}");
    Ok(())
}

async fn post(address: &str, path: &str, token: &str, body: &str) -> anyhow::Result<serde_json::Value> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut connection = tokio::net::TcpStream::connect(address).await?;
    let authorization = if token.is_empty() { String::new() } else { format!("authorization: {token}\r\n") };
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: kindred\r\nconnection: close\r\n{authorization}content-length: {length}\r\n\r\n{body}"
    );
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let start = answer.find('{').with_context(|| answer.clone())?;
    let end = answer.rfind('}').with_context(|| answer.clone())?;
    serde_json::from_str(&answer[start..=end]).with_context(|| answer.clone())
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize] as char;
            out.push(if at <= chunk.len() { digit } else { '=' });
        }
    }
    out
}

#[test]
fn a_router_without_its_meta_store_lets_nobody_in_whom_it_does_not_know() {
    scenario::run("auth-without-meta", LIMIT, |dir| async move {
        let mut world = World::start(&dir).await?;
        let mut a = world.router("a", true).await?;
        enable(&ctl(&a)?).await?;
        a.stop().await?;
        a.restart().await?;
        refused(&ctl(&a)?, &["get", "/registry/pods/b/1"], NOBODY).await?;
        of(&ctl(&a)?, "ann").ok(&["get", "/registry/pods/b/1"]).await?;

        world.meta.process.kill()?;
        a.kill()?;
        a.restart().await?;
        let at = ctl(&a)?;
        refused(&at, &["get", "/registry/pods/b/1"], NOBODY).await?;
        refused(&of(&at, "ann"), &["get", "/registry/secrets/s"], DENIED).await?;
        of(&at, "ann").ok(&["get", "/registry/pods/b/1"]).await?;
        refused(&of(&at, "root"), &["user", "add", "eve:eve-pw"], "meta").await?;

        // The state alone does not say who may do what.
        a.kill()?;
        std::fs::remove_file(dir.join("a.json.auth"))?;
        a.restart().await?;
        let at = ctl(&a)?.with(&["--command-timeout=3s".to_owned()]);
        refused(&at, &["get", "/registry/pods/b/1"], "users and roles").await?;

        // Meta comes back with nothing: what nobody knows any more, a router does not make up.
        a.stop().await?;
        report("e2e auth_without_meta=enforced");
        Ok(())
    });
}

#[test]
fn a_meta_store_that_loses_its_data_gets_the_users_back() {
    scenario::run("auth-lost-meta", LIMIT, |dir| async move {
        let mut world = World::start(&dir).await?;
        let a = world.router("a", true).await?;
        enable(&ctl(&a)?).await?;
        world.meta.process.kill()?;
        std::fs::remove_dir_all(dir.join("meta"))?;
        // It listens where it did before.
        let clients = format!("http://{}", world.meta.address);
        world.meta.process.set_arg("--listen-client-urls", &clients);
        world.meta.process.set_arg("--advertise-client-urls", &clients);
        world.meta.process.restart().await?;
        let meta = Etcdctl::new(&world.meta.address);
        wait_for("the users in the meta store", SOON, || async {
            let found = meta.ok(&["get", "/kindred/auth", "--print-value-only"]).await?;
            Ok(found.contains("\"enabled\":true").then_some(()))
        })
        .await?;
        refused(&ctl(&a)?, &["get", "k"], NOBODY).await?;
        of(&ctl(&a)?, "root").ok(&["user", "add", "bob:bob-pw"]).await?;

        // A document of a later version says what nobody here understands.
        meta.ok(&["put", "/kindred/auth", "{\"version\":9}"]).await?;
        let at = ctl(&a)?.with(&["--command-timeout=3s".to_owned()]);
        wait_for("nobody to be let in", SOON, || async {
            let output = at.output(&["get", "k"], "").await?;
            Ok((!output.success && output.stderr.contains("use the version that wrote it")).then_some(()))
        })
        .await?;
        report("e2e auth_lost_meta=restored");
        Ok(())
    });
}

/// The common name counts where there is no token: for unary calls, streams and locks, and not at the gateway.
#[test]
fn the_common_name_of_a_certificate_is_the_user() {
    scenario::run("auth-common-name", LIMIT, |dir| async move {
        let world = World::start(&dir).await?;
        let authority = Authority::new(&dir, "ca")?;
        let own = authority.leaf("router")?;
        let flags = [
            format!("--cert-file={}", own.cert.display()),
            format!("--key-file={}", own.key.display()),
            format!("--trusted-ca-file={}", authority.cert.display()),
            "--client-cert-auth".to_owned(),
        ];
        let router = world.router_with("a", true, &flags).await?;
        let listen = router.ready_field("listen")?;
        let endpoint = format!("https://{}", listen.trim_start_matches("https://"));
        let by = |common_name: &str| {
            let leaf = authority.leaf(common_name)?;
            anyhow::Ok(Etcdctl::new(&endpoint).with(&[
                format!("--cacert={}", authority.cert.display()),
                format!("--cert={}", leaf.cert.display()),
                format!("--key={}", leaf.key.display()),
            ]))
        };
        let (root, ann, stranger) = (by("root")?, by("ann")?, by("stranger")?);
        enable(&root).await?;
        root.ok(&["put", "/registry/secrets/s", "hidden"]).await?;
        root.ok(&["user", "list"]).await?;
        ann.ok(&["put", "/registry/pods/a/1", "mine"]).await?;
        ann.ok(&["get", "/registry/pods/a/1"]).await?;
        ann.ok(&["lock", "/registry/pods/a/lock", "true"]).await?;
        refused(&ann, &["get", "/registry/secrets/s"], DENIED).await?;
        refused(&ann, &["lock", "/registry/secrets/lock", "true"], DENIED).await?;
        refused(&ann, &["user", "list"], DENIED).await?;
        refused(&stranger, &["get", "/registry/pods/a/1"], DENIED).await?;
        // A token counts before the certificate.
        refused(&of(&root, "ann"), &["get", "/registry/secrets/s"], DENIED).await?;
        ensure!(of(&ann, "root").ok(&["get", "/registry/secrets/s"]).await?.contains("hidden"));
        report("e2e auth_common_name=user");
        Ok(())
    });
}

#[test]
fn a_router_without_a_meta_store_says_what_it_needs_for_users() {
    scenario::run("auth-no-meta", LIMIT, |dir| async move {
        let world = World::start(&dir).await?;
        let router = world.router("alone", false).await?;
        let ctl = ctl(&router)?;
        refused(&ctl, &["user", "add", "ann:ann-pw"], "--meta").await?;
        refused(&ctl, &["role", "add", "r"], "--meta").await?;
        ensure!(ctl.ok(&["user", "list"]).await?.trim().is_empty());
        ensure!(ctl.ok(&["auth", "status"]).await?.contains("false"));
        ctl.ok(&["put", "k", "v"]).await?;
        Ok(())
    });
}
