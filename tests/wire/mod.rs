//! Compares kindred's declaration of etcd's API with etcd's own. Every message, field, enum and method that kindred
//! declares is etcd's, and no field of a message that it declares is missing.

mod declaration;

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, bail};
use declaration::{Declarations, parse};
use kindred_tests::{
    peers::{peer, peers_dir},
    scenario::{self, report},
};

const LIMIT: Duration = Duration::from_secs(600);

/// The folder of the pinned etcd API module.
fn etcd_api() -> anyhow::Result<PathBuf> {
    // Building the peers downloads the module.
    peer("etcd")?;
    let local_go = PathBuf::from("/usr/local/go/bin/go");
    let go = if local_go.is_file() { local_go } else { PathBuf::from("go") };
    let output = Command::new(go)
        .args(["list", "-m", "-f", "{{.Dir}}", "go.etcd.io/etcd/api/v3"])
        .env("GOFLAGS", "-mod=readonly")
        .current_dir(peers_dir().join("etcd"))
        .output()
        .context("running go list")?;
    let dir = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    if !output.status.success() || !dir.is_dir() {
        bail!("go.etcd.io/etcd/api/v3 is not there: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(dir)
}

fn read(paths: &[PathBuf]) -> anyhow::Result<Declarations> {
    let mut all = Declarations::default();
    for path in paths {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        parse(&text, &mut all).with_context(|| path.display().to_string())?;
    }
    Ok(all)
}

#[test]
fn our_protocol_is_etcds() {
    scenario::run("our_protocol_is_etcds", LIMIT, |_| async {
        let ours = peers_dir().join("../../proto/etcd");
        let ours = read(&["auth.proto", "kv.proto", "rpc.proto"].map(|name| ours.join(name)))?;
        let theirs = etcd_api()?;
        let theirs = read(
            &["authpb/auth.proto", "mvccpb/kv.proto", "etcdserverpb/rpc.proto"].map(|name| theirs.join(name)),
        )?;
        let mut differences = Vec::new();
        let mut fields = 0;
        for (name, block) in &ours.blocks {
            let Some(original) = theirs.blocks.get(name) else {
                differences.push(format!("{name} is not etcd's"));
                continue;
            };
            fields += block.len();
            for line in block.symmetric_difference(original) {
                let whose = if block.contains(line) { "ours" } else { "etcd's" };
                differences.push(format!("{name}: only {whose}: {line}"));
            }
        }
        for (method, signature) in &ours.methods {
            if theirs.methods.get(method) != Some(signature) {
                differences.push(format!("{method}: {signature}, etcd's: {:?}", theirs.methods.get(method)));
            }
        }
        if !differences.is_empty() {
            bail!("{} differences\n{}", differences.len(), differences.join("\n"));
        }
        report(&format!(
            "wire messages_and_enums={} fields_and_values={fields} methods={} differences=0",
            ours.blocks.len(),
            ours.methods.len()
        ));
        if ours.blocks.len() < 50 || ours.methods.len() < 15 {
            bail!("too few declarations were found to mean anything");
        }
        Ok(())
    });
}
