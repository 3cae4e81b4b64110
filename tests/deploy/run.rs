//! The pods of the chart run as processes of this machine: each has the command line, the configuration and the certificates of
//! its pod, and a folder for each volume. They become ready as kubelets would see it, serve a stock client, take part in a move,
//! and are updated one by one without the loss of an acknowledged write.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use kindred_tests::{
    admin::Admin,
    etcdctl,
    peers::peer,
    ports::Port,
    process::{Process, Spec, our_binary},
    scenario::{self, wait_for},
};
use kindred_transport::tls::ClientTlsSettings;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::deploy::{
    chart::config_file,
    files::certificates,
    pods::{Pod, pods},
    render::chart,
};

const LIMIT: Duration = Duration::from_secs(60);
/// How long a pod may take until it is ready, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(15);
/// How often a pod whose container ended is started again: a standby ends while there is nobody whom it could follow.
const STARTS_MAX: usize = 40;
/// The pause before a container is started again.
const BACK_OFF: Duration = Duration::from_millis(250);

#[test]
fn the_pods_of_the_chart_serve_and_are_updated_one_by_one() {
    scenario::run("deploy_run", LIMIT, |dir| async move { runs(&dir).await });
}

async fn runs(dir: &Path) -> anyhow::Result<()> {
    let cluster = Cluster::start(dir, &chart(&[])?).await?;
    for pod in cluster.pods.keys() {
        cluster.ready(pod).await?;
    }
    cluster.is_guarded().await?;
    let (done, acknowledged) = (CancellationToken::new(), Arc::<AtomicUsize>::default());
    let writing = tokio::spawn(cluster.client()?.writes(done.clone(), acknowledged.clone()));
    let more = |count: usize| {
        let (from, acknowledged) = (acknowledged.load(Ordering::SeqCst), acknowledged.clone());
        async move {
            let what = format!("{count} more writes");
            wait_for(&what, READY_LIMIT, || async {
                Ok((acknowledged.load(Ordering::SeqCst) >= from + count).then_some(()))
            })
            .await
        }
    };
    more(5).await?;
    // As a StatefulSet updates its pods: the last one first, the next when that could take over and the record names it.
    for pod in ["kindred-pods-1", "kindred-pods-0"] {
        cluster.in_sync("pods").await?;
        cluster.restart(pod).await?;
        cluster.ready(pod).await?;
        more(5).await?;
    }
    cluster.in_sync("pods").await?;
    // A member whose volume is lost comes back empty, and follows, as the chart's README says.
    cluster.lose_volume("kindred-pods-0", "kindred-pods-1").await?;
    cluster.in_sync("pods").await?;
    for pod in ["kindred-router-0", "kindred-router-1", "kindred-meta-0"] {
        cluster.restart(pod).await?;
        cluster.ready(pod).await?;
        more(5).await?;
    }
    cluster.kindred(&["move", "pods", "--to", "default"]).await?;
    more(5).await?;
    done.cancel();
    let acknowledged = writing.await??;
    let found = cluster.client()?.keys().await?;
    for key in &acknowledged {
        ensure!(found.contains(key), "{key} was acknowledged and is lost: {found:?}");
    }
    Ok(())
}

/// A stock client with the certificate of an apiserver.
#[derive(Clone)]
struct Client {
    program: PathBuf,
    flags: Vec<String>,
}

impl Client {
    async fn run(&self, args: &[&str]) -> anyhow::Result<etcdctl::Output> {
        let flags = self.flags.iter().map(String::as_str);
        etcdctl::run(&self.program, &flags.chain(args.iter().copied()).collect::<Vec<_>>(), "").await
    }

