//! `kindred advise`: what the load of a cluster calls for, with the reason and what is expected of it; on request it is done.

mod guard;
mod look;
mod rules;
mod told;

use std::time::{Duration, SystemTime};

use http::Method;
use kindred_partition_config::kind::KindScheme;
use serde_json::{Value, json};

use super::args::{AdviseArgs, Output, Run};
use super::client::{Client, Form};
use super::failure::Failure;
use super::output::{self, text};
use super::verbs;
use guard::{Decision, Guard, Limits, Quiet};
use look::Look;
use rules::{Bounds, Change, Proposal, proposals};
use told::Outcome;

/// A proposal, and what a router says that it would do.
struct Planned {
    proposal: Proposal,
    /// The path and the body of the request, and the answer to its dry run or why there is none.
    request: Option<(&'static str, Value)>,
    plan: Option<Result<Value, String>>,
}

pub async fn advise(client: &Client, args: &AdviseArgs) -> Result<(), Failure> {
    if args.history {
        return told::history(client, args.output).await;
    }
    if args.auto {
        return automatically(client, args).await;
    }
    let (planned, now) = propose(client, args, &look(client).await?, args.seconds).await?;
    if args.output != Output::Table {
        let shown: Vec<Value> = planned.iter().map(Planned::json).collect();
        return output::print(&output::rendered(&json!({ "proposals": shown }), args.output)?);
    }
    let silent = now.silent().join(", ");
    if !silent.is_empty() {
        output::print(&format!("not looked at, as they do not say what they use: {silent}\n"))?;
    }
    if planned.is_empty() {
        let which = if silent.is_empty() { "every shard" } else { "every other shard" };
        return output::print(&format!("nothing to do: {which} has room and time\n"));
    }
    for (at, planned) in planned.iter().enumerate() {
        output::print(&planned.said(at + 1))?;
    }
    if !args.apply {
        return Ok(());
    }
    let Some((first, (path, body))) = planned
        .iter()
        .find_map(|one| Some((one, one.request.as_ref()?)).filter(|(one, _)| one.can_be_made()))
    else {
        return output::print("none of this can be done by a router\n");
    };
    if let Some(id) = now.under_way.first() {
        // A former copy still counts at its store, which would lead to one more move than is needed.
        let waits = format!("move {id} is not over");
        apart(told::tell(client, &first.proposal, Outcome::Waited(&waits)).await)?;
        return Err(Failure::Refused(format!(
            "nothing was changed, as {waits}: see kindred move complete {id}"
        )));
    }
    output::print(&format!("now: {}\n", first.proposal.what))?;
    let made = verbs::change(client, path, body, &run(args)).await;
    apart(told::tell(client, &first.proposal, outcome(made.as_ref().err(), &mut String::new())).await)?;
    made
}

/// What became of a change that was tried.
fn outcome<'a>(failure: Option<&Failure>, why: &'a mut String) -> Outcome<'a> {
    match failure {
        None => Outcome::Applied,
        Some(failure) => {
            *why = failure.to_string();
            Outcome::Failed(why)
        }
    }
}

/// A decision counts even if no router keeps it, which is said apart.
fn apart(told: Result<(), Failure>) -> Result<(), Failure> {
    match told {
        Ok(()) => Ok(()),
        Err(failure) => output::print(&format!("the routers do not keep this decision: {failure}\n")),
    }
}

