//! What the configuration says after a move was given up, and which parts of an unsound document are used.

use super::*;
use crate::{model::Durability, parse::parse_config};

fn name(text: &str) -> StoreName {
    StoreName(text.to_owned())
}

fn state(partitions: &str) -> ClusterState {
    let text = format!(
        "default: a\nstores: [{{name: a, slot: 1}}, {{name: b, slot: 2}}, {{name: c, slot: 3}}]\npartitions:\n{partitions}"
    );
    ClusterState::bootstrap(&parse_config(&text).unwrap()).unwrap()
}

fn kind(state: &ClusterState, name: &str) -> KindPrefix {
    state.scheme().resolve(name).unwrap()
}

const TWO: &str = "- {metadata: {name: pods}, resource: pods, serviceGroupId: b}\n\
                   - {metadata: {name: secrets}, resource: secrets, serviceGroupId: b}\n";

/// One Kind's move off a drained store is aborted: the store keeps that Kind and becomes active again. The other
/// Kind's move goes on.
#[test]
fn f12_a_drain_whose_move_is_aborted_leaves_a_sound_document() {
    let before = state(TWO);
    let pods = kind(&before, "pods");
    let drained = before.drain_store(&name("b"), Some(&name("c"))).unwrap().state;
    let back = drained.with_said_of(Some(&pods), &before.said_of(Some(&pods))).unwrap();
    assert_eq!(back.active_again, [name("b")]);
    back.state.validated().unwrap();
    let says = |name: &str| back.state.config(name).unwrap().service_group_id.clone().unwrap();
    assert_eq!((says("pods"), says("secrets")), (name("b"), name("c")));
    assert_eq!(back.state.store(&name("b")).unwrap().1.state, StoreState::Active);
    // A second drain moves both Kinds.
    let again = back.state.drain_store(&name("b"), Some(&name("c"))).unwrap();
    assert_eq!(again.by_kind().len(), 2);
}

#[test]
fn f12_a_drain_of_the_default_store_whose_move_is_aborted_leaves_a_sound_document() {
    let before = state(TWO);
    let drained = before.drain_store(&name("a"), Some(&name("c"))).unwrap().state;
    let back = drained.with_said_of(None, &before.said_of(None)).unwrap();
    assert_eq!((back.state.default.clone(), back.active_again), (name("a"), vec![name("a")]));
    // A Kind without configs was on the former default store.
    let nodes = kind(&before, "nodes");
    let moved = before.move_kind("nodes", &name("b")).unwrap().state;
    let mut drained = moved.clone();
    drained.default = name("c");
    drained.stores[0].state = StoreState::Draining;
    let back = drained.with_said_of(Some(&nodes), &before.said_of(Some(&nodes))).unwrap();
    let says = back.state.config("nodes").unwrap();
    assert_eq!(
        (says.service_group_id.as_ref(), &back.active_again[..]),
        (Some(&name("a")), &[name("a")][..])
    );
}

#[test]
fn f12_rings_and_ranges_of_a_drained_store_come_back_sound() {
    let before = state(
        "- {metadata: {name: p}, resource: pods, ring: {stores: [a, b]}, rangeEnd: m, isRangeEndValid: true}\n\
         - {metadata: {name: q}, resource: pods, serviceGroupId: b, rangeStart: m, isRangeStartValid: true}\n",
    );
    let pods = kind(&before, "pods");
    let drained = before.drain_store(&name("b"), None).unwrap().state;
    let back = drained.with_said_of(Some(&pods), &before.said_of(Some(&pods))).unwrap();
    assert!(back.state.wants_as(&before, Some(&pods)) && !drained.wants_as(&before, Some(&pods)));
    assert_eq!(back.active_again, [name("b")]);
}

/// A restore whose result would be invalid is refused as a whole.
#[test]
fn f12_what_would_not_be_sound_is_refused() {
    let before = state(TWO);
    let pods = kind(&before, "pods");
    let mut gone = before.move_kind("pods", &name("c")).unwrap().state;
    gone.configs.retain(|config| config.metadata.name != "secrets");
    gone.stores[1].state = StoreState::Removed;
    let refused = gone.with_said_of(Some(&pods), &before.said_of(Some(&pods))).unwrap_err();
    assert!(
        refused.iter().any(|error| error.path == "datapartitionconfigs/pods.serviceGroupId"),
        "{refused:?}"
    );
}

