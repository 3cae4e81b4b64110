//! The pinned real peers. `tests/peers/install` builds and caches them, and prints where they are. It runs at most once
//! for each set in a test process.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context, anyhow, bail};

/// A set of peers that `tests/peers/install` builds together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerSet {
    /// etcd, etcdctl, etcdutl, a check of its files, and programs of ours with its client.
    Etcd,
    /// etcd's own robustness checkers.
    Robustness,
    /// kube-apiserver and kubectl.
    Kube,
    /// kubeadm's own check of an external etcd.
    Kubeadm,
    /// k3s' own way to an etcd, in kine.
    Kine,
    /// etcd's own integration tests, a program for each package.
    EtcdTests,
    /// The tests of Kubernetes' apiserver for its storage, a program for each package.
    KubeStorage,
    /// Clients with the storage of several versions of Kubernetes, the newest first.
    KubeConsistency,
    /// The tests of CoreDNS' etcd plugin.
    Coredns,
    /// The tests of the etcd-client crate.
    EtcdClient,
    /// Libraries of Python with their tests.
    Python,
    /// Cases of npm's etcd3.
    Node,
    /// Cases of Java's jetcd.
    Java,
    /// What drives a browser to the admin page.
    Page,
    /// helm.
    Helm,
    /// Definitions of objects of cert-manager and of the Prometheus operator.
    Crds,
    /// kindred as of the commit in `tests/upgrade/PREVIOUS`; nothing without the history of git.
    Previous,
}

impl PeerSet {
    const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Robustness => "robustness",
            Self::Kube => "kube",
            Self::Kubeadm => "kubeadm",
            Self::Kine => "kine",
            Self::EtcdTests => "etcd-tests",
            Self::KubeStorage => "kube-storage",
            Self::KubeConsistency => "kube-consistency",
            Self::Coredns => "coredns",
            Self::EtcdClient => "etcd-client",
            Self::Python => "python",
            Self::Node => "node",
            Self::Java => "java",
            Self::Page => "page",
            Self::Helm => "helm",
            Self::Crds => "crds",
            Self::Previous => "previous",
        }
    }
}

/// A peer that `tests/peers/install` lists.
#[derive(Debug, Clone)]
pub struct Peer {
    pub name: String,
    pub path: PathBuf,
    pub version: String,
}

static ETCD: OnceLock<Result<Vec<Peer>, String>> = OnceLock::new();
static ROBUSTNESS: OnceLock<Result<Vec<Peer>, String>> = OnceLock::new();
static KUBE: OnceLock<Result<Vec<Peer>, String>> = OnceLock::new();
static KINE: OnceLock<Result<Vec<Peer>, String>> = OnceLock::new();
static HELM: OnceLock<Result<Vec<Peer>, String>> = OnceLock::new();
static CRDS: OnceLock<Result<Vec<Peer>, String>> = OnceLock::new();
static KUBEADM: OnceLock<Result<Vec<Peer>, String>> = OnceLock::new();

/// The folder `tests/peers` of this checkout.
#[must_use]
pub fn peers_dir() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/peers"))
}

/// The path of a peer, which is built at its first use.
///
/// # Errors
/// If the peer cannot be built. The error has the output of `tests/peers/install`, which says what is missing.
pub fn peer(name: &str) -> anyhow::Result<PathBuf> {
    let (set, found) = match name {
        "etcd" | "etcdctl" | "etcdutl" | "bbolt-check" | "etcd-load" | "etcd-strangers" => {
            (PeerSet::Etcd, &ETCD)
        }
        "etcd-robustness" => (PeerSet::Robustness, &ROBUSTNESS),
        "kube-apiserver" | "kubectl" => (PeerSet::Kube, &KUBE),
        "k3s-datastore-check" => (PeerSet::Kine, &KINE),
        "kubeadm-etcd-check" => (PeerSet::Kubeadm, &KUBEADM),
        "helm" => (PeerSet::Helm, &HELM),
        "cert-manager" | "prometheus-operator" => (PeerSet::Crds, &CRDS),
        _ => bail!("no peer is called {name}"),
    };
    let installed = found.get_or_init(|| listed(set).map_err(|error| format!("{error:#}")));
    let installed = installed.as_ref().map_err(|error| anyhow!("{error}"))?;
    let found = installed.iter().find(|peer| peer.name == name);
    Ok(found.with_context(|| format!("tests/peers/install does not list {name}"))?.path.clone())
}

/// All peers of a set, which are built if they are not there. There are none of a language that the machine lacks.
///
/// # Errors
/// As [`peer`].
pub fn listed(set: PeerSet) -> anyhow::Result<Vec<Peer>> {
    let script = peers_dir().join("install");
    let set = set.name();
    let output =
        Command::new(&script).arg(set).output().with_context(|| format!("running {}", script.display()))?;
    if !output.status.success() {
        bail!("{} {set}: {}\n{}", script.display(), output.status, String::from_utf8_lossy(&output.stderr));
    }
    let mut peers = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(path)) = (words.next(), words.next()) else { continue };
        let (path, version) = (PathBuf::from(path), words.next().unwrap_or_default());
        if !path.is_file() {
            bail!("tests/peers/install lists {name} at {}, which does not exist", path.display());
        }
        peers.push(Peer { name: name.to_owned(), path, version: version.to_owned() });
    }
    Ok(peers)
}
