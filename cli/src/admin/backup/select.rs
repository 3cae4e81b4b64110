//! Selects the part of a backup to restore.

use std::collections::BTreeSet;

use bytes::Bytes;
use kindred_partition_config::kind::{KindPrefix, KindScheme};

use super::etcd::{Etcd, Interval};
use super::manifest::Manifest;
use crate::admin::failure::Failure;

/// The selected files, and the intervals that select their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The paths of data files.
    pub files: BTreeSet<String>,
    /// The intervals in key order, without overlap.
    pub intervals: Vec<Interval>,
}

impl Selection {
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        let behind = self.intervals.partition_point(|interval| &interval.start[..] <= key);
        behind
            .checked_sub(1)
            .and_then(|at| self.intervals.get(at))
            .is_some_and(|interval| interval.contains(key))
    }
}

/// The selection that a command line describes.
///
/// # Errors
/// When the backup does not have the Kind, or the namespace's name is invalid.
pub fn of(manifest: &Manifest, kind: Option<&str>, namespace: Option<&str>) -> Result<Selection, Failure> {
    if let Some(name) = namespace.filter(|name| name.is_empty() || name.contains('/')) {
        return Err(Failure::Usage(format!("--namespace: {name:?} is not the name of a namespace")));
    }
    let scheme = manifest.scheme();
    let all = || manifest.files.iter().map(|file| file.file.clone()).collect();
    let (files, mut intervals): (BTreeSet<String>, Vec<Interval>) = match (kind, namespace) {
        (None, None) => (all(), vec![Interval::everything()]),
        (Some(name), namespace) => {
            let (file, prefix) = named(manifest, &scheme, name)?;
            let interval = match namespace {
                Some(namespace) => in_namespace(&prefix, namespace),
                None => Interval::prefix(prefix.as_key()),
            };
            (BTreeSet::from([file]), vec![interval])
        }
        (None, Some(namespace)) => {
            let kinds = manifest.files.iter().filter_map(|file| manifest.prefix_of(file));
            let mut intervals: Vec<_> = kinds.map(|kind| in_namespace(&kind, namespace)).collect();
            let object = [scheme.root(), b"namespaces/", namespace.as_bytes()].concat();
            intervals.push(Interval::single(&object));
            (all(), intervals)
        }
    };
    intervals.sort();
    Ok(Selection { files, intervals })
}

#[must_use]
pub fn in_namespace(kind: &KindPrefix, namespace: &str) -> Interval {
    Interval::prefix(&[kind.as_key(), namespace.as_bytes(), b"/"].concat())
}

fn named(manifest: &Manifest, scheme: &KindScheme, name: &str) -> Result<(String, KindPrefix), Failure> {
    let resolved = scheme.resolve(name);
    let found = manifest.files.iter().find_map(|file| {
        let prefix = manifest.prefix_of(file)?;
        let meant = file.kind == name || resolved.as_ref() == Ok(&prefix);
        meant.then(|| (file.file.clone(), prefix))
    });
    if let Some(found) = found {
        return Ok(found);
    }
    let kinds: Vec<&str> =
        manifest.files.iter().filter(|file| file.prefix.is_some()).map(|file| file.kind.as_str()).collect();
    let why = match resolved {
        Ok(_) => format!("the backup has no keys of {name:?}"),
        Err(error) => error.to_string(),
    };
    Err(Failure::Refused(format!(
        "--kind: {why}; it has {}",
        if kinds.is_empty() { "no Kind at all".to_owned() } else { kinds.join(", ") }
    )))
}

/// The Kinds of which the cluster has keys. Costs one request for each.
///
/// # Errors
/// When a request fails.
pub async fn kinds(etcd: &Etcd, scheme: &KindScheme, runs: &[Interval]) -> Result<Vec<KindPrefix>, Failure> {
    let mut kinds = Vec::new();
    for run in runs {
        let mut rest = Some(run.clone());
        while let Some(interval) = rest.take() {
            let Some(key) = etcd.first_key(&interval).await? else { break };
            let behind = match scheme.kind_of(&key).filter(|kind| key.starts_with(kind.as_key())) {
                Some(kind) => {
                    let end = kind.end();
                    kinds.push(kind);
                    end
                }
                None => successor(&key),
            };
            rest = interval.with(&Interval { start: behind, end: None });
        }
    }
    kinds.dedup();
    Ok(kinds)
}

fn successor(key: &Bytes) -> kindred_partition_config::key::Key {
    kindred_partition_config::key::Key(key.clone()).successor()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::manifest::File;
    use super::*;

    fn manifest() -> Manifest {
        let file = |kind: &str, prefix: Option<&str>| File {
            file: format!("data/{kind}.kbk"),
            kind: kind.to_owned(),
            prefix: prefix.map(str::to_owned),
            keys: 0,
            bytes: 0,
            xxh3: String::new(),
        };
        Manifest {
            format_version: 1,
            written_by: String::new(),
            taken: String::new(),
            finished: String::new(),
            revision: "1".to_owned(),
            cluster_id: String::new(),
            etcd_prefix: "/registry".to_owned(),
            etcd_revisions: Vec::new(),
            stores: Value::Null,
            state: Value::Null,
            files: vec![
                file("nodes", Some("/registry/minions/")),
                file("pods", Some("/registry/pods/")),
                file("<other>", None),
            ],
            leases: Vec::new(),
            keys: 0,
            bytes: 0,
        }
    }

    #[test]
    fn kinds_and_namespaces() {
        let manifest = manifest();
        let has = |kind: Option<&str>, namespace: Option<&str>, key: &str| {
            of(&manifest, kind, namespace).unwrap().contains(key.as_bytes())
        };
        for (kind, namespace, key, expected) in [
            (None, None, "foo", true),
            (None, None, "/registry/pods/a/b", true),
            (Some("pods"), None, "/registry/pods/a/b", true),
            (Some("/registry/pods/"), None, "/registry/pods/a/b", true),
            (Some("nodes"), None, "/registry/minions/n", true),
            (Some("nodes"), None, "/registry/pods/a/b", false),
            (Some("pods"), Some("a"), "/registry/pods/a/b", true),
            (Some("pods"), Some("a"), "/registry/pods/aa/b", false),
            (None, Some("a"), "/registry/pods/a/b", true),
            (None, Some("a"), "/registry/namespaces/a", true),
            (None, Some("a"), "/registry/namespaces/ab", false),
            (None, Some("a"), "/registry/minions/a", false),
            (None, Some("a"), "foo", false),
        ] {
            assert_eq!(has(kind, namespace, key), expected, "{kind:?} {namespace:?} {key}");
        }
        assert_eq!(of(&manifest, Some("pods"), None).unwrap().files.len(), 1);
    }

    #[test]
    fn what_the_backup_does_not_have_is_named() {
        let refused = |kind| of(&manifest(), Some(kind), None).unwrap_err().to_string();
        assert_eq!(refused("secrets"), "--kind: the backup has no keys of \"secrets\"; it has nodes, pods");
        assert!(refused("pdos").contains("did you mean \"pods\"?; it has nodes, pods"));
        assert_eq!(of(&manifest(), None, Some("a/b")).unwrap_err().code(), 2);
    }
}
