//! The files under `deploy/` cannot drift from the programs: every command line in them is parsed by the programs' own
//! parsers, every configuration by the router's.

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

/// Parses a command line as the program that it names would.
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

#[test]
fn systemd_units_start_what_exists() {
    for unit in ["kindred.service", "kindred-router.service", "kindred-shard@.service"] {
        let text = deploy(&format!("systemd/{unit}"));
        let line = text.lines().find_map(|l| l.strip_prefix("ExecStart=")).expect("ExecStart");
        // What systemd would fill in.
        let line = line
            .replace("%i", "pods")
            .replace("${KINDRED_SLOT}", "4")
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
    assert_eq!(commands, 7);

    let dockerfile = deploy("Dockerfile");
    for keyword in ["HEALTHCHECK", "CMD ["] {
        let line = dockerfile.lines().find(|l| l.starts_with(keyword)).expect(keyword);
        let words: Vec<String> = serde_json::from_str(&line[line.find('[').expect("JSON form")..]).unwrap();
        let words = if words[0] == "kindred" { words } else { [vec!["kindred".to_owned()], words].concat() };
        check(&words);
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
