//! The run of one case: a move, a fault on its way, and how the routers end it.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kindred_proto::shard_v1::UnitState;
use kindred_tests::{admin::Admin, scenario::wait_for};
use serde_json::Value;

use crate::kills::{
    case::{Case, Client, Fault, Server, Side, Way},
    cluster::{Cluster, Router, SURVIVOR, VICTIM},
    writers::{Violation, Writers},
};

const CLAIM_LIMIT: Duration = Duration::from_secs(60);
/// The time for the coordinator to reach the step.
const REACH_LIMIT: Duration = Duration::from_secs(60);
/// The time from the step until the move rests again. Claims last 3 s.
const REST_LIMIT: Duration = Duration::from_secs(30);
const OVER_LIMIT: Duration = Duration::from_secs(20);
/// The number of writes to wait for before a move and after it.
const SOME: usize = 20;
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// How long a server is away that is killed before a step.
const DEAD: Duration = Duration::from_millis(300);
/// How long a link is cut. It is shorter than the deadline of a move's call, 2 s.
const CUT: Duration = Duration::from_millis(1500);
/// How long the coordinator is cut off from the meta store. It is longer than a claim lasts.
const CUT_OFF: Duration = Duration::from_millis(4500);

/// The end of a move.
#[derive(Debug)]
pub struct Ended {
    /// Whether the coordinator reached the place of the fault.
    pub reached: bool,
    /// Whether the other router became the coordinator.
    pub taken_over: bool,
    /// Whether the move was given up, so that the source is still the owner.
    pub aborted: bool,
}

impl Case {
    /// Moves the pods from `owner` to the other store, with the fault on the way. Returns the owner afterwards.
    pub async fn run(
        &self,
        cluster: &mut Cluster,
        writers: &mut Writers,
        owner: &'static str,
    ) -> anyhow::Result<(&'static str, Ended)> {
        let to = if owner == "a" { "b" } else { "a" };
        writers.some(SOME).await?;
        let mut victim = cluster.victim(&self.failpoints()).await?;
        let id = cluster.next_move().await?;
        begin(cluster, &mut victim, id, to).await?;
        let reached = self.reached(cluster, &mut victim, id).await?;
        let before = cluster.record(id).await?.context("the record of the move")?;
        let was_over = is_over(&before);
        match self.fault {
            // A coordinator that did not reach its failpoint is killed here.
            Fault::KillCoordinator => victim.process.kill()?,
            fault if reached => {
                if fault.is_felt() {
                    writers.outage_begins();
                }
                self.strike(cluster, &victim, (owner, to)).await?;
                if fault.is_felt() {
                    cluster.reaches_all().await?;
                    writers.outage_ends().await.with_context(|| format!("the record was {before}"))?;
                }
            }
            _ => {}
        }
        let taken = self.settled(cluster, id, was_over).await;
        let taken = taken.with_context(|| format!("the record was {before}"))?;
        let over = finished(cluster, id).await?;
        let there = over["goal"] == "there" && over["phase"] == "done";
        let now = if there { to } else { owner };
        unclaimed(cluster, id).await?;
        victim.process.kill()?;
        writers.some(SOME).await?;
        writers.check().await.context(Violation)?;
        cluster.one_owner(now, writers.keys()).await.context(Violation)?;
        let ended = Ended { reached, taken_over: taken && reached, aborted: over["phase"] == "aborted" };
        Ok((now, ended))
    }

    /// Executes the fault while the coordinator waits at the place, and then lets the coordinator continue.
    async fn strike(
        &self,
        cluster: &mut Cluster,
        victim: &Router,
        (from, to): (&'static str, &'static str),
    ) -> anyhow::Result<()> {
        match (self.fault, self.side) {
            (Fault::KillCoordinator, _) => {}
            // The server is dead while the step runs.
            (Fault::Kill(server), Side::Before) => {
                let process = cluster.server(server.name(from, to))?;
                process.kill()?;
                victim.go_on()?;
                tokio::time::sleep(DEAD).await;
                process.restart().await?;
            }
            // The earlier incarnation executed the step, and the attempt may continue with the next one.
            (Fault::Kill(server), Side::After) => {
                let process = cluster.server(server.name(from, to))?;
                process.kill()?;
                process.restart().await?;
                victim.go_on()?;
            }
            (Fault::Cut(client, server), _) => {
                let router = if client == Client::Coordinator { victim } else { &cluster.survivor };
                let link = router.link(server.name(from, to))?;
                link.cut(self.cut());
                victim.go_on()?;
                let off = (client, server) == (Client::Coordinator, Server::Meta);
                tokio::time::sleep(if off { CUT_OFF } else { CUT }).await;
                link.heal();
            }
        }
        Ok(())
    }

