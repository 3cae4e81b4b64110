//! `scale`: tests whether the cost of an operation is independent of the number of keys, watches and clients, and
//! whether a Kind on more shards can serve proportionally more. It measures the CPU of the router and of each shard
//! at several levels of each, in interleaved rounds.

use anyhow::Context;

use crate::{
    load::{self, Kind, Shape, Target},
    measure::{self, Sample},
    servers::{self, Server},
    stats::median,
    table::turns,
    watching,
};

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Vary only these.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Numbers of keys of the Kind.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000, 1_000_000, 5_000_000])]
    keys: Vec<usize>,
    /// Numbers of watches on one stream: of single keys beside three of the whole Kind, and where one of them wakes.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100, 1_000])]
    watches: Vec<usize>,
    /// Numbers of connections that share the concurrent calls.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
    clients: Vec<usize>,
    /// Number of keys where it is not varied.
    #[arg(long, default_value_t = 100_000)]
    keys_else: usize,
    /// Number of concurrent calls.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// Updates and gets per round; probes and wakes are a quarter of that, and pages a fiftieth.
    #[arg(long, default_value_t = 20_000)]
    ops: u64,
    /// Interleaved rounds; the tables show medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Keys,
    Watches,
    Wakes,
    Clients,
    Shards,
}

const LOADS: [(Kind, &str); 4] = [
    (Kind::TxnPut, "optimistic update"),
    (Kind::Get, "get"),
    (Kind::Probe, "`limit=1`"),
    (Kind::List, "page of 500"),
];
/// The number of connections where it is not varied.
const CONNECTIONS: usize = 4;
/// The number of watches of the whole Kind, one for each apiserver.
const APISERVERS: usize = 3;
/// Writes a second while watches wake: seldom enough that each event wakes its watch by itself.
const WAKES_PER_SECOND: u64 = 2_000;
/// The maximum ratio of costs that count as equal.
const FLAT: f64 = 1.3;

/// The samples by load, then by level.
type Samples = Vec<Vec<Vec<Sample>>>;

fn none(levels: usize) -> Samples {
    vec![vec![Vec::new(); levels]; LOADS.len()]
}

/// The median CPU of one process per operation.
fn of(samples: &[Sample], role: &str) -> f64 {
    let one = |sample: &Sample| {
        let used = sample.cpu_us.iter().filter(|(name, _)| name == role);
        used.map(|(_, us)| us).sum()
    };
    median(samples.iter().map(one).collect())
}

/// The ratio of the largest to the smallest value.
fn ratio(values: &[f64]) -> f64 {
    let over = |than: fn(f64, f64) -> f64| values.iter().copied().fold(f64::NAN, than);
    over(f64::max) / over(f64::min)
}

fn row(load: &str, role: &str, costs: &[f64]) -> String {
    let cells: Vec<String> = costs.iter().map(|us| format!("{us:.1}")).collect();
    let (ratio, cells) = (ratio(costs), cells.join(" | "));
    let flat = if ratio <= FLAT { "yes" } else { "no" };
    format!("| {load} | {role} | {cells} | {ratio:.2} | {flat} |")
}

/// Prints the table of a part: a row for each load and process, a column for each level.
#[allow(clippy::print_stdout, reason = "the result of the program")]
fn print(what: &str, levels: &[usize], samples: &Samples) {
    print_loads(what, levels, LOADS.iter().map(|(_, name)| *name).zip(samples));
}

/// The same of loads with these names.
#[allow(clippy::print_stdout, reason = "the result of the program")]
fn print_loads<'a>(
    what: &str,
    levels: &[usize],
    loads: impl Iterator<Item = (&'a str, &'a Vec<Vec<Sample>>)>,
) {
    let heads: Vec<String> = levels.iter().map(|level| format!("{level} {what}")).collect();
    println!("| CPU us/op | of | {} | largest / smallest | within {FLAT} |", heads.join(" | "));
    println!("| --- | --- |{} --- | --- |", " --- |".repeat(levels.len()));
    for (name, levels) in loads {
        for role in ["router", "shard"] {
            let costs: Vec<f64> = levels.iter().map(|samples| of(samples, role)).collect();
            println!("{}", row(name, role, &costs));
        }
    }
    println!();
}

