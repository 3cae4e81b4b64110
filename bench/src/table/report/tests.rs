use super::*;

fn sample(cpu_us: &[(&str, f64)], p50: f64) -> Sample {
    Sample {
        cpu_us: cpu_us.iter().map(|(role, us)| ((*role).to_owned(), *us)).collect(),
        split: Vec::new(),
        latency: Latency { p50, p99: p50 * 4.0, p999: p50 * 10.0, max: p50 * 20.0 },
        ops_per_second: 1.0,
    }
}

fn cell(samples: &[Sample]) -> Cell {
    Cell { samples: samples.to_vec(), failed: None }
}

fn report() -> Report {
    let column = |subject, version: &str| Column { subject, version: version.to_owned() };
    let etcd = [40.0, 44.0, 38.0].map(|us| sample(&[("etcd", us)], us * 10.0));
    let router = [(6.0, 4.0), (7.0, 5.0), (6.5, 4.0)]
        .map(|(router, shard)| sample(&[("router", router), ("shard", shard)], router * 20.0));
    let failed = Cell { samples: Vec::new(), failed: Some("a | b\nc".to_owned()) };
    Report {
        name: "closed".to_owned(),
        load: "two keys".to_owned(),
        rate: None,
        watchers: 20,
        machine: Machine {
            cpu: "a processor".to_owned(),
            cores: 2,
            memory_mib: 100,
            kernel: "6.1".to_owned(),
        },
        command: "kindred-bench --ops 3".to_owned(),
        debug: false,
        columns: vec![
            column(Subject::Etcd, "3.7.3"),
            column(Subject::MemEtcd, "0.1.0"),
            column(Subject::Router, "abc"),
        ],
        rows: vec![
            Row {
                workload: Workload::Put,
                cells: vec![cell(&etcd), cell(&[sample(&[("mem_etcd", 20.0)], 100.0)]), cell(&router)],
            },
            Row { workload: Workload::Watch, cells: vec![cell(&etcd), failed, cell(&router)] },
        ],
        curve: None,
    }
}

#[test]
fn a_cell_has_median_spread_ratios_and_its_processes() {
    let report = report();
    let row = |at: usize| cpu_row(&report.rows[at], &report.columns, report.watchers);
    assert_eq!(
        row(0),
        "| put | 40.0 (38.0-44.0), 2.00 of mem_etcd | 20.0 (20.0-20.0), 0.50 of etcd \
         | 10.5 (10.0-12.0), 0.26 of etcd, 0.53 of mem_etcd: router 6.50, shard 4.00 |"
    );
    assert_eq!(
        row(1),
        "| watch, 20 watchers | 40.0 (38.0-44.0) | failed: a / b c \
         | 10.5 (10.0-12.0), 0.26 of etcd: router 6.50, shard 4.00 |"
    );
}

#[test]
fn latencies_of_a_closed_loop_are_two_and_of_an_open_one_four() {
    let mut report = report();
    let lines = report.latencies();
    assert_eq!(
        lines.lines().collect::<Vec<_>>()[2..],
        [
            "| put | 400, 1600 | 100, 400 | 130, 520 |",
            "| watch, 20 watchers | 400, 1600 | failed | 130, 520 |"
        ]
    );
    report.rate = Some(100);
    assert!(report.latencies().contains("| put | 400, 1600, 4000, 8800 |"), "the longest of all rounds");

    report.columns[1].subject = Subject::Shard;
    report.rate = None;
    let put = report.latencies().lines().nth(2).unwrap().to_owned();
    assert_eq!(put, "| put | 400, 1600 | 100, 400 | 130, 520 (1.30, 1.30 of alone) |");
}

#[test]
fn the_text_says_where_it_is_from_and_shows_the_plots_that_there_are() {
    let mut report = report();
    let text = report.markdown();
    for part in [
        "kindred-bench --ops 3",
        "a processor, 2 cores, 100 MiB of memory, Linux 6.1",
        "| etcd | 3.7.3; ",
        "| mem_etcd | 0.1.0; ",
        "| kindred router + shard | abc; ",
        "![CPU of one operation](closed-cpu.svg)",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("latency.svg") && !text.contains("debug"));
    assert_eq!(text, report.markdown());
    report.debug = true;
    report.curve = Some(Curve {
        in_flight: vec![1, 64],
        cells: report.rows[0].cells.iter().map(|cell| vec![cell.clone(), Cell::default()]).collect(),
    });
    let text = report.markdown();
    assert!(text.contains("closed-latency.svg") && text.contains("debug build"));
    let plots = report.plots();
    assert_eq!(
        plots.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["closed-cpu.svg", "closed-latency.svg"]
    );
    assert!(plots.iter().all(|(_, plot)| !plot.contains("NaN")), "{plots:?}");
    assert!(plots[0].1.contains(">10.5 (0.26 of etcd)<"));
    report.rate = Some(500);
    report.curve = None;
    assert!(report.plots()[1].1.contains("500 operations a second"));
}
