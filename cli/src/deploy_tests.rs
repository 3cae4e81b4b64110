//! Keeps the files under `deploy/` in line with the programs: the programs' own parsers parse every command line in
//! them, and the router's parser every configuration.

use std::{fs, path::PathBuf};

use clap::Parser;
use kindred_partition_config::{
    model::{KindredConfig, StoreConfig},
    parse, validate,
};

use crate::cli::Cli;

mod runbook;
mod systemd;

use systemd::{FIRST, SECOND, UNITS, unit_command};

/// The compose files, with the number of their services.
const COMPOSE: [(&str, usize); 2] = [("compose.yaml", 8), ("two-machines/compose.yaml", 6)];

fn deploy(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn yaml(text: &str) -> serde_json::Value {
    serde_saphyr::from_str(text).unwrap()
}

/// Parses a command line like the program that it names.
fn check(words: &[String]) {
    let (program, rest) = words.split_first().expect("a command line has a program");
    let program = program.rsplit('/').next().unwrap_or(program);
    assert_eq!(program, "kindred", "{words:?} is not our program");
    if let Err(error) = Cli::try_parse_from(std::iter::once("kindred").chain(rest.iter().map(String::as_str)))
    {
        panic!("{words:?}\n{error}");
    }
}

/// The router of the documentation, whose meta store is an etcd.
#[test]
fn the_documented_router_of_an_etcd_starts() {
    let page = deploy("../docs/operations.md");
    let block = page.split("```").find(|block| block.trim_start().starts_with("kindred router --meta"));
    let words = block.expect("a block").split_whitespace().filter(|word| *word != "…");
    check(&words.map(str::to_owned).collect::<Vec<_>>());
}

/// The services of a compose file that run our programs, with their command lines.
fn services(file: &str) -> Vec<(String, serde_json::Value, Vec<String>)> {
    let compose = yaml(&deploy(file));
    let services = compose["services"].as_object().unwrap().iter();
    let ours = services.filter(|(_, service)| service["build"]["target"] != "certificates");
    let services = ours.map(|(name, service)| {
        let words = serde_json::from_value(service["command"].clone());
        (name.clone(), service.clone(), words.unwrap_or_else(|e| panic!("{file}: {name}: {e}")))
    });
    services.collect()
}

#[test]
fn compose_and_image_commands_parse() {
    for (file, count) in COMPOSE {
        let services = services(file);
        assert_eq!(services.len(), count, "{file}");
        for (_, _, words) in services {
            check(&[vec!["kindred".to_owned()], words].concat());
        }
    }

    let dockerfile = deploy("Dockerfile");
    for keyword in ["HEALTHCHECK", "CMD ["] {
        let line = dockerfile.lines().find(|l| l.starts_with(keyword)).expect(keyword);
        let words: Vec<String> = serde_json::from_str(&line[line.find('[').expect("JSON form")..]).unwrap();
        let words = if words[0] == "kindred" { words } else { [vec!["kindred".to_owned()], words].concat() };
        check(&words);
    }
}

/// The flags of a member of the meta store are those that the documentation names, but for its values. A test of
/// `tests/failover` starts members with them.
#[test]
fn a_member_of_the_meta_store_is_started_as_documented() {
    let unit = deploy("systemd/kindred-meta-etcd.service");
    let line =
        unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/")).expect("ExecStart");
    let line = line.replace("${KINDRED_META_NAME}", "meta0").replace("${KINDRED_META_ADDRESS}", "10.0.0.1");
    let cluster =
        unit.lines().find_map(|line| line.strip_prefix("# KINDRED_META_CLUSTER=")).expect("an example");
    let line = line.replace("${KINDRED_META_CLUSTER}", cluster);
    let page = deploy("../docs/operations.md");
    let block =
        page.split("```").find(|block| block.trim_start().starts_with("etcd --name")).expect("a block");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(block), words(&line));
    for section in ["[Unit]", "[Service]", "[Install]", "StateDirectoryMode=0700"] {
        assert!(unit.contains(section), "{section}");
    }
}

/// The command lines of all files.
fn commands() -> Vec<Vec<String>> {
    let units = UNITS.map(unit_command);
    let services = COMPOSE.into_iter().flat_map(|(file, _)| services(file)).map(|(_, _, words)| words);
    let dockerfile = deploy("Dockerfile");
    let line = dockerfile.lines().find(|line| line.starts_with("CMD [")).expect("CMD");
    let image = serde_json::from_str(&line["CMD ".len()..]).unwrap();
    units.into_iter().chain(services).chain([image]).collect()
}

