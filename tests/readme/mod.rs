//! Runs the documentation as it stands: every `$ command` of the `console` blocks in `README.md` and `docs/*.md`, whose
//! output must be the lines after it. A comment before a block says which cluster it and the following blocks run
//! against: `<!-- kindred up -->`, perhaps with flags, which may name files of the repository. `…` in an expected line
//! stands for anything. A line that is only `…` stands for any number of lines. `127.0.0.1:2381` and `kindred.data`, the
//! defaults that a reader has, stand for the admin port and the data folder of that cluster.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use kindred_tests::{peers::peer, process::our_binary, scenario, servers::Up};
use tokio::process::Command;

/// The slowest command waits for a store that it adds, which takes less.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// The beginning and the end of the comment that gives the next blocks a cluster of their own.
const CLUSTER: (&str, &str) = ("<!-- kindred up", "-->");

/// The page that has a test of its own.
const HIGH_AVAILABILITY: &str = "high-availability.md";

/// A command of a page.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    /// The number of its line on the page, from 1.
    line: usize,
    command: String,
    expected: Vec<String>,
}

/// The commands of a page that run against one cluster.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    /// The flags of the cluster's `kindred up`.
    flags: Vec<String>,
    steps: Vec<Step>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The commands of the `console` blocks with their expected lines, grouped by cluster.
fn parts(page: &str) -> anyhow::Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    let mut in_block = false;
    for (number, line) in (1..).zip(page.lines()) {
        if !in_block && let Some(rest) = line.strip_prefix(CLUSTER.0) {
            let flags =
                rest.strip_suffix(CLUSTER.1).with_context(|| format!("line {number}: no {}", CLUSTER.1))?;
            let flags = flags.split_whitespace().map(str::to_owned).collect();
            parts.push(Part { flags, steps: Vec::new() });
            continue;
        }
        match line {
            "```console" => {
                anyhow::ensure!(
                    !parts.is_empty(),
                    "line {number}: no {} … {} says where it runs",
                    CLUSTER.0,
                    CLUSTER.1
                );
                in_block = true;
            }
            "```" => in_block = false,
            _ if !in_block => {}
            _ => {
                let steps = &mut parts.last_mut().context("a block is in a part")?.steps;
                match (line.strip_prefix("$ "), steps.last_mut()) {
                    (Some(command), _) => {
                        let command = command.to_owned();
                        steps.push(Step { line: number, command, expected: Vec::new() });
                    }
                    (None, Some(step)) => step.expected.push(line.to_owned()),
                    (None, None) => {}
                }
            }
        }
    }
    Ok(parts)
}

