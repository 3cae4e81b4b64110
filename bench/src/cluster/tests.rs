//! The table of sizes in `docs/operations.md` is what the model says by the costs in `bench/capacity.md`.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    options: Options,
}

/// The costs of writes and events in the two columns of `bench/capacity.md`. Questions and pages are not in its table.
const AT_2_400: Costs = costs([124.8, 84.9], [41.9, 28.4], 4.6);
const AT_16_500: Costs = costs([29.2, 22.3], [6.7, 1.2], 0.8);

const fn costs(write: [f64; 2], event: [f64; 2], watcher: f64) -> Costs {
    let none = Cost { router: 0.0, shard: 0.0 };
    Costs {
        write: Cost { router: write[0], shard: write[1] },
        event: Cost { router: event[0], shard: event[1] },
        watcher,
        probe: none,
        page: none,
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "whoever changes the model takes the table from here")]
fn the_sizes_in_the_documentation_are_the_models() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    let page = std::fs::read_to_string(page).unwrap();
    let Defaults { mut options } = Defaults::parse_from(["sizes"]);
    let mut missing = Vec::new();
    for (nodes, pods_per_node, apiservers, costs) in
        [(5_000, 30, 3.0, AT_2_400), (100_000, 5, 3.0, AT_16_500), (1_000_000, 2, 20.0, AT_16_500)]
    {
        options.pods_per_node = pods_per_node;
        let kinds = options.kinds(nodes);
        let mut routers = 1.0;
        let needs = loop {
            let cluster = capacity::Cluster {
                kinds: kinds.clone(),
                apiservers,
                routers,
                probes: 0.0,
                pages: 0.0,
                history_seconds: HISTORY_SECONDS,
                filled: FILLED,
            };
            let needs = capacity::needs(&cluster, &costs, &OVERHEADS);
            if needs.router_cores / routers <= FILLED {
                break needs;
            }
            routers += 1.0;
        };
        let writes: f64 = kinds.iter().map(|kind| kind.writes).sum();
        let column = |of: &dyn Fn(&capacity::Need) -> String| {
            needs.kinds.iter().map(of).collect::<Vec<_>>().join(", ")
        };
        let network: f64 = needs.kinds.iter().map(|need| need.network).sum();
        let row = format!(
            "| {nodes} | {} | {apiservers} | {writes:.0} | {routers}, {:.1} | {} | {} | {} | {:.0}, {:.0} |",
            nodes * pods_per_node,
            needs.router_cores,
            column(&|need| need.shards.to_string()),
            column(&|need| format!("{:.2}", need.cores)),
            column(&|need| format!("{:.1}", need.memory / f64::from(1 << 30))),
            needs.router_network / 1e6,
            network / 1e6,
        );
        println!("{row}");
        if !page.contains(&row) {
            missing.push(row);
        }
    }
    assert!(missing.is_empty(), "docs/operations.md lacks:\n{}", missing.join("\n"));
}