/// No unknown client reaches an admin port or writes to a shard of a cluster.
#[test]
fn f32_f33_no_file_serves_everybody() {
    let commands = commands();
    assert_eq!(commands.len(), 6 + 8 + 6 + 1);
    for words in commands {
        let value = |flag: &str| words.iter().position(|word| word == flag).map(|at| words[at + 1].as_str());
        let has = |flags: &[&str]| flags.iter().any(|flag| words.iter().any(|word| word == flag));
        for flag in ["--admin", "--admin-listen"] {
            let local = value(flag).is_none_or(|address| address.starts_with("127.0.0.1:"));
            assert!(local || has(&["--admin-client-ca-file", "--admin-token-file"]), "{words:?}");
        }
        if has(&["--in-cluster"]) || value("--slot") == Some("0") {
            assert!(has(&["--router-names", "--cluster-secret-file"]), "{words:?}");
        } else if value("--listen").is_some_and(|address| !address.starts_with("127.0.0.1:")) {
            assert!(has(&["--trusted-ca-file", "--insecure-listen"]), "{words:?}");
        }
    }
    for unit in UNITS {
        assert!(deploy(unit).contains("StateDirectoryMode=0700"), "f34: {unit}");
    }
}

#[test]
fn the_spread_configuration_is_valid() {
    let config = parse::parse_config(&deploy("spread.yaml")).unwrap();
    validate::validate(&config).unwrap_or_else(|errors| panic!("{errors:?}"));
}

#[test]
fn the_compose_configuration_names_its_services() {
    let config = parse::parse_config(&deploy("kindred.yaml")).unwrap();
    let map = validate::validate(&config).unwrap_or_else(|errors| panic!("{errors:?}"));
    drop(map);
    let compose = yaml(&deploy("compose.yaml"));
    for store in &config.stores {
        let command = &compose["services"][store.name.to_string()]["command"];
        let words: Vec<String> = serde_json::from_value(command.clone()).unwrap();
        let at = words.iter().position(|w| w == "--slot").expect("--slot");
        assert_eq!(words[at + 1], store.slot.unwrap().to_string(), "slot of {}", store.name);
        assert_eq!(store.endpoints, [format!("https://{}:2379", store.name)]);
    }
}

/// The value of a flag.
fn value<'w>(words: &'w [String], flag: &str) -> Option<&'w str> {
    let at = words.iter().position(|word| word == flag)?;
    words.get(at + 1).map(String::as_str)
}

/// A container can write its volume alone, gains no rights, has a limit of memory, and is started again.
#[test]
fn containers_are_closed_and_limited() {
    for (file, _) in COMPOSE {
        let compose = yaml(&deploy(file));
        for (name, service) in compose["services"].as_object().unwrap() {
            let at = format!("{file}: {name}");
            assert_eq!(service["read_only"], true, "{at}");
            assert_eq!(service["cap_drop"], serde_json::json!(["ALL"]), "{at}");
            assert_eq!(service["security_opt"], serde_json::json!(["no-new-privileges:true"]), "{at}");
            assert!(service["mem_limit"].is_string(), "{at}: a quota is a part of mem_limit");
            assert!(service["privileged"].is_null() && service["cap_add"].is_null(), "{at}");
        }
        for (name, service, words) in services(file) {
            assert_eq!(service["restart"], "always", "{file}: {name}");
            let probe: Vec<String> = match &service["healthcheck"]["test"] {
                serde_json::Value::Null => vec![],
                test => serde_json::from_value(test.clone()).unwrap(),
            };
            let admin =
                value(&words, "--admin").or_else(|| value(&words, "--admin-listen")).expect("an admin port");
            if probe.is_empty() {
                assert_eq!(admin, "127.0.0.1:2381", "{file}: {name}: the image's own check asks there");
            } else {
                check(&probe[1..]);
                assert_eq!(
                    value(&probe, "--admin"),
                    Some(format!("http://{admin}").as_str()),
                    "{file}: {name}"
                );
            }
        }
    }
    let image = deploy("Dockerfile");
    let last = image.rsplit("\nFROM ").next().unwrap();
    assert!(last.starts_with("scratch\n") && last.contains("\nUSER 2379:2379\n"), "{last}");
    assert!(!last.contains("RUN "), "nothing runs in an image without a shell");
}

/// One service makes all certificates, for the names by which the others know each other.
#[test]
fn the_certificates_of_compose_name_every_service() {
    let compose = yaml(&deploy("compose.yaml"));
    let made = &compose["services"]["certificates"];
    let words: Vec<String> = serde_json::from_value(made["command"].clone()).unwrap();
    let volume = format!("pki:{}", words[0]);
    assert_eq!(made["volumes"], serde_json::json!([volume]));
    for (name, service, command) in services("compose.yaml") {
        assert!(words[1..].contains(&name), "no certificate is for {name}");
        let mounts: Vec<String> = serde_json::from_value(service["volumes"].clone()).unwrap();
        assert!(mounts.contains(&format!("{volume}:ro")), "{name}");
        for file in command.iter().filter(|word| word.starts_with(&words[0])) {
            let made = file.rsplit('/').next().unwrap().rsplit_once('.').unwrap().0;
            let script = deploy("certificates");
            let makes = |verb: &str| script.lines().any(|line| line.starts_with(&format!("{verb} {made} ")));
            assert!(makes("leaf") || makes("authority"), "{name}: deploy/certificates does not make {file}");
        }
        assert!(service["depends_on"]["certificates"].is_object(), "{name}");
    }
}

