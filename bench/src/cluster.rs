//! `cluster`: the load of N simulated nodes and some apiservers at their own pace (open loop, timed from when each
//! operation was due). It first measures the cost of each kind of operation alone; then it runs all of them
//! together and compares the result with the model in [`crate::capacity`]; then it applies the model to larger
//! clusters.

mod apiserver;
mod writers;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::Context;
use tonic::transport::Channel;

use crate::{
    capacity::{self, Cost, Costs, Kind, Overheads},
    cpu,
    load::{self, Shape},
    servers::{self, Server},
};

use self::{apiserver::Apiserver, writers::Writer};

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Simulated nodes.
    #[arg(long, default_value_t = 20_000)]
    nodes: u64,
    /// Apiservers: each watches leases, nodes and pods, and probes their current revisions.
    #[arg(long, default_value_t = 3)]
    apiservers: u64,
    /// Pods per node.
    #[arg(long, default_value_t = 5)]
    pods_per_node: u64,
    /// Seconds between two renewals of a node's lease.
    #[arg(long, default_value_t = 10)]
    lease_seconds: u64,
    /// Seconds between two status updates of a node.
    #[arg(long, default_value_t = 300)]
    status_seconds: u64,
    /// Seconds between two changes of a pod; each change comes with an event.
    #[arg(long, default_value_t = 600)]
    pod_seconds: u64,
    /// Probes for a current revision, per second and apiserver.
    #[arg(long, default_value_t = 10)]
    probes: u64,
    /// Seconds of each part.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Sizes of clusters, in nodes, to apply the model to.
    #[arg(long, value_delimiter = ',', default_values_t = [20_000, 100_000, 1_000_000])]
    sizes: Vec<u64>,
    /// Nodes per apiserver in these clusters; each has at least three apiservers.
    #[arg(long, default_value_t = 50_000)]
    nodes_per_apiserver: u64,
}

const SHARDS: [&str; 5] = ["default", "leases", "nodes", "pods", "events"];
const PARTITIONS: &str = "\
- {metadata: {name: leases}, resource: leases, serviceGroupId: leases}
- {metadata: {name: nodes}, resource: nodes, serviceGroupId: nodes}
- {metadata: {name: pods}, resource: pods, serviceGroupId: pods}
- {metadata: {name: events}, resource: events, serviceGroupId: events}
";
/// The Kinds that every apiserver watches, which do not include events.
const WATCHED: [&str; 3] = ["leases", "minions", "pods"];
/// The value sizes of a lease, a node without images, a small pod, and an event.
const LEASE_BYTES: usize = 400;
const NODE_BYTES: usize = 4_096;
const POD_BYTES: usize = 3_072;
const EVENT_BYTES: usize = 800;
/// The overhead that `kindred-bench restart` measures at 1,000,000 objects of 1 KiB, and that of an older version.
const OVERHEADS: Overheads = Overheads { object: 195.0, event: 100.0 };
/// The maximum share of a core that a process should use.
const FILLED: f64 = 0.6;
/// Every five minutes Kubernetes compacts what is older than five minutes.
const HISTORY_SECONDS: f64 = 600.0;

impl Options {
    /// The objects and rates of a cluster with this many nodes.
    fn kinds(&self, nodes: u64) -> Vec<Kind> {
        let (nodes, pods) = (nodes as f64, (nodes * self.pods_per_node) as f64);
        let kind = |name, objects, bytes: usize, writes, watched| Kind {
            name,
            objects,
            bytes: bytes as f64,
            writes,
            watched,
        };
        let changes = pods / self.pod_seconds as f64;
        vec![
            kind("leases", nodes, LEASE_BYTES, nodes / self.lease_seconds as f64, true),
            kind("minions", nodes, NODE_BYTES, nodes / self.status_seconds as f64, true),
            kind("pods", pods, POD_BYTES, changes, true),
            // Events are kept for an hour.
            kind("events", changes * 3_600.0, EVENT_BYTES, changes, false),
        ]
    }
}

/// The measurements of one part of the run.
struct Part {
    seconds: f64,
    /// The CPU microseconds of each process.
    cpu: BTreeMap<String, f64>,
    /// The sorted times of each kind of operation, in microseconds from when each was due.
    times: BTreeMap<String, Vec<u32>>,
}

impl Part {
    fn of(&self, process: &str) -> f64 {
        self.cpu.get(process).copied().unwrap_or_default()
    }

    fn shards(&self) -> f64 {
        self.cpu.iter().filter(|(role, _)| *role != "router").map(|(_, us)| us).sum()
    }

    fn count(&self, operation: &str) -> f64 {
        self.times.get(operation).map_or(0, Vec::len) as f64
    }
}

