//! Translates the names of Kinds in a config to Kind prefixes and back.
//!
//! A name is `<resource>` or `<resource>.<group>` as `kubectl api-resources` prints it (`nodes`, `leases`,
//! `leases.coordination.k8s.io`, `foos.example.com`), or the Kind prefix itself (`/registry/minions/`). The table
//! lists what Kubernetes 1.37 stores. A built-in resource that is newer than the table must be written as its
//! prefix.

use std::{borrow::Cow, sync::LazyLock};

use super::{KindPrefix, KindScheme};

/// API groups and their resources that Kubernetes stores without a group segment in the key.
const BUILTIN: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "configmaps",
            "endpoints",
            "events",
            "limitranges",
            "namespaces",
            "nodes",
            "persistentvolumeclaims",
            "persistentvolumes",
            "pods",
            "podtemplates",
            "replicationcontrollers",
            "resourcequotas",
            "secrets",
            "serviceaccounts",
            "services",
            // Internal records of the apiserver, not API resources. Their name is their path.
            "masterleases",
            "peerserverleases",
            "ranges",
        ],
    ),
    (
        "admissionregistration.k8s.io",
        &[
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "mutatingwebhookconfigurations",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "validatingwebhookconfigurations",
        ],
    ),
    ("apps", &["controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"]),
    ("autoscaling", &["horizontalpodautoscalers"]),
    ("batch", &["cronjobs", "jobs"]),
    ("certificates.k8s.io", &["certificatesigningrequests", "clustertrustbundles", "podcertificaterequests"]),
    ("coordination.k8s.io", &["leasecandidates", "leases"]),
    ("discovery.k8s.io", &["endpointslices"]),
    ("events.k8s.io", &["events"]),
    ("extensions", &["ingresses"]),
    ("flowcontrol.apiserver.k8s.io", &["flowschemas", "prioritylevelconfigurations"]),
    ("internal.apiserver.k8s.io", &["storageversions"]),
    ("lifecycle.k8s.io", &["evictionrequests", "evictions"]),
    ("networking.k8s.io", &["ingressclasses", "ingresses", "ipaddresses", "networkpolicies", "servicecidrs"]),
    ("node.k8s.io", &["runtimeclasses"]),
    ("policy", &["poddisruptionbudgets"]),
    ("rbac.authorization.k8s.io", &["clusterrolebindings", "clusterroles", "rolebindings", "roles"]),
    (
        "resource.k8s.io",
        &[
            "deviceclasses",
            "devicetaintrules",
            "resourceclaims",
            "resourceclaimtemplates",
            "resourcepoolstatusrequests",
            "resourceslices",
        ],
    ),
    ("scheduling.k8s.io", &["compositepodgroups", "podgroups", "priorityclasses", "workloads"]),
    (
        "storage.k8s.io",
        &[
            "csidrivers",
            "csinodes",
            "csistoragecapacities",
            "storageclasses",
            "volumeattachments",
            "volumeattributesclasses",
        ],
    ),
    ("storagemigration.k8s.io", &["storageversionmigrations"]),
];

/// Built-in resources whose keys include the group, as those of custom resources do.
const BUILTIN_WITH_GROUP: &[(&str, &[&str])] =
    &[("apiextensions.k8s.io", &["customresourcedefinitions"]), ("apiregistration.k8s.io", &["apiservices"])];

/// Resources whose path differs from their name (`SpecialDefaultResourcePrefixes` in Kubernetes).
const SPECIAL_PATHS: &[(&str, &str)] = &[
    ("endpoints", "services/endpoints"),
    ("ingresses", "ingress"),
    ("nodes", "minions"),
    ("replicationcontrollers", "controllers"),
    ("services", "services/specs"),
];

/// Why a name does not identify a Kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KindNameError {
    /// The name is empty, or has characters that a resource name cannot have.
    #[error(
        "{name:?} is not a Kind: write its plural and group as kubectl does, such as nodes or foos.example.com"
    )]
    Malformed {
        /// The name as written.
        name: String,
    },
    /// The name begins with a slash but is not exactly a Kind prefix.
    #[error(
        "{name:?} is not a Kind prefix: write such as {root}pods/ or {root}example.com/foos/, with the last slash"
    )]
    NotAPrefix {
        /// The name as written.
        name: String,
        /// The etcd prefix with a slash at both ends.
        root: String,
    },
    /// Kubernetes has no such resource, and none with a similar name.
    #[error(
        "Kubernetes has no {name:?}: write <plural>.<group> for a custom resource, or the prefix of its keys"
    )]
    Unknown {
        /// The name as written.
        name: String,
    },
    /// The name resembles a known one.
    #[error("Kubernetes has no {name:?}: did you mean {suggestion:?}?")]
    Misspelt {
        /// The name as written.
        name: String,
        /// The known name that it resembles.
        suggestion: String,
    },
}