#[test]
fn f39_no_store_of_the_files_comes_back_empty_and_every_router_has_a_meta_store() {
    let mut kept = std::collections::BTreeSet::new();
    for (file, name, service, words) in COMPOSE.into_iter().flat_map(|(file, _)| {
        services(file).into_iter().map(move |(name, service, words)| (file, name, service, words))
    }) {
        let compose = yaml(&deploy(file));
        let mounts: Vec<String> = serde_json::from_value(service["volumes"].clone()).unwrap();
        let folder = match words[0].as_str() {
            "shard" => value(&words, "--data-dir"),
            _ => {
                value(&words, "--meta-cache").and_then(|file| file.rsplit_once('/')).map(|(folder, _)| folder)
            }
        };
        let folder = folder.unwrap_or_else(|| panic!("{name} keeps nothing"));
        let volume = mounts.iter().find_map(|mount| mount.strip_suffix(&format!(":{folder}")));
        let volume = volume.unwrap_or_else(|| panic!("{name}: no volume at {folder}"));
        assert!(compose["volumes"].get(volume).is_some(), "{name}: no volume {volume}");
        assert!(kept.insert((file, volume.to_owned())), "{name}: volume {volume} is another's");
        if words[0] == "router" && file == "compose.yaml" {
            assert_eq!(value(&words, "--meta"), Some("https://meta:2379"), "{name}");
        }
    }
    let compose = yaml(&deploy("compose.yaml"));
    let meta: Vec<String> = serde_json::from_value(compose["services"]["meta"]["command"].clone()).unwrap();
    let said = ["--revisions", "--durability", "--slot"].map(|flag| value(&meta, flag).unwrap());
    assert_eq!(said, ["dense", "fsync", "0"]);

    for (unit, flags) in [
        ("systemd/kindred-router.service", &["--meta", "--meta-cache"][..]),
        ("systemd/kindred-shard@.service", &["--data-dir"]),
        ("systemd/kindred-meta.service", &["--data-dir"]),
        (FIRST, &["--data-dir"]),
        (SECOND, &["--data-dir"]),
    ] {
        let text = deploy(unit);
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let folder = text.lines().find_map(|line| line.strip_prefix("StateDirectory=")).unwrap();
        for flag in flags {
            let given = value(&words, flag).unwrap_or_else(|| panic!("{unit}: no {flag}"));
            assert!(*flag == "--meta" || given.starts_with(&format!("/var/lib/{folder}")), "{unit}: {given}");
        }
    }
}

/// What only one member of a store is told, left out.
fn of_both(words: &[String], own: &[&str]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if own.contains(&word.as_str()) {
            words.next();
        } else {
            kept.push(word.clone());
        }
    }
    kept
}

/// Members change roles, so they differ only in what they follow at first; and one that ends must be started again.
#[test]
fn r19_both_members_of_a_store_on_two_machines_may_be_its_primary() {
    assert_eq!(of_both(&unit_command(SECOND), &["--standby-of"]), unit_command(FIRST));
    for unit in [FIRST, SECOND] {
        let text = deploy(unit);
        for line in ["Restart=always", "StartLimitIntervalSec=0"] {
            assert!(text.lines().any(|has| has == line), "{unit} lacks {line}");
        }
    }
    let file = "two-machines/compose.yaml";
    let config: KindredConfig = parse::parse_config(&deploy("two-machines/kindred.yaml")).unwrap();
    validate::validate(&config).unwrap_or_else(|errors| panic!("{errors:?}"));
    let services = services(file);
    let compose = yaml(&deploy(file));
    assert_eq!(compose["x-kindred"]["restart"], "always");
    let service =
        |name: &str| services.iter().find(|(has, ..)| has == name).unwrap_or_else(|| panic!("{name}"));
    for StoreConfig { name, slot, endpoints, standby, .. } in &config.stores {
        let standby = standby.as_ref().unwrap_or_else(|| panic!("{name} has no standby"));
        let [(_, first, of_first), (_, second, of_second)] =
            ["first", "second"].map(|member| service(&format!("{name}-{member}")));
        assert_eq!(of_both(of_second, &["--standby-of"]), *of_first, "{name}");
        assert_eq!(value(of_first, "--name"), Some(name.0.as_str()));
        assert_eq!(value(of_first, "--slot"), slot.map(|slot| slot.to_string()).as_deref(), "{name}");
        assert_eq!(value(of_second, "--standby-of"), Some(endpoints[0].as_str()), "{name}");
        for (service, url) in [(first, &endpoints[0]), (second, &standby.endpoints[0])] {
            let machine = service["profiles"][0].as_str().unwrap();
            let port =
                value(of_first, "--listen").and_then(|listen| listen.strip_prefix("0.0.0.0:")).unwrap();
            assert_eq!(*url, format!("https://machine-{machine}:{port}"), "{name}");
        }
        assert_ne!(first["profiles"], second["profiles"], "{name}");
        for flag in ["--standby-cert-file", "--standby-key-file", "--standby-trusted-ca-file"] {
            assert!(value(of_first, flag).is_some(), "{name}: no {flag}");
        }
    }
    for machine in ["a", "b"] {
        let (_, router, words) = service(&format!("router-{machine}"));
        assert_eq!(router["profiles"][0], machine);
        assert_eq!(
            value(words, "--meta").unwrap().split(',').count(),
            3,
            "the meta store outlives a machine"
        );
    }
}

