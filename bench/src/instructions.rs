//! Instructions of a server for one operation, counted by valgrind's callgrind: what a change costs or saves, on any
//! machine, however busy. Only code of the process itself counts, not the kernel's.
//!
//! `bench/instructions` holds what each hot path takes. The numbers may only go down: `--check` fails when one is exceeded,
//! `--write` records those that are lower.

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

/// Of so many operations one page is counted: it is heavy.
const PAGES_PART: u64 = 10;

/// What is measured and compared.
#[derive(clap::Args)]
pub struct Options {
    /// Operations that are counted, after as many that warm up.
    #[arg(long, default_value_t = 3_000)]
    ops: u64,
    /// Fail when an operation takes more than this file says.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// By how many percent it may take more: runs differ, as timers fire more or less often meanwhile.
    #[arg(long, value_name = "PERCENT", default_value_t = 3, value_parser = clap::value_parser!(u64).range(..100))]
    tolerance: u64,
    /// Record what is lower than, or not in, this file.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    write: Option<PathBuf>,
    /// Keep callgrind's profiles here (`callgrind_annotate` shows them).
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Write here where they are spent, by crate (Markdown).
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Only these paths (`shard put`).
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Instructions for one operation, by path: `shard put`.
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

/// The paths that take more than they may, and so many percent.
fn exceeded(limits: &Counts, measured: &Counts, tolerance: u64) -> Vec<String> {
    let over = |(path, count): (&String, &u64)| {
        let limit = *limits.get(path)?;
        let most = limit * (100 + tolerance) / 100;
        (*count > most).then(|| format!("{path}: {count} instructions, at most {limit} (and {tolerance} %)"))
    };
    measured.iter().filter_map(over).collect()
}

/// The file's text, with what got lower.
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

/// Counts, prints, compares.
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

/// Where valgrind listens: a server that is killed leaves its pipes behind.
fn pipes(folder: &Path) -> String {
    format!("--vgdb-prefix={}", folder.join("vgdb").display())
}

/// What callgrind wrote of so many operations.
async fn counted(server: &Server, role: &str, kind: Kind, ops: u64, folder: &Path) -> anyhow::Result<String> {
    let pid = server.pids.iter().find(|(name, _)| name == role).context("no such process")?.1;
    let shape = Shape { connections: 4, in_flight: 64, keys: 1_000, value_bytes: 512 };
    let target = Target::connect(server, shape).await?;
    target.fill().await?;
    // Of each key's updates the first is refused, in every run alike: the file's numbers have it in them.
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

/// Asks callgrind in a running process.
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

/// All instructions of a profile.
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