    /// Writes pods, one after the other. A write that was under way when its store stopped may fail; it is not counted.
    async fn writes(
        self,
        done: CancellationToken,
        acknowledged: Arc<AtomicUsize>,
    ) -> anyhow::Result<Vec<String>> {
        let mut keys = Vec::new();
        for number in 0_u64.. {
            if done.is_cancelled() {
                break;
            }
            let key = format!("/registry/pods/default/{number}");
            if self.run(&["put", &key, "x"]).await?.success {
                keys.push(key);
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
        }
        Ok(keys)
    }

    async fn keys(&self) -> anyhow::Result<Vec<String>> {
        let said = self.run(&["get", "/registry/pods/", "--prefix", "--keys-only"]).await?.ok()?;
        Ok(said.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }
}

/// A pod's process, with its ports.
struct Running {
    pod: Pod,
    client: Port,
    admin: Port,
    /// None while it is to stay down.
    process: Kept,
}

type Kept = Arc<tokio::sync::Mutex<Option<Process>>>;

/// Starts containers again that have ended, as kubelets do: a former primary ends, and follows when it is started again.
async fn supervise(all: Vec<Kept>) {
    loop {
        tokio::time::sleep(BACK_OFF).await;
        for kept in &all {
            if let Some(process) = &mut *kept.lock().await
                && matches!(process.is_running(), Ok(false))
            {
                // Whoever waits for the pod says that it does not come.
                let _ = process.launch();
            }
        }
    }
}

struct Cluster {
    dir: PathBuf,
    pki: PathBuf,
    pods: BTreeMap<String, Running>,
    stop: CancellationToken,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Cluster {
    async fn start(dir: &Path, objects: &[Value]) -> anyhow::Result<Self> {
        let pki = dir.join("pki");
        certificates(&pki, &[]);
        let mut all = BTreeMap::new();
        for pod in pods(objects)? {
            let (client, admin) = (Port::free()?, Port::free()?);
            let running = Running { pod, client, admin, process: Kept::default() };
            all.insert(running.pod.name.clone(), running);
        }
        let stop = CancellationToken::new();
        let kept = all.values().map(|running| running.process.clone()).collect();
        tokio::spawn(stop.clone().run_until_cancelled_owned(supervise(kept)));
        let cluster = Self { dir: dir.to_owned(), pki, pods: all, stop };
        cluster.write_files(objects)?;
        // All at once, as a cluster that comes back starts them.
        try_join_all(cluster.pods.keys().map(|pod| cluster.launch(pod))).await?;
        Ok(cluster)
    }

    /// The addresses of pods as they are on this machine.
    fn local(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for running in self.pods.values() {
            if let Some(host) = &running.pod.host {
                text =
                    text.replace(&format!("{host}:2379"), &format!("127.0.0.1:{}", running.client.number()));
            }
        }
        text
    }

    /// The files of the volumes of all pods.
    fn write_files(&self, objects: &[Value]) -> anyhow::Result<()> {
        for running in self.pods.values() {
            let pod = &running.pod;
            for (at, volume) in &pod.mounts {
                let folder = self.path(pod, at);
                fs::create_dir_all(&folder)?;
                if let Some(secret) = volume["secret"]["secretName"].as_str() {
                    let name = secret.strip_prefix("kindred-").and_then(|name| name.strip_suffix("-tls"));
                    let name = name.with_context(|| secret.to_owned())?;
                    let authority = match name {
                        "server" => "clients-ca",
                        "admin" | "metrics" => "admin-ca",
                        _ => "ca",
                    };
                    let items = volume["secret"]["items"].as_array();
                    for (key, file) in [
                        ("tls.crt", format!("{name}.crt")),
                        ("tls.key", format!("{name}.key")),
                        ("ca.crt", format!("{authority}.crt")),
                    ] {
                        if items.is_none_or(|items| items.iter().any(|item| item["key"] == key)) {
                            fs::copy(self.pki.join(file), folder.join(key))?;
                        }
                    }
                }
            }
            if let Some(path) = pod.flag("--config") {
                let text = self.local(&config_file(objects, pod, path)?);
                fs::write(self.path(pod, path), text)?;
            }
        }
        Ok(())
    }

    /// Where a path of a pod is on this machine.
    fn path(&self, pod: &Pod, path: &str) -> PathBuf {
        self.dir.join(&pod.name).join(path.trim_start_matches('/'))
    }

    fn spec(&self, running: &Running) -> anyhow::Result<Spec> {
        let pod = &running.pod;
        let args = pod.args.iter().map(|arg| {
            let arg = self.local(arg);
            let arg = arg
                .replace("=0.0.0.0:2379", &format!("=127.0.0.1:{}", running.client.number()))
                .replace("=0.0.0.0:2381", &format!("=127.0.0.1:{}", running.admin.number()));
            match arg.split_once("=/").filter(|(flag, _)| *flag != "--etcd-prefix") {
                Some((flag, path)) => format!("{flag}={}", self.path(pod, path).display()),
                None => arg,
            }
        });
        let ready = format!("kindred-{} ready ", pod.args[0]);
        Ok(Spec {
            name: pod.name.clone(),
            program: our_binary("kindred")?,
            args: args.collect(),
            env: Vec::new(),
            ready,
        })
    }

    /// Starts the container of a pod, again when it ends, as a kubelet does.
    async fn launch(&self, pod: &str) -> anyhow::Result<()> {
        let running = &self.pods[pod];
        let mut outcome = Ok(());
        for _ in 0..STARTS_MAX {
            match Process::start(&self.dir, self.spec(running)?).await {
                Ok(process) => {
                    *running.process.lock().await = Some(process);
                    return Ok(());
                }
                Err(error) => outcome = Err(error),
            }
            tokio::time::sleep(BACK_OFF).await;
        }
        outcome.with_context(|| pod.to_owned())
    }

    /// Ends a pod and starts it again with its volumes.
    async fn restart(&self, pod: &str) -> anyhow::Result<()> {
        let ended = self.pods[pod].process.lock().await.take();
        ended.context("it runs")?.stop().await?;
        self.launch(pod).await
    }

    /// Ends a pod, and starts it with an empty volume as a standby of another member.
    async fn lose_volume(&self, pod: &str, primary: &str) -> anyhow::Result<()> {
        let running = &self.pods[pod];
        let ended = running.process.lock().await.take();
        ended.context("it runs")?.stop().await?;
        fs::remove_dir_all(self.path(&running.pod, running.pod.flag("--data-dir").context("a folder")?))?;
        let told = running.pod.flag("--config").context("a file")?;
        let primary = self.pods[primary].client.number();
        fs::write(self.path(&running.pod, told), format!("standby-of: https://127.0.0.1:{primary}\n"))?;
        self.launch(pod).await?;
        self.ready(pod).await
    }

    /// An admin port, for whoever has this certificate, or none.
    fn admin(&self, pod: &str, certificate: Option<&str>) -> anyhow::Result<Admin> {
        let file = |name: &str, ending: &str| self.pki.join(format!("{name}.{ending}"));
        let tls = ClientTlsSettings {
            trusted_ca_file: Some(self.pki.join("ca.crt")),
            identity: certificate.map(|name| (file(name, "crt"), file(name, "key"))),
            ..ClientTlsSettings::default()
        };
        Admin::over_tls(&format!("127.0.0.1:{}", self.pods[pod].admin.number()), tls)
    }

    /// Waits until the kubelet would find the pod ready.
    async fn ready(&self, pod: &str) -> anyhow::Result<()> {
        let (kubelet, path) = (self.admin(pod, None)?, self.pods[pod].pod.ready.clone());
        wait_for(&format!("{pod} to be ready"), READY_LIMIT, || async {
            let answer = kubelet.ask("GET", &path, "").await;
            Ok(answer.is_ok_and(|(status, _)| status == 200).then_some(()))
        })
        .await
    }

    /// Waits until the standby of a store is in the record, as it is within `minReadySeconds`.
    async fn in_sync(&self, store: &str) -> anyhow::Result<()> {
        let viewer = self.admin("kindred-router-0", Some("metrics"))?;
        wait_for("the standby to be in sync", READY_LIMIT, || async {
            let Ok((200, said)) = viewer.ask("GET", "/metrics", "").await else { return Ok(None) };
            let sample = format!("kindred_router_store_standbys_in_sync{{store=\"{store}\"}} 1");
            Ok(said.contains(&sample).then_some(()))
        })
        .await
    }

    /// Prometheus may look, and change nothing; a stranger may not even look.
    async fn is_guarded(&self) -> anyhow::Result<()> {
        for pod in ["kindred-router-0", "kindred-pods-0", "kindred-pods-1", "kindred-meta-0"] {
            let (stranger, _) = self.admin(pod, None)?.ask("GET", "/metrics", "").await?;
            let (viewer, _) = self.admin(pod, Some("metrics"))?.ask("GET", "/metrics", "").await?;
            ensure!((stranger, viewer) == (401, 200), "{pod}: {stranger}, {viewer}");
        }
        let viewer = self.admin("kindred-router-0", Some("metrics"))?;
        let (status, said) = viewer.ask("POST", "/api/v1/failover", "{}").await?;
        ensure!(status == 403, "{status}: {said}");
        Ok(())
    }

    /// Runs `kindred` as an administrator does.
    async fn kindred(&self, args: &[&str]) -> anyhow::Result<String> {
        let file = |name: &str| self.pki.join(name).display().to_string();
        let admin = format!("https://127.0.0.1:{}", self.pods["kindred-router-0"].admin.number());
        let (ca, cert, key) = (file("ca.crt"), file("admin.crt"), file("admin.key"));
        let own = ["--admin", &admin, "--cacert", &ca, "--cert", &cert, "--key", &key];
        etcdctl::run(&our_binary("kindred")?, &[&own[..], args].concat(), "").await?.ok()
    }

    fn client(&self) -> anyhow::Result<Client> {
        let file = |name: &str| self.pki.join(name).display().to_string();
        let routers = ["kindred-router-0", "kindred-router-1"]
            .map(|pod| format!("https://127.0.0.1:{}", self.pods[pod].client.number()));
        let flags = vec![
            format!("--endpoints={}", routers.join(",")),
            format!("--cacert={}", file("clients-ca.crt")),
            format!("--cert={}", file("apiserver-client.crt")),
            format!("--key={}", file("apiserver-client.key")),
            "--command-timeout=10s".to_owned(),
        ];
        Ok(Client { program: peer("etcdctl")?, flags })
    }
}
