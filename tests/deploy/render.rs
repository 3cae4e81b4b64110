//! Renders the chart with helm, and the kustomizations with kubectl.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use kindred_tests::peers::peer;
use serde_json::Value;

/// The namespace and the release of all renderings.
pub const NAMESPACE: &str = "kindred";

/// A file or folder of `deploy/`.
pub fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)
}

/// The values files with which the chart is rendered, with the flags that choose them.
pub const VARIANTS: [(&str, &[&str]); 4] = [
    ("default", &[]),
    ("production", &["--values", "ci/production-values.yaml"]),
    ("small", &["--values", "ci/small-values.yaml"]),
    (
        "all",
        &[
            "--set",
            "tls.certManager.enabled=true,monitoring.enabled=true,stores[0].name=default,stores[0].slot=1,stores[0].members=3,stores[0].onLoss=wait,partitions[0].metadata.name=pods,partitions[0].resource=pods,partitions[0].serviceGroupId=default",
        ],
    ),
];

fn helm(verb: &[&str], flags: &[&str]) -> anyhow::Result<std::process::Output> {
    let home = tempfile::tempdir()?;
    let chart = deploy("helm/kindred");
    Command::new(peer("helm")?)
        .args(verb)
        .args(flags)
        .current_dir(chart)
        .env("HOME", home.path())
        .env("HELM_CACHE_HOME", home.path())
        .output()
        .context("running helm")
}

/// What the chart renders, as text.
pub fn text(flags: &[&str]) -> anyhow::Result<String> {
    let output = helm(&["template", "kindred", ".", "--namespace", NAMESPACE], flags)?;
    if !output.status.success() {
        bail!("helm template {flags:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Checks the chart as helm does, with its schema.
pub fn lint(flags: &[&str]) -> anyhow::Result<()> {
    let output = helm(&["lint", "--strict", "."], flags)?;
    if !output.status.success() {
        bail!("helm lint {flags:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}

/// The objects of the chart.
pub fn chart(flags: &[&str]) -> anyhow::Result<Vec<Value>> {
    objects(&text(flags)?)
}

/// The objects of a kustomization, as text.
pub fn kustomize(folder: &str) -> anyhow::Result<String> {
    let home = tempfile::tempdir()?;
    let output = Command::new(peer("kubectl")?)
        .arg("kustomize")
        .arg(deploy("kustomize").join(folder))
        .env("HOME", home.path())
        .env("KUBECONFIG", "/dev/null")
        .output()?;
    if !output.status.success() {
        bail!("kubectl kustomize {folder}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The documents of a YAML text, without those that are empty.
pub fn objects(text: &str) -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    for document in format!("\n{text}").split("\n---") {
        let object: Value = serde_saphyr::from_str(document).with_context(|| document.to_owned())?;
        if !object.is_null() {
            all.push(object);
        }
    }
    Ok(all)
}

/// Kind and name of an object.
pub fn id(object: &Value) -> String {
    format!(
        "{}/{}",
        object["kind"].as_str().unwrap_or_default(),
        object["metadata"]["name"].as_str().unwrap_or_default()
    )
}

/// The objects of a kind.
pub fn of_kind<'o>(objects: &'o [Value], kind: &'static str) -> impl Iterator<Item = &'o Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}
