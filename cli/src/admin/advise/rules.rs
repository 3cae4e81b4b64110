//! What the load of a cluster calls for. Pure: a proposal comes with its reason and with what is expected of it.

use kindred_partition_config::kind::ALL_ELSE;

use super::look::{KindLoad, Load, Share, StoreLoad};
use crate::admin::output::bytes;

/// The bounds that an operator may choose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The part of a core above which a shard is relieved.
    pub cores: f64,
    /// The part of its quota above which a store is relieved.
    pub room: f64,
}

/// How full a store may be after it has taken over a Kind, as a part of the bound: it is not to be relieved in turn.
const ROOM_AFTER: f64 = 0.75;
/// The part of a core below which a Kind's move relieves nobody.
const CORES_MIN: f64 = 0.02;

/// A change that a router can make.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    Move { kind: String, to: String },
    Ring { kind: String, stores: Vec<String> },
    Merge { kind: String },
}

/// What a change does to which Kind, whatever the store: of two that could take a Kind equally well, each look may name the
/// other one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject(&'static str, String);

impl Change {
    #[must_use]
    pub fn subject(&self) -> Subject {
        let (verb, kind) = match self {
            Self::Move { kind, .. } => ("move", kind),
            Self::Ring { kind, .. } => ("spread", kind),
            Self::Merge { kind } => ("merge", kind),
        };
        Subject(verb, kind.clone())
    }
}

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// What to do, in a few words.
    pub what: String,
    pub why: String,
    /// What is expected of it.
    pub effect: String,
    /// `None` for what only the operator can do.
    pub change: Option<Change>,
}

/// All that the load calls for, the most urgent first.
#[must_use]
pub fn proposals(load: &Load, bounds: Bounds) -> Vec<Proposal> {
    let mut stores: Vec<&StoreLoad> = load.stores.iter().filter(|store| store.up && store.shard).collect();
    let fill = |store: &StoreLoad| if store.quota > 0 { store.held as f64 / store.quota as f64 } else { 0.0 };
    stores.sort_by(|a, b| fill(b).total_cmp(&fill(a)));
    let full = stores.iter().filter(|store| fill(store) > bounds.room);
    let mut all: Vec<Proposal> =
        full.filter_map(|store| relieve_memory(load, store, fill(store), bounds)).collect();
    let cores = |store: &StoreLoad| store.cores.unwrap_or_default();
    stores.sort_by(|a, b| cores(b).total_cmp(&cores(a)));
    let busy = stores.iter().filter(|store| cores(store) > bounds.cores);
    all.extend(busy.filter_map(|store| relieve_cores(load, store, cores(store), bounds)));
    all.extend(load.kinds.iter().filter_map(merge));
    let mut seen: Vec<String> = Vec::new();
    // One move of a Kind at a time.
    all.retain(|proposal| {
        let kind = match &proposal.change {
            Some(Change::Move { kind, .. } | Change::Ring { kind, .. } | Change::Merge { kind }) => {
                kind.clone()
            }
            None => proposal.what.clone(),
        };
        !seen.contains(&kind) && {
            seen.push(kind);
            true
        }
    });
    all
}

/// The Kinds of a store that can be moved, with what they take of it.
fn movable<'l>(load: &'l Load, store: &StoreLoad) -> Vec<(&'l KindLoad, Share)> {
    let at = |kind: &'l KindLoad| kind.at.get(&store.name).map(|share| (kind, *share));
    load.kinds.iter().filter(|kind| kind.name != ALL_ELSE).filter_map(at).collect()
}

/// Whether a store could take so much more.
fn takes(store: &StoreLoad, more: u64, cores: f64, bounds: Bounds) -> bool {
    let room =
        store.quota == 0 || (store.held + more) as f64 <= store.quota as f64 * bounds.room * ROOM_AFTER;
    room && store.cores.is_some_and(|used| used + cores <= bounds.cores)
}

/// The least busy shard that could take a Kind over.
fn target<'l>(
    load: &'l Load,
    kind: &KindLoad,
    share: Share,
    cores: f64,
    bounds: Bounds,
) -> Option<&'l StoreLoad> {
    let others =
        load.stores.iter().filter(|other| other.up && other.shard && !kind.stores.contains(&other.name));
    let able = others.filter(|other| takes(other, share.bytes, cores, bounds));
    able.min_by(|a, b| {
        let key = |store: &StoreLoad| store.cores.unwrap_or_default();
        key(a).total_cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    })
}

