//! `lists`: what small writes wait while many clients list a large Kind in a loop, with the router's admission of long
//! lists and without it. Writes of leases are sent at a steady pace and timed from when each was due; the lists are of
//! another Kind on another shard, so that only the router, and the machine, are shared.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use kindred_proto::etcdserverpb::{RangeRequest, kv_client::KvClient};
use tokio::sync::oneshot;
use tonic::transport::Channel;

use crate::{
    bare,
    load::{self, Shape},
    pace::{self, Pace, Sent},
    servers::{self, Server},
    stats::{Latency, median},
};

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Number of pods.
    #[arg(long, default_value_t = 100_000)]
    pods: usize,
    /// Bytes of a pod.
    #[arg(long, default_value_t = 1_000)]
    value_bytes: usize,
    /// Clients that list, each on a connection of its own.
    #[arg(long, default_value_t = 50)]
    clients: usize,
    /// Updates of leases per second.
    #[arg(long, default_value_t = 500)]
    rate: u64,
    /// Long lists that the router runs at once.
    #[arg(long, default_value_t = 4)]
    long_lists: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Rounds; numbers are medians over them.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

const PODS: &str = "/registry/pods/";
const PODS_END: &str = "/registry/pods0";
const LEASES: &str = "/registry/leases/paced/";
const LEASE_KEYS: usize = 1_000;
const LEASE_BYTES: usize = 300;
const PARTITIONS: &str = "  - { metadata: { name: leases }, resource: leases, serviceGroupId: leases }\n  \
    - { metadata: { name: pods }, resource: pods, serviceGroupId: pods }\n";
/// The pods of one transaction when they are written.
const TOGETHER: usize = 100;

struct Case {
    name: &'static str,
    server: Server,
    channels: Vec<Channel>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    latency: Latency,
    lists: u64,
    /// The most memory of the router, in MiB.
    memory: f64,
}

impl Case {
    async fn start(name: &'static str, admission: &str, options: &Options) -> anyhow::Result<Self> {
        let flags = [format!("--admission={admission}"), format!("--long-lists={}", options.long_lists)];
        let server = servers::behind_router_with(name, &["default", "leases", "pods"], PARTITIONS, &flags)?;
        let shape = Shape { connections: 1, in_flight: 1, keys: LEASE_KEYS, value_bytes: LEASE_BYTES };
        let channels = load::connect(&server.endpoint, shape).await?;
        let mut kv = KvClient::new(channels[0].clone()).max_decoding_message_size(usize::MAX);
        let value = Bytes::from(vec![b'v'; options.value_bytes]);
        for first in (0..options.pods).step_by(TOGETHER) {
            let pods = first..(first + TOGETHER).min(options.pods);
            let puts = pods.map(|pod| (format!("{PODS}ns/pod-{pod:07}").into(), value.clone()));
            kv.txn(load::puts_txn(puts)).await.context("writing the pods")?;
        }
        Ok(Self { name, server, channels })
    }

