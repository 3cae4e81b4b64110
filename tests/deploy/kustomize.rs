//! The kustomizations are the chart's renderings, and what is changed in an overlay is what a values file changes.
//! `KINDRED_DOCS=write` writes the renderings anew.

use std::{collections::BTreeMap, fs};

use serde_json::Value;

use crate::deploy::render::{self, VARIANTS, deploy, id, objects, text};

/// What is rendered into which file, with which flags.
const RENDERED: [(&str, &[&str]); 3] = [
    ("base/kindred.yaml", &[]),
    (
        "cert-manager/certificates.yaml",
        &["--set", "tls.certManager.enabled=true", "--show-only", "templates/certificates.yaml"],
    ),
    (
        "monitoring/monitoring.yaml",
        &["--set", "monitoring.enabled=true", "--show-only", "templates/monitoring.yaml"],
    ),
];

/// The rendering for kustomize, which knows nothing of helm.
fn rendered(flags: &[&str]) -> String {
    let all = text(flags).expect("the chart renders");
    let own = |line: &&str| {
        let word = line.trim_start();
        !word.starts_with("helm.sh/chart:") && !word.starts_with("app.kubernetes.io/managed-by:")
    };
    let lines: Vec<&str> = all.lines().filter(own).map(str::trim_end).collect();
    format!("# Rendered from deploy/helm/kindred by `make docs`. Do not edit.\n{}\n", lines.join("\n"))
}

#[test]
fn the_files_are_what_the_chart_renders() {
    for (file, flags) in RENDERED {
        let (path, wanted) = (deploy("kustomize").join(file), rendered(flags));
        if std::env::var("KINDRED_DOCS").is_ok_and(|what| what == "write") {
            fs::write(&path, &wanted).unwrap();
        }
        let kept = fs::read_to_string(&path).unwrap();
        assert!(kept == wanted, "deploy/kustomize/{file} is not what the chart renders: run `make docs`");
    }
}

/// An object for comparison: flags in any order, without the labels of helm.
fn comparable(mut object: Value) -> Value {
    if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.remove("helm.sh/chart");
        labels.remove("app.kubernetes.io/managed-by");
    }
    for list in ["args", "volumeMounts"] {
        let path = format!("/spec/template/spec/containers/0/{list}");
        if let Some(items) = object.pointer_mut(&path).and_then(Value::as_array_mut) {
            items.sort_by_key(ToString::to_string);
        }
    }
    if let Some(items) = object.pointer_mut("/spec/template/spec/volumes").and_then(Value::as_array_mut) {
        items.sort_by_key(ToString::to_string);
    }
    object
}

fn by_id(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let count = objects.len();
    let all: BTreeMap<_, _> = objects.into_iter().map(|object| (id(&object), comparable(object))).collect();
    assert_eq!(all.len(), count, "two objects have the same name");
    all
}

fn same(folder: &str, flags: &[&str]) {
    let mut kustomized =
        by_id(render::kustomize(folder).and_then(|all| objects(&all)).expect("kubectl renders"));
    let namespace = kustomized.remove("Namespace/kindred").expect("a namespace");
    let enforced = &namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
    assert_eq!(enforced, "restricted");
    let chart = by_id(render::chart(flags).expect("the chart renders"));
    let names = |of: &BTreeMap<String, Value>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&kustomized), names(&chart));
    for (name, object) in chart {
        let found = &kustomized[&name];
        assert!(*found == object, "{folder}: {name}\n{found:#}\nis by the chart\n{object:#}");
    }
}

#[test]
fn the_base_is_the_chart_with_its_own_values() {
    same("base", &[]);
}

#[test]
fn the_overlay_is_the_chart_with_the_values_for_production() {
    let (name, flags) = VARIANTS[1];
    assert_eq!(name, "production");
    same("production", flags);
}
