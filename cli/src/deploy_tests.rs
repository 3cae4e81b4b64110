//! Keeps the files under `deploy/` in line with the programs: the programs' own parsers parse every command line in
//! them, and the router's parser every configuration.

use std::{fs, path::PathBuf};

use clap::Parser;
use kindred_partition_config::{parse, validate};

use crate::cli::Cli;

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
    let args: Vec<&str> = match program {
        "kindred" => std::iter::once("kindred").chain(rest.iter().map(String::as_str)).collect(),
        "kindred-shard" => ["kindred", "shard"].into_iter().chain(rest.iter().map(String::as_str)).collect(),
        "kindred-router" => {
            ["kindred", "router"].into_iter().chain(rest.iter().map(String::as_str)).collect()
        }
        other => panic!("{other} is not one of our programs"),
    };
    if let Err(error) = Cli::try_parse_from(&args) {
        panic!("{words:?}\n{error}");
    }
}

/// The router of the documentation, whose meta store is an etcd.
#[test]
fn the_documented_router_of_an_etcd_starts() {
    let page = deploy("../docs/operations.md");
    let block = page.split("```").find(|block| block.trim_start().starts_with("kindred-router --meta"));
    let words = block.expect("a block").split_whitespace().filter(|word| *word != "…");
    check(&words.map(str::to_owned).collect::<Vec<_>>());
}

#[test]
fn systemd_units_start_what_exists() {
    for unit in
        ["kindred.service", "kindred-router.service", "kindred-shard@.service", "kindred-meta.service"]
    {
        let text = deploy(&format!("systemd/{unit}"));
        let line = text.lines().find_map(|l| l.strip_prefix("ExecStart=")).expect("ExecStart");
        // The values that systemd would substitute.
        let line = line
            .replace("%i", "pods")
            .replace("${KINDRED_SLOT}", "4")
            .replace("${KINDRED_META}", "https://meta:2390")
            .replace("${KINDRED_LISTEN}", "0.0.0.0:2394");
        check(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        for section in ["[Unit]", "[Service]", "[Install]"] {
            assert!(text.contains(section), "{unit} lacks {section}");
        }
    }
}

#[test]
fn compose_and_image_commands_parse() {
    let compose = yaml(&deploy("compose.yaml"));
    let services = compose["services"].as_object().unwrap();
    let mut commands = 0;
    for (name, service) in services {
        let words: Vec<String> =
            serde_json::from_value(service["command"].clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
        check(&[vec!["kindred".to_owned()], words].concat());
        commands += 1;
    }
    assert_eq!(commands, 8);

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
    let units =
        ["kindred.service", "kindred-router.service", "kindred-shard@.service", "kindred-meta.service"];
    let units = units.map(|unit| {
        let text = deploy(&format!("systemd/{unit}"));
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("ExecStart");
        let line = line.replace("${KINDRED_LISTEN}", "0.0.0.0:2394");
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    let compose = yaml(&deploy("compose.yaml"));
    let services = compose["services"].as_object().unwrap().values();
    let services = services.map(|service| serde_json::from_value(service["command"].clone()).unwrap());
    let dockerfile = deploy("Dockerfile");
    let line = dockerfile.lines().find(|line| line.starts_with("CMD [")).expect("CMD");
    let image = serde_json::from_str(&line["CMD ".len()..]).unwrap();
    units.into_iter().chain(services).chain([image]).collect()
}

/// No unknown client reaches an admin port or writes to a shard of a cluster.
#[test]
fn f32_f33_no_file_serves_everybody() {
    let commands = commands();
    assert_eq!(commands.len(), 4 + 8 + 1);
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
    for unit in
        ["kindred.service", "kindred-router.service", "kindred-shard@.service", "kindred-meta.service"]
    {
        assert!(deploy(&format!("systemd/{unit}")).contains("StateDirectoryMode=0700"), "f34: {unit}");
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
        assert_eq!(store.endpoints, [format!("http://{}:2379", store.name)]);
    }
}

/// The value of a flag.
fn value<'w>(words: &'w [String], flag: &str) -> Option<&'w str> {
    let at = words.iter().position(|word| word == flag)?;
    words.get(at + 1).map(String::as_str)
}

#[test]
fn f39_no_store_of_the_files_comes_back_empty_and_every_router_has_a_meta_store() {
    let compose = yaml(&deploy("compose.yaml"));
    let mut kept = std::collections::BTreeSet::new();
    for (name, service) in compose["services"].as_object().unwrap() {
        let words: Vec<String> = serde_json::from_value(service["command"].clone()).unwrap();
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
        assert!(kept.insert(volume.to_owned()), "{name}: volume {volume} is another's");
        if words[0] == "router" {
            assert_eq!(value(&words, "--meta"), Some("http://meta:2379"), "{name}");
        }
    }
    let meta: Vec<String> = serde_json::from_value(compose["services"]["meta"]["command"].clone()).unwrap();
    let said = ["--revisions", "--durability", "--slot"].map(|flag| value(&meta, flag).unwrap());
    assert_eq!(said, ["dense", "fsync", "0"]);

    for (unit, flags) in [
        ("kindred-router.service", &["--meta", "--meta-cache"][..]),
        ("kindred-shard@.service", &["--data-dir"]),
        ("kindred-meta.service", &["--data-dir"]),
    ] {
        let text = deploy(&format!("systemd/{unit}"));
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let folder = text.lines().find_map(|line| line.strip_prefix("StateDirectory=")).unwrap();
        for flag in flags {
            let given = value(&words, flag).unwrap_or_else(|| panic!("{unit}: no {flag}"));
            assert!(*flag == "--meta" || given.starts_with(&format!("/var/lib/{folder}")), "{unit}: {given}");
        }
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

#[test]
fn r17_alerts_name_metrics_and_buckets_that_exist() {
    let rules = yaml(&deploy("prometheus/kindred.rules.yaml"));
    let known: Vec<_> = kindred_router::metrics::names()
        .chain(kindred_shard::metrics::ALL.iter().map(|metric| metric.name))
        .collect();
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
            let buckets = kindred_router::metrics::BUCKETS.iter().find(|(name, _)| *name == metric);
            assert!(buckets.is_some_and(|(_, bounds)| bounds.contains(&bound)), "{alert}: no bucket {bound}");
        }
        assert!(rule["annotations"]["action"].is_string(), "{alert} says not what to do");
        alerts += 1;
    }
    assert!(alerts >= 8, "{alerts} alerts");
}
