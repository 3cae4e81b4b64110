//! What a cluster does, with kubectl.

use std::{collections::BTreeSet, fmt::Write as _, path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::scenario::{report, wait_for};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::apiserver::Apiserver;

const NODES: usize = 5;
const PODS: usize = 40;
const WIDGETS: usize = 12;
const LINE_LIMIT: Duration = Duration::from_secs(30);
const EXPIRY_LIMIT: Duration = Duration::from_secs(120);

const CRD: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {kind: Widget, plural: widgets, singular: widget}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

fn pod(name: &str, label: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: demo, labels: {{round: \"{label}\"}}}}\n\
         spec: {{containers: [{{name: main, image: none}}]}}\n"
    )
}

pub async fn run(_dir: &Path, apiserver: &mut Apiserver) -> anyhow::Result<()> {
    apiserver.ok(&["create", "namespace", "demo"]).await?;
    let mut nodes = String::new();
    for node in 0..NODES {
        write!(nodes, "---\napiVersion: v1\nkind: Node\nmetadata: {{name: node-{node}}}\n")?;
        write!(
            nodes,
            "---\napiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {{name: node-{node}, namespace: demo}}\n\
             spec: {{holderIdentity: node-{node}}}\n"
        )?;
    }
    apiserver.apply(&nodes).await?;

    let mut watching = apiserver.start_kubectl(&[
        "get",
        "pods",
        "-n",
        "demo",
        "-w",
        "-o",
        "name",
        "--output-watch-events",
    ])?;
    let mut lines = BufReader::new(watching.stdout.take().context("stdout")?).lines();
    let pods: String = (0..PODS).map(|index| pod(&format!("pod-{index}"), "1")).collect();
    apiserver.apply(&pods).await?;
    let mut added = BTreeSet::new();
    while added.len() < PODS {
        let line = tokio::time::timeout(LINE_LIMIT, lines.next_line()).await.context("kubectl get -w")??;
        let line = line.context("kubectl get -w ended")?;
        ensure!(line.starts_with("pod/pod-"), "{line}");
        added.insert(line);
    }
    watching.kill().await?;

    // Server-side apply changes what is there; a page at a time lists everything.
    let changed: String = (0..PODS).map(|index| pod(&format!("pod-{index}"), "2")).collect();
    apiserver.apply(&changed).await?;
    ensure!(count(apiserver, &["get", "pods", "-n", "demo", "-l", "round=2", "-o", "name"]).await? == PODS);
    let paged = count(apiserver, &["get", "pods", "-A", "--chunk-size=7", "-o", "name"]).await?;
    ensure!(paged == PODS, "{paged} pods in pages");

    apiserver.apply(CRD).await?;
    apiserver
        .ok(&["wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=30s"])
        .await?;
    let mut widgets = String::new();
    for widget in 0..WIDGETS {
        write!(
            widgets,
            "---\napiVersion: example.com/v1\nkind: Widget\nmetadata: {{name: w-{widget}, namespace: demo}}\n\
             spec: {{size: {widget}}}\n"
        )?;
    }
    apiserver.apply(&widgets).await?;
    ensure!(count(apiserver, &["get", "widgets", "-A", "--chunk-size=5", "-o", "name"]).await? == WIDGETS);

    let event = "apiVersion: v1\nkind: Event\nmetadata: {name: happened, namespace: demo}\n\
                 involvedObject: {kind: Pod, name: pod-1, namespace: demo}\nreason: Test\nmessage: gone soon\n";
    apiserver.apply(event).await?;
    wait_for("the event to expire with its lease", EXPIRY_LIMIT, || async {
        let left = apiserver
            .ok(&["get", "events", "-n", "demo", "--field-selector=reason=Test", "-o", "name"])
            .await?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await?;

    apiserver.restart().await?;
    ensure!(count(apiserver, &["get", "pods", "-A", "-o", "name"]).await? == PODS, "pods after a restart");
    ensure!(count(apiserver, &["get", "nodes", "-o", "name"]).await? == NODES, "nodes after a restart");
    apiserver.ok(&["delete", "pod", "-n", "demo", "pod-0", "pod-1", "--force", "--grace-period=0"]).await?;
    ensure!(count(apiserver, &["get", "pods", "-A", "-o", "name"]).await? == PODS - 2, "pods after a delete");
    // For the placement check: an event that is there when the shards are asked.
    apiserver.apply(&event.replace("happened", "lasting")).await?;
    report(&format!(
        "kube pods={PODS} nodes={NODES} leases={NODES} widgets={WIDGETS} events_expired=1 restarts=1 deletes=2"
    ));
    Ok(())
}

async fn count(apiserver: &Apiserver, args: &[&str]) -> anyhow::Result<usize> {
    Ok(apiserver.ok(args).await?.lines().filter(|line| !line.trim().is_empty()).count())
}