/// Looks again and again, and makes what lasts.
async fn automatically(client: &Client, args: &AdviseArgs) -> Result<(), Failure> {
    let quiet = args.quiet_hours.as_deref().map(Quiet::parse).transpose();
    let quiet = quiet.map_err(|wrong| Failure::Usage(format!("--quiet-hours: {wrong}")))?;
    let limits = Limits { looks: args.looks, changes_per_day: args.changes_per_day, quiet };
    let mut guard = Guard::new(limits);
    let mut before = look(client).await?;
    let (mut last, mut untold) = (String::new(), String::new());
    loop {
        let (planned, now) = match propose(client, args, &before, args.seconds).await {
            Ok(found) => found,
            Err(failure) => {
                tell(&mut last, &format!("no look: {failure}"))?;
                tokio::time::sleep(Duration::from_secs(args.seconds)).await;
                continue;
            }
        };
        let proposals: Vec<Proposal> = planned
            .iter()
            .filter(|one| one.is_gentle(args.pause_max))
            .map(|one| one.proposal.clone())
            .collect();
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut why_failed = String::new();
        let decided = match guard.decide(at, &proposals, &now.under_way) {
            Decision::Nothing => match planned.first() {
                None => {
                    tell(&mut last, "nothing to do")?;
                    None
                }
                Some(one) => {
                    tell(&mut last, &format!("{}: by hand; {}", one.proposal.what, one.proposal.why))?;
                    Some((&one.proposal, Outcome::Proposed))
                }
            },
            Decision::Wait(why) => {
                let waits = proposals.iter().find(|one| one.change.is_some());
                tell(&mut last, &format!("{}: not yet, {why}", waits.map_or("", |one| &one.what)))?;
                why_failed = why;
                waits.map(|one| (one, Outcome::Waited(&why_failed)))
            }
            Decision::Make(nth) => {
                let Proposal { what, why, effect, .. } = &proposals[nth];
                tell(&mut last, &format!("{what}: {why}; {effect}"))?;
                let chosen = planned.iter().find(|one| one.proposal == proposals[nth]);
                match chosen.and_then(|one| one.request.as_ref()) {
                    None => None,
                    Some((path, body)) => {
                        let made = verbs::change(client, path, body, &run(args)).await;
                        match &made {
                            Ok(()) => tell(&mut last, &format!("{what}: done"))?,
                            Err(failure) => tell(&mut last, &format!("{what}: {failure}"))?,
                        }
                        Some((&proposals[nth], outcome(made.as_ref().err(), &mut why_failed)))
                    }
                }
            }
        };
        if let Some((proposal, outcome)) = decided {
            match told::tell(client, proposal, outcome).await {
                Ok(()) => untold.clear(),
                Err(failure) => {
                    tell(&mut untold, &format!("the routers do not keep this decision: {failure}"))?;
                }
            }
        }
        before = now;
    }
}

/// Prints a line with the time of day (UTC), unless it was the last one.
fn tell(last: &mut String, line: &str) -> Result<(), Failure> {
    if last == line {
        return Ok(());
    }
    line.clone_into(last);
    let at =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() % (24 * 3600);
    output::print(&format!("{:02}:{:02}:{:02}Z {line}\n", at / 3600, at / 60 % 60, at % 60))
}

async fn look(client: &Client) -> Result<Look, Failure> {
    let kinds = client.get("/api/v1/kinds", Form::Objects).await?;
    let stores = client.get("/api/v1/stores", Form::Objects).await?;
    let partitions = client.get("/api/v1/partitions", Form::Objects).await?;
    let moves = client.get("/api/v1/moves", Form::Objects).await?;
    Ok(Look::of(&kinds, &stores, &partitions, &moves))
}

/// Takes a second look, and returns what the load between the two calls for, and that look.
async fn propose(
    client: &Client,
    args: &AdviseArgs,
    before: &Look,
    seconds: u64,
) -> Result<(Vec<Planned>, Look), Failure> {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let now = look(client).await?;
    let bounds = Bounds { cores: args.cores, room: args.room };
    let mut all = Vec::new();
    for proposal in proposals(&now.since(before), bounds) {
        all.push(Planned::of(client, proposal).await?);
    }
    Ok((all, now))
}