/// The operations in a part.
#[derive(Clone, Copy)]
struct Mix {
    writes: bool,
    apiservers: u64,
    probes: bool,
    lists: bool,
}

struct Bench {
    server: Server,
    options: Options,
    channels: Vec<Channel>,
    writers: Vec<Writer>,
}

impl Bench {
    async fn start(options: Options) -> anyhow::Result<Self> {
        let server = servers::behind_router("cluster", &SHARDS, PARTITIONS)?;
        let shape = Shape { connections: 8, in_flight: 64, keys: 0, value_bytes: 0 };
        let channels = load::connect(&server.endpoint, shape).await?;
        let mut writers = Vec::new();
        for kind in options.kinds(options.nodes) {
            let keys = if kind.name == "events" { 0 } else { kind.objects as usize };
            let rate = kind.writes.round().max(1.0) as u64;
            writers.push(Writer::new(kind.name, keys, kind.bytes as usize, rate));
        }
        for writer in &writers {
            writer.fill(&channels, shape.in_flight).await.context(writer.kind)?;
        }
        Ok(Self { server, options, channels, writers })
    }

    fn cpu(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let used = |(role, pid): &(String, u32)| Ok((role.clone(), cpu::process_nanos(*pid)? as f64 / 1e3));
        self.server.pids.iter().map(used).collect()
    }

    fn cpu_since(&self, before: &BTreeMap<String, f64>) -> anyhow::Result<BTreeMap<String, f64>> {
        let mut used = self.cpu()?;
        for (role, used) in &mut used {
            *used -= before.get(role).copied().unwrap_or_default();
        }
        Ok(used)
    }

    async fn part(&self, mix: Mix) -> anyhow::Result<Part> {
        let origin = Instant::now();
        let mut apiservers = Vec::new();
        for _ in 0..mix.apiservers {
            apiservers.push(Apiserver::start(&self.server.endpoint, &WATCHED, origin).await?);
        }
        // Leave out the cost of starting.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (before, began) = (self.cpu()?, Instant::now());
        let limit = Duration::from_secs(self.options.seconds);
        let mut times = BTreeMap::new();
        let mut running = Vec::new();
        if mix.writes {
            for writer in &self.writers {
                running.push(tokio::spawn(writer.clone().run(self.channels.clone(), origin, limit)));
            }
        }
        if mix.probes {
            let rate = self.options.probes * self.options.apiservers;
            running.push(tokio::spawn(apiserver::probes(self.channels.clone(), &WATCHED, rate, limit)));
        }
        if mix.lists {
            running.push(tokio::spawn(apiserver::lists(self.channels.clone(), limit)));
        }
        for part in running {
            let (operation, all) = part.await??;
            times.insert(operation, all);
        }
        let seconds = began.elapsed().as_secs_f64();
        let cpu = self.cpu_since(&before)?;
        for apiserver in apiservers {
            for (operation, seen) in apiserver.stop().await? {
                times.entry(operation).or_insert_with(Vec::new).extend(seen);
            }
        }
        times.values_mut().for_each(|all| all.sort_unstable());
        Ok(Part { seconds, cpu, times })
    }

    /// Measures the cost of each kind of operation at the pace of this cluster.
    async fn costs(&self) -> anyhow::Result<Costs> {
        let none = Mix { writes: false, apiservers: 0, probes: false, lists: false };
        let rest = self.idle().await?;
        let net = |part: &Part, process: &str| {
            (part.of(process) - rest.of(process) / rest.seconds * part.seconds).max(0.0)
        };
        let shards = |part: &Part| (part.shards() - rest.shards() / rest.seconds * part.seconds).max(0.0);
        let cost = |part: &Part, count: f64| Cost {
            router: net(part, "router") / count,
            shard: shards(part) / count,
        };
        let writes = self.part(Mix { writes: true, ..none }).await?;
        let written: f64 = self.writers.iter().map(|writer| writes.count(&writer.operation())).sum();
        let write = cost(&writes, written);
        let one = self.part(Mix { writes: true, apiservers: 1, ..none }).await?;
        let many = self.part(Mix { writes: true, apiservers: 6, ..none }).await?;
        let events = |part: &Part| {
            part.times
                .iter()
                .filter(|(name, _)| name.starts_with("event"))
                .map(|(_, all)| all.len())
                .sum::<usize>() as f64
        };
        let total =
            |part: &Part| self.writers.iter().map(|writer| part.count(&writer.operation())).sum::<f64>();
        let event = Cost {
            router: ((net(&one, "router") - total(&one) * write.router) / events(&one)).max(0.0),
            shard: ((shards(&one) - total(&one) * write.shard) / events(&one)).max(0.0),
        };
        let first = events(&many) / 6.0;
        let watcher = ((net(&many, "router") - total(&many) * write.router - first * event.router)
            / (events(&many) - first))
            .max(0.0);
        let probes = self.part(Mix { probes: true, ..none }).await?;
        let lists = self.part(Mix { lists: true, ..none }).await?;
        Ok(Costs {
            write,
            event,
            watcher,
            probe: cost(&probes, probes.count("probe").max(1.0)),
            page: cost(&lists, lists.count("page of 500").max(1.0)),
        })
    }