impl Options {
    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn shape(&self, keys: usize) -> Shape {
        Shape { connections: CONNECTIONS, in_flight: self.in_flight, keys, value_bytes: self.value_bytes }
    }

    async fn filled(&self, server: &Server, keys: usize) -> anyhow::Result<Target> {
        let target = Target::connect(server, self.shape(keys)).await?.scattered();
        target.fill_fast().await.with_context(|| format!("writing {keys} keys"))?;
        Ok(target)
    }

    /// Runs all loads once at a level.
    async fn round(
        &self,
        server: &Server,
        target: &Target,
        mut give: impl FnMut(usize, Sample),
    ) -> anyhow::Result<()> {
        for (load, (kind, name)) in LOADS.iter().enumerate() {
            let ops = (self.ops / kind.part()).max(1);
            give(load, measure::ops(server, target, *kind, ops, None).await.context(*name)?);
        }
        Ok(())
    }
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: Options) -> anyhow::Result<()> {
    anyhow::ensure!(options.rounds > 0 && options.ops > 0 && options.in_flight > 0, "nothing is measured");
    println!(
        "One router, one shard unless said otherwise; values of {} bytes, keys of {}, {} calls in flight on {CONNECTIONS} connections; keys are \
         taken from\neverywhere, pages begin anywhere; {} keys where those are not varied; medians of {} interleaved rounds of {} operations.\n",
        options.value_bytes,
        load::KEY_BYTES,
        options.in_flight,
        options.keys_else,
        options.rounds,
        options.ops
    );
    if options.has(Part::Keys) {
        keys(&options).await.context("keys")?;
    }
    if options.has(Part::Watches) {
        watches(&options).await.context("watches")?;
    }
    if options.has(Part::Wakes) {
        wakes(&options).await.context("wakes")?;
    }
    if options.has(Part::Clients) {
        clients(&options).await.context("clients")?;
    }
    if options.has(Part::Shards) {
        shards(&options).await.context("shards")?;
    }
    Ok(())
}

async fn keys(options: &Options) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for keys in &options.keys {
        let server = servers::routed()?;
        let target = options.filled(&server, *keys).await?;
        all.push((server, target));
    }
    let mut samples = none(all.len());
    for round in 0..options.rounds {
        for level in turns(all.len(), round) {
            let (server, target) = &all[level];
            options.round(server, target, |load, sample| samples[load][level].push(sample)).await?;
        }
    }
    print("keys", &options.keys, &samples);
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
async fn watches(options: &Options) -> anyhow::Result<()> {
    let server = servers::routed()?;
    let target = options.filled(&server, options.keys_else).await?;
    let mut samples = none(options.watches.len());
    for round in 0..options.rounds {
        for level in turns(options.watches.len(), round) {
            let count = options.watches[level];
            let mut streams = vec![vec![watching::prefix(load::PREFIX)?]; APISERVERS];
            // All on one stream, like an etcd client's watches; each watches a key that is written.
            let key = |at: usize| load::key(at * options.keys_else / count);
            streams.push((0..count).map(|at| (key(at), bytes::Bytes::new())).collect());
            let watching = watching::start(&server.endpoint, streams, None).await?;
            options.round(&server, &target, |load, sample| samples[load][level].push(sample)).await?;
            let events = watching.seen(0);
            anyhow::ensure!(events >= options.ops, "of {} updates {events} were watched", options.ops);
            watching.finish().await?;
        }
    }
    println!(
        "Watches of single keys, all on one stream, beside {APISERVERS} of the whole Kind, as apiservers have them, whose events are in the cost of an\n\
         update. What one more watch of the whole Kind costs: `kindred-bench watchers`.\n"
    );
    print("watches", &options.watches, &samples);
    Ok(())
}

/// Watches of a key each, which the store serves one by one, and the same as ranges, which read the feed of their Kind.
const WATCHED: [&str; 2] = ["event at one of as many keys", "event in one of as many ranges"];

fn watched(as_range: bool, at: usize) -> anyhow::Result<watching::Watched> {
    let key = load::key(at);
    if as_range { watching::prefix(&String::from_utf8_lossy(&key)) } else { Ok((key, bytes::Bytes::new())) }
}