impl KindScheme {
    /// Resolves a Kind name written by a person.
    ///
    /// # Errors
    /// When the name is malformed or unknown. If it resembles a known name, the error suggests that one.
    pub fn resolve(&self, name: &str) -> Result<KindPrefix, KindNameError> {
        if name.starts_with('/') {
            return self.kind_prefix(name.as_bytes()).ok_or_else(|| KindNameError::NotAPrefix {
                name: name.to_owned(),
                root: String::from_utf8_lossy(self.root()).into_owned(),
            });
        }
        if !is_name(name) {
            return Err(KindNameError::Malformed { name: name.to_owned() });
        }
        path_of(name)?.and_then(|path| self.below(&path)).ok_or_else(|| unknown(name))
    }

    /// The shortest name of a Kind that [`KindScheme::resolve`] maps back to it. A Kind without such a name is
    /// called by its prefix.
    #[must_use]
    pub fn name_of(&self, kind: &KindPrefix) -> String {
        let path = String::from_utf8_lossy(kind.stem().get(self.root().len()..).unwrap_or_default());
        let special = SPECIAL_PATHS.iter().find(|(_, special)| *special == path);
        let name = match (special, path.split_once('/')) {
            (Some((resource, _)), _) => (*resource).to_owned(),
            (None, Some((group, resource))) => format!("{resource}.{group}"),
            (None, None) => path.into_owned(),
        };
        if self.resolve(&name).as_ref() == Ok(kind) { name } else { kind.to_string() }
    }
}

/// The path below the etcd prefix for a well-formed name; `None` if Kubernetes has no such resource.
fn path_of(name: &str) -> Result<Option<Cow<'static, str>>, KindNameError> {
    let (resource, group) = match name.split_once('.') {
        Some((resource, group)) => (resource, Some(group)),
        None => (name, None),
    };
    let has = |table: &[(&'static str, &[&'static str])]| {
        table.iter().filter(|(of, _)| group.is_none_or(|group| group == *of)).find_map(|(of, resources)| {
            resources.iter().find(|known| **known == resource).map(|known| (*of, *known))
        })
    };
    if let Some((_, resource)) = has(BUILTIN) {
        let special = SPECIAL_PATHS.iter().find(|(of, _)| *of == resource);
        return Ok(Some(Cow::Borrowed(special.map_or(resource, |(_, path)| path))));
    }
    if let Some((group, resource)) = has(BUILTIN_WITH_GROUP) {
        return Ok(Some(Cow::Owned(format!("{group}/{resource}"))));
    }
    let Some(group) = group else { return Ok(None) };
    let is_builtin = BUILTIN.iter().chain(BUILTIN_WITH_GROUP).any(|(of, _)| *of == group);
    // A custom resource's group is a lower-case domain with at least one dot.
    if is_builtin || !group.contains('.') {
        return Ok(None);
    }
    let lower = name.to_ascii_lowercase();
    let close =
        full_names().iter().find(|known| distance_within(&lower, known, CUSTOM_DISTANCE_MAX).is_some());
    match close.cloned().or_else(|| (lower != name).then_some(lower)) {
        Some(suggestion) => Err(KindNameError::Misspelt { name: name.to_owned(), suggestion }),
        None => Ok(Some(Cow::Owned(format!("{group}/{resource}")))),
    }
}

/// Whether every part between dots is non-empty and has only letters, digits and dashes.
fn is_name(name: &str) -> bool {
    name.split('.')
        .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

fn unknown(name: &str) -> KindNameError {
    let name = name.to_owned();
    match suggest(&name) {
        Some(suggestion) => KindNameError::Misspelt { name, suggestion },
        None => KindNameError::Unknown { name },
    }
}

/// A custom resource name at most this many edits from a built-in one is treated as a misspelling.
const CUSTOM_DISTANCE_MAX: usize = 2;

/// The Kubernetes resource that the writer of `name` probably meant.
#[must_use]
pub fn suggest(name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    if let Some((resource, _)) = SPECIAL_PATHS.iter().find(|(_, path)| *path == lower) {
        return Some((*resource).to_owned());
    }
    let most = (1 + lower.len() / 4).min(3);
    let short = BUILTIN.iter().chain(BUILTIN_WITH_GROUP).flat_map(|(_, resources)| *resources).copied();
    short
        .chain(full_names().iter().map(String::as_str))
        .filter_map(|known| Some((distance_within(&lower, known, most)?, known)))
        .filter(|(distance, known)| *distance < known.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known.to_owned())
}

/// The known name that a misspelt one is most like, if it is much like one.
#[must_use]
pub fn nearest<'n>(name: &str, known: &[&'n str]) -> Option<&'n str> {
    let (lower, most) = (name.to_ascii_lowercase(), (1 + name.len() / 4).min(3));
    let distance = |known: &str| distance_within(&lower, &known.to_ascii_lowercase(), most);
    let near = known.iter().filter_map(|known| Some((distance(known)?, *known)));
    near.filter(|(distance, known)| *distance < known.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// `<resource>.<group>` for every built-in resource that has a group.
fn full_names() -> &'static [String] {
    static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
        BUILTIN
            .iter()
            .chain(BUILTIN_WITH_GROUP)
            .filter(|(group, _)| !group.is_empty())
            .flat_map(|(group, resources)| {
                resources.iter().map(move |resource| format!("{resource}.{group}"))
            })
            .collect()
    });
    &NAMES
}

