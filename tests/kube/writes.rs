//! Writes that must succeed, and writes that must be refused: field managers, patches, optimistic locks and deletes.

use anyhow::Context;
use http::Method;
use kindred_tests::kube_client::{full_name, items, revision};
use serde_json::{Value, json};

use crate::kube::{
    cluster::Cluster,
    load::{many, names},
    objects::{
        ALL_PODS, ALL_WIDGETS, NAMESPACES, NODE_COLLECTION, NODE_LEASES, collection, configmap, documents,
        pod, pod_namespace, spread,
    },
};

const HOME: &str = NAMESPACES[0];

pub async fn run(cluster: &Cluster) -> anyhow::Result<()> {
    field_managers(cluster).await?;
    kubectl_edits(cluster).await?;
    locks(cluster).await?;
    counter(cluster).await?;
    single_deletes(cluster).await
}

/// Server-side apply: the owner of a field stays its owner, unless another manager forces a change.
async fn field_managers(cluster: &Cluster) -> anyhow::Result<()> {
    let (client, tally) = (&cluster.first.client, &cluster.tally);
    let path = format!("{}/owned", collection(HOME, "configmaps"));
    client.apply(&path, "one", false, &configmap(HOME, "owned", "1")).await?.ok()?;
    let other = configmap(HOME, "owned", "2");
    let reason = client.apply(&path, "two", false, &other).await?.refused(409)?;
    tally.equal(&reason.as_str(), &"Conflict", "reason of an apply of a field with an owner")?;
    let apply = ["apply", "--server-side", "--field-manager=three", "-f", "-"];
    let refused = cluster.first.kubectl.output(&apply, &documents([other.clone()])).await?.failed()?;
    tally.check(refused.contains("conflict"), format_args!("kubectl on a conflict: {refused}"))?;
    tally.equal(&client.get(&path).await?.ok()?["data"]["value"], &json!("1"), "the owner's value")?;

    let forced = client.apply(&path, "two", true, &other).await?.ok()?;
    tally.equal(&forced["data"]["value"], &json!("2"), "the forced value")?;
    let mut apply = apply.to_vec();
    apply.push("--force-conflicts");
    cluster.first.kubectl.ok(&apply, &documents([configmap(HOME, "owned", "3")])).await?;
    let reason = client.apply(&path, "one", false, &configmap(HOME, "owned", "1")).await?.refused(409)?;
    tally.equal(&reason.as_str(), &"Conflict", "reason for the first owner")?;
    tally.equal(&client.get(&path).await?.ok()?["data"]["value"], &json!("3"), "the last owner's value")
}

async fn kubectl_edits(cluster: &Cluster) -> anyhow::Result<()> {
    let (kubectl, tally) = (&cluster.first.kubectl, &cluster.tally);
    let pods: Vec<String> = (0..4).map(|index| spread("pod", index)).collect();
    let mut label = vec!["label", "-n", HOME, "pods"];
    label.extend(pods.iter().map(String::as_str));
    label.push("tier=front");
    kubectl.ok(&label, "").await?;
    let labelled = kubectl.ok(&["get", "pods", "-n", HOME, "-l", "tier=front", "-o", "name"], "").await?;
    tally.equal(&labelled.lines().count(), &pods.len(), "labelled pods")?;
    kubectl.ok(&["annotate", "node", &spread("node", 0), "example.com/seen=yes"], "").await?;
    let patch = r#"[{"op":"replace","path":"/data/value","value":"patched"}]"#;
    kubectl.ok(&["patch", "configmap", "owned", "-n", HOME, "--type=json", "-p", patch], "").await?;
    let strategic = r#"{"metadata":{"labels":{"round":"1"}}}"#;
    kubectl.ok(&["patch", "pod", "-n", HOME, &pods[0], "-p", strategic], "").await?;
    let client = &cluster.first.client;
    let node = client.get(&format!("{NODE_COLLECTION}/{}", spread("node", 0))).await?.ok()?;
    tally.equal(&node["metadata"]["annotations"]["example.com/seen"], &json!("yes"), "annotation")?;
    let owned = client.get(&format!("{}/owned", collection(HOME, "configmaps"))).await?.ok()?;
    tally.equal(&owned["data"]["value"], &json!("patched"), "patched value")?;
    let pod = client.get(&format!("{}/{}", collection(HOME, "pods"), pods[0])).await?.ok()?;
    tally.equal(&pod["metadata"]["labels"]["round"], &json!("1"), "patched label")?;
    tally.equal(&pod["metadata"]["labels"]["app"], &json!("run"), "label beside it")
}

