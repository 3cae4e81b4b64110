//! `restart`: fills a shard, and restarts it after a clean stop and after a kill -9. It measures the time and the
//! CPU until the shard serves, and its memory.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Instant,
};

use anyhow::Context;

use crate::{
    cpu,
    load::{self, Shape},
    servers,
    stats::median,
};

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// A folder on the disk to measure.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// Number of objects.
    #[arg(long, default_value_t = 1_000_000)]
    objects: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    value_bytes: usize,
    /// Restarts after each way of stopping; medians are printed.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

const MIB: f64 = 1024.0 * 1024.0;

struct Start {
    seconds: f64,
    cpu_seconds: f64,
    resident: u64,
}

/// The resident memory of a process in bytes.
pub fn resident(pid: u32) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.context("no VmRSS")? * 1024)
}

/// The total length of all files below a folder.
fn size(dir: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { size(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}

fn start(flags: &[String]) -> anyhow::Result<(Child, String, Start)> {
    let began = Instant::now();
    let (child, endpoint) = servers::start_shard(flags)?;
    let seconds = began.elapsed().as_secs_f64();
    let (cpu_seconds, resident) = (cpu::whole_process_seconds(child.id())?, resident(child.id())?);
    Ok((child, endpoint, Start { seconds, cpu_seconds, resident }))
}

fn stop(child: &mut Child, clean: bool) -> anyhow::Result<()> {
    if clean {
        Command::new("kill").arg(child.id().to_string()).status().context("kill")?;
    } else {
        child.kill()?;
    }
    child.wait()?;
    Ok(())
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: Options) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in(&options.dir)?;
    let data = dir.path().join("data");
    let flags = [
        "--data-dir".to_owned(),
        data.display().to_string(),
        "--durability-of".to_owned(),
        "leases=buffered".to_owned(),
    ];
    let shape =
        Shape { connections: 4, in_flight: 64, keys: options.objects, value_bytes: options.value_bytes };
    let (mut child, endpoint, empty) = start(&flags)?;
    let began = Instant::now();
    {
        let channels = load::connect(&endpoint, shape).await?;
        load::Target::new(channels, shape).fill().await?;
    }
    let raw = options.objects as u64 * (load::KEY_BYTES + options.value_bytes) as u64;
    let filled = resident(child.id())?;
    println!(
        "{} objects of {} bytes: {:.0} MiB of keys and values, written in {:.1} s\n",
        options.objects,
        options.value_bytes,
        raw as f64 / MIB,
        began.elapsed().as_secs_f64()
    );
    let over = |resident: u64| {
        (resident.saturating_sub(empty.resident) as f64 - raw as f64) / options.objects as f64
    };
    println!(
        "| | seconds | CPU s | MB/s | MB/s a core | on disk MiB | resident MiB | over keys and values, bytes an object |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    println!("| filled | | | | | | {:.0} | {:.0} |", filled as f64 / MIB, over(filled));
    let result = rounds(&mut child, &options, &flags, &data, raw, over);
    // It may have ended already, which was reported.
    let _ = child.kill();
    let _ = child.wait();
    result
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
fn rounds(
    child: &mut Child,
    options: &Options,
    flags: &[String],
    data: &Path,
    raw: u64,
    over: impl Fn(u64) -> f64,
) -> anyhow::Result<()> {
    for (name, clean) in [("after kill -9", false), ("after a clean stop", true)] {
        let mut starts = Vec::new();
        let mut on_disk = 0;
        for _ in 0..options.rounds {
            stop(child, clean)?;
            on_disk = size(data)?;
            let (started, _, taken) = start(flags)?;
            *child = started;
            starts.push(taken);
        }
        let of = |what: fn(&Start) -> f64| median(starts.iter().map(what).collect());
        let (seconds, cpu, resident) = (of(|s| s.seconds), of(|s| s.cpu_seconds), of(|s| s.resident as f64));
        println!(
            "| {name} | {seconds:.2} | {cpu:.2} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} |",
            raw as f64 / 1e6 / seconds,
            raw as f64 / 1e6 / cpu,
            on_disk as f64 / MIB,
            resident / MIB,
            over(resident as u64),
        );
    }
    Ok(())
}
