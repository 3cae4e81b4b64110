//! The README's tour, run as it stands there: every `$ command` of its `console` blocks, and what it must print.
//! `…` in an expected line stands for anything.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context, bail};
use kindred_tests::{peers::peer, process::our_binary, scenario, servers::Up};
use tokio::process::Command;

/// From here on, the README runs `kindred up --config deploy/spread.yaml`.
const SPREAD: &str = "\n## A Kind over several shards\n";
/// Longer than the tour's longest command, a watch of five seconds.
const COMMAND_LIMIT: Duration = Duration::from_secs(20);

struct Step {
    command: String,
    expected: Vec<String>,
}

/// The commands of the `console` blocks, with the lines that follow each.
fn steps(readme: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut in_block = false;
    for line in readme.lines() {
        match line {
            "```console" => in_block = true,
            "```" => in_block = false,
            _ if !in_block => {}
            _ => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step { command: command.to_owned(), expected: Vec::new() }),
                (None, Some(step)) => step.expected.push(line.to_owned()),
                (None, None) => {}
            },
        }
    }
    steps
}

/// Whether a line is what the README shows.
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

async fn run(step: &Step, dir: &Path, up: &Up) -> anyhow::Result<String> {
    let etcdctl = peer("etcdctl")?;
    let tools = etcdctl.parent().context("etcdctl is in a folder")?;
    let ours = our_binary("kindred")?;
    let ours = ours.parent().context("kindred is in a folder")?;
    let path =
        format!("{}:{}:{}", tools.display(), ours.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .args(["-c", &step.command.replace("127.0.0.1:2381", &up.admin)])
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

/// Runs the commands of a part of the README.
async fn tour(part: &str, at_least: usize, dir: &Path, up: &Up) -> anyhow::Result<usize> {
    let steps = steps(part);
    anyhow::ensure!(steps.len() >= at_least, "the README has only {} commands here", steps.len());
    for step in &steps {
        let printed = run(step, dir, up).await.with_context(|| format!("$ {}", step.command))?;
        let lines: Vec<&str> = printed.lines().collect();
        let same = lines.len() == step.expected.len()
            && step.expected.iter().zip(&lines).all(|(expected, line)| matches(expected, line));
        anyhow::ensure!(
            same,
            "$ {}\nprinted:\n{printed}\nthe README shows:\n{}",
            step.command,
            step.expected.join("\n")
        );
    }
    Ok(steps.len())
}

#[test]
fn the_tour_is_as_the_readme_shows_it() {
    scenario::run("readme", Duration::from_secs(120), |dir| async move {
        let readme = include_str!("../../README.md");
        let (first, spread) =
            readme.split_once(SPREAD).context("the section on Kinds over several shards")?;
        let up = Up::start(&dir, "tour", &[]).await?;
        let mut commands = tour(first, 15, &dir, &up).await?;
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/spread.yaml");
        let up = Up::start(&dir, "spread", &[format!("--config={}", config.display())]).await?;
        commands += tour(spread, 8, &dir, &up).await?;
        println!("readme: commands={commands} differences=0");
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