impl Planned {
    /// Asks for a dry run of the change.
    async fn of(client: &Client, proposal: Proposal) -> Result<Self, Failure> {
        let Some(change) = &proposal.change else {
            return Ok(Self { proposal, request: None, plan: None });
        };
        let (path, body) = match change {
            Change::Move { kind, to } => ("/api/v1/move", json!({ "kind": kind, "to": to })),
            Change::Merge { kind } => ("/api/v1/merge", json!({ "kind": kind })),
            Change::Ring { kind, stores } => {
                let configs = client.get("/api/v1/datapartitionconfigs", Form::Objects).await?;
                ("/api/v1/apply", json!({ "items": [ring_config(&configs, kind, stores)] }))
            }
        };
        let plan = client.change(Method::POST, &format!("{path}?dryRun=All"), Some(&body)).await;
        let plan = plan.map_err(|failure| failure.to_string());
        Ok(Self { proposal, request: Some((path, body)), plan: Some(plan) })
    }

    /// The moves of the plan.
    fn moves(&self) -> impl Iterator<Item = &Value> {
        let plan = self.plan.as_ref().and_then(|plan| plan.as_ref().ok());
        plan.into_iter().flat_map(|plan| plan["plan"]["moves"].as_array().into_iter().flatten())
    }

    fn can_be_made(&self) -> bool {
        matches!(self.plan, Some(Ok(_)))
            && self.moves().all(|one| one["problems"].as_array().is_none_or(Vec::is_empty))
    }

    /// Tells whether the change may be made while nobody looks: a router can make it, and writes wait no longer than this.
    fn is_gentle(&self, pause_max: Duration) -> bool {
        let mut legs = self.moves().flat_map(|one| one["legs"].as_array().into_iter().flatten());
        let known = |leg: &Value| !leg["keys"].is_u64() || leg["millis"].is_u64();
        let short = |leg: &Value| {
            leg["pauseMicros"].as_u64().is_none_or(|micros| Duration::from_micros(micros) <= pause_max)
        };
        self.request.is_none() || (self.can_be_made() && legs.all(|leg| known(leg) && short(leg)))
    }

    fn said(&self, number: usize) -> String {
        let Proposal { what, why, effect, .. } = &self.proposal;
        let mut out = format!("{number}. {what}\n   because {why}\n   then {effect}\n");
        match &self.plan {
            None => {}
            Some(Err(why)) => out += &format!("   a router refuses it: {why}\n"),
            Some(Ok(plan)) => verbs::said(plan).lines().for_each(|line| out += &format!("   {line}\n")),
        }
        out
    }

    fn json(&self) -> Value {
        let Proposal { what, why, effect, .. } = &self.proposal;
        let request = self.request.as_ref().map(|(path, body)| json!({ "path": path, "body": body }));
        let (plan, problem) = match &self.plan {
            None => (Value::Null, Value::Null),
            Some(Ok(plan)) => (plan["plan"].clone(), Value::Null),
            Some(Err(why)) => (Value::Null, json!(why)),
        };
        json!({ "what": what, "why": why, "effect": effect, "request": request, "plan": plan, "problem": problem })
    }
}

/// The config of a Kind with a ring of these stores in place of what it has.
fn ring_config(configs: &Value, kind: &str, stores: &[String]) -> Value {
    let scheme = KindScheme::default();
    let prefix = |resource: &str| scheme.resolve(resource).ok();
    let known = configs["items"].as_array().into_iter().flatten().find(|config| {
        let resource = text(&config["resource"]);
        resource == kind || (prefix(&resource).is_some() && prefix(&resource) == prefix(kind))
    });
    let mut config = known.cloned().unwrap_or_else(|| {
        json!({ "apiVersion": "v1", "kind": "DataPartitionConfig", "metadata": { "name": kind }, "resource": kind })
    });
    config["ring"]["stores"] = json!(stores);
    if let Some(fields) = config.as_object_mut() {
        fields.remove("serviceGroupId");
    }
    config
}

fn run(args: &AdviseArgs) -> Run {
    Run {
        dry_run: false,
        no_wait: false,
        delete_its_keys: false,
        timeout: None,
        output: Output::Table,
        connect: args.connect.clone(),
    }
}
