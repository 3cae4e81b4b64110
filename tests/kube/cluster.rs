//! The cluster under test: the store of the apiservers, the configuration that says where a key belongs, the
//! apiservers, and the counters of the run.

use std::{
    fmt::Display,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context, bail};
use kindred_partition_config::{
    parse,
    validate::{Validated, validate},
};
use kindred_tests::{
    certs::Authority,
    kube::{Apiserver, ClusterFiles},
    layouts::{Kind, Layout},
    servers::{Etcd, Up},
};
use kindred_transport::tls::ClientTlsSettings;

/// The TTL of events (`--event-ttl`).
pub const EVENT_TTL: Duration = Duration::from_secs(5);

/// How often the apiservers compact. Revisions that are older than two intervals are compacted.
pub const COMPACTION_INTERVAL: Duration = Duration::from_secs(10);

/// The longest time until a client sees a change, on a busy machine.
pub const SEEN_LIMIT: Duration = Duration::from_secs(30);

/// What the run has done and checked.
#[derive(Debug, Default)]
pub struct Tally {
    objects: AtomicU64,
    watch_events: AtomicU64,
    pages: AtomicU64,
    checks: AtomicU64,
}

impl Tally {
    pub fn add_objects(&self, count: usize) {
        self.objects.fetch_add(count as u64, Relaxed);
    }

    pub fn add_watch_events(&self, count: usize) {
        self.watch_events.fetch_add(count as u64, Relaxed);
    }

    pub fn add_page(&self) {
        self.pages.fetch_add(1, Relaxed);
    }

    /// Counts a check, and fails with `what` if it does not hold.
    pub fn check(&self, holds: bool, what: impl Display) -> anyhow::Result<()> {
        self.checks.fetch_add(1, Relaxed);
        if !holds {
            bail!("{what}");
        }
        Ok(())
    }

    /// Counts a check that two values are equal.
    pub fn equal<T: PartialEq + std::fmt::Debug>(
        &self,
        got: &T,
        wanted: &T,
        what: impl Display,
    ) -> anyhow::Result<()> {
        self.check(got == wanted, format_args!("{what}: got {got:?}, wanted {wanted:?}"))
    }

    /// The line printed at the end.
    pub fn line(&self) -> String {
        format!(
            "kube: objects={} watch_events={} pages={} checks={}",
            self.objects.load(Relaxed),
            self.watch_events.load(Relaxed),
            self.pages.load(Relaxed),
            self.checks.load(Relaxed)
        )
    }
}

/// A `kindred up` with TLS, and its configuration.
pub struct Kindred {
    pub up: Up,
    pub config: Validated,
    /// The certificates of the router's clients.
    pub client_tls: ClientTlsSettings,
    /// The certificates with which the router connects to shards.
    pub shard_tls: ClientTlsSettings,
    /// The certificates of an operator at the admin port.
    pub admin_tls: ClientTlsSettings,
}

/// The authority of all certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certificates {
    /// The test's own authority.
    Given,
    /// The authority of `--auto-tls`.
    Auto,
}

/// The configuration that kindred gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Map {
    /// The default configuration, or the file of `KINDRED_TEST_CONFIG`.
    Default,
    /// Each Kind with many objects is split into three ranges of names.
    Ranges,
    /// Each Kind with many objects is on a ring of four stores.
    Ring,
    /// The default stores, with Kinds of every mode.
    Modes,
}

/// The Kinds of which the run writes many objects.
const LOADED: [Kind; 7] = [
    Kind { resource: "pods", cuts: NAMES },
    Kind { resource: "nodes", cuts: NAMES },
    Kind { resource: "leases.coordination.k8s.io", cuts: ["kube-node-lease/i", "kube-node-lease/r"] },
    Kind { resource: "events", cuts: NAMES },
    Kind { resource: "configmaps", cuts: NAMES },
    Kind { resource: "secrets", cuts: NAMES },
    Kind { resource: "widgets.example.com", cuts: NAMES },
];
const NAMES: [&str; 2] = ["g", "n"];

