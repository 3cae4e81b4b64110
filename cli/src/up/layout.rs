//! Determines, without I/O, the processes that `kindred up` runs and their arguments.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use kindred_partition_config::{
    model::{KindredConfig, StoreType},
    state::{ClusterState, StoreState},
};
use kindred_transport::{Endpoint, address::AddressError, admin::AdminArgs, auto_tls};

use super::{args::UpArgs, child::Spec, flags};

/// The certificates for connections between the routers and the local stores.
#[derive(Debug, Clone)]
pub struct InternalTls {
    /// The common CA.
    pub ca: PathBuf,
    /// The certificate and key of shards.
    pub server: (PathBuf, PathBuf),
    /// The certificate and key of routers, and of this process when it connects to meta.
    pub router: (PathBuf, PathBuf),
}

impl InternalTls {
    /// The authentication of admin ports: the holder of the admin certificate may change things, other clients of
    /// the CA may read.
    #[must_use]
    pub fn admin_port(&self) -> AdminArgs {
        AdminArgs {
            admin_cert_file: Some(self.server.0.clone()),
            admin_key_file: Some(self.server.1.clone()),
            admin_client_ca_file: Some(self.ca.clone()),
            admin_client_names: vec![auto_tls::ADMIN_NAME.to_owned()],
            ..AdminArgs::default()
        }
    }
}

fn admin_flags(words: &mut Vec<String>, admin: &AdminArgs) {
    for (flag, file) in [
        ("--admin-cert-file", &admin.admin_cert_file),
        ("--admin-key-file", &admin.admin_key_file),
        ("--admin-client-ca-file", &admin.admin_client_ca_file),
        ("--admin-token-file", &admin.admin_token_file),
    ] {
        words.extend(file.iter().flat_map(|file| [flag.to_owned(), file.display().to_string()]));
    }
    if !admin.admin_client_names.is_empty() {
        words.extend(["--admin-client-names".to_owned(), admin.admin_client_names.join(",")]);
    }
    if admin.admin_anonymous_probes {
        words.push("--admin-anonymous-probes".to_owned());
    }
}

/// The file with the secret that routers show to the local shards and the meta store.
#[must_use]
pub fn secret_file(data_dir: &Path) -> PathBuf {
    data_dir.join("cluster-secret")
}

/// The file that a running `kindred up` locks.
#[must_use]
pub fn lock_file(data_dir: &Path) -> PathBuf {
    data_dir.join("lock")
}

/// A store that `kindred up` runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalShard {
    /// The index in the configuration's list of stores.
    pub index: usize,
    pub name: String,
    /// The slot; validation ensures that it is given.
    pub slot: u32,
}

/// The stores without endpoints, which `up` runs; all others run elsewhere.
#[must_use]
pub fn local_shards(config: &KindredConfig) -> Vec<LocalShard> {
    config
        .stores
        .iter()
        .enumerate()
        .filter(|(_, store)| store.store_type == StoreType::Shard && store.endpoints.is_empty())
        .map(|(index, store)| LocalShard {
            index,
            name: store.name.to_string(),
            slot: store.slot.unwrap_or_default(),
        })
        .collect()
}

/// The stores, divided into local and external ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// kube-apiserver's `--etcd-prefix`.
    pub prefix: String,
    /// The stores that `up` runs.
    pub local: Vec<LocalShard>,
    /// The stores that run elsewhere, with their endpoints.
    pub external: Vec<(String, Vec<String>)>,
}

/// The plan of the first start.
#[must_use]
pub fn plan_of_config(config: &KindredConfig) -> Plan {
    let external = config.stores.iter().filter(|store| !store.endpoints.is_empty());
    Plan {
        prefix: config.etcd_prefix.clone(),
        local: local_shards(config),
        external: external.map(|store| (store.name.to_string(), store.endpoints.clone())).collect(),
    }
}