fn relieve_memory(load: &Load, store: &StoreLoad, fill: f64, bounds: Bounds) -> Option<Proposal> {
    let name = &store.name;
    let why = format!(
        "store {name} holds {} of {}, {:.0} %; when it is full, writes to it are refused",
        bytes(store.held),
        bytes(store.quota),
        fill * 100.0
    );
    let kinds = movable(load, store);
    let history: u64 = kinds.iter().map(|(_, share)| share.history).sum();
    if history * 2 > store.held {
        return Some(Proposal {
            what: format!("lower --history-max-bytes of store {name}"),
            why: format!("{why}; {} of it are former values", bytes(history)),
            effect: format!("half of {} would free {}", bytes(history), bytes(history / 2)),
            change: None,
        });
    }
    let mut by_size = kinds;
    by_size.sort_by(|(a, of_a), (b, of_b)| of_b.bytes.cmp(&of_a.bytes).then_with(|| a.name.cmp(&b.name)));
    for (kind, share) in by_size.iter().filter(|(kind, share)| kind.stores.len() == 1 && share.bytes > 0) {
        if let Some(to) = target(load, kind, *share, share.cores, bounds) {
            return Some(Proposal {
                what: format!("move {} to {}", kind.name, to.name),
                why,
                effect: format!(
                    "{name} would hold {}, {} {}",
                    bytes(store.held - share.bytes),
                    to.name,
                    bytes(to.held + share.bytes)
                ),
                change: Some(Change::Move { kind: kind.name.clone(), to: to.name.clone() }),
            });
        }
    }
    Some(another(why, "store"))
}

/// What is proposed when no store has room.
fn another(why: String, what: &str) -> Proposal {
    Proposal {
        what: format!("add a {what}"),
        why: format!("{why}; no other shard has room"),
        effect: "start a shard and name it to the routers: kindred store add".to_owned(),
        change: None,
    }
}

fn relieve_cores(load: &Load, store: &StoreLoad, used: f64, bounds: Bounds) -> Option<Proposal> {
    let name = &store.name;
    let mut kinds = movable(load, store);
    kinds.retain(|(_, share)| share.cores >= CORES_MIN.min(bounds.cores / 2.0));
    kinds.sort_by(|(a, of_a), (b, of_b)| of_b.cores.total_cmp(&of_a.cores).then_with(|| a.name.cmp(&b.name)));
    let (first, share) = *kinds.first()?;
    let why = format!("store {name} uses {used:.2} cores, {:.2} of them for {}", share.cores, first.name);
    if share.cores > bounds.cores || first.ring {
        return Some(ring(load, first, share, why, bounds));
    }
    for (kind, share) in kinds.iter().filter(|(kind, _)| kind.stores.len() == 1) {
        if let Some(to) = target(load, kind, *share, share.cores, bounds) {
            let after = to.cores.unwrap_or_default() + share.cores;
            // To carry the trouble elsewhere helps nobody.
            if after >= used {
                continue;
            }
            return Some(Proposal {
                what: format!("move {} to {}", kind.name, to.name),
                why,
                effect: format!("{name} would use {:.2} cores, {} {after:.2}", used - share.cores, to.name),
                change: Some(Change::Move { kind: kind.name.clone(), to: to.name.clone() }),
            });
        }
    }
    Some(another(why, "store"))
}

/// Spreads a Kind that is too much for one store over one more.
fn ring(load: &Load, kind: &KindLoad, share: Share, why: String, bounds: Bounds) -> Proposal {
    let members = kind.stores.len() as f64;
    let part = share.cores * members / (members + 1.0);
    let moved = Share { bytes: share.bytes / (kind.stores.len() as u64 + 1), ..share };
    if kind.ranges > 1 && !kind.ring {
        return Proposal {
            what: format!("split {} once more", kind.name),
            why: format!("{why}; it is split by names already"),
            effect: "choose a name in the middle: kindred split".to_owned(),
            change: None,
        };
    }
    let Some(to) = target(load, kind, moved, part, bounds) else { return another(why, "store") };
    let mut stores = kind.stores.clone();
    stores.push(to.name.clone());
    Proposal {
        what: format!("spread {} over {}", kind.name, stores.join(", ")),
        why,
        effect: format!("each of its stores would use {part:.2} cores for it"),
        change: Some(Change::Ring { kind: kind.name.clone(), stores }),
    }
}

