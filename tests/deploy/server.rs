//! A real kube-apiserver takes what is rendered: it knows every field, and every pod is a restricted one by its pod security.

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{
    kube::{Apiserver, ClusterFiles, Kubectl},
    peers::peer,
    scenario,
    servers::Etcd,
};

use crate::deploy::render::{VARIANTS, kustomize, text};

const LIMIT: Duration = Duration::from_secs(60);

const NAMESPACE: &str = r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kindred", "labels": {
    "pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}}}"#;

#[test]
fn an_apiserver_takes_every_object_of_the_chart_and_of_the_kustomizations() {
    scenario::run("deploy_server", LIMIT, |dir| async move { takes(&dir).await });
}

async fn takes(dir: &Path) -> anyhow::Result<()> {
    let etcd = Etcd::start(dir, "etcd").await?;
    let files = ClusterFiles::create(dir)?;
    let flags = [format!("--etcd-servers=http://{}", etcd.address)];
    let apiserver = Apiserver::start(dir, "apiserver", &files, &flags).await?;
    let kubectl = &apiserver.kubectl;
    kubectl.ok(&["create", "-f", "-"], NAMESPACE).await?;
    for operator in ["cert-manager", "prometheus-operator"] {
        let crds = std::fs::read_to_string(peer(operator)?)?;
        kubectl.ok(&["create", "-f", "-"], &crds).await?;
    }
    kubectl.ok(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"], "").await?;
    for (name, flags) in VARIANTS {
        dry_run(kubectl, &text(flags)?).await.context(name)?;
    }
    for folder in ["base", "production"] {
        let all = kustomize(folder)?;
        dry_run(kubectl, &all).await.context(folder)?;
    }
    notices(kubectl).await
}

/// Has the apiserver check objects as if they were to be stored.
async fn dry_run(kubectl: &Kubectl, objects: &str) -> anyhow::Result<()> {
    let args = ["apply", "--dry-run=server", "--validate=strict", "-f", "-"];
    let output = kubectl.output(&args, objects).await?;
    // It warns of pods that pod security would refuse. That the namespace of a kustomization is there is no matter.
    let warnings: Vec<&str> = output
        .stderr
        .lines()
        .filter(|line| {
            line.starts_with("Warning:") && !line.contains("resource namespaces/kindred is missing")
        })
        .collect();
    ensure!(output.success && warnings.is_empty(), "{}", output.stderr);
    Ok(())
}

/// The checks would see what is wrong.
async fn notices(kubectl: &Kubectl) -> anyhow::Result<()> {
    let all = text(VARIANTS[3].1)?;
    for (right, wrong) in [
        ("minReadySeconds: 15", "minReadySecond: 15"),
        ("serverName: kindred-router", "servername: kindred-router"),
        ("rotationPolicy: Never", "rotationPolicy: Sometimes"),
        ("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true"),
        ("type: RuntimeDefault", "type: Unconfined"),
    ] {
        ensure!(all.contains(right), "{right} is not there");
        let refused = dry_run(kubectl, &all.replace(right, wrong)).await;
        ensure!(refused.is_err(), "{wrong} is taken");
    }
    Ok(())
}
