//! The objects of the run, as JSON, and the paths of their collections.
//!
//! Names begin with letters from the whole alphabet, so that a Kind that is split by ranges of names has some in every
//! range.

use serde_json::{Value, json};

pub const NAMESPACES: [&str; 4] = ["alpha", "golf", "november", "victor"];
pub const NODES: usize = 50;
pub const PODS: usize = 300;
pub const WIDGETS: usize = 100;
pub const SMALL_OBJECTS: usize = 40;

pub const NODE_COLLECTION: &str = "/api/v1/nodes";
pub const ALL_PODS: &str = "/api/v1/pods";
pub const ALL_EVENTS: &str = "/api/v1/events";
pub const ALL_WIDGETS: &str = "/apis/example.com/v1/widgets";
pub const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// The path of a collection of the core API in a namespace, such as `pods` or `configmaps`.
pub fn collection(namespace: &str, resource: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{resource}")
}

/// A name whose first letter depends on `index`.
pub fn spread(stem: &str, index: usize) -> String {
    let letters = b"abcdefghijklmnopqrstuvwxyz";
    format!("{}-{stem}-{index}", char::from(letters[index % letters.len()]))
}

pub fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

pub fn node(index: usize) -> Value {
    let name = spread("node", index);
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"rack": format!("r{}", index % 4)}},
    })
}

pub fn node_lease(index: usize) -> Value {
    let name = spread("node", index);
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed(0)},
    })
}

/// The time of a lease's renewal. It differs for each of 60 rounds.
pub fn renewed(round: usize) -> String {
    format!("2026-01-01T00:00:{:02}.000000Z", round % 60)
}

pub fn pod(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "run", "round": "0"}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    })
}

/// The namespace of pod `index` of the load.
pub fn pod_namespace(index: usize) -> &'static str {
    NAMESPACES[index % NAMESPACES.len()]
}

/// Pod `index` of the load. Every namespace has names from the whole alphabet.
pub fn load_pod(index: usize) -> Value {
    pod(pod_namespace(index), &spread("pod", index / NAMESPACES.len()))
}

pub fn configmap(namespace: &str, name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace},
        "data": {"value": value},
    })
}

pub fn secret(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
        "stringData": {"word": name},
    })
}

pub fn service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
        "spec": {"ports": [{"port": 80}]},
    })
}

pub fn endpoints(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": name, "namespace": namespace},
        "subsets": [{"addresses": [{"ip": "192.0.2.7"}], "ports": [{"port": 80}]}],
    })
}

/// An event of the core API.
pub fn event(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"kind": "Pod", "name": "a-pod-0", "namespace": namespace},
        "reason": "Run", "message": "happened", "type": "Normal",
    })
}

/// An event of `events.k8s.io`. It has the same Kind prefix as events of the core API.
pub fn new_event(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Running", "reason": "Run", "type": "Normal",
        "reportingController": "example.com/run", "reportingInstance": "run-1",
        "regarding": {"kind": "Pod", "name": "a-pod-0", "namespace": namespace},
    })
}

pub fn widget_definition() -> Value {
    let spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    })
}

pub fn widget(index: usize) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": spread("widget", index), "namespace": pod_namespace(index)},
        "spec": {"size": index},
    })
}

/// Joins objects into the text of several documents that kubectl reads.
pub fn documents(objects: impl IntoIterator<Item = Value>) -> String {
    objects.into_iter().map(|object| format!("---\n{object}\n")).collect()
}