#[test]
fn kubeadm_and_k3s_files_name_three_tls_files_and_an_endpoint() {
    let kubeadm = yaml(&deploy("kubeadm/cluster-configuration.yaml"));
    let external = kubeadm["etcd"]["external"].as_object().unwrap();
    for field in ["caFile", "certFile", "keyFile"] {
        assert!(external[field].as_str().unwrap().starts_with('/'), "{field}");
    }
    assert!(external["endpoints"][0].as_str().unwrap().starts_with("https://"));
    let k3s = yaml(&deploy("k3s/config.yaml"));
    for field in ["datastore-endpoint", "datastore-cafile", "datastore-certfile", "datastore-keyfile"] {
        assert!(k3s[field].is_string(), "{field}");
    }
}

/// The metric names in a rule, without the suffixes of histograms.
fn metrics_in(expression: &str) -> Vec<&str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("kindred_") || word.starts_with("etcd_"));
    let bare = |name| ["_bucket", "_count", "_sum"].iter().find_map(|end| str::strip_suffix(name, end));
    names.map(|name| bare(name).unwrap_or(name)).collect()
}

/// The names of all metrics that routers and shards export.
fn exported() -> Vec<&'static str> {
    let all = kindred_router::metrics::all().into_iter().chain(kindred_shard::metrics::all());
    all.map(|metric| metric.name).collect()
}

#[test]
fn dashboards_show_metrics_that_exist() {
    let dashboard: serde_json::Value = serde_json::from_str(&deploy("grafana/kindred.json")).unwrap();
    let known = exported();
    let mut shown = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array();
        if panel["type"] == "row" {
            continue;
        }
        for target in targets.unwrap_or_else(|| panic!("{title} asks for nothing")) {
            let expression = target["expr"].as_str().unwrap();
            let named = metrics_in(expression);
            assert!(!named.is_empty(), "{title}: {expression} names no metric");
            for name in named {
                // Those of a process come from the library that Prometheus' clients have.
                assert!(known.contains(&name), "{title} asks for {name}, which nobody exports");
                shown.push(name);
            }
        }
    }
    assert!(shown.iter().filter(|name| name.starts_with("kindred_kind_")).count() >= 6, "{shown:?}");
}

#[test]
fn r17_alerts_name_metrics_and_buckets_that_exist() {
    let rules = yaml(&deploy("prometheus/kindred.rules.yaml"));
    let known = exported();
    for alert in
        ["KindredNoStandbyInSync", "KindredStandbyTrouble", "KindredFailover", "KindredWritesBypassRouters"]
    {
        assert!(deploy("prometheus/kindred.rules.yaml").contains(&format!("alert: {alert}\n")), "{alert}");
    }
    let mut alerts = 0;
    for rule in rules["groups"].as_array().unwrap().iter().flat_map(|g| g["rules"].as_array().unwrap()) {
        let (alert, expression) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        let named = metrics_in(expression);
        assert!(!named.is_empty(), "{alert} asks for nothing");
        for name in named {
            assert!(known.contains(&name), "{alert} asks for {name}, which nobody exports");
        }
        if let Some((before, rest)) = expression.split_once("_bucket{le=\"") {
            let metric = before.rsplit(['(', ' ']).next().unwrap();
            let bound: f64 = rest.split('"').next().unwrap().parse().unwrap();
            let buckets = kindred_router::metrics::buckets(metric);
            assert!(buckets.is_some_and(|bounds| bounds.contains(&bound)), "{alert}: no bucket {bound}");
        }
        assert!(rule["annotations"]["action"].is_string(), "{alert} says not what to do");
        alerts += 1;
    }
    assert!(alerts >= 11, "{alerts} alerts");
}