    /// Waits until the coordinator has reached the place, where it ends itself or waits. False if it does not reach it.
    async fn reached(&self, cluster: &Cluster, victim: &mut Router, id: u64) -> anyhow::Result<bool> {
        let request = match self.way {
            Way::Moved | Way::Late => None,
            Way::Completed | Way::Touched | Way::Outbid => Some(("switched", "complete")),
            Way::Reversed => Some(("switched", "reverse")),
            Way::Aborted => Some(("verifying", "abort")),
        };
        let mut asked = None;
        if let Some((phase, request)) = request {
            wait_for(phase, REACH_LIMIT, || async {
                let record = cluster.record(id).await?.context("the record of the move")?;
                Ok((record["phase"] == phase).then_some(()))
            })
            .await
            .with_context(|| format!("before it is asked to {request}"))?;
            if self.way == Way::Touched {
                cluster.touch(id).await?;
            }
            if self.way == Way::Outbid {
                cluster.outbid(id).await?;
            }
            asked = Some(tokio::spawn(ask_until_heard(cluster.survivor.admin.clone(), id, request)));
        }
        let began = tokio::time::Instant::now();
        let mut reached = false;
        while !reached && began.elapsed() < REACH_LIMIT {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let runs = victim.process.is_running()?;
            reached = match self.fault {
                Fault::KillCoordinator => !runs,
                _ => victim.is_held(),
            };
            ensure!(runs || reached, "the coordinator has ended");
        }
        if let Some(asked) = asked {
            // The router that should have answered may be dead.
            asked.abort();
        }
        Ok(reached)
    }

    /// Waits until the move rests again: it is over, or it has switched and nothing is frozen. If the coordinator was
    /// killed, the other router must coordinate it by then. Returns whether the other router coordinates the move.
    async fn settled(&self, cluster: &Cluster, id: u64, was_over: bool) -> anyhow::Result<bool> {
        let killed = self.fault == Fault::KillCoordinator;
        let resting = wait_for("the move to rest", REST_LIMIT, || async {
            let record = cluster.record(id).await?.context("the record of the move")?;
            if is_over(&record) {
                return Ok(Some(record));
            }
            let switched = record["phase"] == "switched" && (is_of(&record, SURVIVOR) || !killed);
            let unfinished = [UnitState::Frozen, UnitState::Dropping];
            Ok((switched && cluster.none_is(&unfinished).await?).then_some(record))
        })
        .await;
        let record = match resting {
            Ok(record) => record,
            Err(error) => {
                let record = cluster.record(id).await?;
                let (claim, units) = (cluster.claim(id).await?, cluster.units_shown().await);
                bail!("{error:#}; the record is {record:?}, the claim {claim:?}, {units}");
            }
        };
        let with_whom = was_over || !killed || is_of(&record, SURVIVOR);
        ensure!(with_whom, "the other router did not take over, but the move has settled: {record}");
        Ok(is_of(&record, SURVIVOR))
    }
}

fn is_over(record: &Value) -> bool {
    record["phase"] == "done" || record["phase"] == "aborted"
}

fn is_of(record: &Value, router: &str) -> bool {
    record["coordinator"].as_str().is_some_and(|coordinator| coordinator.starts_with(router))
}

/// Begins a move of the pods that `victim` coordinates. The other router is stopped until `victim` has the claim.
async fn begin(cluster: &Cluster, victim: &mut Router, id: u64, to: &str) -> anyhow::Result<()> {
    cluster.survivor.signal("STOP")?;
    let body = format!(r#"{{"kind":"pods","to":"{to}"}}"#);
    let admin = victim.admin.clone();
    let mut asked = Some(tokio::spawn(async move { admin.ask("POST", "/api/v1/move", &body).await }));
    let began = tokio::time::Instant::now();
    let claimed = loop {
        match cluster.claim(id).await {
            Ok(None) if began.elapsed() > CLAIM_LIMIT => {
                break Err(anyhow::anyhow!("the move is not claimed"));
            }
            // The victim has been killed already, or has not claimed the move yet.
            Ok(None) => {}
            claimed => break claimed,
        }
        // A failed request is no refusal: the router may have been killed already.
        if let Some(answered) = asked.take_if(|asked| asked.is_finished())
            && let Ok(Ok((code, text))) = answered.await
            && !(200..300).contains(&code)
        {
            break Err(anyhow::anyhow!("the move is refused: {code} {text}"));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    cluster.survivor.signal("CONT")?;
    let claim = claimed?.context("a claim")?;
    let router = claim["router"].as_str().unwrap_or_default();
    ensure!(router.starts_with(VICTIM), "router {router:?} coordinates the move");
    Ok(())
}

/// Repeats the request until a router has answered that it is accepted, or that the move's state excludes it.
async fn ask_until_heard(admin: Admin, id: u64, request: &'static str) {
    while admin.request(id, request).await.is_err() {
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// Completes the move if it is not over, and returns its last record.
async fn finished(cluster: &Cluster, id: u64) -> anyhow::Result<Value> {
    let asked = tokio::spawn(ask_until_heard(cluster.survivor.admin.clone(), id, "complete"));
    let over = wait_for("the move to be over", OVER_LIMIT, || async {
        let record = cluster.record(id).await?.context("the record of the move")?;
        Ok(is_over(&record).then_some(record))
    })
    .await;
    asked.abort();
    match over {
        Ok(over) => Ok(over),
        Err(error) => {
            let (record, claim) = (cluster.record(id).await?, cluster.claim(id).await?);
            bail!(
                "{error:#}; the record is {record:?}, the claim {claim:?}, {}",
                cluster.units_shown().await
            );
        }
    }
}

/// Waits until the move has no claim.
async fn unclaimed(cluster: &Cluster, id: u64) -> anyhow::Result<()> {
    let gone = || async { Ok(cluster.claim(id).await?.is_none().then_some(())) };
    wait_for("the claim of the move to go", OVER_LIMIT, gone).await
}
