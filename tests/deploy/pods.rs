//! The pods that a rendering asks for: what kubelets would start.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::deploy::render::{NAMESPACE, of_kind};

/// A pod, with what its kubelet would put in place of variables.
#[derive(Debug, Clone)]
pub struct Pod {
    pub name: String,
    /// The arguments of the program `kindred`.
    pub args: Vec<String>,
    /// The path that says whether it is ready.
    pub ready: String,
    /// The volumes and where they are, by their paths.
    pub mounts: BTreeMap<String, Value>,
    /// `NAME.SERVICE.NAMESPACE.svc.DOMAIN`, for a member of a StatefulSet.
    pub host: Option<String>,
}

impl Pod {
    /// The value of a flag.
    pub fn flag(&self, name: &str) -> Option<&str> {
        self.args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='))
    }

    /// The volume at a path, and what stands behind it in the path.
    pub fn volume<'p>(&'p self, path: &'p str) -> Option<(&'p Value, &'p str)> {
        let inside = |(at, volume): (&'p String, &'p Value)| {
            Some((at.len(), volume, path.strip_prefix(at.as_str())?.strip_prefix('/')?))
        };
        let longest = self.mounts.iter().filter_map(inside).max_by_key(|(length, ..)| *length);
        longest.map(|(_, volume, rest)| (volume, rest))
    }
}

/// The pods of StatefulSets and Deployments.
pub fn pods(objects: &[Value]) -> anyhow::Result<Vec<Pod>> {
    let mut pods = Vec::new();
    for kind in ["StatefulSet", "Deployment"] {
        for set in of_kind(objects, kind) {
            let name = set["metadata"]["name"].as_str().context("a name")?;
            for ordinal in 0..set["spec"]["replicas"].as_u64().context("replicas")? {
                pods.push(pod(set, &format!("{name}-{ordinal}"))?);
            }
        }
    }
    ensure!(!pods.is_empty(), "there are no pods");
    Ok(pods)
}

fn pod(set: &Value, name: &str) -> anyhow::Result<Pod> {
    let spec = &set["spec"]["template"]["spec"];
    let containers = spec["containers"].as_array().context("containers")?;
    let [container] = containers.as_slice() else { anyhow::bail!("{name} has {containers:?}") };
    let args: Vec<String> = serde_json::from_value(container["args"].clone())?;
    let args: Vec<String> = args.iter().map(|arg| arg.replace("$(POD_NAME)", name)).collect();
    ensure!(!args.iter().any(|arg| arg.contains("$(")), "{name}: an unknown variable in {args:?}");
    let claims = set["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
    let claims = claims.map(|claim| (claim["metadata"]["name"].clone(), claim.clone()));
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    let volumes: Vec<(Value, Value)> =
        volumes.map(|volume| (volume["name"].clone(), volume.clone())).chain(claims).collect();
    let mut mounts = BTreeMap::new();
    for mount in container["volumeMounts"].as_array().context("mounts")? {
        let (_, volume) = volumes
            .iter()
            .find(|(volume, _)| *volume == mount["name"])
            .with_context(|| format!("{name}: {mount}"))?;
        mounts.insert(mount["mountPath"].as_str().context("a path")?.to_owned(), volume.clone());
    }
    let service = set["spec"]["serviceName"].as_str();
    Ok(Pod {
        name: name.to_owned(),
        args,
        ready: container["readinessProbe"]["httpGet"]["path"].as_str().context("a probe")?.to_owned(),
        mounts,
        host: service.map(|service| format!("{name}.{service}.{NAMESPACE}.svc.cluster.local")),
    })
}