/// The number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`, if at most
/// `most`.
///
/// Each change of a state with a thousand custom resources compares each name with all built-in names several
/// times, so a mismatch must be found early. Only cells at most `most` off the diagonal are filled, and the search
/// stops once two successive rows have no cell of at most `most`.
fn distance_within(a: &str, b: &str, most: usize) -> Option<usize> {
    Distance::new(a, b, most)?.find(|_| {})
}

/// The length of a table row: more than the longest built-in name plus one.
const ROW: usize = 80;

/// The table of an edit distance, computed row by row.
struct Distance<'s> {
    a: &'s [u8],
    b: &'s [u8],
    most: usize,
}

impl<'s> Distance<'s> {
    /// `None` if the lengths differ by more than `most`, or `b` is too long for a row, which no built-in name is.
    fn new(a: &'s str, b: &'s str, most: usize) -> Option<Self> {
        (b.len() + 1 < ROW && a.len().abs_diff(b.len()) <= most).then_some(Self {
            a: a.as_bytes(),
            b: b.as_bytes(),
            most,
        })
    }

    /// The distance; calls `row` with the number of each row that is filled.
    fn find(&self, mut row: impl FnMut(usize)) -> Option<usize> {
        let Self { a, b, most } = *self;
        let far = most + 1;
        let mut before_last = [far; ROW];
        let mut last: [usize; ROW] = std::array::from_fn(|j| j.min(far));
        let mut next = [far; ROW];
        for i in 1..=a.len() {
            row(i);
            let (from, to) = (i.saturating_sub(most).max(1), (i + most).min(b.len()));
            next[from - 1] = if from == 1 { i.min(far) } else { far };
            for j in from..=to {
                let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut cell = replace.min(last[j] + 1).min(next[j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    cell = cell.min(before_last[j - 2] + 1);
                }
                next[j] = cell.min(far);
            }
            // The next row reads one cell beyond this row's, and a swap reads two rows back.
            next[to + 1] = far;
            let alive = |row: &[usize]| row[from - 1..=to].iter().any(|cell| *cell <= most);
            if !alive(&next) && !alive(&last) {
                return None;
            }
            std::mem::swap(&mut before_last, &mut last);
            std::mem::swap(&mut last, &mut next);
        }
        Some(last[b.len()]).filter(|distance| *distance <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(name: &str) -> Result<String, KindNameError> {
        KindScheme::default().resolve(name).map(|kind| kind.to_string())
    }

    #[test]
    fn names_as_kubectl_writes_them() {
        for (name, prefix) in [
            ("pods", "/registry/pods/"),
            ("nodes", "/registry/minions/"),
            ("services", "/registry/services/specs/"),
            ("endpoints", "/registry/services/endpoints/"),
            ("replicationcontrollers", "/registry/controllers/"),
            ("ingresses", "/registry/ingress/"),
            ("ingresses.networking.k8s.io", "/registry/ingress/"),
            ("events", "/registry/events/"),
            ("events.events.k8s.io", "/registry/events/"),
            ("leases", "/registry/leases/"),
            ("leases.coordination.k8s.io", "/registry/leases/"),
            ("deployments", "/registry/deployments/"),
            ("deployments.apps", "/registry/deployments/"),
            ("masterleases", "/registry/masterleases/"),
            ("foos.example.com", "/registry/example.com/foos/"),
            ("gateways.gateway.networking.k8s.io", "/registry/gateway.networking.k8s.io/gateways/"),
            ("apiservices", "/registry/apiregistration.k8s.io/apiservices/"),
            (
                "customresourcedefinitions.apiextensions.k8s.io",
                "/registry/apiextensions.k8s.io/customresourcedefinitions/",
            ),
            ("/registry/newthings/", "/registry/newthings/"),
        ] {
            assert_eq!(resolve(name).as_deref(), Ok(prefix), "{name}");
        }
    }

    #[test]
    fn near_misses_get_a_suggestion() {
        for (name, suggestion) in [
            ("pod", "pods"),
            ("Pods", "pods"),
            ("noeds", "nodes"),
            ("minions", "nodes"),
            ("ingress", "ingresses"),
            ("lease", "leases"),
            ("deploymets", "deployments"),
            ("deployments.app", "deployments.apps"),
            ("leases.coordination.k8s.oi", "leases.coordination.k8s.io"),
            ("lease.coordination.k8s.io", "leases.coordination.k8s.io"),
            ("Foos.example.com", "foos.example.com"),
        ] {
            let want = KindNameError::Misspelt { name: name.into(), suggestion: suggestion.into() };
            assert_eq!(resolve(name), Err(want), "{name}");
        }
    }

    #[test]
    fn others_are_refused() {
        for name in ["", "pods/", ".", "foos.", ".com", "foo bar", "pods\n"] {
            assert!(matches!(resolve(name), Err(KindNameError::Malformed { .. })), "{name:?}");
        }
        for name in ["whatsoever", "foos.example", "carrots.policy"] {
            assert!(matches!(resolve(name), Err(KindNameError::Unknown { .. })), "{name:?}");
        }
        for name in ["/registry/pods", "/registry/", "/registry/services/foo/", "/pods/"] {
            assert!(matches!(resolve(name), Err(KindNameError::NotAPrefix { .. })), "{name:?}");
        }
    }

    #[test]
    fn names_lead_back() {
        let scheme = KindScheme::new("/a");
        let short =
            BUILTIN.iter().chain(BUILTIN_WITH_GROUP).flat_map(|(_, all)| *all).map(|name| (*name).to_owned());
        for name in short
            .chain(full_names().iter().cloned())
            .chain(["foos.example.com".into(), "/a/newthings/".into()])
        {
            let kind = scheme.resolve(&name).unwrap();
            assert_eq!(scheme.resolve(&scheme.name_of(&kind)), Ok(kind), "{name}");
        }
        assert_eq!(scheme.name_of(&scheme.resolve("/a/services/specs/").unwrap()), "services");
        assert_eq!(scheme.name_of(&scheme.resolve("leases.coordination.k8s.io").unwrap()), "leases");
        assert_eq!(scheme.name_of(&scheme.resolve("/a/newthings/").unwrap()), "/a/newthings/");
        // Kubernetes writes no group segment for leases, so the name `leases.coordination.k8s.io` would mean
        // another prefix.
        let odd = scheme.resolve("/a/coordination.k8s.io/leases/").unwrap();
        assert_eq!(scheme.name_of(&odd), "/a/coordination.k8s.io/leases/");
    }

    /// The distance computed from the whole table.
    fn whole_distance(a: &str, b: &str) -> usize {
        distance_within(a, b, a.len().max(b.len())).expect("no distance is more than the longer length")
    }

    #[test]
    fn distances() {
        for (a, b, want) in [
            ("", "", 0),
            ("a", "", 1),
            ("ab", "ba", 1),
            ("abc", "adc", 1),
            ("kitten", "sitting", 3),
            ("ca", "abc", 3),
            ("abcdef", "uvwxyz", 6),
        ] {
            assert_eq!((whole_distance(a, b), whole_distance(b, a)), (want, want), "{a} {b}");
        }
    }

    #[test]
    fn a_distance_is_found_within_its_bound_or_not_at_all() {
        // All pairs of words over three letters, which covers insertions, deletions, replacements and swaps.
        let mut words = vec![String::new()];
        for len in 0..5 {
            let longer: Vec<_> = words.iter().filter(|word| word.len() == len).cloned().collect();
            words.extend(
                longer.iter().flat_map(|word| ["a", "b", "c"].map(|letter| format!("{word}{letter}"))),
            );
        }
        for (a, b) in words.iter().step_by(3).flat_map(|a| words.iter().map(move |b| (a, b))) {
            let whole = whole_distance(a, b);
            for most in 0..4 {
                assert_eq!(distance_within(a, b, most), (whole <= most).then_some(whole), "{a} {b} {most}");
            }
        }
    }

    #[test]
    fn f23_a_custom_resource_is_told_from_what_is_built_in_after_a_few_letters() {
        for name in ["widgets.longer.example.com", "certificates.cert-manager.io", "pods.metrics.example.org"]
        {
            assert!(resolve(name).is_ok(), "{name}");
            let mut rows = 0;
            for known in full_names() {
                if let Some(table) = Distance::new(name, known, CUSTOM_DISTANCE_MAX) {
                    assert_eq!(table.find(|_| rows += 1), None, "{name} {known}");
                }
            }
            assert!(rows <= 4 * full_names().len(), "{name}: {rows} rows");
        }
        assert!(full_names().iter().all(|known| known.len() + 1 < ROW));
    }
}