/// The plan by the last state. That state has an address for every store, so a store is local if it has a folder
/// here, or if the configuration gives it no endpoints.
#[must_use]
pub fn plan_of_state(
    state: &ClusterState,
    config: &KindredConfig,
    has_folder: impl Fn(&str) -> bool,
) -> Plan {
    let configured = local_shards(config);
    let mut plan = Plan { prefix: state.etcd_prefix.clone(), local: Vec::new(), external: Vec::new() };
    for (index, store) in state.stores.iter().enumerate() {
        if store.state == StoreState::Removed {
            continue;
        }
        let name = store.name.to_string();
        let here = store.endpoints.is_empty()
            || has_folder(&name)
            || configured.iter().any(|shard| shard.name == name);
        match (store.store_type, here) {
            (StoreType::Shard, true) => {
                plan.local.push(LocalShard { index, name, slot: store.slot.unwrap_or_default().into() });
            }
            _ => plan.external.push((name, store.endpoints.clone())),
        }
    }
    plan
}

/// The file in which a router keeps the last state. Routers are numbered from 0.
#[must_use]
pub fn state_file(data_dir: &Path, router: u16) -> PathBuf {
    data_dir.join(format!("{}.state.json", router_name(router)))
}

fn router_name(router: u16) -> String {
    if router == 0 { "router".to_owned() } else { format!("router-{}", router + 1) }
}

/// The addresses of a router, numbered from 0: each port plus that number, except port 0.
///
/// # Errors
/// For a Unix socket, or when a port would exceed 65535.
pub fn nth_address(flag: &str, list: &str, router: u16) -> anyhow::Result<String> {
    if router == 0 {
        return Ok(list.to_owned());
    }
    let one = |address: &str| {
        let address = address.trim();
        let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let Some((host, port)) = parts else {
            bail!("{flag} {address}: has no port to count on from; give host:port, or run one router");
        };
        let next = if port == 0 { Some(0) } else { port.checked_add(router) };
        let next =
            next.with_context(|| format!("{flag} {address}: no port is left for router {}", router + 1))?;
        Ok(format!("{host}:{next}"))
    };
    let addresses: anyhow::Result<Vec<String>> = list.split(',').map(one).collect();
    Ok(addresses?.join(","))
}

/// The meta store's process. It counts densely, is not in the map, and no router forwards clients to it.
#[must_use]
pub fn meta(program: &Path, args: &UpArgs, listen: SocketAddr, tls: Option<&InternalTls>) -> Spec {
    let mut words: Vec<String> = ["shard", "--exit-with-parent"].map(str::to_owned).to_vec();
    let mut flag = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    flag("name", "meta".to_owned());
    flag("slot", "0".to_owned());
    flag("revisions", "dense".to_owned());
    flag("listen", listen.to_string());
    flag("admin-listen", "127.0.0.1:0".to_owned());
    flag("data-dir", args.data_dir.join("meta").display().to_string());
    flag("durability", "fsync".to_owned());
    flag("cluster-secret-file", secret_file(&args.data_dir).display().to_string());
    flag("log-level", args.log_level.clone());
    flag("log-format", args.log_format.word().to_owned());
    words.extend(flags::of_meta(&args.section).unwrap_or_default());
    also(&mut words, args, flags::META, listen);
    shard_tls(&mut words, tls);
    Spec {
        name: "meta store".to_owned(),
        program: program.to_owned(),
        args: words,
        ready_prefix: "kindred-shard ready",
    }
}

/// Adds the flags that `up` sets to those of the configuration.
fn also(words: &mut Vec<String>, args: &UpArgs, name: &str, listen: SocketAddr) {
    let given = |words: &[String], flag: &str| words.iter().any(|word| word.starts_with(flag));
    if !given(words, "--memory-shared-by") {
        words.push(format!("--memory-shared-by={}", args.local_stores.max(1)));
    }
    // Only at the first start, which has no port yet: damage that is found later has not been accepted.
    let accepts = listen.port() == 0 && args.accept_data_loss.iter().any(|store| store == name);
    if accepts && !given(words, "--accept-data-loss") {
        words.push("--accept-data-loss".to_owned());
    }
}

fn shard_tls(words: &mut Vec<String>, tls: Option<&InternalTls>) {
    let Some(tls) = tls else { return };
    for (flag, file) in
        [("--cert-file", &tls.server.0), ("--key-file", &tls.server.1), ("--trusted-ca-file", &tls.ca)]
    {
        words.extend([flag.to_owned(), file.display().to_string()]);
    }
    words.push("--client-cert-auth".to_owned());
    words.extend(["--router-names".to_owned(), auto_tls::ROUTER_NAME.to_owned()]);
    admin_flags(words, &tls.admin_port());
}

