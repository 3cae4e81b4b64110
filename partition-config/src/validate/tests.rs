use proptest::prelude::*;

use super::*;
use crate::{
    history::HistoryBounds,
    kind::Located,
    parse::{DEFAULT_CONFIG, parse_config},
};

/// A configuration with stores a (slot 1) and b (slot 2), the default a, and these partitions in YAML flow style.
fn config(partitions: &[&str]) -> KindredConfig {
    let mut text = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}]\npartitions:\n".to_owned();
    if partitions.is_empty() {
        text.push_str(" []\n");
    }
    for (i, partition) in partitions.iter().enumerate() {
        text.push_str(&format!("- {{metadata: {{name: p{i}}}, {partition}}}\n"));
    }
    parse_config(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn paths(config: &KindredConfig) -> Vec<String> {
    validate(config)
        .map_or_else(|errors| errors.into_iter().map(|error| error.path).collect(), |_| Vec::new())
}

#[test]
fn the_default_configuration() {
    let valid = validate(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap();
    for (key, store) in [
        ("/registry/leases/kube-node-lease/n1", "leases"),
        ("/registry/minions/n1", "nodes"),
        ("/registry/minions", "nodes"),
        ("/registry/pods/ns/a", "pods"),
        ("/registry/pods", "pods"),
        ("/registry/events/ns/a", "events"),
        ("/registry/podtemplates/ns/a", "default"),
        ("/registry/masterleases/a", "default"),
        ("compact_rev_key", "default"),
        ("", "default"),
    ] {
        let found = &valid.stores[usize::from(valid.map.store_of(key.as_bytes()).0)];
        assert_eq!(found.name.0, store, "{key}");
    }
    let leases = valid.scheme.resolve("leases").unwrap();
    let settings = valid.kinds.iter().find(|settings| settings.kind == leases).unwrap();
    assert_eq!(settings.durability, Some(Durability::None));
}

#[test]
fn no_partition_at_all_is_the_default_store() {
    let valid = validate(&config(&[])).unwrap();
    assert_eq!(valid.map, PartitionMap::single(StoreIdx(0), Epoch(1)));
}

#[test]
fn stores_are_checked() {
    let check = |stores: &str| {
        paths(&parse_config(&format!("default: a\nstores: [{{name: a, slot: 1}}, {stores}]\n")).unwrap())
    };
    assert_eq!(check("{name: b, slot: 1023}, {name: c, type: etcd, endpoints: ['http://h:1']}"), [""; 0]);
    assert_eq!(check("{name: a, slot: 1}"), ["stores[1].name", "stores[1].slot"]);
    assert_eq!(check("{name: b, slot: 0}, {name: c, slot: 1024}"), ["stores[1].slot", "stores[2].slot"]);
    assert_eq!(check("{name: b}, {name: c, type: etcd}"), ["stores[1].slot", "stores[2].endpoints"]);
    let unix = |path: &str| check(&format!("{{name: b, slot: 2, endpoints: ['http://h:1', '{path}']}}"));
    for path in
        ["unix:///run/kindred/b.sock", "unix:b", "unixs:///run/b", &format!("unix:///{}", "p".repeat(106))]
    {
        assert_eq!(unix(path), [""; 0], "{path}");
    }
    for path in ["unix:", "unix://", "unix:///run/a b", &format!("unix:///{}", "p".repeat(107))] {
        assert_eq!(unix(path), ["stores[1].endpoints[1]"], "{path}");
    }
    assert_eq!(
        check("{name: 'B b', slot: 2, endpoints: ['']}"),
        ["stores[1].name", "stores[1].endpoints[0]"]
    );
    assert_eq!(paths(&parse_config("default: a\nstores: []\n").unwrap()), ["stores", "default"]);
}

#[test]
fn every_error_at_once_by_field() {
    let config = config(&[
        "resource: pod, serviceGroupId: c",
        "resource: pods, serviceGroupId: a, rangeStart: m",
        "resource: nodes, serviceGroupId: a, rangeStart: m, isRangeStartValid: true, rangeEnd: m, isRangeEndValid: true",
        "resource: secrets, serviceGroupId: a, historyMax: lots, ring: {stores: [a, b]}, kind: Pod",
        "resource: leases, serviceGroupId: a, rangeStart: /registry/leases/a, isRangeStartValid: true",
    ]);
    let errors = validate(&config).unwrap_err();
    let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "partitions[3].historyMax",
            "partitions[0].serviceGroupId",
            "partitions[0].resource",
            "partitions[1].rangeStart",
            "partitions[2].rangeEnd",
            "partitions[3].kind",
            "partitions[3].ring",
            "partitions[4].rangeStart",
        ]
    );
    assert_eq!(errors[2].message, r#"Kubernetes has no "pod": did you mean "pods"?"#);
    assert_eq!(errors[6].message, "both serviceGroupId and ring are given");
}

#[test]
fn a_named_kind_is_covered_whole() {
    let low = "resource: pods, serviceGroupId: a, rangeEnd: g, isRangeEndValid: true";
    let middle = "resource: pods, serviceGroupId: a, rangeStart: g, isRangeStartValid: true, rangeEnd: p, isRangeEndValid: true";
    let high = "resource: pods, serviceGroupId: a, rangeStart: p, isRangeStartValid: true";
    assert_eq!(paths(&config(&[high, low, middle])), [""; 0]);
    let gap = validate(&config(&[low, high])).unwrap_err();
    assert_eq!((gap.len(), gap[0].path.as_str()), (1, "partitions[1].rangeStart"));
    assert_eq!(gap[0].message, r#"no partition holds pods from "g" to "p""#);
    assert_eq!(validate(&config(&[low])).unwrap_err()[0].message, r#"no partition holds pods from "g" on"#);
    assert_eq!(
        validate(&config(&[high])).unwrap_err()[0].message,
        r#"no partition holds pods from "" to "p""#
    );
    assert_eq!(paths(&config(&[low, middle, middle, high])), ["partitions[2].rangeStart"]);
    assert_eq!(paths(&config(&["resource: pods, serviceGroupId: a", middle])), ["partitions[1].rangeStart"]);
    // Both names mean the same Kind.
    let twice = ["resource: events, serviceGroupId: a", "resource: events.events.k8s.io, serviceGroupId: a"];
    assert_eq!(paths(&config(&twice)), ["partitions[1].rangeStart"]);
}

#[test]
fn a_kind_is_of_one_mind() {
    let low = "resource: pods, serviceGroupId: a, rangeEnd: g, isRangeEndValid: true, durability: fsync";
    let high = "resource: pods, serviceGroupId: a, rangeStart: g, isRangeStartValid: true";
    assert_eq!(paths(&config(&[low, high])), ["partitions[1].durability"]);
    let low =
        "resource: pods, serviceGroupId: a, rangeEnd: g, isRangeEndValid: true, limits: {readsPerSecond: 5}";
    assert_eq!(paths(&config(&[low, high])), ["partitions[1].limits"]);
    let same = format!("{high}, limits: {{readsPerSecond: 5}}");
    let limits = validate(&config(&[low, &same])).unwrap().kinds[0].limits;
    assert_eq!((limits.reads_per_second, limits.writes_per_second), (Some(5), None));
    let none = "resource: pods, serviceGroupId: a, limits: {writesPerSecond: 0}";
    assert_eq!(paths(&config(&[none])), ["partitions[0].limits.writesPerSecond"]);
    let none =
        "resource: pods, serviceGroupId: a, limits: {clientReadsPerSecond: 0, clientWritesPerSecond: 0}";
    let of_clients =
        ["partitions[0].limits.clientReadsPerSecond", "partitions[0].limits.clientWritesPerSecond"];
    assert_eq!(paths(&config(&[none])), of_clients);
}

#[test]
fn f28_the_history_of_a_kind_has_a_bound_or_the_text_is_refused() {
    let errors = validate(&config(&["resource: pods, serviceGroupId: a, historyMax: 10"])).unwrap_err();
    let [error] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!(error.path, "partitions[0].historyMax");
    assert!(error.what_to_do.contains("10m"), "{error}");
    let bounds = |text: &[&str]| validate(&config(text)).unwrap().kinds[0].history;
    let age = HistoryBounds { bytes: None, seconds: Some(600) };
    assert_eq!(bounds(&["resource: pods, serviceGroupId: a, historyMax: 10m"]), age);
    let both = [
        "resource: pods, serviceGroupId: a, historyMax: 10m, rangeEnd: m, isRangeEndValid: true",
        "resource: pods, serviceGroupId: a, historyMax: 64Mi, rangeStart: m, isRangeStartValid: true",
    ];
    assert_eq!(bounds(&both), HistoryBounds { bytes: Some(64 << 20), seconds: Some(600) });
}

#[test]
fn only_a_stock_etcd_is_adopted() {
    let mut config = config(&["resource: pods, serviceGroupId: b"]);
    config.stores[1].adopting = true;
    assert_eq!(validate(&config).unwrap_err()[0].path, "stores[1].adopting");
}

#[test]
fn a_durability_is_one_of_three_words() {
    let check = |durability: &str, store: StoreType| {
        let mut config = config(&[&format!("resource: pods, serviceGroupId: b, durability: {durability}")]);
        if store == StoreType::Etcd {
            config.stores[1].store_type = store;
            config.stores[1].slot = None;
            config.stores[1].endpoints = vec!["http://h:1".to_owned()];
        }
        let texts = |errors: Vec<FieldError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        validate(&config).map(|valid| valid.kinds[0].durability).map_err(texts)
    };
    assert_eq!(check("buffered", StoreType::Shard), Ok(Some(Durability::Buffered)));
    assert_eq!(check("fsync", StoreType::Etcd), Ok(Some(Durability::Fsync)));
    let unknown =
        r#"partitions[0].durability: "Disk" is no durability; write none, buffered or fsync"#.to_owned();
    assert_eq!(check("Disk", StoreType::Shard), Err(vec![unknown]));
    // A stock etcd keeps more than is asked for. It was refused, so Kinds of the default cluster could not leave for one.
    assert_eq!(check("none", StoreType::Etcd), Ok(Some(Durability::None)));
}

const LOW: &str = "resource: pods, rangeEnd: g, isRangeEndValid: true";
const HIGH: &str = "resource: pods, rangeStart: g, isRangeStartValid: true";

#[test]
fn a_kind_on_several_stores() {
    let mixed = [format!("{LOW}, serviceGroupId: a"), format!("{HIGH}, ring: {{stores: [b, a]}}")];
    let valid = validate(&config(&mixed.each_ref().map(String::as_str))).unwrap();
    let stores = |range| valid.map.stores_of(&range).into_iter().map(|store| store.0).collect::<Vec<_>>();
    let one = |key: &str| KeyRange::Single(Key::from(key));
    assert_eq!(stores(KeyRange::prefix(Key::from("/registry/pods/"))), [0, 1]);
    assert_eq!(stores(one("/registry/pods")), [0, 1], "the pseudo-key is of the whole Kind");
    assert_eq!(stores(one("/registry/pods/a")), [0]);
    assert_eq!(stores(KeyRange::prefix(Key::from("/registry/pods/a"))), [0]);
    assert_eq!(stores(KeyRange::prefix(Key::from("/registry/pods/x"))), [0, 1]);
    assert_eq!(valid.map.lookup(b"/registry/pods/x").placement.stores(), [StoreIdx(0), StoreIdx(1)]);
    assert!(valid.map.is_spread(&valid.scheme.resolve("pods").unwrap()));
    assert!(!valid.map.is_spread(&valid.scheme.resolve("nodes").unwrap()));
}

#[test]
fn rings_are_checked() {
    let ring = |ring: &str| paths(&config(&[&format!("resource: pods, {ring}")]));
    assert_eq!(ring("ring: {stores: [a, b]}"), [""; 0]);
    assert_eq!(ring("ring: {stores: [a]}"), [""; 0], "a ring to grow");
    assert_eq!(ring("ring: {stores: []}"), ["partitions[0].ring.stores"]);
    assert_eq!(
        ring("ring: {stores: [a, c, a]}"),
        ["partitions[0].ring.stores[1]", "partitions[0].ring.stores[2]"]
    );
    assert_eq!(ring("serviceGroupId: a, ring: {stores: [a, b]}"), ["partitions[0].ring"]);
    assert_eq!(ring("durability: none"), ["partitions[0].serviceGroupId"]);
}

#[test]
fn a_stock_etcd_shares_no_kind() {
    let check = |partitions: &[String]| {
        let mut config = config(&partitions.iter().map(String::as_str).collect::<Vec<_>>());
        config.stores[1].store_type = StoreType::Etcd;
        config.stores[1].slot = None;
        config.stores[1].endpoints = vec!["http://h:1".to_owned()];
        validate(&config).map_or_else(|errors| errors, |_| Vec::new())
    };
    assert_eq!(check(&["resource: pods, serviceGroupId: b".to_owned()]), []);
    assert_eq!(check(&[format!("{LOW}, serviceGroupId: b"), format!("{HIGH}, serviceGroupId: b")]), []);
    let beside = check(&[format!("{LOW}, serviceGroupId: a"), format!("{HIGH}, serviceGroupId: b")]);
    assert_eq!(
        beside.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "partitions[1].serviceGroupId: store \"b\" is a stock etcd, which cannot share pods with another store; \
          give the whole Kind to it, or every range of the Kind to shards"
        ]
    );
    let in_ring = check(&["resource: pods, ring: {stores: [a, b]}".to_owned()]);
    assert_eq!(in_ring.iter().map(|e| e.path.as_str()).collect::<Vec<_>>(), ["partitions[0].ring.stores"]);
}

/// A partition in YAML. Few Kinds and few bounds, so that many lists are valid.
fn partition() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec![
        ("pods", "a"),
        ("nodes", "b"),
        ("services", "b"),
        ("foos.example.com", "a"),
    ]);
    let bound = || prop::option::weighted(0.3, prop::sample::select(vec!["", "f", "m"]));
    (kind, bound(), bound(), any::<bool>()).prop_map(|((resource, store), start, end, ring)| {
        let placed =
            if ring { "ring: {stores: [b, a]}".to_owned() } else { format!("serviceGroupId: {store}") };
        let mut text = format!("resource: {resource}, {placed}");
        if let Some(start) = start {
            text.push_str(&format!(", rangeStart: '{start}', isRangeStartValid: true"));
        }
        if let Some(end) = end {
            text.push_str(&format!(", rangeEnd: '{end}', isRangeEndValid: true"));
        }
        text
    })
}

