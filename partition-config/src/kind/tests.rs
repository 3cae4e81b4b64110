use proptest::prelude::*;

use super::*;

/// The classification of `key` as one word and the part that was found.
fn located(scheme: &KindScheme, key: &str) -> String {
    match scheme.locate(key.as_bytes()) {
        Located::Object { kind } => format!("object {}", kind.escape_ascii()),
        Located::Pseudo { stem } => format!("pseudo {}", stem.escape_ascii()),
        Located::Health => "health".into(),
        Located::Other => "other".into(),
    }
}

#[test]
fn keys_of_kubernetes() {
    let scheme = KindScheme::default();
    for (key, want) in [
        ("/registry/pods/ns/a", "object /registry/pods/"),
        ("/registry/pods/", "object /registry/pods/"),
        ("/registry/pods//", "object /registry/pods/"),
        ("/registry/pods", "pseudo /registry/pods"),
        ("/registry/podtemplates/ns/a", "object /registry/podtemplates/"),
        ("/registry/pods0", "pseudo /registry/pods0"),
        ("/registry/minions/n1", "object /registry/minions/"),
        ("/registry/services/specs/ns/a", "object /registry/services/specs/"),
        ("/registry/services/specs", "pseudo /registry/services/specs"),
        ("/registry/services/endpoints/", "object /registry/services/endpoints/"),
        ("/registry/services/endpoints", "pseudo /registry/services/endpoints"),
        ("/registry/services/specs2/ns/a", "other"),
        ("/registry/services/foo", "other"),
        ("/registry/services/", "other"),
        ("/registry/services", "other"),
        ("/registry/servicesx/a", "object /registry/servicesx/"),
        ("/registry/example.com/foos/ns/a", "object /registry/example.com/foos/"),
        ("/registry/example.com/foos", "pseudo /registry/example.com/foos"),
        ("/registry/example.com/", "other"),
        ("/registry/example.com", "other"),
        ("/registry/example.com//a", "other"),
        (
            "/registry/apiextensions.k8s.io/customresourcedefinitions/foos.example.com",
            "object /registry/apiextensions.k8s.io/customresourcedefinitions/",
        ),
        ("/registry/leases/kube-node-lease/n1", "object /registry/leases/"),
        ("/registry/masterleases/10.0.0.1", "object /registry/masterleases/"),
        ("/registry/ranges/serviceips", "object /registry/ranges/"),
        ("/registry/health", "health"),
        ("/registry/health/", "other"),
        ("/registry/healthy", "pseudo /registry/healthy"),
        ("/registry/", "other"),
        ("/registry//pods/a", "other"),
        ("/registry", "other"),
        ("/registrypods/a", "other"),
        ("compact_rev_key", "other"),
        ("", "other"),
        ("\0", "other"),
    ] {
        assert_eq!(located(&scheme, key), want, "{key}");
    }
}

#[test]
fn other_etcd_prefixes() {
    for text in ["/a/b", "a/b", "a/b/", "//a//b//", "/a/./c/../b"] {
        let scheme = KindScheme::new(text);
        assert_eq!(scheme.root(), b"/a/b/", "{text}");
        assert_eq!(located(&scheme, "/a/b/pods/x"), "object /a/b/pods/");
        assert_eq!(located(&scheme, "/a/b/health"), "health");
        assert_eq!(located(&scheme, "/registry/pods/x"), "other");
    }
    for text in ["", "/", ".."] {
        let scheme = KindScheme::new(text);
        assert_eq!(located(&scheme, "/pods/x"), "object /pods/");
        assert_eq!(located(&scheme, "/health"), "health");
        assert_eq!(located(&scheme, "pods/x"), "other");
    }
}

#[test]
fn prefixes_are_checked() {
    let scheme = KindScheme::default();
    let pods = scheme.kind_prefix(b"/registry/pods/").unwrap();
    assert_eq!((pods.stem(), &**pods.as_key()), (&b"/registry/pods"[..], &b"/registry/pods/"[..]));
    assert_eq!(pods.end(), Key::from("/registry/pods0"));
    assert_eq!(pods.as_key().prefix_end(), Some(pods.end()));
    for wrong in ["/registry/pods", "/registry/pods/a", "/registry/services/", "/registry/", "pods/"] {
        assert_eq!(scheme.kind_prefix(wrong.as_bytes()), None, "{wrong}");
    }
    assert_eq!(scheme.kind_of(b"/registry/pods"), Some(pods.clone()));
    assert_eq!(scheme.kind_of(b"/registry/pods/ns/a"), Some(pods));
    assert_eq!(scheme.kind_of(b"/registry/health"), None);
}

/// Keys made of the segments that the scheme treats specially.
fn key() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec!["/", "/registry/", "pods", "services", "specs", "endpoints", "a.b", "health", "."]).prop_map(str::to_owned),
        1 => "[a-c/.0]{0,3}",
    ];
    prop::collection::vec(piece, 0..7).prop_map(|pieces| format!("/registry/{}", pieces.concat()))
}

proptest! {
    #[test]
    fn a_kind_is_the_beginning_of_its_keys_and_finds_itself(key in key()) {
        let scheme = KindScheme::default();
        match scheme.locate(key.as_bytes()) {
            Located::Object { kind } => {
                prop_assert!(key.as_bytes().starts_with(kind));
                prop_assert_eq!(scheme.locate(kind), Located::Object { kind });
                let stem = kind.strip_suffix(b"/").unwrap();
                prop_assert_eq!(scheme.locate(stem), Located::Pseudo { stem });
                prop_assert!(scheme.kind_prefix(kind).unwrap().range().contains(key.as_bytes()));
            }
            Located::Pseudo { stem } => {
                prop_assert_eq!(stem, key.as_bytes());
                let kind = scheme.kind_of(stem).unwrap();
                prop_assert_eq!(kind.stem(), stem);
            }
            Located::Health => prop_assert_eq!(key, "/registry/health"),
            Located::Other => prop_assert_eq!(scheme.kind_of(key.as_bytes()), None),
        }
    }

    #[test]
    fn kinds_are_prefix_free(a in key(), b in key()) {
        let scheme = KindScheme::default();
        if let (Some(a), Some(b)) = (scheme.kind_of(a.as_bytes()), scheme.kind_of(b.as_bytes())) {
            prop_assert_eq!(a == b, a.range().overlaps(&b.range()));
        }
    }

    #[test]
    fn never_panics(prefix in ".{0,8}", key in prop::collection::vec(any::<u8>(), 0..40)) {
        let _ = KindScheme::new(&prefix).locate(&key);
    }
}