/// The local processes that a router must know.
#[derive(Debug, Clone)]
pub struct Beside {
    pub meta: SocketAddr,
    pub stores: Vec<(String, SocketAddr)>,
}

/// The folders of a store's members: that of the one that was the primary last, and that of its standby.
#[must_use]
pub fn folders(args: &UpArgs, name: &str) -> (PathBuf, PathBuf) {
    let (stores, standbys) = (args.data_dir.join("stores"), args.data_dir.join("standbys"));
    let (primary, standby) =
        if args.swapped.contains(name) { (standbys, stores) } else { (stores, standbys) };
    (primary.join(name), standby.join(name))
}

/// The process of a standby, which follows the shard at `primary`.
#[must_use]
pub fn standby(
    program: &Path,
    args: &UpArgs,
    prefix: &str,
    shard: &LocalShard,
    (primary, listen): (SocketAddr, SocketAddr),
    tls: Option<&InternalTls>,
) -> Spec {
    let mut spec = self::shard(program, args, prefix, shard, listen, tls);
    let (of_primary, of_standby) = folders(args, &shard.name);
    let (from, to) = (of_primary.display().to_string(), of_standby.display().to_string());
    spec.args.iter_mut().filter(|word| **word == from).for_each(|word| word.clone_from(&to));
    let scheme = if tls.is_some() { "https" } else { "http" };
    spec.args.extend(["--standby-of".to_owned(), format!("{scheme}://{primary}")]);
    spec.name = format!("standby {}", shard.name);
    spec
}

/// The Unix socket of a local shard, if `--unix` is set.
///
/// # Errors
/// When its path is too long.
pub fn socket(args: &UpArgs, name: &str) -> Result<Option<Endpoint>, AddressError> {
    let Some(dir) = &args.sockets else { return Ok(None) };
    Endpoint::parse_field("--unix", &format!("unix://{}", dir.join(name).display())).map(Some)
}

/// The URLs of a local shard for routers. A shard whose socket path is too long is reachable by TCP only.
#[must_use]
pub fn urls(args: &UpArgs, name: &str, listen: SocketAddr, tls: bool) -> Vec<String> {
    let scheme = if tls { "https" } else { "http" };
    let socket = socket(args, name).ok().flatten().map(|socket| socket.to_string());
    socket.into_iter().chain([format!("{scheme}://{listen}")]).collect()
}

/// The process of a shard. It listens on `listen` and on its Unix socket if it has one. The port is 0 at the first
/// start, and later the port that it got, so that routers find a restarted shard.
#[must_use]
pub fn shard(
    program: &Path,
    args: &UpArgs,
    prefix: &str,
    shard: &LocalShard,
    listen: SocketAddr,
    tls: Option<&InternalTls>,
) -> Spec {
    let mut words: Vec<String> = ["shard", "--exit-with-parent"].map(str::to_owned).to_vec();
    let mut flag = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    flag("name", shard.name.clone());
    flag("slot", shard.slot.to_string());
    if let Some(cluster) = &args.cluster {
        flag("cluster-id", cluster.cluster_id.to_string());
    }
    // A client that finds one of the two addresses also finds the other.
    let socket = socket(args, &shard.name).ok().flatten().map(|socket| format!("{socket},"));
    flag("listen", format!("{}{listen}", socket.unwrap_or_default()));
    flag("admin-listen", "127.0.0.1:0".to_owned());
    flag("data-dir", folders(args, &shard.name).0.display().to_string());
    flag("etcd-prefix", prefix.to_owned());
    flag("cluster-secret-file", secret_file(&args.data_dir).display().to_string());
    flag("log-level", args.log_level.clone());
    flag("log-format", args.log_format.word().to_owned());
    words.push("--in-cluster".to_owned());
    words.extend(flags::of_shard(&args.section, &shard.name).unwrap_or_default());
    also(&mut words, args, &shard.name, listen);
    shard_tls(&mut words, tls);
    // Any member of a store may be the standby of another one later.
    for (flag, file) in tls.iter().flat_map(|tls| {
        [
            ("--standby-cert-file", &tls.router.0),
            ("--standby-key-file", &tls.router.1),
            ("--standby-trusted-ca-file", &tls.ca),
        ]
    }) {
        words.extend([flag.to_owned(), file.display().to_string()]);
    }
    Spec {
        name: format!("shard {}", shard.name),
        program: program.to_owned(),
        args: words,
        ready_prefix: "kindred-shard ready",
    }
}