/// All writes go to one key, so of the watches on the one stream one wakes.
#[allow(clippy::print_stdout, reason = "the result of the program")]
async fn wakes(options: &Options) -> anyhow::Result<()> {
    let server = servers::routed()?;
    let target = options.filled(&server, 1).await?;
    let ops = (options.ops / 4).max(1);
    let mut samples: Samples = vec![vec![Vec::new(); options.watches.len()]; WATCHED.len()];
    for round in 0..options.rounds {
        for level in turns(options.watches.len(), round) {
            for (as_range, samples) in [false, true].into_iter().zip(&mut samples) {
                let stream = (0..options.watches[level]).map(|at| watched(as_range, at));
                let stream = stream.collect::<Result<_, _>>()?;
                let watching = watching::start(&server.endpoint, vec![stream], None).await?;
                let sample = measure::ops(&server, &target, Kind::Put, ops, Some(WAKES_PER_SECOND)).await?;
                watching.wait(ops).await?;
                watching.finish().await?;
                samples[level].push(sample);
            }
        }
    }
    println!(
        "Watches on one stream, of which one wakes: {WAKES_PER_SECOND} puts a second to one key; an operation is a put and its event.\n"
    );
    print_loads("watches", &options.watches, WATCHED.into_iter().zip(&samples));
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
async fn clients(options: &Options) -> anyhow::Result<()> {
    let server = servers::routed()?;
    let target = options.filled(&server, options.keys_else).await?;
    let mut targets = Vec::new();
    for clients in &options.clients {
        targets.push(target.on_connections(&server, *clients).await?);
    }
    let mut samples = none(targets.len());
    for round in 0..options.rounds {
        for level in turns(targets.len(), round) {
            options.round(&server, &targets[level], |load, sample| samples[load][level].push(sample)).await?;
        }
    }
    println!(
        "Clients, each a connection; together they always have {} calls in flight.\n",
        options.in_flight
    );
    print("clients", &options.clients, &samples);
    Ok(())
}

/// How a Kind is spread over shards.
struct Topology {
    name: String,
    shards: Vec<&'static str>,
    partitions: String,
    /// The calls in flight, in parts of those that one shard has alone.
    calls: usize,
}

/// Calls in flight for one shard alone, in these parts.
const PARTS: usize = 4;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

impl Topology {
    /// Name ranges with the same number of keys each.
    fn ranges(count: usize, keys: usize) -> Self {
        let shards = NAMES[..count].to_vec();
        let cut = |at: usize| {
            let key = String::from_utf8_lossy(&load::key(at * keys / count)).into_owned();
            key.trim_start_matches("/registry/leases/").to_owned()
        };
        let mut partitions = String::new();
        for (at, shard) in shards.iter().enumerate() {
            let (mut start, mut end) = (String::new(), String::new());
            if at > 0 {
                start = format!(", rangeStart: {}, isRangeStartValid: true", cut(at));
            }
            if at + 1 < count {
                end = format!(", rangeEnd: {}, isRangeEndValid: true", cut(at + 1));
            }
            partitions += &format!(
                "- {{metadata: {{name: {shard}}}, resource: leases{start}{end}, serviceGroupId: {shard}}}\n"
            );
        }
        let name = if count == 1 { "one shard".to_owned() } else { format!("{count} name ranges") };
        Self { name, shards, partitions, calls: count * PARTS }
    }

    /// A shard with as few calls in flight as make one of four shards, which share a machine with their load, as busy.
    fn a_quarter_busy(keys: usize) -> Self {
        let one = Self::ranges(1, keys);
        Self { name: "one shard, a quarter of the calls".to_owned(), calls: 1, ..one }
    }

    fn ring(count: usize) -> Self {
        let shards = NAMES[..count].to_vec();
        let partitions = format!(
            "- {{metadata: {{name: ring}}, resource: leases, ring: {{stores: [{}]}}}}\n",
            shards.join(", ")
        );
        Self { name: format!("a ring of {count}"), shards, partitions, calls: count * PARTS }
    }
}

/// The capacity of a Kind's shards relative to a single shard that takes `one` microseconds for an operation. It is
/// reached when the first of them has used up its core.
fn capacity(one: f64, shards: &[f64]) -> f64 {
    one / shards.iter().copied().fold(f64::NAN, f64::max)
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
async fn shards(options: &Options) -> anyhow::Result<()> {
    let keys = options.keys_else;
    let topologies = [
        Topology::ranges(1, keys),
        Topology::a_quarter_busy(keys),
        Topology::ranges(2, keys),
        Topology::ranges(4, keys),
        Topology::ring(2),
        Topology::ring(4),
    ];
    let mut all = Vec::new();
    for topology in &topologies {
        let shards = [&["default"], &topology.shards[..]].concat();
        let server = servers::behind_router("router + shards", &shards, &topology.partitions)?;
        // A transaction must stay on one store, and neighbours in a ring are on different ones.
        let shape = options.shape(keys);
        let shape = Shape { in_flight: (shape.in_flight * topology.calls / PARTS).max(1), ..shape };
        let target = Target::connect(&server, shape).await?.scattered();
        target.fill().await.context(topology.name.clone())?;
        all.push((server, target));
    }
    let mut samples = none(all.len());
    for round in 0..options.rounds {
        for level in turns(all.len(), round) {
            let (server, target) = &all[level];
            options.round(server, target, |load, sample| samples[load][level].push(sample)).await?;
        }
    }
    println!(
        "A Kind on several shards, with as many calls in flight for each of them: what more shards are for. Capacity: operations until the first of its\n\
         shards has no more of its core, beside one shard. A shard takes all that waits at once, so an operation costs it less\n\
         the busier it is. One shard with a quarter of the calls is about as busy as each of four, where these share their machine with the load.\n\
         Probes and pages ask all shards of the Kind (pages of name ranges those that have some of it).\n"
    );
    println!(
        "| load | Kind on | router us/op | each of its shards us/op | shards together | capacity | of its shards |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for ((_, name), levels) in LOADS.iter().zip(&samples) {
        let one = of(&levels[0], topologies[0].shards[0]);
        for (topology, samples) in topologies.iter().zip(levels) {
            let each: Vec<f64> = topology.shards.iter().map(|shard| of(samples, shard)).collect();
            let cells: Vec<String> = each.iter().map(|us| format!("{us:.2}")).collect();
            let capacity = capacity(one, &each);
            println!(
                "| {name} | {} | {:.1} | {} | {:.1} | {capacity:.2} | {:.0} % |",
                topology.name,
                of(samples, "router"),
                cells.join(", "),
                each.iter().sum::<f64>(),
                100.0 * capacity / each.len() as f64
            );
        }
    }
    println!();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_tells_its_ratio() {
        assert_eq!(row("get", "shard", &[2.0, 2.5, 2.2]), "| get | shard | 2.0 | 2.5 | 2.2 | 1.25 | yes |");
        assert_eq!(row("get", "router", &[2.0, 3.0]), "| get | router | 2.0 | 3.0 | 1.50 | no |");
        assert!(row("get", "router", &[]).ends_with("| NaN | no |"));
    }

    #[test]
    fn the_fullest_shard_is_the_capacity() {
        assert_eq!(capacity(8.0, &[8.0]), 1.0);
        assert_eq!(capacity(8.0, &[2.0, 4.0]), 2.0);
    }

    #[test]
    fn ranges_and_rings_are_of_the_loads_kind() {
        let two = Topology::ranges(2, 100_000);
        assert_eq!(
            two.partitions,
            "- {metadata: {name: a}, resource: leases, rangeEnd: bench/node-0050000, isRangeEndValid: true, serviceGroupId: a}\n\
             - {metadata: {name: b}, resource: leases, rangeStart: bench/node-0050000, isRangeStartValid: true, serviceGroupId: b}\n"
        );
        let one = Topology::ranges(1, 10);
        assert_eq!(one.partitions, "- {metadata: {name: a}, resource: leases, serviceGroupId: a}\n");
        let ring = Topology::ring(2);
        assert_eq!(ring.partitions, "- {metadata: {name: ring}, resource: leases, ring: {stores: [a, b]}}\n");
        assert_eq!(ring.shards, ["a", "b"]);
    }
}
