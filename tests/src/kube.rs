//! The real kube-apiserver and kubectl against any etcd endpoint.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use kindred_transport::tls::{ClientTls, ClientTlsSettings};
use rcgen::KeyPair;
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, Command},
};

use crate::{
    certs::{Authority, Leaf},
    etcdctl::Output,
    kube_client::KubeClient,
    peers::peer,
    process::{Process, Spec},
    scenario::wait_for,
};

const TOKEN: &str = "testtoken";

/// The time from the "serving" line to readiness on a busy machine. Post-start hooks write the bootstrap objects in it.
const READY_LIMIT: Duration = Duration::from_secs(60);

const KUBECTL_LIMIT: Duration = Duration::from_secs(300);

/// How many ports to try. The apiserver cannot choose a port itself, and a port that was free when the test chose it
/// may be taken when the apiserver binds it.
const PORT_ATTEMPTS: usize = 3;

/// The files that all apiservers of a cluster share.
#[derive(Debug)]
pub struct ClusterFiles {
    authority: PathBuf,
    serving: Leaf,
    service_account_key: PathBuf,
    service_account_public: PathBuf,
    tokens: PathBuf,
    home: PathBuf,
}

impl ClusterFiles {
    /// Creates the files in `dir`, with a new authority.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn create(dir: &Path) -> anyhow::Result<Self> {
        let dir = dir.join("kube");
        let home = dir.join("home");
        fs::create_dir_all(&home)?;
        let authority = Authority::new(&dir, "kube-authority")?;
        let serving = authority.leaf("kube-apiserver")?;
        let service_account_key = dir.join("service-accounts.key");
        let service_account_public = dir.join("service-accounts.pub");
        let pair = KeyPair::generate()?;
        fs::write(&service_account_key, pair.serialize_pem())?;
        fs::write(&service_account_public, pair.public_key_pem())?;
        let tokens = dir.join("tokens.csv");
        fs::write(&tokens, format!("{TOKEN},admin,admin,system:masters\n"))?;
        let authority = authority.cert;
        Ok(Self { authority, serving, service_account_key, service_account_public, tokens, home })
    }
}

/// A kube-apiserver that is ready, with a client and a kubectl for it.
#[derive(Debug)]
pub struct Apiserver {
    pub process: Process,
    pub client: KubeClient,
    pub kubectl: Kubectl,
    address: String,
    authority: PathBuf,
}

impl Apiserver {
    /// Starts an apiserver and waits until it is ready. `flags` must have at least `--etcd-servers`.
    ///
    /// # Errors
    /// If the apiserver does not become ready.
    pub async fn start(
        dir: &Path,
        name: &str,
        files: &ClusterFiles,
        flags: &[String],
    ) -> anyhow::Result<Self> {
        for attempt in 1.. {
            let port = free_port()?;
            match Self::start_at(dir, name, files, flags, port).await {
                Err(error) if attempt < PORT_ATTEMPTS && port_was_taken(dir, name, port) => {
                    crate::scenario::report(&format!("{name}: port {port} was taken: {error:#}"));
                }
                outcome => return outcome,
            }
        }
        unreachable!("the loop returns at its last attempt")
    }

