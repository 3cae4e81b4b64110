use proptest::prelude::*;

use super::*;
use crate::{
    key::KeyRange,
    parse::{DEFAULT_CONFIG, parse_config, parse_partition},
};

fn name(text: &str) -> StoreName {
    StoreName(text.to_owned())
}

/// A document with shards a, b, c and an etcd e, the default a, and these partitions in YAML flow style.
fn state(partitions: &[&str]) -> ClusterState {
    let mut text = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}, {name: c, slot: 5}, \
                    {name: e, type: etcd, endpoints: ['http://h:1']}]\npartitions:\n"
        .to_owned();
    if partitions.is_empty() {
        text.push_str(" []\n");
    }
    for (i, partition) in partitions.iter().enumerate() {
        text.push_str(&format!("- {{metadata: {{name: p{i}}}, {partition}}}\n"));
    }
    ClusterState::bootstrap(&parse_config(&text).unwrap()).unwrap()
}

fn config(text: &str) -> DataPartitionConfig {
    parse_partition(text).unwrap()
}

fn paths<T: std::fmt::Debug>(result: Result<T, Vec<FieldError>>) -> Vec<String> {
    result.unwrap_err().into_iter().map(|error| error.path).collect()
}

fn brief(change: &Change) -> Vec<String> {
    let one = |t: &Transfer| {
        let KeyRange::Span { start, .. } = &t.unit.range else { panic!("{t:?}") };
        let buckets = t.unit.buckets.as_ref().map_or(String::new(), |b| format!(" {}", b.set.len()));
        format!("{start}{buckets} {}>{}", change.state.store_name(t.from), change.state.store_name(t.to))
    };
    change.transfers.iter().map(one).collect()
}

/// The document after all transfers of a change.
fn done(change: &Change) -> ClusterState {
    change.state.with_transfers(&change.transfers).unwrap()
}

impl ClusterState {
    fn configured_map(&self) -> PartitionMap {
        self.placed().unwrap().2
    }
}

fn owner(state: &ClusterState, key: &str) -> String {
    state.store_name(state.map.store_of(key.as_bytes()))
}