/// Whether a printed line matches the line on the page.
fn matches(expected: &str, line: &str) -> bool {
    let mut parts = expected.split('…');
    let Some(rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let mut rest = rest;
    let mut last_empty = expected == rest || !expected.contains('…');
    for part in parts {
        last_empty = part.is_empty();
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty() || (last_empty && expected.contains('…'))
}

/// Whether all printed lines match those on the page.
fn all_match(expected: &[String], lines: &[&str]) -> bool {
    match (expected.split_first(), lines.split_first()) {
        (Some((any, rest)), _) if any == "…" => {
            (0..=lines.len()).any(|skipped| all_match(rest, &lines[skipped..]))
        }
        (Some((first, rest)), Some((line, lines))) => matches(first, line) && all_match(rest, lines),
        (None, None) => true,
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// A command with the places of the cluster that it runs against.
fn of_cluster(command: &str, up: &Up) -> String {
    command.replace("127.0.0.1:2381", &up.admin).replace("kindred.data", &up.data_dir.display().to_string())
}

async fn run(step: &Step, dir: &Path, up: &Up) -> anyhow::Result<String> {
    let etcdctl = peer("etcdctl")?;
    let tools = etcdctl.parent().context("etcdctl is in a folder")?;
    let ours = our_binary("kindred")?;
    let ours = ours.parent().context("kindred is in a folder")?;
    let path =
        format!("{}:{}:{}", tools.display(), ours.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .args(["-c", &of_cluster(&step.command, up)])
        .current_dir(dir)
        .env("PATH", path)
        .env("ETCDCTL_ENDPOINTS", format!("http://{}", up.address))
        .env("KINDRED_ADMIN", format!("http://{}", up.admin))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(COMMAND_LIMIT, output).await.context("the command does not end")??;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !errors.is_empty() {
        bail!("wrote to standard error: {errors}");
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs all commands of a page. Returns their number.
async fn tour(name: &str, page: &str, dir: &Path) -> anyhow::Result<usize> {
    let mut commands = 0;
    for (number, Part { flags, steps }) in (1..).zip(parts(page)?) {
        let flags: Vec<String> = flags
            .into_iter()
            .map(|flag| {
                let file = root().join(&flag);
                if file.is_file() { file.display().to_string() } else { flag }
            })
            .collect();
        let cluster = format!("{}-{number}", name.trim_end_matches(".md"));
        let up = Up::start(dir, &cluster, &flags).await?;
        let dir = dir.join(format!("{cluster}-work"));
        fs::create_dir(&dir)?;
        for step in &steps {
            let place = || format!("{name}:{}: $ {}", step.line, step.command);
            let printed = run(step, &dir, &up).await.with_context(place)?;
            let lines: Vec<&str> = printed.lines().collect();
            anyhow::ensure!(
                all_match(&step.expected, &lines),
                "{}\nprinted:\n{printed}\nthe page shows:\n{}",
                place(),
                step.expected.join("\n")
            );
        }
        commands += steps.len();
    }
    Ok(commands)
}

/// The README and the pages of `docs/`, in the order of their names.
fn pages() -> anyhow::Result<Vec<PathBuf>> {
    let mut pages = vec![root().join("README.md")];
    let entries = fs::read_dir(root().join("docs"))?.collect::<Result<Vec<_>, _>>()?;
    let mut docs: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    docs.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    docs.sort();
    pages.append(&mut docs);
    Ok(pages)
}

#[test]
fn the_pages_show_what_the_commands_print() {
    scenario::run("readme", Duration::from_secs(300), |dir| async move {
        let (mut commands, mut toured) = (0, Vec::new());
        for path in pages()? {
            let name = path.file_name().context("a page has a name")?.to_string_lossy().into_owned();
            if name == HIGH_AVAILABILITY {
                continue;
            }
            let page = fs::read_to_string(&path)?;
            let run = tour(&name, &page, &dir).await.with_context(|| name.clone())?;
            if run > 0 {
                commands += run;
                toured.push(name);
            }
        }
        println!("readme: pages={} commands={commands} differences=0", toured.join(","));
        for page in ["README.md", "concepts.md", "moving-kinds.md", "backup.md"] {
            anyhow::ensure!(toured.iter().any(|name| name == page), "{page} has no commands any more");
        }
        anyhow::ensure!(commands >= 35, "the pages have only {commands} commands");
        Ok(())
    });
}

/// In a test of its own, since it takes long: processes die, and copies are made.
#[test]
fn high_availability_shows_what_the_commands_print() {
    scenario::run("readme-high-availability", Duration::from_secs(300), |dir| async move {
        let page = fs::read_to_string(root().join("docs").join(HIGH_AVAILABILITY))?;
        let commands = tour(HIGH_AVAILABILITY, &page, &dir).await?;
        println!("readme: pages={HIGH_AVAILABILITY} commands={commands} differences=0");
        anyhow::ensure!(commands >= 10, "the page has only {commands} commands");
        Ok(())
    });
}

#[test]
fn ellipses_stand_for_anything_and_nothing_else_does() {
    for (expected, line, same) in [
        ("OK", "OK", true),
        ("OK", "OKAY", false),
        ("lease … granted", "lease 12 granted", true),
        ("lease … granted", "lease 12 granted!", false),
        ("compacted …", "compacted 5", true),
        ("…, router, …", "1f, router, x", true),
        ("…, router, …", "1f, shard, x", false),
        ("", "", true),
        ("", "x", false),
    ] {
        assert_eq!(matches(expected, line), same, "{expected:?} {line:?}");
    }
}

#[test]
fn a_line_of_an_ellipsis_stands_for_any_lines() {
    for (expected, printed, same) in [
        (&["a", "…", "b"][..], &["a", "b"][..], true),
        (&["a", "…", "b"], &["a", "x", "y", "b"], true),
        (&["a", "…", "b"], &["a", "x", "b", "y"], false),
        (&["…"], &[], true),
        (&["…", "b …"], &["b", "b 1"], true),
        (&["a"], &[], false),
        (&[], &["a"], false),
    ] {
        let expected: Vec<String> = expected.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(all_match(&expected, printed), same, "{expected:?} {printed:?}");
    }
}

#[test]
fn pages_say_which_cluster_they_run_against() {
    let page = "<!-- kindred up -->\n```console\n$ a\nA\n$ b\n```\n<!-- kindred up --x y -->\n```console\n$ c\n```\n";
    let step = |line, command: &str, expected: &[&str]| Step {
        line,
        command: command.to_owned(),
        expected: expected.iter().map(|line| (*line).to_owned()).collect(),
    };
    let wanted = [
        Part { flags: Vec::new(), steps: vec![step(3, "a", &["A"]), step(5, "b", &[])] },
        Part { flags: vec!["--x".to_owned(), "y".to_owned()], steps: vec![step(9, "c", &[])] },
    ];
    assert_eq!(parts(page).unwrap(), wanted);
    assert!(parts("```console\n$ a\n```\n").is_err());
    assert!(parts("```text\n$ a\n```\n").unwrap().is_empty());
}