/// The shards that run in the process of a router.
#[derive(Debug, Clone, Default)]
pub struct Together {
    /// Their flags at the first start, at which damage may be accepted.
    first: Vec<String>,
    /// Those at every later one.
    again: Vec<String>,
}

impl Together {
    /// Adds a shard, which listens there.
    ///
    /// # Errors
    /// When a flag cannot be written on a command line.
    pub fn add(
        &mut self,
        args: &UpArgs,
        prefix: &str,
        shard: &LocalShard,
        listen: SocketAddr,
        tls: Option<&InternalTls>,
    ) -> anyhow::Result<()> {
        let any = SocketAddr::new(listen.ip(), 0);
        for (starting_at, all) in [(any, &mut self.first), (listen, &mut self.again)] {
            let mut words = self::shard(Path::new(""), args, prefix, shard, starting_at, tls).args;
            if let Some(at) = words.iter().position(|word| word == "--listen") {
                words[at + 1] = listen.to_string();
            }
            // `shard --exit-with-parent` is for a process of its own.
            words.drain(..2);
            let text = shlex::try_join(words.iter().map(String::as_str));
            all.push(text.with_context(|| format!("store {}: the flags of its shard", shard.name))?);
        }
        Ok(())
    }

    /// Adds the shards to the process of a router.
    pub fn join(&self, router: &mut Spec, first: bool) {
        let all = if first { &self.first } else { &self.again };
        router.args.extend(all.iter().flat_map(|flags| ["--with-shard".to_owned(), flags.clone()]));
    }
}

/// The configuration for a router, with the addresses of the local shards filled in.
#[must_use]
pub fn with_endpoints(
    config: &KindredConfig,
    listens: &[(LocalShard, SocketAddr)],
    tls: bool,
) -> KindredConfig {
    let mut config = config.clone();
    let scheme = if tls { "https" } else { "http" };
    for (shard, listen) in listens {
        config.stores[shard.index].endpoints = vec![format!("{scheme}://{listen}")];
    }
    config
}

