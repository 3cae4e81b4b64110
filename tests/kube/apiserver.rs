//! kube-apiserver and kubectl.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, bail};
use kindred_tests::{
    etcdctl::{self, Output},
    peers::peer,
    process::{Process, Spec},
    scenario::wait_for,
};

const READY_LIMIT: Duration = Duration::from_secs(120);
const TOKEN: &str = "testtoken";

pub struct Apiserver {
    pub process: Process,
    url: String,
    home: PathBuf,
    kubectl: PathBuf,
}

impl Apiserver {
    pub async fn start(dir: &Path, store: &[String]) -> anyhow::Result<Self> {
        let home = dir.join("home");
        fs::create_dir_all(&home)?;
        let key = dir.join("sa.key");
        let made = Command::new("openssl").args(["genrsa", "-out"]).arg(&key).arg("2048").output();
        if !made.context("openssl")?.status.success() {
            bail!("openssl could not make the service account key");
        }
        let tokens = dir.join("tokens.csv");
        fs::write(&tokens, format!("{TOKEN},admin,admin,system:masters\n"))?;
        // kube-apiserver cannot be told to choose a port.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut args = vec![
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", dir.join("apiserver-certs").display()),
            "--advertise-address=192.0.2.1".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", key.display()),
            format!("--service-account-signing-key-file={}", key.display()),
            format!("--token-auth-file={}", tokens.display()),
            "--authorization-mode=RBAC".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--event-ttl=5s".to_owned(),
            // Short, so that compaction through the router happens in the run.
            "--etcd-compaction-interval=10s".to_owned(),
        ];
        args.extend_from_slice(store);
        let spec = Spec {
            name: "kube-apiserver".to_owned(),
            program: peer("kube-apiserver")?,
            args,
            env: Vec::new(),
            ready: "Serving securely on".to_owned(),
        };
        let process = Process::start(dir, spec).await?;
        let kubectl = peer("kubectl")?;
        let apiserver = Self { process, url: format!("https://127.0.0.1:{port}"), home, kubectl };
        apiserver.ready().await?;
        Ok(apiserver)
    }

    async fn ready(&self) -> anyhow::Result<()> {
        wait_for("kube-apiserver to be ready", READY_LIMIT, || async {
            let output = self.output(&["get", "--raw", "/readyz"], "").await?;
            Ok((output.success && output.stdout.trim() == "ok").then_some(()))
        })
        .await
    }

    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.process.stop().await?;
        self.process.restart().await?;
        self.ready().await
    }

    fn flags(&self) -> [String; 4] {
        [
            format!("--server={}", self.url),
            "--insecure-skip-tls-verify".to_owned(),
            format!("--token={TOKEN}"),
            format!("--cache-dir={}", self.home.join("cache").display()),
        ]
    }

    pub async fn output(&self, args: &[&str], input: &str) -> anyhow::Result<Output> {
        let flags = self.flags();
        let mut all: Vec<&str> = flags.iter().map(String::as_str).collect();
        all.push("--kubeconfig=/dev/null");
        all.extend_from_slice(args);
        etcdctl::run(&self.kubectl, &all, input).await
    }

    pub async fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.output(args, "").await?;
        output.ok().with_context(|| format!("kubectl {}", args.join(" ")))
    }

    pub async fn apply(&self, manifest: &str) -> anyhow::Result<String> {
        let output = self.output(&["apply", "--server-side", "-f", "-"], manifest).await?;
        output.ok().with_context(|| format!("kubectl apply of {manifest}"))
    }

    /// A kubectl that goes on; killed when dropped.
    pub fn start_kubectl(&self, args: &[&str]) -> anyhow::Result<tokio::process::Child> {
        tokio::process::Command::new(&self.kubectl)
            .args(self.flags())
            .arg("--kubeconfig=/dev/null")
            .args(args)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("starting kubectl")
    }
}