/// Joins ranges of a Kind that one store has.
fn merge(kind: &KindLoad) -> Option<Proposal> {
    let one = !kind.ring && kind.ranges > 1 && kind.stores.len() == 1;
    one.then(|| Proposal {
        what: format!("merge {}", kind.name),
        why: format!("{} has {} ranges, all at {}", kind.name, kind.ranges, kind.stores.join(", ")),
        effect: "one range; no key moves".to_owned(),
        change: Some(Change::Merge { kind: kind.name.clone() }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { cores: 0.6, room: 0.8 };

    fn store(name: &str, cores: f64, held: u64) -> StoreLoad {
        StoreLoad { name: name.to_owned(), shard: true, up: true, held, quota: 1000, cores: Some(cores) }
    }

    fn kind(name: &str, at: &[(&str, u64, u64, f64)]) -> KindLoad {
        let shares = at.iter().map(|(store, bytes, history, cores)| {
            ((*store).to_owned(), Share { bytes: *bytes, history: *history, cores: *cores })
        });
        KindLoad {
            name: name.to_owned(),
            stores: at.iter().map(|(store, ..)| (*store).to_owned()).collect(),
            ring: false,
            ranges: 1,
            at: shares.collect(),
        }
    }

    fn said(load: &Load) -> Vec<String> {
        proposals(load, BOUNDS).into_iter().map(|proposal| proposal.what).collect()
    }

    #[test]
    fn a_cluster_at_ease_needs_nothing() {
        let load = Load {
            stores: vec![store("a", 0.5, 700), store("b", 0.1, 10)],
            kinds: vec![kind("pods", &[("a", 600, 100, 0.5)])],
        };
        assert_eq!(said(&load), Vec::<String>::new());
        assert_eq!(said(&Load::default()), Vec::<String>::new());
    }

    #[test]
    fn a_busy_store_gives_its_heaviest_kind_that_another_can_take() {
        let kinds = vec![kind("pods", &[("a", 50, 0, 0.55)]), kind("nodes", &[("a", 20, 0, 0.3)])];
        let mut load =
            Load { stores: vec![store("a", 0.85, 70), store("b", 0.2, 10), store("c", 0.4, 10)], kinds };
        assert_eq!(said(&load), ["move nodes to b"]);
        assert!(proposals(&load, BOUNDS)[0].effect.contains("a would use 0.55 cores, b 0.50"));
        load.stores[1].cores = Some(0.01);
        assert_eq!(said(&load), ["move pods to b"]);
        // One that is down, a stock etcd and one that is full take nothing.
        load.stores[1].up = false;
        load.stores[2].held = 590;
        assert_eq!(said(&load), ["add a store"]);
    }

    #[test]
    fn a_kind_that_is_too_much_for_one_store_is_spread() {
        let mut load = Load {
            stores: vec![store("a", 0.9, 70), store("b", 0.0, 10), store("c", 0.0, 10)],
            kinds: vec![kind("leases", &[("a", 60, 0, 0.9)])],
        };
        assert_eq!(said(&load), ["spread leases over a, b"]);
        load.stores[1].cores = Some(0.9);
        load.kinds = vec![kind("leases", &[("a", 60, 0, 0.9), ("b", 60, 0, 0.9)])];
        load.kinds[0].ring = true;
        assert_eq!(said(&load), ["spread leases over a, b, c"]);
        load.kinds[0].ring = false;
        load.kinds[0].ranges = 2;
        assert_eq!(said(&load)[0], "split leases once more");
        // What belongs to no Kind cannot be moved.
        load.kinds[0].name = ALL_ELSE.to_owned();
        assert_eq!(said(&load), Vec::<String>::new());
    }

    #[test]
    fn a_full_store_gives_its_largest_kind_or_forgets_history() {
        let mut load = Load {
            stores: vec![store("a", 0.1, 900), store("b", 0.1, 10)],
            kinds: vec![kind("events", &[("a", 500, 10, 0.05)]), kind("pods", &[("a", 400, 10, 0.05)])],
        };
        assert_eq!(said(&load), ["move events to b"]);
        load.kinds[0].at.get_mut("a").unwrap().history = 480;
        assert_eq!(said(&load), ["lower --history-max-bytes of store a"]);
        load.stores[1].held = 500;
        load.kinds[0].at.get_mut("a").unwrap().history = 10;
        assert_eq!(said(&load), ["add a store"]);
    }

    #[test]
    fn ranges_at_one_store_are_merged() {
        let mut split = kind("pods", &[("a", 5, 0, 0.0)]);
        split.ranges = 3;
        let load = Load { stores: vec![store("a", 0.1, 5)], kinds: vec![split] };
        assert_eq!(said(&load), ["merge pods"]);
    }

    #[test]
    fn a_proposal_is_not_taken_back_by_the_next_one() {
        // After a move the mover's target must not be busy itself: no Kind goes to and fro.
        let cases = [0.05, 0.2, 0.31, 0.45, 0.6];
        for a in cases {
            for b in cases {
                let kinds = vec![kind("x", &[("a", 5, 0, a)]), kind("y", &[("a", 5, 0, b)])];
                let load = Load { stores: vec![store("a", a + b, 10), store("b", 0.0, 0)], kinds };
                let Some(Change::Move { kind: moved, .. }) =
                    proposals(&load, BOUNDS).into_iter().find_map(|proposal| proposal.change)
                else {
                    continue;
                };
                let (gone, left) = if moved == "x" { (a, b) } else { (b, a) };
                let x = kind(if moved == "x" { "x" } else { "y" }, &[("b", 5, 0, gone)]);
                let y = kind(if moved == "x" { "y" } else { "x" }, &[("a", 5, 0, left)]);
                let after =
                    Load { stores: vec![store("a", left, 5), store("b", gone, 5)], kinds: vec![x, y] };
                assert_eq!(said(&after), Vec::<String>::new(), "{a} {b}");
            }
        }
    }
}