    async fn idle(&self) -> anyhow::Result<Part> {
        let (before, began) = (self.cpu()?, Instant::now());
        tokio::time::sleep(Duration::from_secs(self.options.seconds.min(5))).await;
        let cpu = self.cpu_since(&before)?;
        Ok(Part { seconds: began.elapsed().as_secs_f64(), cpu, times: BTreeMap::new() })
    }

    fn model(&self, nodes: u64, apiservers: f64, routers: f64, pages: f64) -> capacity::Cluster {
        capacity::Cluster {
            kinds: self.options.kinds(nodes),
            apiservers,
            routers,
            probes: self.options.probes as f64,
            pages,
            history_seconds: HISTORY_SECONDS,
            filled: FILLED,
        }
    }
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: Options) -> anyhow::Result<()> {
    let bench = Bench::start(options.clone()).await?;
    println!(
        "{} nodes, {} pods, {} apiservers; leases every {} s, node status every {} s, pods and events every {} s; {} s a part\n",
        options.nodes,
        options.nodes * options.pods_per_node,
        options.apiservers,
        options.lease_seconds,
        options.status_seconds,
        options.pod_seconds,
        options.seconds
    );
    let costs = bench.costs().await?;
    println!("| CPU us of one | router | shard |\n| --- | --- | --- |");
    for (name, cost) in [
        ("write, unwatched", costs.write),
        ("event, first watcher of a router", costs.event),
        ("event, each further one", Cost { router: costs.watcher, shard: 0.0 }),
        ("question for the current revision", costs.probe),
        ("page of 500 pods", costs.page),
    ] {
        println!("| {name} | {:.1} | {:.1} |", cost.router, cost.shard);
    }
    let all = Mix { writes: true, apiservers: options.apiservers, probes: true, lists: true };
    let part = bench.part(all).await?;
    println!("\n| all together | a second | p50 ms | p99 ms | p99.9 ms |\n| --- | --- | --- | --- | --- |");
    for (operation, all) in &part.times {
        let at = |share: f64| {
            f64::from(
                all.get(((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1)))
                    .copied()
                    .unwrap_or(0),
            ) / 1e3
        };
        println!(
            "| {operation} | {:.0} | {:.2} | {:.2} | {:.2} |",
            all.len() as f64 / part.seconds,
            at(0.5),
            at(0.99),
            at(0.999)
        );
    }
    let model =
        bench.model(options.nodes, options.apiservers as f64, 1.0, part.count("page of 500") / part.seconds);
    let said = capacity::needs(&model, &costs, &OVERHEADS);
    println!("\n| | cores, the model | cores, measured |\n| --- | --- | --- |");
    println!("| router | {:.3} | {:.3} |", said.router_cores, part.of("router") / 1e6 / part.seconds);
    let shards: f64 = said.kinds.iter().map(|kind| kind.cores).sum();
    println!("| all shards | {shards:.3} | {:.3} |", part.shards() / 1e6 / part.seconds);
    println!(
        "\n| nodes | apiservers | routers, cores | shards of leases, nodes, pods, events | their cores | memory GiB | out of routers, of shards MB/s |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for nodes in &options.sizes {
        let apiservers = nodes.div_ceil(options.nodes_per_apiserver).max(3) as f64;
        let mut routers = 1.0;
        // More routers need more feeds, so find the smallest sufficient number.
        let needs = loop {
            let model = bench.model(*nodes, apiservers, routers, apiservers);
            let needs = capacity::needs(&model, &costs, &OVERHEADS);
            if needs.router_cores / routers <= FILLED || routers > 1_000.0 {
                break needs;
            }
            routers += 1.0;
        };
        let column =
            |of: fn(&capacity::Need) -> String| needs.kinds.iter().map(of).collect::<Vec<_>>().join(", ");
        let sum = |of: fn(&capacity::Need) -> f64| needs.kinds.iter().map(of).sum::<f64>();
        println!(
            "| {nodes} | {apiservers} | {routers}, {:.1} | {} | {} | {:.1} | {:.0}, {:.0} |",
            needs.router_cores,
            column(|need| format!("{}", need.shards)),
            column(|need| format!("{:.2}", need.cores)),
            sum(|need| need.memory) / (1u64 << 30) as f64,
            needs.router_network / 1e6,
            sum(|need| need.network) / 1e6,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
