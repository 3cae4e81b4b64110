//! Sends the requests of a recorded trace again: `kindred trace >FILE`, then `kindred-bench replay FILE`.
//!
//! `line` reads the trace, `plan` says when each request is sent, and `live` what it says to a store with other revisions
//! and leases; they do no I/O. `send` sends, and `report` counts.

mod line;
mod live;
mod plan;
mod report;
mod send;

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kindred_proto::etcdserverpb as pb;
use kindred_proto::etcdserverpb::lease_client::LeaseClient;
use kindred_transport::tls::{ClientTls, ClientTlsArgs, ClientTlsSettings};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::Channel;

use crate::load::{self, Shape};
use line::{Recorded, Request};
use live::Live;
use plan::{Action, Plan, Schedule, Speed};
use report::Report;
use send::Done;

/// The seconds that a lease from before the trace lives; nothing says how many it had.
const LEASE_SECONDS: i64 = 3600;

#[derive(clap::Args)]
pub struct Options {
    /// The trace: lines of `kindred trace`, with values or without.
    file: PathBuf,
    /// Client address of the server that gets the requests; with https:// or a flag of TLS, by TLS.
    #[arg(long, default_value = "127.0.0.1:2379")]
    endpoint: String,
    #[command(flatten)]
    tls: ClientTlsArgs,
    /// Divides the recorded intervals: 2 replays twice as fast; max leaves them out.
    #[arg(long, default_value = "1", value_parser = Speed::parse)]
    speed: Speed,
    /// The most connections; each connection of a client in the trace has one, or shares one.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// The most requests under way, watches not counted; further ones are sent late.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: u32,
    /// Let optimistic transactions compare with the revision that the replay last saw of their key, and reads of the past
    /// and watches begin at the revision here that was shown when theirs was.
    #[arg(long)]
    live_revisions: bool,
    /// Seconds after which a request without an answer has failed.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: Options) -> anyhow::Result<()> {
    let trace = read(&options.file)?;
    let plan = Plan::of(&trace, options.speed);
    let mut report = Report::of(&trace);
    let file = options.file.display();
    ensure!(
        !plan.steps.is_empty(),
        "{file}: no line has a request that can be made again; record with `kindred trace` at a router of this version"
    );
    let connections = plan.connections.min(usize::from(options.connections));
    let channels = connect(&options, connections).await?;
    println!(
        "replaying {file}: requests={} clients' connections={} connections={connections}\n",
        plan.connection_of.len(),
        plan.connections,
    );
    for lease in live::leases_from_before(&trace) {
        grant(&channels[0], lease, &options).await?;
        report.leases_from_before += 1;
    }
    let began = Instant::now();
    let replay = Replay {
        limit: Duration::from_secs(options.timeout),
        in_flight: options.in_flight as usize,
        has_intervals: options.speed != Speed::Max,
        live: Live::of(&trace, options.live_revisions),
        trace: &trace,
        plan: &plan,
        channels,
        report,
    };
    let report = replay.run(began).await?;
    print!("{}", report.text(began.elapsed()));
    Ok(())
}

/// Reads a trace.
fn read(file: &Path) -> anyhow::Result<Vec<Recorded>> {
    let name = file.display();
    let open = std::fs::File::open(file);
    let open =
        open.with_context(|| format!("{name}: cannot be opened; give a file of `kindred trace >FILE`"))?;
    let mut trace = Vec::new();
    for (at, text) in BufReader::new(open).lines().enumerate() {
        let number = at + 1;
        let text =
            text.with_context(|| format!("{name}:{number}: this is no text; record with `kindred trace`"))?;
        if !text.trim().is_empty() {
            trace.push(line::read(&text, number).with_context(|| format!("{name}:{number}"))?);
        }
    }
    ensure!(
        !trace.is_empty(),
        "{name}: there is no line in it; record with `kindred trace >{name}` under load"
    );
    Ok(trace)
}

async fn connect(options: &Options, connections: usize) -> anyhow::Result<Vec<Channel>> {
    let shape = Shape { connections, in_flight: 1, keys: 0, value_bytes: 0 };
    let (secure, address) = match options.endpoint.split_once("://") {
        Some(("https", address)) => (true, address),
        Some(("http", address)) => (false, address),
        Some((scheme, _)) => {
            anyhow::bail!("--endpoint: {scheme}:// is not known; write HOST:PORT or https://HOST:PORT")
        }
        None => (false, options.endpoint.as_str()),
    };
    let tls = match options.tls.load()? {
        None if secure => Some(ClientTls::load(ClientTlsSettings::default())?),
        tls => tls,
    };
    let connected = match &tls {
        Some(tls) => load::connect_by_tls(address, tls, shape).await,
        None => load::connect(address, shape).await,
    };
    connected.with_context(|| format!("--endpoint {address}: is a server there, and does it want TLS?"))
}