proptest! {
    #[test]
    fn what_validates_has_an_owner_for_every_key(partitions in prop::collection::vec(partition(), 0..5)) {
        let config = config(&partitions.iter().map(String::as_str).collect::<Vec<_>>());
        if let Ok(valid) = validate(&config) {
            prop_assert_eq!(PartitionMap::new(valid.map.partitions().to_vec()), Ok(valid.map.clone()));
            for key in [
                "", "/registry/pods", "/registry/pods/a", "/registry/pods/m", "/registry/pods/z", "/registry/pods0",
                "/registry/minions/f", "/registry/minions", "/registry/services/specs", "/registry/services/specs/a",
                "/registry/services/endpoints/a", "/registry/example.com/foos/q", "/registry/example.com/bars/q",
            ] {
                let found = valid.map.lookup(key.as_bytes());
                let kind = valid.scheme.kind_of(key.as_bytes());
                let name = kind.as_ref().map_or("", |kind| key.get(kind.as_key().len()..).unwrap_or(""));
                let named = config
                    .partitions
                    .iter()
                    .filter(|_| kind.is_some())
                    .filter(|config| valid.scheme.resolve(&config.resource).ok() == kind)
                    .find(|config| {
                        let above = !config.is_range_start_valid || *config.range_start <= *name;
                        above && (!config.is_range_end_valid || *name < *config.range_end)
                    });
                let store = &valid.stores[usize::from(found.store_of(key.as_bytes()).0)].name;
                match named {
                    None => prop_assert_eq!(&store.0, "a", "{}", key),
                    Some(config) => match (&config.service_group_id, &config.ring) {
                        (Some(group), _) => prop_assert_eq!(store, group, "{}", key),
                        (None, ring) => prop_assert!(ring.as_ref().unwrap().stores.contains(store)),
                    },
                }
                let asked = valid.map.stores_of(&KeyRange::Single(Key::from(key)));
                prop_assert!(asked.contains(&found.store_of(key.as_bytes())));
                prop_assert_eq!(found.kind.is_some(), named.is_some());
                let is_pseudo = matches!(valid.scheme.locate(key.as_bytes()), Located::Pseudo { .. });
                prop_assert_eq!(found.is_pseudo(), named.is_some() && is_pseudo);
            }
        }
    }
}

/// Ten thousand ranges were valid, and `kindred up` ended after half a minute, as no meta store took them.
#[test]
fn f91_more_configs_than_a_meta_store_takes_are_refused() {
    let kind = |number: usize| format!("resource: {number:05}.example.com, serviceGroupId: b");
    let partitions: Vec<String> = (0..=PARTITIONS_MAX).map(kind).collect();
    let partitions: Vec<&str> = partitions.iter().map(String::as_str).collect();
    assert_eq!(paths(&config(&partitions)), ["partitions"]);
    assert_eq!(paths(&config(&partitions[1..])), [""; 0]);
}
