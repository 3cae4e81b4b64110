//! Counts a server's instructions per operation with valgrind's callgrind. The counts show the effect of a change
//! on any machine, however busy. They cover the process's own code, not the kernel's.
//!
//! `bench/instructions` has the limit of each hot path. Limits may only decrease: `--check` fails if one is
//! exceeded, `--write` records lower counts.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use crate::{
    load::{Kind, Shape, Target},
    profile,
    servers::{self, Server},
};

/// Pages are expensive, so only one is counted for this many operations.
const PAGES_PART: u64 = 10;

#[derive(clap::Args)]
pub struct Options {
    /// Operations to count, after as many for warm-up.
    #[arg(long, default_value_t = 3_000)]
    ops: u64,
    /// Fail if an operation takes more instructions than this file says.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Tolerated excess in percent: runs differ, because timers fire more or less often.
    #[arg(long, value_name = "PERCENT", default_value_t = 3, value_parser = clap::value_parser!(u64).range(..100))]
    tolerance: u64,
    /// Record counts that are lower than in this file, or not in it.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    write: Option<PathBuf>,
    /// Keep callgrind's profiles here (`callgrind_annotate` shows them).
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Write where the instructions are spent, by crate, to this file (Markdown).
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Measure only these paths (such as `shard put`).
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Instructions per operation, by path such as `shard put`.
type Counts = BTreeMap<String, u64>;

fn parse(text: &str) -> anyhow::Result<Counts> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (path, count) = line.rsplit_once(' ').with_context(|| format!("not a line: {line:?}"))?;
            let count = count.parse().with_context(|| format!("not a number of instructions: {line:?}"))?;
            anyhow::Ok((path.trim_end().to_owned(), count))
        })
        .collect()
}

/// The paths that exceed their limit by more than the tolerance.
fn exceeded(limits: &Counts, measured: &Counts, tolerance: u64) -> Vec<String> {
    let over = |(path, count): (&String, &u64)| {
        let limit = *limits.get(path)?;
        let most = limit * (100 + tolerance) / 100;
        (*count > most).then(|| format!("{path}: {count} instructions, at most {limit} (and {tolerance} %)"))
    };
    measured.iter().filter_map(over).collect()
}

/// The file's text, with lower counts recorded.
fn lowered(limits: &Counts, measured: &Counts) -> String {
    let mut all = limits.clone();
    for (path, count) in measured {
        all.entry(path.clone()).and_modify(|limit| *limit = (*limit).min(*count)).or_insert(*count);
    }
    let mut text =
        "# Instructions for one operation (`kindred-bench instructions`). They may only go down.\n"
            .to_owned();
    for (path, count) in all {
        text += &format!("{path} {count}\n");
    }
    text
}

/// Counts, prints and compares.
#[allow(clippy::print_stdout)]
pub async fn run(options: Options) -> anyhow::Result<()> {
    if Command::new("vgdb").arg("--help").output().is_err() {
        println!("skipped: instructions are counted by valgrind, and there is none");
        return Ok(());
    }
    let profiles = tempfile::tempdir()?;
    let folder = options.keep.as_deref().unwrap_or(profiles.path());
    std::fs::create_dir_all(folder)?;
    let (mut measured, mut spent) = (Counts::new(), Vec::new());
    for role in ["shard", "router"] {
        let wanted = |kind: &Kind| {
            let path = format!("{role} {}", kind.name());
            options.only.is_empty() || options.only.contains(&path)
        };
        let kinds: Vec<Kind> =
            [Kind::Put, Kind::TxnPut, Kind::Get, Kind::List].into_iter().filter(wanted).collect();
        if kinds.is_empty() {
            continue;
        }
        let server = match role {
            "shard" => servers::shard_under(&tool(folder, role))?,
            _ => servers::routed_under(&tool(folder, role))?,
        };
        for kind in kinds {
            let ops = if kind == Kind::List { (options.ops / PAGES_PART).max(1) } else { options.ops };
            let profile = counted(&server, role, kind, ops, folder).await?;
            let (path, count) = (format!("{role} {}", kind.name()), total(&profile)? / ops);
            println!("{path} {count}");
            spent.push((path.clone(), profile::by_crate(&profile, ops)));
            measured.insert(path, count);
        }
    }
    let limits = |file: &Path| match std::fs::read_to_string(file) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Counts::new()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    };
    if let Some(file) = &options.write {
        std::fs::write(file, lowered(&limits(file)?, &measured))?;
    }
    if let Some(file) = &options.profile {
        std::fs::write(file, profile::table(&spent))?;
    }
    if let Some(file) = &options.check {
        let over = exceeded(&limits(file)?, &measured, options.tolerance);
        if !over.is_empty() {
            bail!("more instructions than before:\n{}", over.join("\n"));
        }
    }
    Ok(())
}

