//! The units of systemd, and what makes the account and the folders for them.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use super::{check, deploy, value};

/// The units of systemd.
pub(super) const UNITS: [&str; 6] = [
    "systemd/kindred.service",
    "systemd/kindred-router.service",
    "systemd/kindred-shard@.service",
    "systemd/kindred-meta.service",
    FIRST,
    SECOND,
];
/// The units of the two members of a store.
pub(super) const FIRST: &str = "two-machines/kindred-first@.service";
pub(super) const SECOND: &str = "two-machines/kindred-second@.service";
/// The unit of a stock etcd.
const ETCD: &str = "systemd/kindred-meta-etcd.service";

/// The most that `systemd-analyze security` may say of a unit, in tenths.
const EXPOSURE_MAX: &str = "29";

/// The command line of a unit, with values that systemd would substitute.
pub(super) fn unit_command(unit: &str) -> Vec<String> {
    let text = deploy(unit);
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("ExecStart");
    let line = line
        .replace("%i", "pods")
        .replace("${KINDRED_SLOT}", "4")
        .replace("${KINDRED_META}", "https://meta:2390")
        .replace("${KINDRED_STANDBY_OF}", "https://machine-a:2394")
        .replace("${KINDRED_ADMIN_LISTEN}", "127.0.0.1:3394")
        .replace("${KINDRED_LISTEN}", "0.0.0.0:2394");
    line.split_whitespace().map(str::to_owned).collect()
}

/// What a program says of files; nothing where the machine does not have it.
fn ask(program: &str, args: &[&str]) -> Option<Output> {
    match Command::new(program).args(args).env("SYSTEMD_COLORS", "0").output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("NOT RUN: {program} {}: {error}", args.join(" "));
            None
        }
    }
}

/// All that a program printed.
fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

fn path(file: &str) -> String {
    format!("{}/../deploy/{file}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn systemd_units_start_what_exists() {
    for unit in UNITS {
        let text = deploy(unit);
        check(&unit_command(unit));
        for section in ["[Unit]", "[Service]", "[Install]"] {
            assert!(text.contains(section), "{unit} lacks {section}");
        }
    }
}

/// Nobody has to guess where the state and the metrics of a process are.
#[test]
fn every_process_of_a_unit_has_an_admin_port_of_its_own() {
    for unit in UNITS {
        let words = unit_command(unit);
        let admin = value(&words, "--admin").or_else(|| value(&words, "--admin-listen"));
        let port = admin.and_then(|address| address.rsplit_once(':')).map(|(_, port)| port);
        assert!(port.is_some_and(|port| port != "0"), "{unit}: {admin:?}");
        assert!(port != value(&words, "--listen").and_then(|listen| listen.rsplit(':').next()), "{unit}");
        let comment = deploy(unit).contains("# KINDRED_ADMIN_LISTEN=127.0.0.1:")
            || deploy(unit).contains("KINDRED_ADMIN_LISTEN=127.0.0.1:");
        assert!(value(&words, "--admin").is_some() || comment, "{unit} does not show the setting");
    }
}

#[test]
fn a_unit_is_limited_and_starts_again_whatever_happens() {
    for unit in UNITS.into_iter().chain([ETCD]) {
        let text = deploy(unit);
        let has = |line: &str| text.lines().any(|has| has == line);
        let lines = [
            "Restart=always",
            "StartLimitIntervalSec=0",
            "UMask=0077",
            "User=kindred",
            "NoNewPrivileges=yes",
            "CapabilityBoundingSet=",
            "ProtectSystem=strict",
            "LimitCORE=0",
        ];
        for line in lines {
            assert!(has(line), "{unit} lacks {line}");
        }
        assert!(text.contains("\nMemoryMax="), "{unit}: a shard's quota is a part of MemoryMax=");
        // The memory of the machine stands in /proc/meminfo.
        assert!(!text.contains("ProcSubset=pid"), "{unit}");
    }
}

#[test]
fn systemd_analyze_rates_every_unit_below_three() {
    for unit in UNITS.into_iter().chain([ETCD]) {
        let threshold = format!("--threshold={EXPOSURE_MAX}");
        let args = ["security", "--offline=true", &threshold, &path(unit)];
        let Some(output) = ask("systemd-analyze", &args) else { return };
        let said = text(&output);
        if said.contains("unrecognized option") {
            println!("NOT RUN: this systemd-analyze is too old: {said}");
            return;
        }
        let rating = said.lines().find(|line| line.contains("Overall exposure level")).unwrap_or(&said);
        assert!(output.status.success(), "{unit}: {rating}");
        assert!(rating.contains("Overall exposure level"), "{unit}: {said}");
    }
}

/// A setting with a slip of the pen is one that systemd ignores.
#[test]
fn systemd_knows_every_setting_of_the_units() {
    let root = tempfile::tempdir().unwrap();
    let units = root.path().join("etc/systemd/system");
    let programs = root.path().join("usr/local/bin");
    fs::create_dir_all(&units).unwrap();
    fs::create_dir_all(&programs).unwrap();
    for program in ["kindred", "etcd"] {
        let file = programs.join(program);
        fs::write(&file, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let verify = |unit: &str, text: &str| {
        let file = Path::new(unit).file_name().unwrap().to_str().unwrap();
        fs::write(units.join(file), text).unwrap();
        let instance = file.replace("@.", "@pods.");
        let output =
            ask("systemd-analyze", &["verify", &format!("--root={}", root.path().display()), &instance]);
        // What it finds in the file has the place, what it misses in the empty root does not.
        let place =
            |line: &&str| line.contains(&format!("{file}:")) && line.contains(units.to_str().unwrap());
        output
            .map(|output| text_lines(&output).iter().filter(|line| place(&line.as_str())).cloned().collect())
    };
    for unit in UNITS.into_iter().chain([ETCD]) {
        let found: Option<Vec<String>> = verify(unit, &deploy(unit));
        let Some(found) = found else { return };
        assert!(found.is_empty(), "{unit}: {found:?}");
    }
    let wrong = deploy(UNITS[0]).replace("ProtectClock=", "ProtectClok=");
    let found: Vec<String> = verify(UNITS[0], &wrong).unwrap();
    assert!(found.iter().any(|line| line.contains("ProtectClok")), "this test would not notice: {found:?}");
}

fn text_lines(output: &Output) -> Vec<String> {
    text(output).lines().map(str::to_owned).collect()
}

#[test]
fn the_account_and_the_folders_are_made_as_the_units_use_them() {
    let users = deploy("systemd/kindred.sysusers");
    assert!(users.lines().any(|line| line.starts_with("u kindred ")), "{users}");
    if let Some(output) = ask("systemd-sysusers", &["--dry-run", &path("systemd/kindred.sysusers")]) {
        let said = text(&output);
        assert!(output.status.success() || said.contains("unrecognized option"), "{said}");
    }
    let folders = deploy("systemd/kindred.tmpfiles");
    let made: Vec<&str> = folders
        .lines()
        .filter(|line| line.starts_with("d "))
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    for unit in UNITS.into_iter().chain([ETCD]) {
        let text = deploy(unit);
        let files = text.split_whitespace().map(|word| word.trim_start_matches("EnvironmentFile="));
        for file in files.filter(|word| word.starts_with("/etc/")) {
            let folder = Path::new(file).parent().unwrap().to_str().unwrap();
            assert!(made.contains(&folder), "{unit}: nobody makes {folder}");
        }
    }
    // Whoever takes over a process finds keys that it cannot change.
    assert!(
        folders.lines().filter(|line| line.contains("pki")).all(|line| line.contains(" 0750 root kindred "))
    );
}