#[test]
fn the_default_configuration_as_a_document() {
    let state = ClusterState::bootstrap(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap();
    assert_eq!((state.generation, state.revision), (Epoch(1), 1));
    assert_eq!(ClusterState::from_json(&state.to_json()), Ok(state.clone()));
    let valid = validate::validate(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap();
    assert_eq!(state.validated(), Ok(valid));
}

#[test]
fn documents_are_checked() {
    let state = state(&["resource: pods, serviceGroupId: b"]);
    let text = String::from_utf8(state.to_json()).unwrap();
    let read = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        ClusterState::from_json(text.replace(from, to).as_bytes())
    };
    assert_eq!(read(r#""version":1"#, r#""version":2,"more":1"#), Err(StateError::Version(2)));
    assert!(matches!(read(r#""generation""#, r#""generatoin""#), Err(StateError::Malformed(_))));
    assert!(matches!(read(r#""store":1"#, r#""store":7"#), Err(StateError::Inconsistent(_))));
    let unsound = |from: &str, to: &str| paths(read(from, to).unwrap().validated());
    assert_eq!(unsound(r#""default":"a""#, r#""default":"x""#), ["default"]);
    let removed = unsound(r#""slot":2,"state":"active""#, r#""slot":2,"state":"removed""#);
    assert_eq!(removed, ["servicegroups/b", "datapartitionconfigs/p0.serviceGroupId"]);
    assert!(matches!(ClusterState::from_json(b"{}"), Err(StateError::Malformed(_))));
}

#[test]
fn a_config_edited_moves_the_kind() {
    let before = state(&["resource: pods, serviceGroupId: b", "resource: nodes, serviceGroupId: a"]);
    let mut edited = before.configs[0].clone();
    edited.service_group_id = Some(name("c"));
    let change = before.apply_configs(&[ConfigChange::Update(edited.clone())]).unwrap();
    assert_eq!(brief(&change), ["/registry/pods b>c", "/registry/pods/ b>c"]);
    assert_eq!(change.by_kind().len(), 1);
    assert_eq!((change.state.generation, change.state.revision), (Epoch(1), 2));
    assert_eq!(change.state.map, before.map, "nothing has moved yet");
    let version = |at: usize| change.state.configs[at].metadata.resource_version.as_deref();
    assert_eq!((version(0), version(1)), (Some("2"), Some("1")));
    let after = done(&change);
    assert_eq!((after.generation, owner(&after, "/registry/pods/x")), (Epoch(2), "c".to_owned()));
    assert_eq!(transfers::transfers(&after.map, &change.desired), []);
    // The edited version is outdated.
    let again = after.apply_configs(&[ConfigChange::Update(edited)]);
    assert_eq!(paths(again), ["datapartitionconfigs/p0.metadata.resourceVersion"]);
}

#[test]
fn what_moves_nothing_is_in_force_at_once() {
    let before = state(&["resource: pods, serviceGroupId: b"]);
    let nodes = config("{metadata: {name: nodes}, resource: nodes, serviceGroupId: a}");
    let change = before.apply_configs(&[ConfigChange::Create(nodes)]).unwrap();
    assert_eq!((change.transfers.len(), change.state.generation), (0, Epoch(2)));
    assert!(change.state.map.lookup(b"/registry/minions").is_pseudo());
    let mut fsync = change.state.configs[1].clone();
    fsync.durability = Some("fsync".to_owned());
    let change = change.state.apply_configs(&[ConfigChange::Update(fsync)]).unwrap();
    assert_eq!((change.transfers.len(), change.state.generation, change.state.revision), (0, Epoch(2), 3));
}

#[test]
fn a_move_that_is_given_up_leaves_the_configs_as_they_were() {
    let before = state(&["resource: pods, serviceGroupId: a", "resource: nodes, serviceGroupId: b"]);
    let split = before.split("pods", "m", &name("c")).unwrap().state;
    let pods = before.scheme().resolve("pods").unwrap();
    let back = split.with_said_of(Some(&pods), &before.said_of(Some(&pods))).unwrap().state;
    let says = |state: &ClusterState| {
        let mut configs = state.configs.clone();
        configs.iter_mut().for_each(|config| config.metadata.resource_version = None);
        configs.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        configs
    };
    assert_eq!(says(&back), says(&before));
    assert_eq!((back.revision, back.generation), (split.revision + 1, split.generation));
    assert_eq!(back.configured_map(), before.map);
    // A move of the keys of no Kind restores the default store.
    let mut moved = before.clone();
    moved.default = name("c");
    assert_eq!(moved.with_said_of(None, &before.said_of(None)).unwrap().state.default, name("a"));
}

#[test]
fn a_move_under_way_is_left_alone_by_other_changes() {
    let before = state(&["resource: pods, serviceGroupId: b"]);
    let moving = before.move_kind("pods", &name("c")).unwrap();
    let change = moving.state.move_kind("nodes", &name("b")).unwrap();
    assert_eq!(brief(&change), ["/registry/minions a>b", "/registry/minions/ a>b"]);
    // The two moves may be switched in either order.
    let after = done(&change).with_transfers(&moving.transfers).unwrap();
    assert_eq!([owner(&after, "/registry/pods"), owner(&after, "/registry/minions")], ["c", "b"]);
    assert_eq!(after.generation, Epoch(3));
}

#[test]
fn refusals_name_object_and_field_and_come_all_at_once() {
    let before = state(&["resource: pods, serviceGroupId: b"]);
    let changes = [
        ConfigChange::Create(config("{metadata: {name: p0}, resource: nodes, serviceGroupId: a}")),
        ConfigChange::Create(config(
            "{metadata: {name: x, resourceVersion: '1'}, resource: nodes, serviceGroupId: a}",
        )),
        ConfigChange::Create(config("{metadata: {name: y}, resource: node, serviceGroupId: f}")),
        ConfigChange::Update(config("{metadata: {name: z}, resource: nodes, serviceGroupId: a}")),
        ConfigChange::Delete { name: "p0".to_owned(), resource_version: Some("9".to_owned()) },
    ];
    let errors = before.apply_configs(&changes).unwrap_err();
    assert_eq!(
        errors.iter().map(|error| error.path.as_str()).collect::<Vec<_>>(),
        [
            "datapartitionconfigs/p0.metadata.name",
            "datapartitionconfigs/x.metadata.resourceVersion",
            "datapartitionconfigs/z",
            "datapartitionconfigs/p0.metadata.resourceVersion",
            "datapartitionconfigs/y.serviceGroupId",
            "datapartitionconfigs/y.resource",
        ]
    );
    assert_eq!(errors[5].message, r#"Kubernetes has no "node": did you mean "nodes"?"#);
    let twice = config("{metadata: {name: y}, resource: pods, serviceGroupId: a}");
    let overlap = before.apply_configs(&[ConfigChange::Create(twice)]);
    assert_eq!(paths(overlap), ["datapartitionconfigs/y.rangeStart"]);
    let error = before.move_kind("pod", &name("c")).unwrap_err();
    assert_eq!((error[0].path.as_str(), error[0].message.contains("did you mean \"pods\"")), ("kind", true));
    assert_eq!(paths(before.move_kind("pods", &name("x"))), ["servicegroups/x"]);
}

#[test]
fn a_kind_leaves_a_stock_etcd_whole_and_for_one_shard() {
    let before = state(&["resource: pods, serviceGroupId: e"]);
    let change = before.move_kind("pods", &name("b")).unwrap();
    assert_eq!(brief(&change), ["/registry/pods e>b", "/registry/pods/ e>b"]);
    let after = done(&change);
    assert_eq!(owner(&after, "/registry/pods/a"), "b");
    assert_eq!(brief(&after.move_kind("pods", &name("e")).unwrap()), brief_of_pods("b>e"), "and goes to one");
    let spread = state(&["resource: pods, ring: {stores: [a, b]}"]);
    let refused = spread.move_kind("pods", &name("e")).unwrap_err();
    assert!(refused[0].message.contains("from a single shard"), "{refused:?}");
    let ring = config("{metadata: {name: p0}, resource: pods, ring: {stores: [a, b]}}");
    let spread = before.apply_configs(&[ConfigChange::Update(ring)]).unwrap_err();
    assert!(spread[0].message.contains("to a single shard"), "{spread:?}");
    assert!(paths(before.split("pods", "m", &name("b"))).iter().all(|path| path.ends_with("serviceGroupId")));
    let text = "default: e\nstores: [{name: a, slot: 1}, {name: e, type: etcd, endpoints: ['http://h:1']}]\n\
                partitions: []\n";
    let whole = ClusterState::bootstrap(&parse_config(text).unwrap()).unwrap();
    assert_eq!(brief(&whole.move_kind("pods", &name("a")).unwrap()), brief_of_pods("e>a"));
}

#[test]
fn nothing_leaves_an_etcd_that_others_may_still_use() {
    let text = "default: e\nstores: [{name: a, slot: 1}, {name: f, type: etcd, endpoints: ['http://h:2']}, \
                {name: e, type: etcd, endpoints: ['http://h:1'], adopting: true}]\npartitions: []\n";
    let adopting = ClusterState::bootstrap(&parse_config(text).unwrap()).unwrap();
    for to in ["a", "f"] {
        let refused = adopting.move_kind("pods", &name(to)).unwrap_err();
        assert!(refused[0].to_string().contains("kindred adopt finish"), "{refused:?}");
        assert!(adopting.drain_store(&name("e"), Some(&name(to))).is_err());
    }
    let adopted = adopting.finish_adoption(&name("e")).unwrap();
    assert_eq!(brief(&adopted.move_kind("pods", &name("a")).unwrap()), brief_of_pods("e>a"));
    assert!(adopting.finish_adoption(&name("x")).is_err());
}

fn brief_of_pods(way: &str) -> [String; 2] {
    ["/registry/pods", "/registry/pods/"].map(|start| format!("{start} {way}"))
}

#[test]
fn a_whole_configuration_replaces() {
    let before = state(&["resource: pods, serviceGroupId: b", "resource: nodes, serviceGroupId: b"]);
    let same = before.apply_configs(&[ConfigChange::Replace(before.configs.clone())]).unwrap();
    assert_eq!(
        (same.transfers.len(), &same.state.configs, &same.state.map),
        (0, &before.configs, &before.map)
    );
    let mut unversioned = before.configs[0].clone();
    unversioned.metadata.resource_version = None;
    let same =
        before.apply_configs(&[ConfigChange::Replace(vec![unversioned, before.configs[1].clone()])]).unwrap();
    assert_eq!(same.state.configs, before.configs, "what is equal stays as it is");
    let fewer = before.apply_configs(&[ConfigChange::Replace(vec![before.configs[0].clone()])]).unwrap();
    assert_eq!(brief(&fewer), ["/registry/minions b>a", "/registry/minions/ b>a"], "back to the default");
    assert_eq!(fewer.state.configs.len(), 1);
}

#[test]
fn a_ring_grows_by_what_it_must() {
    let before = state(&["resource: pods, serviceGroupId: a"]);
    let ring = |stores: &str| {
        ConfigChange::Update(config(&format!(
            "{{metadata: {{name: p0}}, resource: pods, ring: {{stores: [{stores}]}}}}"
        )))
    };
    let two = before.apply_configs(&[ring("a, b")]).unwrap();
    assert_eq!(brief(&two), ["/registry/pods/ 128 a>b"]);
    let two = done(&two);
    let unchanged = two.apply_configs(&[ring("b, a")]).unwrap();
    assert_eq!(brief(&unchanged), [""; 0], "the order of stores says nothing");
    let three = two.apply_configs(&[ring("a, b, c")]).unwrap();
    assert_eq!(brief(&three), ["/registry/pods/ 42 a>c", "/registry/pods/ 43 b>c"]);
    let back = done(&three).apply_configs(&[ring("a, b")]).unwrap();
    let moved: Vec<_> = brief(&back).iter().map(|line| line.split(' ').nth(2).unwrap().to_owned()).collect();
    assert_eq!(moved, ["c>a", "c>b"]);
}

#[test]
fn splits_and_merges() {
    let before = state(&["resource: pods, serviceGroupId: b"]);
    let split = before.split("pods", "m", &name("c")).unwrap();
    assert_eq!(brief(&split), ["/registry/pods/m b>c"]);
    let after = done(&split);
    assert_eq!(after.configs[1].metadata.name, "p0-2");
    assert_eq!([owner(&after, "/registry/pods/a"), owner(&after, "/registry/pods/m")], ["b", "c"]);
    let thrice = done(&after.split("pods", "t", &name("a")).unwrap());
    assert_eq!(thrice.configs[2].metadata.name, "p0-3");
    assert_eq!(paths(thrice.split("pods", "t", &name("b"))), ["at"]);
    assert_eq!(paths(thrice.split("pods", "/registry/pods/x", &name("b"))), ["at"]);
    let merged = thrice.merge("pods", Some("t"), None).unwrap();
    assert_eq!(brief(&merged), ["/registry/pods/t a>c"]);
    assert_eq!(
        merged.state.configs,
        after
            .configs
            .iter()
            .cloned()
            .map(|mut c| {
                c.metadata.resource_version =
                    merged.state.config(&c.metadata.name).unwrap().metadata.resource_version.clone();
                c
            })
            .collect::<Vec<_>>()
    );
    let whole = thrice.merge("pods", None, Some(&name("b"))).unwrap();
    assert_eq!(brief(&whole), ["/registry/pods/m c>b", "/registry/pods/t a>b"]);
    assert_eq!(whole.state.configs.len(), 1);
    assert_eq!(transfers::transfers(&done(&whole).map, &before.map), []);
    let error = thrice.merge("pods", Some("x"), None).unwrap_err();
    assert_eq!(error[0].what_to_do, r#"they meet at "m", "t""#);
    assert_eq!(paths(before.merge("pods", None, None)), ["kind"]);
    assert_eq!(paths(before.merge("nodes", None, None)), ["kind"]);
    // A split of a Kind without configs creates them.
    let named = before.split("leases", "m", &name("c")).unwrap();
    assert_eq!(brief(&named), ["/registry/leases/m a>c"]);
    assert_eq!(named.state.configs[1].metadata.name, "leases");
}

#[test]
fn stores_come_with_a_slot_of_their_own_and_go_when_they_own_nothing() {
    let before = state(&["resource: pods, serviceGroupId: b"]);
    let new = |name: &str, slot| StoreConfig {
        standby: None,
        adopting: false,
        name: StoreName(name.to_owned()),
        slot,
        endpoints: vec![],
        store_type: StoreType::Shard,
    };
    let (after, at) = before.add_store(new("d", None)).unwrap();
    assert_eq!((at, after.stores[4].slot), (StoreIdx(4), Some(3)), "the lowest that is free");
    assert_eq!(
        paths(after.add_store(new("D!", Some(1)))),
        ["servicegroups/D!.name", "servicegroups/D!.slot"]
    );
    assert_eq!(paths(after.add_store(new("d", None))), ["servicegroups/d.name"]);
    assert_eq!(
        paths(before.remove_store(&name("b"))),
        ["servicegroups/b", "datapartitionconfigs/p0.serviceGroupId"]
    );
    assert_eq!(paths(before.remove_store(&name("a"))), ["servicegroups/a", "default"]);
    let gone = after.remove_store(&name("d")).unwrap();
    assert_eq!(paths(gone.remove_store(&name("d"))), ["servicegroups/d"]);
    assert_eq!(paths(gone.move_kind("pods", &name("d"))), ["servicegroups/d"]);
    assert_eq!(
        paths(gone.add_store(new("d", Some(3)))),
        ["servicegroups/d.slot"],
        "a slot is never used again"
    );
    let (again, at) = gone.add_store(new("d", None)).unwrap();
    assert_eq!((at, again.stores[5].slot), (StoreIdx(5), Some(4)));
    assert_eq!(done(&again.move_kind("pods", &name("d")).unwrap()).map.store_of(b"/registry/pods/a"), at);
    assert_eq!(ClusterState::from_json(&again.to_json()), Ok(again));
    let known = before.identify_store(&name("b"), "u1").unwrap();
    assert_eq!(known.identify_store(&name("b"), "u1").as_ref(), Ok(&known));
    assert_eq!(paths(known.identify_store(&name("b"), "u2")), ["servicegroups/b.uuid"]);
    assert_eq!(
        paths(known.readdress_store(&name("b"), vec!["a b".into()])),
        ["servicegroups/b.endpoints[0]"]
    );
    let moved = known.readdress_store(&name("b"), vec!["http://h:2".into()]).unwrap();
    assert_eq!(moved.stores[1].endpoints, ["http://h:2"]);
}

#[test]
fn slots_run_out() {
    let mut state = state(&[]);
    let new = |at: usize| StoreConfig {
        standby: None,
        adopting: false,
        name: StoreName(format!("s{at}")),
        slot: None,
        endpoints: vec![],
        store_type: StoreType::Shard,
    };
    // Three shards and an etcd have theirs.
    for at in 0..1019 {
        state = state.add_store(new(at)).unwrap().0;
    }
    assert_eq!(paths(state.add_store(new(1019))), ["servicegroups/s1019.slot"]);
}

#[test]
fn a_store_is_drained_of_everything() {
    let before = state(&[
        "resource: pods, ring: {stores: [a, b]}",
        "resource: nodes, serviceGroupId: b",
        "resource: secrets, serviceGroupId: c",
    ]);
    let change = before.drain_store(&name("b"), None).unwrap();
    assert_eq!(
        brief(&change),
        ["/registry/minions b>a", "/registry/minions/ b>a", "/registry/pods/ 128 b>a"]
    );
    assert_eq!(change.state.configs[0].ring.as_ref().unwrap().stores, [name("a")]);
    assert_eq!(paths(change.state.move_kind("pods", &name("b"))), ["datapartitionconfigs/p0.serviceGroupId"]);
    assert_eq!(paths(change.state.remove_store(&name("b"))).len(), 2, "nodes and pods are still there");
    let again = change.state.drain_store(&name("b"), None).unwrap();
    assert_eq!(again.transfers, change.transfers, "it may be asked for twice");
    let gone = done(&change).remove_store(&name("b")).unwrap();
    assert_eq!(ClusterState::from_json(&gone.to_json()), Ok(gone));
    assert_eq!(paths(before.drain_store(&name("a"), None)), ["default"]);
    assert_eq!(paths(before.drain_store(&name("a"), Some(&name("a")))), ["to"]);
    let to_etcd = done(&before.drain_store(&name("a"), Some(&name("e"))).unwrap());
    assert_eq!((owner(&to_etcd, "z"), owner(&to_etcd, "/registry/pods/a")), ("e".to_owned(), "b".to_owned()));
    let default = before.drain_store(&name("a"), Some(&name("c"))).unwrap();
    let after = done(&default);
    for key in ["", "/registry/pods/a", "/registry/pods/b", "/registry/podtemplates/a", "/registry/pods", "z"]
    {
        assert_ne!(owner(&after, key), "a", "{key}");
    }
    assert_eq!((after.default.0.as_str(), owner(&after, "/registry/configmaps/x").as_str()), ("c", "c"));
    assert!(after.remove_store(&name("a")).is_ok());
    // Each Kind moves on its own, and so do the keys of no Kind.
    assert_eq!(default.by_kind().len(), 2);
    let back = change.state.activate_store(&name("b")).unwrap();
    assert_eq!(back.stores[1].state, StoreState::Active);
}

/// An operator's action.
#[derive(Debug, Clone)]
enum Act {
    Move(&'static str, &'static str),
    Split(&'static str, &'static str, &'static str),
    Merge(&'static str, Option<&'static str>),
    Drain(&'static str, Option<&'static str>),
    Ring(Vec<&'static str>),
    Delete(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let kind = || prop::sample::select(vec!["pods", "nodes"]);
    let store = || prop::sample::select(vec!["a", "b", "c"]);
    let at = || prop::sample::select(vec!["d", "m", "t"]);
    prop_oneof![
        (kind(), store()).prop_map(|(kind, to)| Act::Move(kind, to)),
        (kind(), at(), store()).prop_map(|(kind, at, to)| Act::Split(kind, at, to)),
        (kind(), prop::option::of(at())).prop_map(|(kind, at)| Act::Merge(kind, at)),
        (store(), prop::option::of(store())).prop_map(|(store, to)| Act::Drain(store, to)),
        prop::sample::subsequence(vec!["a", "b", "c"], 1..4).prop_map(Act::Ring),
        (0usize..3).prop_map(Act::Delete),
    ]
}

fn run(state: &ClusterState, act: &Act) -> Result<Change, Vec<FieldError>> {
    match act {
        Act::Move(kind, to) => state.move_kind(kind, &name(to)),
        Act::Split(kind, at, to) => state.split(kind, at, &name(to)),
        Act::Merge(kind, at) => state.merge(kind, *at, None),
        Act::Drain(store, to) => state.drain_store(&name(store), to.map(name).as_ref()),
        Act::Ring(stores) => {
            let ring = format!(
                "{{metadata: {{name: ring}}, resource: secrets, ring: {{stores: [{}]}}}}",
                stores.join(", ")
            );
            state.apply_configs(&[match state.config("ring") {
                None => ConfigChange::Create(config(&ring)),
                Some(_) => ConfigChange::Update(config(&ring)),
            }])
        }
        Act::Delete(at) => {
            let name = state.configs.get(*at).map_or_else(String::new, |config| config.metadata.name.clone());
            state.apply_configs(&[ConfigChange::Delete { name, resource_version: None }])
        }
    }
}

proptest! {
    #[test]
    fn whatever_people_do_the_map_is_what_the_configs_say(acts in prop::collection::vec((act(), any::<bool>()), 1..8)) {
        let mut state = state(&["resource: pods, serviceGroupId: b"]);
        for (act, restore) in &acts {
            let Ok(change) = run(&state, act) else { continue };
            let after = done(&change);
            prop_assert_eq!(ClusterState::from_json(&after.to_json()), Ok(after.clone()));
            // No transfers are left.
            let (_, _, wanted) = after.placed().unwrap();
            prop_assert_eq!(transfers::transfers(&after.map, &wanted), [], "{:?}", act);
            prop_assert_eq!(transfers::transfers(&after.map, &change.desired), []);
            for store in after.stores.iter().filter(|store| store.state == StoreState::Draining) {
                let (at, _) = after.store(&store.name).unwrap();
                prop_assert!(!after.map.stores_of(&KeyRange::everything()).contains(&at));
            }
            state = after;
            if let (Act::Drain(store, _), true) = (act, restore) {
                state = state.activate_store(&name(store)).unwrap();
            }
        }
    }
}

/// R14: a new store with its own slot gets everything that the lost store owned, and the lost store keeps nothing.
#[test]
fn a_store_that_is_lost_is_replaced() {
    let before = state(&[
        "resource: pods, ring: {stores: [a, b]}",
        "resource: nodes, serviceGroupId: b",
        "resource: secrets, serviceGroupId: c",
    ]);
    let (lost, _) = before.store(&name("b")).unwrap();
    let lost_slot = before.stores[usize::from(lost.0)].slot;
    let (after, new) = before.replace_store(&name("b"), vec!["http://h:7".into()], 77).unwrap();
    assert_eq!((after.revision, after.generation.0), (before.revision + 1, before.generation.0 + 1));
    let [old, store] = [lost, new].map(|at| &after.stores[usize::from(at.0)]);
    assert_eq!((old.state, old.slot), (StoreState::Removed, lost_slot));
    assert_eq!(
        (store.state, store.opens_at, &store.endpoints[..]),
        (StoreState::Active, Some(77), &["http://h:7".to_owned()][..])
    );
    assert!(before.stores.iter().all(|other| other.slot != store.slot), "a slot that no store ever had");
    assert_eq!(after.store(&name("b")).map(|(at, _)| at), Some(new));
    for (was, is) in before.map.partitions().iter().zip(after.map.partitions()) {
        assert_eq!((&was.range, &was.kind), (&is.range, &is.kind));
        let of_lost = was.placement.stores().contains(&lost);
        assert!(!is.placement.stores().contains(&lost));
        assert_eq!(is.epoch, if of_lost { after.generation } else { was.epoch });
        for at in 0..=u8::MAX {
            let key = [&was.start()[..], format!("n{at}").as_bytes()].concat();
            let expected = if was.store_of(&key) == lost { new } else { was.store_of(&key) };
            assert_eq!(is.store_of(&key), expected);
        }
    }
    assert_eq!(ClusterState::from_json(&after.to_json()).as_ref(), Ok(&after));
    after.validated().unwrap();
    // The configs still name the store, so nothing moves.
    let again = after.apply_configs(&[]).unwrap();
    assert_eq!((again.transfers, again.state.map), (Vec::new(), after.map.clone()));

    // A second loss, and the loss of the default store.
    let (twice, newer) = after.replace_store(&name("b"), Vec::new(), 99).unwrap();
    assert!(twice.stores.iter().filter(|store| store.name == name("b")).count() == 3 && newer != new);
    let (default, at) = before.replace_store(&before.default.clone(), Vec::new(), 1).unwrap();
    assert_eq!(default.map.store_of(b"/nothing/of/a/kind"), at);
    default.validated().unwrap();
    assert_eq!(paths(before.replace_store(&name("zz"), Vec::new(), 1)), ["servicegroups/zz"]);
    assert_eq!(
        paths(before.replace_store(&name("b"), vec!["a b".into()], 1)),
        ["servicegroups/b.endpoints[0]"]
    );
}

#[test]
fn f02_only_a_store_of_mode_none_may_come_back_with_nothing() {
    let state = state(&[
        "resource: pods, serviceGroupId: b, durability: none",
        "resource: secrets, serviceGroupId: c",
        "resource: events, ring: {stores: [b, c]}, durability: none",
    ]);
    let only_none = |state: &ClusterState| {
        state.stores.iter().enumerate().filter(|(at, _)| state.holds_only_none(StoreIdx(*at as u16))).count()
    };
    assert!(state.holds_only_none(state.store(&name("b")).unwrap().0), "pods and events");
    for kept in ["a", "c"] {
        assert!(!state.holds_only_none(state.store(&name(kept)).unwrap().0), "{kept}");
    }
    assert_eq!(only_none(&state), 2, "b, and the etcd, which holds nothing");
    // Keys that are planned to move to a store count before they arrive.
    let change = state.apply_configs(&[ConfigChange::Update(config(
        "metadata: {name: p1}\nresource: secrets\nserviceGroupId: b\n",
    ))]);
    let change = change.unwrap();
    assert!(!change.transfers.is_empty());
    assert!(!change.state.holds_only_none(state.store(&name("b")).unwrap().0), "secrets are on their way");

    let known = state.identify_store(&name("b"), "u1").unwrap().identify_store(&name("c"), "u2").unwrap();
    let renewed = known.renew_store(&name("b"), "u1", "u3").unwrap();
    assert_eq!(renewed.store(&name("b")).unwrap().1.uuid.as_deref(), Some("u3"));
    assert_eq!(
        paths(renewed.renew_store(&name("b"), "u1", "u4")),
        ["servicegroups/b.uuid"],
        "it is u3 by now"
    );
    assert_eq!(paths(known.renew_store(&name("c"), "u2", "u3")), ["servicegroups/c.uuid"]);
}

#[test]
fn f30_a_slot_is_given_once_and_the_end_of_them_is_told() {
    let mut state = state(&["resource: pods, serviceGroupId: a"]);
    let new = name("new");
    let shard = |slot: Option<u32>| StoreConfig {
        standby: None,
        adopting: false,
        name: name("new"),
        slot,
        endpoints: Vec::new(),
        store_type: StoreType::Shard,
    };
    let (added, _) = state.add_store(shard(None)).unwrap();
    let slot = added.store(&new).unwrap().1.slot.unwrap();
    let removed = added.remove_store(&new).unwrap();
    let again = removed.add_store(shard(Some(slot.into()))).unwrap_err();
    assert_eq!(again[0].path, "servicegroups/new.slot");
    assert!(again[0].message.contains("which is removed"), "{}", again[0]);
    let (added, _) = removed.add_store(shard(None)).unwrap();
    assert_eq!(added.store(&new).unwrap().1.slot, Some(slot + 1));
    // Every other slot was used by a store that is removed.
    for slot in 1..=Slot::MAX {
        if state.stores.iter().all(|store| store.slot != Some(slot)) {
            let mut store = StoreObject::new(shard(Some(slot.into())), 1);
            store.state = StoreState::Removed;
            state.stores.push(store);
        }
    }
    let refused = state.add_store(shard(None)).unwrap_err();
    assert_eq!((refused.len(), refused[0].path.as_str()), (1, "servicegroups/new.slot"));
    assert_eq!(refused[0].message, "all 1023 slots have been given away");
}

/// A plan with more units than are known to switch in time is refused with a remedy. Adjacent ranges count as one
/// unit.
#[test]
fn f18_more_units_than_switch_in_time_are_moved_in_parts() {
    let ranges = 2 * UNITS_OF_A_MOVE_MAX + 2;
    let range = |at: usize, store: &str| {
        let start =
            if at > 0 { format!("rangeStart: n{at:04}, isRangeStartValid: true, ") } else { String::new() };
        let end = match at + 1 {
            next if next < ranges => format!("rangeEnd: n{next:04}, isRangeEndValid: true, "),
            _ => String::new(),
        };
        format!("resource: pods, {start}{end}serviceGroupId: {store}")
    };
    let parts: Vec<String> = (0..ranges).map(|at| range(at, "a")).collect();
    let state = state(&parts.iter().map(String::as_str).collect::<Vec<_>>());
    let moved = |which: &dyn Fn(usize) -> bool| {
        let edited = state.configs.iter().enumerate().map(|(at, config)| {
            let store = if which(at) { "b" } else { "a" };
            ConfigChange::Update(DataPartitionConfig {
                service_group_id: Some(name(store)),
                ..config.clone()
            })
        });
        state.apply_configs(&edited.collect::<Vec<_>>())
    };
    let refused = moved(&|at| at % 2 == 1).unwrap_err();
    let [error] = refused.as_slice() else { panic!("{refused:?}") };
    assert!(error.message.starts_with("257 separate parts of /registry/pods/ would move at once"), "{error}");
    assert!(error.what_to_do.starts_with("move it in parts: change at most 256 ranges at a time"), "{error}");
    let most = moved(&|at| at % 2 == 1 && at < ranges - 2).unwrap();
    assert_eq!(most.transfers.len(), UNITS_OF_A_MOVE_MAX);
    // All ranges together are one unit.
    assert_eq!(
        moved(&|_| true)
            .unwrap()
            .transfers
            .iter()
            .filter(|of| of.unit.contains(b"/registry/pods/n0400/x"))
            .count(),
        1
    );
    assert!(moved(&|_| true).unwrap().transfers.len() <= 2);
}