    async fn sample(&self, options: &Options, lists: bool) -> anyhow::Result<Sample> {
        let keys: Vec<Bytes> = (0..LEASE_KEYS).map(|lease| format!("{LEASES}{lease:05}").into()).collect();
        let count = options.rate * options.seconds;
        let pace = Pace { keys: Arc::new(keys), rate: options.rate, count, value_bytes: LEASE_BYTES };
        let (finished, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let listing = lists.then(|| {
            let (endpoint, clients) = (self.server.endpoint.clone(), options.clients);
            let (finished, stop, least) =
                (finished.clone(), stop.clone(), (options.pods * options.value_bytes) as u64);
            // On a thread of its own, so that reading the lists does not delay what is measured here.
            // It has what the servers leave of the processors, as if the clients were on other machines.
            std::thread::spawn(move || {
                rustix::process::setpriority_process(None, 19).context("the priority of the clients")?;
                read(&endpoint, clients, least, &finished, &stop)
            })
        });
        let router = self.server.pids.iter().find(|(role, _)| role == "router").context("a router")?.1;
        // The lists begin before the writes.
        tokio::time::sleep(Duration::from_millis(500)).await;
        forget_peak(router);
        let (_keep, never) = oneshot::channel();
        let sent = pace::write(&self.channels, &pace, never).await;
        let memory = peak(router)?;
        stop.store(true, Ordering::Relaxed);
        if let Some(listing) = listing {
            listing.join().map_err(|_| anyhow::anyhow!("the listing thread panicked"))??;
        }
        let took = |sent: &Sent| u64::try_from((sent.acknowledged - sent.due).as_nanos()).unwrap_or(u64::MAX);
        let latency = Latency::of(sent?.iter().map(took).collect());
        Ok(Sample { latency, lists: finished.load(Ordering::Relaxed), memory })
    }
}

/// Lists in a loop, with so many clients, until it is stopped.
fn read(
    endpoint: &str,
    clients: usize,
    least: u64,
    finished: &Arc<AtomicU64>,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let range = RangeRequest { key: PODS.into(), range_end: PODS_END.into(), ..Default::default() };
    let request = bare::framed(&range)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..clients {
            let (endpoint, request) = (endpoint.to_owned(), request.clone());
            let (finished, stop) = (finished.clone(), stop.clone());
            readers.spawn(async move {
                let connection = bare::connect(&endpoint).await?;
                while !stop.load(Ordering::Relaxed) {
                    let mut call = bare::begin(&connection, &endpoint, "/etcdserverpb.KV/Range").await?;
                    call.requests.send_data(request.clone(), true)?;
                    let bytes = tokio::select! {
                        bytes = async { call.answers().await?.1.drain().await } => bytes?,
                        // Those that wait for their turn when the measurement ends are given up.
                        () = stopped(&stop) => return Ok(()),
                    };
                    anyhow::ensure!(
                        bytes > least,
                        "a list of {bytes} bytes, and the values alone are {least}"
                    );
                    finished.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            });
        }
        while let Some(read) = readers.join_next().await {
            read??;
        }
        Ok(())
    })
}

async fn stopped(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Begins the peak of a process's memory anew, where the kernel allows that.
fn forget_peak(pid: u32) {
    // Without it the peak is that since the start, which the table says by being no smaller.
    let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// The peak of a process's memory, in MiB.
fn peak(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    let kib: f64 = line.split_whitespace().next().context("a number")?.parse()?;
    Ok(kib / 1024.0)
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: Options) -> anyhow::Result<()> {
    anyhow::ensure!(options.rounds > 0 && options.rate > 0 && options.clients > 0, "nothing is measured");
    let cases = [
        Case::start("with admission", "enforce", &options).await?,
        Case::start("without admission", "off", &options).await?,
    ];
    let mut samples: Vec<[Vec<Sample>; 2]> = cases.iter().map(|_| Default::default()).collect();
    for _ in 0..options.rounds {
        for (case, samples) in cases.iter().zip(&mut samples) {
            for (lists, samples) in [false, true].into_iter().zip(samples) {
                let began = Instant::now();
                samples.push(case.sample(&options, lists).await.context(case.name)?);
                eprintln!("{}, lists: {lists}: {:.1} s", case.name, began.elapsed().as_secs_f64());
            }
        }
    }
    println!(
        "{} updates of leases a second, open loop, times from when each was due; {} clients list {} pods of {} bytes in a loop; medians of\n\
         {} rounds of {} s.\n",
        options.rate, options.clients, options.pods, options.value_bytes, options.rounds, options.seconds
    );
    println!(
        "| router | meanwhile | p50 us | p99 us | p99.9 us | longest us | p99 to that without lists | lists | router's memory MiB |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (case, samples) in cases.iter().zip(&samples) {
        let mid = |at: usize, of: fn(&Sample) -> f64| median(samples[at].iter().map(of).collect());
        for (at, meanwhile) in ["no lists", "lists"].into_iter().enumerate() {
            println!(
                "| {} | {meanwhile} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} |",
                case.name,
                mid(at, |sample| sample.latency.p50),
                mid(at, |sample| sample.latency.p99),
                mid(at, |sample| sample.latency.p999),
                mid(at, |sample| sample.latency.max),
                mid(at, |sample| sample.latency.p99) / mid(0, |sample| sample.latency.p99),
                mid(at, |sample| sample.lists as f64),
                mid(at, |sample| sample.memory),
            );
        }
    }
    Ok(())
}
