//! The pinned real peers. `tests/peers/install` builds and caches them, and prints where they are. It runs at most once
//! for each set in a test process.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context, anyhow, bail};

/// A set of peers that `tests/peers/install` builds together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerSet {
    /// etcd, etcdctl, etcdutl and a check of its files.
    Etcd,
    /// kube-apiserver and kubectl.
    Kube,
    /// kubeadm's own check of an external etcd.
    Kubeadm,
    /// k3s' own way to an etcd, in kine.
    Kine,
}

static ETCD: OnceLock<Result<BTreeMap<String, PathBuf>, String>> = OnceLock::new();
static KUBE: OnceLock<Result<BTreeMap<String, PathBuf>, String>> = OnceLock::new();
static KINE: OnceLock<Result<BTreeMap<String, PathBuf>, String>> = OnceLock::new();
static KUBEADM: OnceLock<Result<BTreeMap<String, PathBuf>, String>> = OnceLock::new();

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
        "etcd" | "etcdctl" | "etcdutl" | "bbolt-check" => (PeerSet::Etcd, &ETCD),
        "kube-apiserver" | "kubectl" => (PeerSet::Kube, &KUBE),
        "k3s-datastore-check" => (PeerSet::Kine, &KINE),
        "kubeadm-etcd-check" => (PeerSet::Kubeadm, &KUBEADM),
        _ => bail!("no peer is called {name}"),
    };
    let installed = found.get_or_init(|| install(set).map_err(|error| format!("{error:#}")));
    let installed = installed.as_ref().map_err(|error| anyhow!("{error}"))?;
    installed.get(name).cloned().with_context(|| format!("tests/peers/install does not list {name}"))
}

fn install(set: PeerSet) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let script = peers_dir().join("install");
    let set = match set {
        PeerSet::Etcd => "etcd",
        PeerSet::Kube => "kube",
        PeerSet::Kubeadm => "kubeadm",
        PeerSet::Kine => "kine",
    };
    let output =
        Command::new(&script).arg(set).output().with_context(|| format!("running {}", script.display()))?;
    if !output.status.success() {
        bail!("{} {set}: {}\n{}", script.display(), output.status, String::from_utf8_lossy(&output.stderr));
    }
    let mut peers = BTreeMap::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(path)) = (words.next(), words.next()) else { continue };
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("tests/peers/install lists {name} at {}, which does not exist", path.display());
        }
        peers.insert(name.to_owned(), path);
    }
    Ok(peers)
}