/// The document of finding 12: a config names a store that is being drained.
#[test]
fn f12_what_is_sound_of_a_bad_document_is_used() {
    let mut bad = state(
        "- {metadata: {name: pods}, resource: pods, serviceGroupId: b, durability: buffered}\n\
         - {metadata: {name: nodes}, resource: nodes, serviceGroupId: c, durability: fsync}\n",
    );
    bad.stores[1].state = StoreState::Draining;
    let bad = ClusterState::from_json(&bad.to_json()).unwrap();
    let (used, errors) = bad.salvaged();
    assert_eq!(errors, bad.validated().unwrap_err());
    assert_eq!(errors[0].path, "datapartitionconfigs/pods.serviceGroupId");
    assert_eq!((&used.map, used.default), (&bad.map, StoreIdx(0)));
    let modes: Vec<_> = used.kinds.iter().map(|kind| kind.durability).collect();
    assert_eq!(modes, [Some(Durability::Fsync), Some(Durability::Buffered)]);
    // An ordinary change repairs the document.
    bad.activate_store(&name("b")).unwrap().validated().unwrap();
    // Conflicting configs of a Kind give the stronger mode; a missing default gives another store.
    let mut worse = bad.clone();
    let mut more = worse.configs[0].clone();
    (more.metadata.name, more.durability) = ("more".to_owned(), Some("fsync".to_owned()));
    worse.configs.push(more);
    worse.default = name("x");
    let (used, errors) = worse.salvaged();
    assert_eq!((used.default, used.kinds[1].durability), (StoreIdx(0), Some(Durability::Fsync)));
    assert!(errors.len() > 2, "{errors:?}");
    let (sound, none) = state(TWO).salvaged();
    assert_eq!((Ok(sound), none), (state(TWO).validated(), Vec::new()));
}

/// A restore changes the placement and nothing else.
#[test]
fn f05_what_else_was_edited_meanwhile_stays() {
    let before =
        state("- {metadata: {name: pods}, resource: pods, serviceGroupId: b, durability: buffered}\n");
    let pods = kind(&before, "pods");
    let mut edited = before.split("pods", "m", &name("c")).unwrap().state;
    for config in &mut edited.configs {
        config.durability = Some("fsync".to_owned());
    }
    let back = edited.with_said_of(Some(&pods), &before.said_of(Some(&pods))).unwrap().state;
    assert_eq!(back.configs.len(), 1);
    let config = &back.configs[0];
    assert_eq!(config.durability.as_deref(), Some("fsync"));
    assert_eq!((config.metadata.name.as_str(), config.is_range_end_valid), ("pods", false));
    assert_eq!(config.metadata.resource_version.as_deref(), Some("3"), "it is another object now");
    // One range becomes two again, each with the Kind's present settings.
    let split = before.split("pods", "m", &name("c")).unwrap().state;
    let mut merged = split.merge("pods", None, None).unwrap().state;
    merged.configs[0].durability = Some("none".to_owned());
    let back = merged.with_said_of(Some(&pods), &split.said_of(Some(&pods))).unwrap().state;
    assert!(back.configs.len() == 2 && back.wants_as(&split, Some(&pods)));
    assert!(back.configs.iter().all(|config| config.durability.as_deref() == Some("none")));
    // Nothing changes if the placement did not change.
    let same = before.with_said_of(Some(&pods), &before.said_of(Some(&pods))).unwrap().state;
    assert_eq!(same.configs, before.configs);
}

/// Finding 10: a move is decided after its target was removed.
#[test]
fn f10_a_map_that_names_a_removed_store_is_not_sound() {
    let before = state(TWO);
    let change = before.move_kind("pods", &name("c")).unwrap();
    let mut gone = change.state.clone();
    gone.stores[2].state = StoreState::Removed;
    let decided = gone.with_transfers(&change.transfers).unwrap();
    let errors = decided.validated().unwrap_err();
    assert!(errors.iter().any(|error| error.path == "servicegroups/c"), "{errors:?}");
}

#[test]
fn f28_a_state_that_has_a_history_max_that_says_nothing_is_read_and_says_so() {
    let text = "- {metadata: {name: pods}, resource: pods, serviceGroupId: b}\n";
    let mut old = state(text);
    old.configs[0].history_max = Some("lots".to_owned());
    let old = ClusterState::from_json(&old.to_json()).unwrap();
    assert!(old.validated().is_ok());
    assert_eq!(old.without_effect(), ["datapartitionconfigs/pods.historyMax"]);
    // Changes of other objects work; a config that is written again must correct the field.
    assert!(old.move_kind("pods", &name("c")).is_ok());
    let mut config = old.configs[0].clone();
    let refused = old.apply_configs(&[ConfigChange::Update(config.clone())]).unwrap_err();
    assert_eq!(refused[0].path, "datapartitionconfigs/pods.historyMax");
    config.history_max = Some("10m".to_owned());
    let new = old.apply_configs(&[ConfigChange::Update(config)]).unwrap().state;
    assert!(new.without_effect().is_empty());
    assert_eq!(new.validated().unwrap().kinds[0].history.seconds, Some(600));
}