impl Map {
    fn text(self) -> anyhow::Result<Option<String>> {
        Ok(match self {
            Self::Ranges => Some(Layout::Ranges.config(&LOADED)?.to_string()),
            Self::Modes => Some(include_str!("configs/modes.yaml").to_owned()),
            Self::Ring => Some(Layout::Ring.config(&LOADED)?.to_string()),
            Self::Default => match std::env::var_os("KINDRED_TEST_CONFIG") {
                Some(path) => {
                    let read = fs::read_to_string(&path);
                    Some(read.with_context(|| format!("KINDRED_TEST_CONFIG={}", path.display()))?)
                }
                None => None,
            },
        })
    }
}

impl Kindred {
    /// Starts it and waits until it is ready.
    async fn start(
        dir: &Path,
        certificates: Certificates,
        map: Map,
        more_flags: &[&str],
    ) -> anyhow::Result<Self> {
        let mut flags: Vec<String> = more_flags.iter().map(|&flag| flag.to_owned()).collect();
        let text = map.text()?;
        if let Some(text) = &text {
            let file = dir.join("config.yaml");
            fs::write(&file, text)?;
            flags.push(format!("--config={}", file.display()));
        }
        let text = text.unwrap_or_else(|| parse::DEFAULT_CONFIG.to_owned());
        let mut client_tls = None;
        match certificates {
            Certificates::Auto => flags.push("--auto-tls".to_owned()),
            Certificates::Given => {
                let authority = Authority::new(dir, "authority")?;
                let (server, client) = (authority.leaf("kindred")?, authority.leaf("apiserver")?);
                flags.extend([
                    format!("--cert-file={}", server.cert.display()),
                    format!("--key-file={}", server.key.display()),
                    format!("--trusted-ca-file={}", authority.cert.display()),
                    "--client-cert-auth".to_owned(),
                ]);
                client_tls = Some(tls_settings(authority.cert, client.cert, client.key));
            }
        }
        let up = Up::start(dir, "kindred", &flags).await?;
        let own = |file: &str| up.data_dir.join("auto-tls").join(file);
        let shard_tls = tls_settings(own("ca.crt"), own("router.crt"), own("router.key"));
        let admin_tls = tls_settings(own("ca.crt"), own("admin.crt"), own("admin.key"));
        let client_tls =
            client_tls.unwrap_or_else(|| tls_settings(own("ca.crt"), own("client.crt"), own("client.key")));
        let mut config = parse::parse_config(&text)?;
        for (name, address) in up.stores()? {
            // `validate` requires an endpoint for every store, as a router does.
            let store = config.stores.iter_mut().find(|store| store.name.0 == name);
            store.with_context(|| format!("{name} is not configured"))?.endpoints = vec![address];
        }
        let config = validate(&config).map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
        Ok(Self { up, config, client_tls, shard_tls, admin_tls })
    }

    /// The name of the store that should have a key.
    pub fn store_of(&self, key: &str) -> &str {
        &self.config.stores[usize::from(self.config.map.store_of(key.as_bytes()).0)].name.0
    }
}

fn tls_settings(authority: PathBuf, cert: PathBuf, key: PathBuf) -> ClientTlsSettings {
    ClientTlsSettings {
        trusted_ca_file: Some(authority),
        identity: Some((cert, key)),
        ..ClientTlsSettings::default()
    }
}

/// The store of the apiservers.
pub enum Store {
    Kindred(Box<Kindred>),
    /// A real etcd without TLS, to test these tests.
    Etcd(Box<Etcd>),
}

/// One store with two apiservers. Fields are dropped in their order, so the apiservers stop first.
pub struct Cluster {
    pub tally: Tally,
    pub first: Apiserver,
    /// Only some steps need it, and start it.
    pub second: Option<Apiserver>,
    pub store: Store,
    files: ClusterFiles,
    etcd_flags: Vec<String>,
    dir: PathBuf,
}

impl Cluster {
    /// Starts the store and the first apiserver. With `KINDRED_KUBE_STORE=etcd` the store is a real etcd.
    pub async fn start(dir: &Path, certificates: Certificates, map: Map) -> anyhow::Result<Self> {
        Self::start_with(dir, certificates, map, &[]).await
    }

