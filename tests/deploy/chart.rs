//! What the chart renders fits the programs, and values that fit nothing are refused.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use clap::Parser;
use kindred_partition_config::{parse::parse_config, validate::validate};
use kindred_shard::config::Settings;
use serde_json::Value;

use crate::deploy::{
    pods::{Pod, pods},
    render::{VARIANTS, chart, deploy, id, lint, of_kind},
};

/// The programs' own flags.
#[derive(Debug, Parser)]
enum Program {
    Shard(Box<ShardArgs>),
    Router(Box<RouterArgs>),
}

#[derive(Debug, clap::Args)]
struct ShardArgs {
    #[command(flatten)]
    args: kindred_shard::Args,
}

#[derive(Debug, clap::Args)]
struct RouterArgs {
    #[command(flatten)]
    args: kindred_router::config::Args,
}

fn program(pod: &Pod) -> anyhow::Result<Program> {
    Program::try_parse_from(std::iter::once("kindred".to_owned()).chain(pod.args.clone()))
        .with_context(|| format!("{}: {:?}", pod.name, pod.args))
}

/// The text of a file that a ConfigMap has, by its path in a pod.
pub fn config_file(objects: &[Value], pod: &Pod, path: &str) -> anyhow::Result<String> {
    let (volume, file) = pod.volume(path).with_context(|| format!("{}: no volume has {path}", pod.name))?;
    let map =
        of_kind(objects, "ConfigMap").find(|map| map["metadata"]["name"] == volume["configMap"]["name"]);
    let map = map.with_context(|| format!("{}: no ConfigMap is {volume}", pod.name))?;
    Ok(map["data"][file].as_str().with_context(|| format!("{} has no {file}", id(map)))?.to_owned())
}

