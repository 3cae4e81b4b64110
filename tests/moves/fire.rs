//! One run: a cluster, its clients, the changes, and the check of the history that the clients recorded.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::bail;
use kindred_checker::{
    Config, Counts, Key, check,
    history::{DefiniteError, History, Nanos, Outcome, Request, WatchBody},
};
use kindred_tests::{
    admin::Admin,
    servers::Up,
    workload::{
        caller::Endpoints,
        crowd::Crowd,
        keys::KINDS,
        recorder::{Recorder, kind_of_request},
    },
};

use crate::moves::{
    changes::{self, Changed, Program},
    held,
};

const CONFIG: &str = include_str!("configs/kinds.yaml");
const LEASED: usize = 4;
/// How long clients work before the first change and after the last.
const WORK: Duration = Duration::from_millis(700);

/// The results of a run.
#[derive(Debug)]
pub struct Done {
    counts: Counts,
    changed: Changed,
    seconds: f64,
    keys: u64,
    longest_write: Duration,
    longest_read: Duration,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counts, changed, seconds, keys, longest_write, longest_read } = self;
        write!(
            f,
            "moves={} switches={} given_up={} seconds={seconds:.1} operations={} events={} watches={} resumes={} \
             progress={} linearizable_keys={} undecided={} keys={keys} longest_switch_ms={} longest_write_ms={} \
             longest_read_ms={} errors=0 cancelled=0 violations=0",
            changed.moves,
            changed.switches,
            changed.given_up,
            counts.operations,
            counts.events,
            counts.watches,
            counts.resumes,
            counts.progress,
            counts.keys_linearizable,
            counts.keys_undecided,
            changed.longest_switch.as_millis(),
            longest_write.as_millis(),
            longest_read.as_millis(),
        )
    }
}

/// Runs a program of changes under load.
///
/// # Errors
/// If a request was refused, a watch ended, a guarantee is broken, or the shards have keys or records that they should
/// not have.
pub async fn run(dir: &Path, name: &str, program: Program, switches: u64, seed: u64) -> anyhow::Result<Done> {
    let file = dir.join("kinds.yaml");
    std::fs::write(&file, CONFIG)?;
    let log = "--log-level=info,kindred_router::moves=debug".to_owned();
    let threads = format!("--threads={}", program.threads());
    let flags = ["--routers=2".to_owned(), threads, format!("--config={}", file.display()), log];
    let up = Up::start(dir, "kindred", &flags).await?;
    let admins: Vec<Admin> = up.addresses("admin")?.iter().map(|address| Admin::at(address)).collect();
    let endpoints = Endpoints::over_tcp(up.addresses("listen")?);
    let recorder = Arc::new(Recorder::new());
    let mut crowd = Crowd::gather(&recorder, &endpoints, seed, false)?;
    crowd.add_leased(LEASED)?;
    let began = Instant::now();
    let worked = async {
        crowd.enough(WORK).await?;
        let changed = changes::carry_out(program, &admins, switches).await?;
        crowd.enough(WORK).await?;
        let seconds = began.elapsed().as_secs_f64();
        crowd.finish(false).await?;
        anyhow::Ok((changed, seconds, held::settled(&up).await?))
    };
    let worked = worked.await;
    let history = recorder.history();
    let report = check(&history, &assumed());
    let mut complaints = Vec::new();
    if !report.is_clean() {
        complaints.push(report.to_string());
    }
    complaints.extend(failures(&history));
    complaints.extend(recorder.oddities());
    if let Err(error) = &worked {
        complaints.push(format!("{error:#}"));
    }
    let (changed, seconds, keys) = match worked {
        Ok(done) if complaints.is_empty() => done,
        _ => {
            complaints.extend(recorder.why_unknown());
            return files(dir, name, &history, &complaints.join("\n"));
        }
    };
    let counts = report.counts;
    if counts.watches < 20 || counts.progress < 10 || counts.keys_linearizable < 20 {
        bail!("too little happened: {counts:?}");
    }
    let longest = |write: bool| {
        let operations = history.operations.iter().filter(|done| writes(&done.request) == write);
        let longest = operations.map(|done| done.returned.0 - done.call.0).max();
        Duration::from_nanos(longest.unwrap_or_default())
    };
    let (longest_write, longest_read) = (longest(true), longest(false));
    Ok(Done { counts, changed, seconds, keys, longest_write, longest_read })
}

/// A DeleteRange over several stores is executed store by store. No operation, not even one on a Kind that moves, may
/// take so long that a kube-apiserver would stop reading from its cache (R17).
fn assumed() -> Config {
    let kindred = Config::kindred(KINDS.iter().map(|kind| Key::from(kind.prefix)));
    Config { split_delete_ranges: true, latency_max: Some(Nanos(3_000_000_000)), ..kindred }
}

fn writes(request: &Request) -> bool {
    !matches!(request, Request::List(_) | Request::Compact { .. })
}

/// The failed and the unanswered requests, counted by their error.
fn failures(history: &History) -> Vec<String> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for operation in &history.operations {
        // The keys of a txn may be on two stores, which is refused.
        let refusable = matches!(operation.request, Request::Txn { .. });
        let text = match &operation.outcome {
            Outcome::Unknown => "an unknown outcome".to_owned(),
            Outcome::Failed(DefiniteError::Other(text)) if !refusable || !text.contains("stores") => {
                text.clone()
            }
            Outcome::Failed(DefiniteError::FutureRevision) => "a future revision".to_owned(),
            _ => continue,
        };
        let kind = kind_of_request(&operation.request).map_or("a compaction", |kind| KINDS[kind].prefix);
        *found.entry(format!("{kind}: {text}")).or_default() += 1;
    }
    let responses = history.watches.iter().flat_map(|watch| &watch.responses);
    let broken = responses.filter(|response| matches!(response.body, WatchBody::Broken)).count();
    if broken > 0 {
        found.insert("a watch whose stream broke".to_owned(), broken);
    }
    found.into_iter().map(|(what, times)| format!("{times} times {what}")).collect()
}

/// Stores the history in the format that `guarantees` reads, and fails with `what`.
fn files(dir: &Path, name: &str, history: &History, what: &str) -> anyhow::Result<Done> {
    let path = dir.join("history.jsonl");
    std::fs::write(&path, history.to_json_lines()?)?;
    let assumptions = r#"{"order":"per_kind","spread":true,"gaps":[]}"#;
    std::fs::write(dir.join("assumptions.json"), assumptions)?;
    std::fs::write(dir.join("found.txt"), what)?;
    bail!(
        "{name}\n{what}\nthe history is {path}\ncheck it again: KINDRED_GUARANTEES_HISTORY={path} \
         make test ONLY=guarantees::replay",
        path = path.display()
    )
}