/// The process of a router, numbered from 0.
#[must_use]
pub fn router(
    program: &Path,
    args: &UpArgs,
    (router, listen, admin): (u16, &str, &str),
    beside: &Beside,
    tls: Option<&InternalTls>,
) -> Spec {
    let mut words: Vec<String> = ["router", "--exit-with-parent"].map(str::to_owned).to_vec();
    let mut flag = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    flag("name", router_name(router));
    flag("listen", listen.to_owned());
    flag("admin", admin.to_owned());
    let probes =
        args.listen_metrics_urls.as_ref().map(|urls| nth_address("--listen-metrics-urls", urls, router));
    if let Some(Ok(probes)) = probes {
        flag("listen-metrics-urls", probes);
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    flag("meta", format!("{scheme}://{}", beside.meta));
    flag("meta-cache", state_file(&args.data_dir, router).display().to_string());
    if let Some(config) = &args.config {
        flag("config", config.display().to_string());
    }
    for (name, at) in &beside.stores {
        flag("store", format!("{name}={}", urls(args, name, *at, tls.is_some()).join(",")));
    }
    if let Some(cluster) = &args.cluster {
        flag("cluster-id", cluster.cluster_id.to_string());
        cluster.lineage.iter().for_each(|lineage| flag("lineage", lineage.to_string()));
    }
    flag("cluster-secret-file", secret_file(&args.data_dir).display().to_string());
    flag("threads", args.threads.to_string());
    flag("log-level", args.log_level.clone());
    flag("log-format", args.log_format.word().to_owned());
    if let Some(urls) = &args.advertise_client_urls {
        flag("advertise-client-urls", urls.clone());
    }
    if let Some(tls) = tls {
        flag("store-cert-file", tls.router.0.display().to_string());
        flag("store-key-file", tls.router.1.display().to_string());
        flag("store-trusted-ca-file", tls.ca.display().to_string());
    }
    if args.cluster.as_ref().is_some_and(|cluster| cluster.lineage.is_some()) {
        words.push("--minted".to_owned());
    }
    words.extend(flags::of_router(&args.section).unwrap_or_default());
    words.extend(args.client_tls_flags());
    admin_flags(&mut words, &args.admin_port);
    Spec {
        name: router_name(router).replace('-', " "),
        program: program.to_owned(),
        args: words,
        ready_prefix: "kindred-router ready",
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::{ids::StoreName, model::StoreConfig, parse};

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        up: UpArgs,
    }

    #[test]
    fn routers_have_consecutive_ports() {
        let nth = |list: &str, router| nth_address("--listen", list, router);
        assert_eq!(nth("127.0.0.1:2379,[::1]:2379", 2).unwrap(), "127.0.0.1:2381,[::1]:2381");
        assert_eq!(nth("127.0.0.1:0", 1).unwrap(), "127.0.0.1:0");
        assert_eq!(nth("unix:/run/k", 0).unwrap(), "unix:/run/k");
        assert!(nth("unix:/run/k", 1).unwrap_err().to_string().contains("--listen unix:/run/k"));
        assert!(nth("127.0.0.1:65535", 1).is_err());
    }

    #[test]
    fn together_a_router_has_the_flags_of_its_shards() {
        let text = ["up", "--together", "--data-dir", "a b", "--accept-data-loss", "pods"];
        let args = <Cli as clap::Parser>::parse_from(text).up;
        let one = LocalShard { index: 0, name: "pods".to_owned(), slot: 1 };
        let mut together = Together::default();
        together.add(&args, "/registry", &one, ([127, 0, 0, 1], 7).into(), None).unwrap();
        let spec = Spec { name: String::new(), program: "x".into(), args: Vec::new(), ready_prefix: "" };
        for first in [true, false] {
            let mut spec = spec.clone();
            together.join(&mut spec, first);
            let [flag, flags] = &spec.args[..] else { panic!("{:?}", spec.args) };
            assert!(
                flag == "--with-shard" && flags.starts_with("--name pods --slot 1 --listen 127.0.0.1:7 ")
            );
            assert!(flags.contains("--admin-listen 127.0.0.1:0 --data-dir 'a b/stores/pods'"), "{flags}");
            // Damage that is found later has not been accepted.
            assert_eq!(flags.contains("--accept-data-loss"), first);
        }
    }

    #[test]
    fn with_unix_a_shard_is_reached_by_its_socket_and_by_tcp() {
        let mut args = <Cli as clap::Parser>::parse_from(["up", "--unix", "--data-dir", "d"]).up;
        let (at, pods) = (([127, 0, 0, 1], 7).into(), "pods");
        assert_eq!(urls(&args, pods, at, false), ["http://127.0.0.1:7"], "no folder was made");
        args.sockets = Some("/d/sockets".into());
        assert_eq!(urls(&args, pods, at, true), ["unix:///d/sockets/pods", "https://127.0.0.1:7"]);
        let one = LocalShard { index: 0, name: pods.to_owned(), slot: 1 };
        let spec = shard(Path::new("kindred"), &args, "/registry", &one, at, None);
        let listen = spec.args.iter().position(|word| word == "--listen").map(|at| &spec.args[at + 1]);
        assert_eq!(listen.unwrap(), "unix:///d/sockets/pods,127.0.0.1:7");
        let beside = Beside { meta: at, stores: vec![(pods.to_owned(), at)] };
        let spec = router(Path::new("kindred"), &args, (0, "127.0.0.1:1", "127.0.0.1:2"), &beside, None);
        assert!(spec.args.contains(&"pods=unix:///d/sockets/pods,http://127.0.0.1:7".to_owned()));
        args.sockets = Some(format!("/{}", "d".repeat(110)).into());
        assert!(socket(&args, pods).unwrap_err().to_string().starts_with("--unix: "));
        assert_eq!(urls(&args, pods, at, false), ["http://127.0.0.1:7"]);
    }

    #[test]
    fn r19_with_tls_either_member_of_a_store_can_follow_the_other() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            up: UpArgs,
        }
        let args = <Cli as clap::Parser>::parse_from(["up", "--standbys", "--data-dir", "d"]).up;
        let pair = |name: &str| (format!("{name}.crt").into(), format!("{name}.key").into());
        let tls = InternalTls { ca: "ca.crt".into(), server: pair("server"), router: pair("client") };
        let one = LocalShard { index: 0, name: "pods".to_owned(), slot: 1 };
        let (program, at): (_, SocketAddr) = (Path::new("kindred"), ([127, 0, 0, 1], 7).into());
        let first = shard(program, &args, "/registry", &one, at, Some(&tls));
        let second = standby(program, &args, "/registry", &one, (at, at), Some(&tls));
        for (flag, file) in [
            ("--standby-trusted-ca-file", "ca.crt"),
            ("--standby-cert-file", "client.crt"),
            ("--standby-key-file", "client.key"),
        ] {
            for spec in [&first, &second] {
                let given = spec.args.windows(2).filter(|pair| pair[0] == flag);
                assert_eq!(given.map(|pair| pair[1].as_str()).collect::<Vec<_>>(), [file], "{spec:?}");
            }
        }
    }

    #[test]
    fn f40_flags_of_the_configuration_reach_their_processes() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            up: UpArgs,
        }
        let words = ["up", "--data-dir", "d", "--accept-data-loss", "pods,meta"];
        let mut args = <Cli as clap::Parser>::parse_from(words).up;
        args.local_stores = 5;
        args.section = parse::parse_object(
            "shard: {durability: buffered}\nstores: {pods: {quota-backend-bytes: 7, memory-shared-by: 2}}\n\
             meta: {checkpoint-bytes: 9}\nrouter: {revision-scope: global}\n",
        )
        .unwrap();
        let (any, at): (SocketAddr, SocketAddr) = (([127, 0, 0, 1], 0).into(), ([127, 0, 0, 1], 7).into());
        let of = |name: &str, listen| {
            let one = LocalShard { index: 0, name: name.to_owned(), slot: 1 };
            shard(Path::new("kindred"), &args, "/registry", &one, listen, None).args
        };
        let has = |words: &[String], word: &str| words.iter().any(|one| one == word);
        let pods = of("pods", any);
        for word in
            ["--durability=buffered", "--quota-backend-bytes=7", "--memory-shared-by=2", "--accept-data-loss"]
        {
            assert!(has(&pods, word), "{word}: {pods:?}");
        }
        assert!(!has(&of("pods", at), "--accept-data-loss"), "only once");
        let events = of("events", any);
        assert!(has(&events, "--memory-shared-by=5") && !has(&events, "--accept-data-loss"), "{events:?}");
        let store = meta(Path::new("kindred"), &args, any, None).args;
        assert!(has(&store, "--checkpoint-bytes=9") && has(&store, "--accept-data-loss"), "{store:?}");
        let beside = Beside { meta: at, stores: Vec::new() };
        let routed = router(Path::new("kindred"), &args, (0, "127.0.0.1:1", "127.0.0.1:2"), &beside, None);
        assert!(has(&routed.args, "--revision-scope=global"));
    }

    #[test]
    fn after_a_restart_the_stores_of_the_state_are_run() {
        let config = parse::parse_config(parse::DEFAULT_CONFIG).unwrap();
        let first = plan_of_config(&config);
        assert_eq!((first.local.len(), first.external.len()), (5, 0));
        let mut state = ClusterState::bootstrap(&config).unwrap();
        let added = |name: &str| StoreConfig {
            standby: None,
            adopting: false,
            name: StoreName(name.to_owned()),
            slot: None,
            endpoints: vec!["127.0.0.1:1".to_owned()],
            store_type: StoreType::Shard,
        };
        state = state.add_store(added("here")).unwrap().0;
        state = state.add_store(added("there")).unwrap().0;
        let plan = plan_of_state(&state, &config, |name| name == "here");
        assert_eq!(plan.local[..5], first.local[..]);
        assert_eq!(plan.local[5], LocalShard { index: 5, name: "here".to_owned(), slot: 6 });
        assert_eq!(plan.external, [("there".to_owned(), vec!["127.0.0.1:1".to_owned()])]);
    }
}
