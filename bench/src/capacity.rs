//! A model of what a cluster of N nodes needs: it computes cores, memory and network from rates, sizes and measured
//! costs.

/// The CPU microseconds of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    pub router: f64,
    pub shard: f64,
}

/// The costs of all operations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Costs {
    /// An optimistic update that is not watched.
    pub write: Cost,
    /// An event, for the first watcher of a router.
    pub event: Cost,
    /// An event, for each further watcher; costs the shard nothing.
    pub watcher: f64,
    /// A `limit=1` range, with which an apiserver asks for a Kind's current revision.
    pub probe: Cost,
    pub page: Cost,
}

/// The rates and sizes of one Kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    /// The name in the Kind's keys.
    pub name: &'static str,
    /// The number of objects.
    pub objects: f64,
    /// The bytes of a key and a value.
    pub bytes: f64,
    pub writes: f64,
    pub watched: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    pub kinds: Vec<Kind>,
    /// The apiservers. Each has one watch of each watched Kind.
    pub apiservers: f64,
    /// The routers. The apiservers are spread over them.
    pub routers: f64,
    /// The probes per second of each apiserver.
    pub probes: f64,
    /// The pages of lists per second, over all apiservers.
    pub pages: f64,
    /// The seconds of history kept for watchers that resume.
    pub history_seconds: f64,
    /// The maximum share of a core that one process should use.
    pub filled: f64,
}

/// The memory overhead of an object and of an event in the history, in bytes beyond key and value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overheads {
    pub object: f64,
    /// Of an older version.
    pub event: f64,
}

/// The resources that a Kind needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Need {
    pub name: &'static str,
    /// The cores of all its shards.
    pub cores: f64,
    /// The number of shards, each on one core.
    pub shards: f64,
    /// The memory of all its shards, in bytes.
    pub memory: f64,
    /// The bytes per second sent by its shards.
    pub network: f64,
}

/// The resources that a cluster needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Needs {
    /// The needs of each Kind.
    pub kinds: Vec<Need>,
    pub router_cores: f64,
    /// The bytes per second sent by all routers.
    pub router_network: f64,
}

/// The model. It is linear: the cost of an operation does not depend on other load.
pub fn needs(cluster: &Cluster, costs: &Costs, overheads: &Overheads) -> Needs {
    let probed = cluster.kinds.iter().filter(|kind| kind.watched).count().max(1) as f64;
    let probes = cluster.apiservers * cluster.probes;
    let pods = |kind: &Kind| if kind.name == "pods" { cluster.pages } else { 0.0 };
    let (mut router, mut router_network, mut kinds) = (0.0, 0.0, Vec::new());
    // An apiserver watches through one router; a router without apiservers watches nothing.
    let watching = cluster.routers.min(cluster.apiservers);
    for kind in &cluster.kinds {
        let events = if kind.watched { kind.writes } else { 0.0 };
        let asked = if kind.watched { probes / probed } else { 0.0 };
        let further = (cluster.apiservers - watching).max(0.0);
        router += kind.writes * costs.write.router
            + events * (watching * costs.event.router + further * costs.watcher)
            + asked * costs.probe.router
            + pods(kind) * costs.page.router;
        router_network += events * kind.bytes * cluster.apiservers + pods(kind) * 500.0 * kind.bytes;
        let cores = (kind.writes * costs.write.shard
            + events * watching * costs.event.shard
            + asked * costs.probe.shard
            + pods(kind) * costs.page.shard)
            / 1e6;
        kinds.push(Need {
            name: kind.name,
            cores,
            shards: (cores / cluster.filled).ceil().max(1.0),
            memory: kind.objects * (kind.bytes + overheads.object)
                + kind.writes * cluster.history_seconds * (kind.bytes + overheads.event),
            network: events * kind.bytes * watching + pods(kind) * 500.0 * kind.bytes,
        });
    }
    Needs { kinds, router_cores: router / 1e6, router_network }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        let kind = |name, writes, watched| Kind { name, objects: 1_000.0, bytes: 500.0, writes, watched };
        Cluster {
            kinds: vec![kind("leases", 100.0, true), kind("pods", 10.0, true), kind("events", 10.0, false)],
            apiservers: 4.0,
            routers: 2.0,
            probes: 1.0,
            pages: 2.0,
            history_seconds: 60.0,
            filled: 0.5,
        }
    }

    const COSTS: Costs = Costs {
        write: Cost { router: 10.0, shard: 5.0 },
        event: Cost { router: 4.0, shard: 2.0 },
        watcher: 1.0,
        probe: Cost { router: 8.0, shard: 4.0 },
        page: Cost { router: 200.0, shard: 100.0 },
    };
    const OVERHEADS: Overheads = Overheads { object: 100.0, event: 50.0 };

    #[test]
    fn the_parts_add_up() {
        let needs = needs(&cluster(), &COSTS, &OVERHEADS);
        // 120 writes; 110 events for two routers and for two further apiservers; 4 probes; 2 pages.
        let router = 120.0 * 10.0 + 110.0 * (2.0 * 4.0 + 2.0 * 1.0) + 4.0 * 8.0 + 2.0 * 200.0;
        assert!((needs.router_cores - router / 1e6).abs() < 1e-12);
        let leases = &needs.kinds[0];
        assert!((leases.cores - (100.0 * 5.0 + 100.0 * 2.0 * 2.0 + 2.0 * 4.0) / 1e6).abs() < 1e-12);
        assert_eq!((leases.shards, leases.memory), (1.0, 1_000.0 * 600.0 + 100.0 * 60.0 * 550.0));
        assert_eq!(leases.network, 100.0 * 500.0 * 2.0, "once for each router, not for each apiserver");
        assert_eq!(needs.kinds[2].network, 0.0, "nobody watches events");
        assert_eq!(needs.router_network, 110.0 * 500.0 * 4.0 + 2.0 * 500.0 * 500.0);
    }

    #[test]
    fn shards_grow_with_the_load_and_are_never_none() {
        let mut large = cluster();
        large.kinds[0].writes = 200_000.0;
        let needs = needs(&large, &COSTS, &OVERHEADS);
        // 200,000 x (5 + 2 x 2) us are 1.8 cores, and one process may use half a core.
        assert_eq!(needs.kinds[0].shards, 4.0);
        assert_eq!(needs.kinds[2].shards, 1.0);
    }
}