/// Every write that names an older version is refused.
async fn locks(cluster: &Cluster) -> anyhow::Result<()> {
    let (client, tally) = (&cluster.first.client, &cluster.tally);
    for (path, field) in [
        (format!("{}/owned", collection(HOME, "configmaps")), "data"),
        (format!("{NODE_COLLECTION}/{}", spread("node", 1)), "labels"),
        (format!("{}/{}", collection(HOME, "pods"), spread("pod", 2)), "labels"),
        (format!("{NODE_LEASES}/{}", spread("node", 3)), "labels"),
        (widget_path(0), "labels"),
    ] {
        let read = client.get(&path).await?.ok()?;
        let mut changed = read.clone();
        match field {
            "data" => changed["data"]["value"] = json!("locked"),
            _ => changed["metadata"]["labels"]["locked"] = json!("yes"),
        }
        let written = client.replace(&path, &changed).await?.ok().context(path.clone())?;
        tally.check(revision(&written)? > revision(&read)?, format_args!("{path}: a higher revision"))?;
        changed["metadata"]["labels"]["late"] = json!("yes");
        let reason = client.replace(&path, &changed).await?.refused(409)?;
        tally.equal(&reason.as_str(), &"Conflict", format_args!("{path}: reason for the late one"))?;
        tally.equal(&client.get(&path).await?.ok()?, &written, format_args!("{path}: what the lock kept"))?;
        let options = json!({"preconditions": {"resourceVersion": revision(&read)?.to_string()}});
        let late = client.send(Method::DELETE, &path, "application/json", Some(&options)).await?;
        tally.equal(&late.status, &409, format_args!("{path}: delete of an older version"))?;
    }
    let again = client.create(&collection(HOME, "configmaps"), &configmap(HOME, "owned", "new")).await?;
    tally.equal(&again.refused(409)?.as_str(), &"AlreadyExists", "reason of a second create")
}

/// Several writers read a number, add one and replace it. No addition is lost.
async fn counter(cluster: &Cluster) -> anyhow::Result<()> {
    const WRITERS: usize = 8;
    const STEPS: usize = 10;
    let (client, tally) = (&cluster.first.client, &cluster.tally);
    let path = &format!("{}/counter", collection(HOME, "configmaps"));
    client.create(&collection(HOME, "configmaps"), &configmap(HOME, "counter", "0")).await?.ok()?;
    let steps = many(WRITERS, |_| async move {
        let mut done = Vec::new();
        while done.len() < STEPS {
            let mut object = client.get(path).await?.ok()?;
            let value: u64 = object["data"]["value"].as_str().context("a value")?.parse()?;
            object["data"]["value"] = (value + 1).to_string().into();
            let answer = client.replace(path, &object).await?;
            if answer.status != 409 {
                done.push((value + 1, revision(&answer.ok()?)?));
            }
        }
        Ok(done)
    })
    .await?;
    let mut steps: Vec<(u64, u64)> = steps.into_iter().flatten().collect();
    steps.sort_unstable();
    let values: Vec<u64> = steps.iter().map(|(value, _)| *value).collect();
    tally.equal(&values, &(1..=(WRITERS * STEPS) as u64).collect(), "values that writers have written")?;
    let ordered = steps.windows(2).all(|pair| pair[0].1 < pair[1].1);
    tally.check(ordered, format_args!("revisions do not follow the values: {steps:?}"))
}

async fn single_deletes(cluster: &Cluster) -> anyhow::Result<()> {
    let (client, tally) = (&cluster.first.client, &cluster.tally);
    let pods = collection(HOME, "pods");
    let first = client.create(&pods, &pod(HOME, "short-lived")).await?.ok()?;
    cluster.first.kubectl.ok(&["delete", "pod", "-n", HOME, "short-lived", "--now"], "").await?;
    let gone = client.get(&format!("{pods}/short-lived")).await?;
    tally.equal(&gone.status, &404, "a deleted pod")?;
    let reason = client.delete(&format!("{pods}/short-lived")).await?.refused(404)?;
    tally.equal(&reason.as_str(), &"NotFound", "reason of a second delete")?;
    let second = client.create(&pods, &pod(HOME, "short-lived")).await?.ok()?;
    let fresh =
        first["metadata"]["uid"] != second["metadata"]["uid"] && revision(&second)? > revision(&first)?;
    tally.check(fresh, "a pod created again is another one with a higher revision")?;
    client.delete(&format!("{pods}/short-lived")).await?.ok()?;
    client.delete(&format!("{}/owned", collection(HOME, "configmaps"))).await?.ok()?;
    client.delete(&format!("{}/counter", collection(HOME, "configmaps"))).await?.ok()?;
    Ok(())
}

fn widget_path(index: usize) -> String {
    format!("/apis/example.com/v1/namespaces/{}/widgets/{}", pod_namespace(index), spread("widget", index))
}

/// Deletes the objects of the run, because no controller manager runs that would empty a namespace.
pub async fn delete_all(cluster: &Cluster) -> anyhow::Result<()> {
    let (client, tally) = (&cluster.first.client, &cluster.tally);
    for home in NAMESPACES {
        for resource in ["pods", "configmaps", "secrets", "endpoints"] {
            let path = collection(home, resource);
            client.delete(&path).await?.ok().with_context(|| path.clone())?;
            tally.equal(&names(cluster, &path).await?.len(), &0, format_args!("left in {path}"))?;
        }
        let path = format!("/apis/example.com/v1/namespaces/{home}/widgets");
        client.delete(&path).await?.ok()?;
    }
    tally.equal(&names(cluster, ALL_WIDGETS).await?.len(), &0, "custom objects left")?;
    tally.equal(&names(cluster, ALL_PODS).await?.len(), &0, "pods left")?;
    client.delete(NODE_LEASES).await?.ok()?;
    tally.equal(&names(cluster, NODE_LEASES).await?.len(), &0, "node leases left")?;
    cluster.first.kubectl.ok(&["delete", "nodes", "--all"], "").await?;
    tally.equal(&names(cluster, NODE_COLLECTION).await?.len(), &0, "nodes left")?;
    let services: Value = client.get("/api/v1/services").await?.ok()?;
    for service in items(&services)? {
        let full = full_name(service);
        let (home, name) = full.split_once('/').context("a namespaced service")?;
        client.delete(&format!("{}/{name}", collection(home, "services"))).await?.ok()?;
    }
    Ok(())
}