/// Grants a lease that was granted before the trace, unless it still exists.
async fn grant(channel: &Channel, id: i64, options: &Options) -> anyhow::Result<()> {
    let request = pb::LeaseGrantRequest { ttl: LEASE_SECONDS, id };
    let mut client = LeaseClient::new(channel.clone());
    let granted = tokio::time::timeout(Duration::from_secs(options.timeout), client.lease_grant(request));
    match granted.await.context("no answer in time")? {
        Err(status) if status.code() != Code::FailedPrecondition => {
            Err(status).with_context(|| format!("granting lease {id}, which the trace uses"))
        }
        _ => Ok(()),
    }
}

/// A replay that runs.
struct Replay<'t> {
    trace: &'t [Recorded],
    plan: &'t Plan,
    channels: Vec<Channel>,
    limit: Duration,
    in_flight: usize,
    has_intervals: bool,
    live: Live,
    report: Report,
}

impl Replay<'_> {
    async fn run(mut self, began: Instant) -> anyhow::Result<Report> {
        let steps = &self.plan.steps;
        let mut schedule = Schedule::of(self.plan);
        let (mut next, mut free) = (0, VecDeque::new());
        let mut closers: HashMap<usize, oneshot::Sender<()>> = HashMap::new();
        let mut running: JoinSet<(usize, Duration, Done)> = JoinSet::new();
        let mut calls = 0;
        loop {
            while next < steps.len() && began.elapsed() >= steps[next].due {
                if schedule.due(next) {
                    free.push_back(next);
                }
                next += 1;
            }
            while calls < self.in_flight
                && let Some(step) = free.pop_front()
            {
                match steps[step].action {
                    // Its watch may have ended by itself.
                    Action::Close(at) => drop(closers.remove(&at)),
                    Action::Send(at) => {
                        let (recorded, channel) = (&self.trace[at], self.channel(at));
                        let Ok(request) = &recorded.request else { continue };
                        let close = matches!(request, Request::Watch(_)).then(|| {
                            let (close, closed) = oneshot::channel();
                            closers.insert(at, close);
                            closed
                        });
                        calls += usize::from(close.is_none());
                        let (ready, limit) = (self.live.ready(recorded, request), self.limit);
                        let late = began.elapsed().saturating_sub(steps[step].due);
                        running.spawn(
                            async move { (step, late, send::send(channel, ready, limit, close).await) },
                        );
                    }
                }
            }
            if next == steps.len() && running.is_empty() {
                return Ok(self.report);
            }
            let due = steps.get(next).map(|step| began + step.due);
            tokio::select! {
                () = tokio::time::sleep_until(due.unwrap_or(began)), if due.is_some() => {}
                Some(ended) = running.join_next(), if !running.is_empty() => {
                    let (step, late, done) = ended.context("a request was not carried out")?;
                    let Action::Send(at) = steps[step].action else { continue };
                    let recorded = &self.trace[at];
                    calls -= usize::from(!matches!(done.sent, Request::Watch(_)));
                    if let Ok(answer) = &done.answer {
                        self.live.learn(recorded, &done.sent, answer);
                    }
                    self.report.note(recorded, &done, self.has_intervals.then_some(late));
                    free.extend(schedule.ended(&steps[step]));
                }
            }
        }
    }

    /// The connection of a request; connections of clients share ours in turn.
    fn channel(&self, at: usize) -> Channel {
        self.channels[self.plan.connection_of[at] % self.channels.len()].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("trace");
        std::fs::write(&file, text).unwrap();
        let said = format!("{:#}", read(&file).unwrap_err());
        assert!(said.contains(&file.display().to_string()), "{said}");
        said
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_with_its_line() {
        assert!(wrong(b"").contains("kindred trace >"));
        assert!(wrong(b"\n\nno\n").contains("trace:3: this is no line of `kindred trace`"));
        assert!(wrong(b"\xff\n").contains("trace:1: this is no text"));
        let missing = format!("{:#}", read(Path::new("/nonexistent/trace")).unwrap_err());
        assert!(missing.contains("/nonexistent/trace: cannot be opened"), "{missing}");
    }
}