    async fn start_at(
        dir: &Path,
        name: &str,
        files: &ClusterFiles,
        flags: &[String],
        port: u16,
    ) -> anyhow::Result<Self> {
        let mut args = vec![
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", dir.join(name).display()),
            format!("--tls-cert-file={}", files.serving.cert.display()),
            format!("--tls-private-key-file={}", files.serving.key.display()),
            // This is an address for documentation. Nothing is sent there, but without it the machine needs a default
            // route.
            "--advertise-address=192.0.2.1".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", files.service_account_public.display()),
            format!("--service-account-signing-key-file={}", files.service_account_key.display()),
            format!("--token-auth-file={}", files.tokens.display()),
            "--authorization-mode=RBAC".to_owned(),
            // The plugin needs service accounts from a controller manager, and none runs here.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        ];
        args.extend_from_slice(flags);
        let spec = Spec {
            name: name.to_owned(),
            program: peer("kube-apiserver")?,
            args,
            env: Vec::new(),
            ready: "Serving securely on".to_owned(),
        };
        let process = Process::start(dir, spec).await?;
        let address = format!("127.0.0.1:{port}");
        let client = client(&address, &files.authority)?;
        let kubectl = Kubectl {
            program: peer("kubectl")?,
            flags: vec![
                format!("--server=https://{address}"),
                format!("--certificate-authority={}", files.authority.display()),
                format!("--token={TOKEN}"),
            ],
            home: files.home.clone(),
        };
        let apiserver = Self { process, client, kubectl, address, authority: files.authority.clone() };
        apiserver.wait_ready().await?;
        Ok(apiserver)
    }

    async fn wait_ready(&self) -> anyhow::Result<()> {
        wait_for("the apiserver to be ready", READY_LIMIT, || async {
            let answer = self.client.get("/readyz").await;
            Ok(answer.is_ok_and(|answer| answer.status == 200).then_some(()))
        })
        .await
    }

    /// Stops the apiserver and starts it again on its port. `change` gives one of its flags another value.
    ///
    /// # Errors
    /// If the apiserver does not stop, or does not become ready.
    pub async fn restart(&mut self, change: Option<(&str, &str)>) -> anyhow::Result<()> {
        self.process.stop().await?;
        if let Some((flag, value)) = change {
            self.process.set_arg(flag, value);
        }
        self.process.restart().await?;
        self.client = client(&self.address, &self.authority)?;
        self.wait_ready().await
    }

    /// The present metrics of the apiserver.
    ///
    /// # Errors
    /// If the apiserver does not answer.
    pub async fn metrics(&self) -> anyhow::Result<Metrics> {
        let text = self.client.get("/metrics").await?.ok()?;
        Ok(Metrics { text: text.as_str().context("/metrics is text")?.to_owned() })
    }
}

fn client(address: &str, authority: &Path) -> anyhow::Result<KubeClient> {
    let tls = ClientTls::load(ClientTlsSettings {
        trusted_ca_file: Some(authority.to_owned()),
        ..ClientTlsSettings::default()
    })?;
    KubeClient::new(address, tls, TOKEN)
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn port_was_taken(dir: &Path, name: &str, port: u16) -> bool {
    let log = fs::read_to_string(dir.join(format!("{name}.err.log"))).unwrap_or_default();
    log.lines().any(|line| line.contains("address already in use") && line.contains(&port.to_string()))
}

/// The text of a `/metrics` page.
#[derive(Debug, Clone)]
pub struct Metrics {
    text: String,
}

impl Metrics {
    /// The samples of a metric, as (labels, value).
    pub fn samples<'a>(&'a self, metric: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.text.lines().filter_map(move |line| {
            let (labels, value) = line.strip_prefix(metric)?.rsplit_once(' ')?;
            let whole = labels.is_empty() || labels.starts_with('{');
            Some((labels, value.parse().ok()?)).filter(|_| whole)
        })
    }

    /// The sum of the samples of a metric whose labels contain `label`, such as `key="value"`. An empty `label` selects
    /// all.
    #[must_use]
    pub fn sum(&self, metric: &str, label: &str) -> f64 {
        self.samples(metric).filter(|(labels, _)| labels.contains(label)).map(|(_, value)| value).sum()
    }
}

/// `kubectl` for one apiserver, with a home and configuration of its own.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    flags: Vec<String>,
    home: PathBuf,
}

impl Kubectl {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.flags)
            .args(args)
            .env("HOME", &self.home)
            .env("KUBECONFIG", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs `kubectl ARGS` to its end, with `input` on stdin.
    ///
    /// # Errors
    /// If the command cannot be run, or does not end in time. A refusal is no error, but part of the output.
    pub async fn output(&self, args: &[&str], input: &str) -> anyhow::Result<Output> {
        let mut child = self.command(args).spawn().context("starting kubectl")?;
        let stdin = child.stdin.take();
        let fed = async {
            if let Some(mut stdin) = stdin {
                // A kubectl that ends without reading its input closes the pipe. Its exit status says why.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        // Output is read while input is written, because kubectl may print before it has read all.
        let both = async { tokio::join!(child.wait_with_output(), fed).0 };
        let output = tokio::time::timeout(KUBECTL_LIMIT, both)
            .await
            .with_context(|| format!("kubectl {} is not done after {KUBECTL_LIMIT:?}", args.join(" ")))??;
        Ok(Output {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// stdout of a call that must succeed.
    ///
    /// # Errors
    /// If the call fails.
    pub async fn ok(&self, args: &[&str], input: &str) -> anyhow::Result<String> {
        let output = self.output(args, input).await?;
        output.ok().with_context(|| format!("kubectl {}", args.join(" ")))
    }

    /// Starts a call that does not end by itself, such as `get --watch`. It is killed when dropped.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn start(&self, args: &[&str]) -> anyhow::Result<Child> {
        self.command(args).spawn().context("starting kubectl")
    }
}