    /// Starts it with further flags of `kindred up`. The apiserver knows all routers.
    pub async fn start_with(
        dir: &Path,
        certificates: Certificates,
        map: Map,
        up_flags: &[&str],
    ) -> anyhow::Result<Self> {
        let store = match std::env::var("KINDRED_KUBE_STORE").as_deref() {
            Ok("etcd") => Store::Etcd(Box::new(Etcd::start(dir, "etcd").await?)),
            Ok("kindred") | Err(_) => {
                Store::Kindred(Box::new(Kindred::start(dir, certificates, map, up_flags).await?))
            }
            Ok(other) => bail!("KINDRED_KUBE_STORE={other} is neither kindred nor etcd"),
        };
        // In runs with crashes lost events are counted, so no event may expire meanwhile.
        let event_ttl = if map == Map::Modes { 100 * EVENT_TTL } else { EVENT_TTL };
        let mut etcd_flags = vec![
            format!("--event-ttl={}s", event_ttl.as_secs()),
            format!("--etcd-compaction-interval={}s", COMPACTION_INTERVAL.as_secs()),
        ];
        match &store {
            Store::Etcd(etcd) => etcd_flags.push(format!("--etcd-servers=http://{}", etcd.address)),
            Store::Kindred(kindred) => {
                let tls = &kindred.client_tls;
                let ca = tls.trusted_ca_file.as_ref().context("an authority")?;
                let (cert, key) = tls.identity.as_ref().context("an identity")?;
                let routers = kindred.up.addresses("listen")?;
                let routers: Vec<String> = routers.iter().map(|at| format!("https://{at}")).collect();
                etcd_flags.extend([
                    format!("--etcd-servers={}", routers.join(",")),
                    format!("--etcd-cafile={}", ca.display()),
                    format!("--etcd-certfile={}", cert.display()),
                    format!("--etcd-keyfile={}", key.display()),
                ]);
            }
        }
        let files = ClusterFiles::create(dir)?;
        let mut flags = etcd_flags.clone();
        flags.push("--watch-cache=true".to_owned());
        let first = Apiserver::start(dir, "apiserver-1", &files, &flags).await?;
        let tally = Tally::default();
        Ok(Self { tally, first, second: None, store, files, etcd_flags, dir: dir.to_owned() })
    }

    /// Starts the second apiserver, with or without a watch cache. If it is running, it is restarted with that setting.
    pub async fn start_second(&mut self, cached: bool) -> anyhow::Result<()> {
        let cache = cached.to_string();
        match &mut self.second {
            Some(second) => second.restart(Some(("--watch-cache", cache.as_str()))).await,
            None => {
                let mut flags = self.etcd_flags.clone();
                flags.push(format!("--watch-cache={cache}"));
                let started = Apiserver::start(&self.dir, "apiserver-2", &self.files, &flags).await?;
                self.second = Some(started);
                Ok(())
            }
        }
    }

    /// Starts another apiserver, on a stock etcd without TLS.
    pub async fn apiserver_on(&self, name: &str, etcd: &Etcd) -> anyhow::Result<Apiserver> {
        let mut flags: Vec<String> =
            self.etcd_flags.iter().filter(|flag| !flag.starts_with("--etcd-")).cloned().collect();
        flags.push(format!("--etcd-servers=http://{}", etcd.address));
        Apiserver::start(&self.dir, name, &self.files, &flags).await
    }

    pub fn second(&self) -> anyhow::Result<&Apiserver> {
        self.second.as_ref().context("the second apiserver is not started")
    }

    /// The store, if it is kindred.
    pub fn kindred(&self) -> Option<&Kindred> {
        match &self.store {
            Store::Kindred(kindred) => Some(kindred),
            Store::Etcd(_) => None,
        }
    }

    /// Stops everything, apiservers first, because an apiserver does not stop without its store.
    pub async fn stop(mut self) -> anyhow::Result<Tally> {
        if let Some(second) = &mut self.second {
            second.process.stop().await?;
        }
        self.first.process.stop().await?;
        let stopped = match &mut self.store {
            Store::Kindred(kindred) => kindred.up.process.stop().await?,
            Store::Etcd(etcd) => return etcd.process.stop().await.map(|_| self.tally),
        };
        self.tally.check(stopped.success(), format_args!("kindred up ended with {stopped}"))?;
        Ok(self.tally)
    }
}