#[test]
fn the_chart_is_as_helm_wants_it_and_of_the_version_of_the_programs() {
    for (name, flags) in VARIANTS {
        lint(flags).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
    let chart = std::fs::read_to_string(deploy("helm/kindred/Chart.yaml")).unwrap();
    let chart: Value = serde_saphyr::from_str(&chart).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_programs_understand_the_command_lines_of_all_pods() {
    for (variant, flags) in VARIANTS {
        let objects = chart(flags).unwrap();
        for pod in pods(&objects).unwrap() {
            check_pod(&objects, &pod).unwrap_or_else(|error| panic!("{variant}: {error:#}"));
        }
    }
}

fn check_pod(objects: &[Value], pod: &Pod) -> anyhow::Result<()> {
    let admin = match program(pod)? {
        Program::Shard(shard) => {
            let mut args = shard.args;
            if let Some(file) = args.config.take() {
                let text = config_file(objects, pod, file.to_str().context("a path")?)?;
                let folder = tempfile::tempdir()?;
                let file = folder.path().join("member.yaml");
                std::fs::write(&file, &text)?;
                args.config = Some(file);
                let settings = Settings::resolve(args.clone()).with_context(|| text.clone())?;
                let first = pod.name.ends_with("-0");
                ensure!(settings.standby_of.is_none() == first, "{}: {text}", pod.name);
                ensure!(settings.in_cluster, "{}", pod.name);
            } else {
                Settings::resolve(args.clone())?;
            }
            ensure_no_key_of_others(pod, &args)?;
            ensure!(pod.ready == if args.config.is_some() { "/readyz?exclude=clock" } else { "/readyz" });
            let kept =
                args.options.data_dir.context("a shard without a folder is another store at each start")?;
            let (volume, _) = pod.volume(kept.to_str().context("a path")?).context("no volume")?;
            ensure!(volume["kind"] == "PersistentVolumeClaim", "{}: {volume}", pod.name);
            args.admin
        }
        Program::Router(router) => {
            let config = config_file(objects, pod, pod.flag("--config").context("--config")?)?;
            let config = parse_config(&config)?;
            validate(&config).map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
            check_addresses(objects, pod, &config)?;
            router.args.admin_port
        }
    };
    // Kubelets have no certificate, and everybody else needs one.
    ensure!(admin.admin_anonymous_probes && admin.admin_client_ca_file.is_some(), "{}", pod.name);
    ensure!(admin.admin_client_names == ["kindred-admin"], "{}", pod.name);
    for arg in
        pod.args.iter().filter_map(|arg| arg.split_once('=')).filter(|(_, path)| path.contains("/pki/"))
    {
        let (volume, file) = pod.volume(arg.1).with_context(|| format!("{}: {arg:?}", pod.name))?;
        ensure!(volume["secret"]["secretName"].is_string(), "{}: {arg:?} is in {volume}", pod.name);
        ensure!(["tls.crt", "tls.key", "ca.crt"].contains(&file), "{}: {arg:?}", pod.name);
    }
    Ok(())
}

/// Every pod of a store had the key of a router, with which everything can be read and written at every shard.
fn ensure_no_key_of_others(pod: &Pod, args: &kindred_shard::config::Args) -> anyhow::Result<()> {
    let own = args.tls.cert_file.as_deref().context("--cert-file")?;
    for (path, volume) in &pod.mounts {
        let only_ca = volume["secret"]["items"]
            .as_array()
            .is_some_and(|items| items.iter().all(|item| item["key"] == "ca.crt"));
        let is_own = own.starts_with(path);
        ensure!(volume["secret"].is_null() || is_own || only_ca, "{}: it has {volume}", pod.name);
    }
    let standby = &args.standby_tls;
    ensure!(standby.standby_cert_file.as_deref().is_none_or(|shown| shown == own), "{standby:?}");
    Ok(())
}

/// Every address in the configuration is a member's, with the slot of its store, and every member is there.
fn check_addresses(
    objects: &[Value],
    router: &Pod,
    config: &kindred_partition_config::model::KindredConfig,
) -> anyhow::Result<()> {
    let members: Vec<Pod> = pods(objects)?.into_iter().filter(|pod| pod.args[0] == "shard").collect();
    let find = |url: &str| {
        let host = url.strip_prefix("https://").and_then(|url| url.strip_suffix(":2379"));
        members.iter().find(|pod| pod.host.as_deref() == host).with_context(|| format!("nobody is at {url}"))
    };
    let mut named = BTreeSet::new();
    for store in &config.stores {
        let standbys = store.standby.iter().flat_map(|standby| &standby.endpoints);
        for url in store.endpoints.iter().chain(standbys) {
            let pod = find(url)?;
            ensure!(pod.flag("--name") == Some(store.name.0.as_str()), "{url}");
            ensure!(pod.flag("--slot") == store.slot.map(|slot| slot.to_string()).as_deref(), "{url}");
            ensure!(named.insert(pod.name.clone()), "{url} is there twice");
        }
    }
    let meta = router.flag("--meta").context("--meta")?;
    match meta.strip_prefix("https://192.0.2.1:2390,") {
        Some(_) => ensure!(router.flag("--meta-cert-file").is_some()),
        None => ensure!(named.insert(find(meta)?.name.clone()), "the meta store is a store"),
    }
    ensure!(named.len() == members.len(), "{named:?} are not all of {members:?}");
    Ok(())
}

/// A member that a drained node would take must not be the only copy, and no pod may have more rights than it needs.
#[test]
fn pods_are_kept_apart_closed_and_guarded_against_eviction() {
    for (variant, flags) in VARIANTS {
        let objects = chart(flags).unwrap();
        let sets: Vec<&Value> =
            of_kind(&objects, "StatefulSet").chain(of_kind(&objects, "Deployment")).collect();
        for set in sets {
            let at = format!("{variant}: {}", id(set));
            let spec = &set["spec"]["template"]["spec"];
            assert_eq!(spec["automountServiceAccountToken"], false, "{at}");
            let container = &spec["containers"][0];
            assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true, "{at}");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{at}");
            let labels = &set["spec"]["template"]["metadata"]["labels"];
            assert_eq!(&set["spec"]["selector"]["matchLabels"], labels, "{at}");
            let selects = |budget: &&Value| &budget["spec"]["selector"]["matchLabels"] == labels;
            let guarded = of_kind(&objects, "PodDisruptionBudget").filter(selects).count();
            let several = set["spec"]["replicas"].as_u64().unwrap() > 1;
            assert_eq!(guarded, usize::from(several && variant != "small"), "{at}");
            let spread = &spec["topologySpreadConstraints"][0];
            let apart = if variant == "small" { "ScheduleAnyway" } else { "DoNotSchedule" };
            assert_eq!(spread["whenUnsatisfiable"], apart, "{at}");
            assert_eq!(&spread["labelSelector"]["matchLabels"], labels, "{at}");
            if set["kind"] == "StatefulSet" && set["spec"]["replicas"] != 1 {
                assert_eq!(set["spec"]["podManagementPolicy"], "Parallel", "{at}");
            }
        }
    }
}

#[test]
fn values_that_fit_nothing_are_refused_by_name() {
    for (set, said) in [
        ("router.replica=3", "replica"),
        ("default=nowhere", "there is no store nowhere"),
        ("stores[0].name=meta,stores[0].slot=1", "/stores/0/name"),
        ("stores[0].name=pods,stores[0].slot=9,stores[1].name=pods,stores[1].slot=2", "pods is there twice"),
        ("stores[0].name=default,stores[0].slot=2,stores[1].name=pods,stores[1].slot=2", "have the slot 2"),
        ("stores[0].name=default,stores[0].slot=1,stores[0].members=4", "/stores/0/members"),
        (
            "partitions[0].metadata.name=x,partitions[0].resource=x,partitions[0].serviceGroupId=y",
            "no store y",
        ),
        ("meta.endpoints={http://plain:2379}", "/meta/endpoints/0"),
        ("storeDefaults.resources.limits=null", "limits"),
    ] {
        let error = chart(&["--set", set]).expect_err(set);
        assert!(format!("{error:#}").contains(said), "{set}: {error:#}");
    }
}