fn tool(folder: &Path, role: &str) -> Vec<String> {
    let out = folder.join(role).display().to_string();
    ["valgrind", "--tool=callgrind", &pipes(folder), &format!("--callgrind-out-file={out}")]
        .map(str::to_owned)
        .into()
}

/// Where valgrind puts its pipes, which a killed server leaves behind.
fn pipes(folder: &Path) -> String {
    format!("--vgdb-prefix={}", folder.join("vgdb").display())
}

/// The profile that callgrind wrote for `ops` operations.
async fn counted(server: &Server, role: &str, kind: Kind, ops: u64, folder: &Path) -> anyhow::Result<String> {
    let pid = server.pids.iter().find(|(name, _)| name == role).context("no such process")?.1;
    let shape = Shape { connections: 4, in_flight: 64, keys: 1_000, value_bytes: 512 };
    let target = Target::connect(server, shape).await?;
    target.fill().await?;
    // The first update of each key is refused, equally in every run, and the limits include that.
    target.forget();
    target.closed(kind, ops).await?;
    target.forget();
    ask(folder, pid, &["zero"])?;
    target.closed(kind, ops).await?;
    let before = dumps(folder, role)?;
    ask(folder, pid, &["dump", kind.name()])?;
    let after = dumps(folder, role)?;
    let new = after.iter().find(|file| !before.contains(file)).context("callgrind wrote no profile")?;
    Ok(std::fs::read_to_string(new)?)
}

/// Sends a command to callgrind in a running process.
fn ask(folder: &Path, pid: u32, words: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("vgdb").arg(pipes(folder)).arg(format!("--pid={pid}")).args(words).output()?;
    if !output.status.success() {
        bail!("vgdb {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn dumps(folder: &Path, role: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(role)) {
            files.push(path);
        }
    }
    Ok(files)
}

/// The total number of instructions in a profile.
fn total(profile: &str) -> anyhow::Result<u64> {
    let of = |name| profile.lines().find_map(|line| line.strip_prefix(name));
    let total = of("totals:").or_else(|| of("summary:")).context("the profile has no total")?;
    Ok(total.split_whitespace().next().context("the profile has an empty total")?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_take_less_and_hardly_more() {
        let limits = parse("# a comment\nrouter get 500\n\nshard txn put 1000\n").unwrap();
        assert_eq!(limits["shard txn put"], 1000);
        let counts = |put: u64| Counts::from([("shard txn put".to_owned(), put), ("new".to_owned(), 9)]);
        assert_eq!(exceeded(&limits, &counts(1030), 3), Vec::<String>::new());
        assert_eq!(exceeded(&limits, &counts(1031), 3).len(), 1);
        assert_eq!(parse(&lowered(&limits, &counts(900))).unwrap()["shard txn put"], 900);
        assert_eq!(parse(&lowered(&limits, &counts(1100))).unwrap()["shard txn put"], 1000);
        assert_eq!(parse(&lowered(&limits, &counts(900))).unwrap()["new"], 9);
        assert!(parse("shard put").is_err());
    }

    #[test]
    fn the_total_is_read_from_a_profile() {
        assert_eq!(total("events: Ir\nfn=main\n1 2\ntotals: 123\n").unwrap(), 123);
        assert!(total("events: Ir\n").is_err());
    }
}
