//! One kill: a move whose coordinator ends itself at a step, and what the other router makes of it.

use std::{fmt, time::Duration};

use anyhow::{Context, bail, ensure};
use kindred_proto::shard_v1::UnitState;
use kindred_router_core::moves::step::StepName;
use kindred_tests::{admin::Admin, scenario::wait_for};
use serde_json::Value;

use crate::{
    cluster::{Cluster, Router, SURVIVOR, VICTIM},
    writers::Writers,
};

const CLAIM_LIMIT: Duration = Duration::from_secs(10);
/// Until the coordinator has come to the step.
const REACH_LIMIT: Duration = Duration::from_secs(15);
/// From there until the other one has finished; claims last 3 s.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(30);
const OVER_LIMIT: Duration = Duration::from_secs(20);
/// Writes before a move and after it.
const SOME: usize = 20;
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// How the coordinator is brought to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By a move.
    Moved,
    /// By a move that is completed.
    Completed,
    /// By a move that is reversed.
    Reversed,
    /// By a move that is aborted while both sides are compared.
    Aborted,
    /// By an attempt that takes too long.
    Late,
    /// By a write of the record that the coordinator does not know of, and a request.
    Touched,
}

/// The ways to a step: an exhaustive match, so that a new step asks for its way.
fn ways(step: StepName) -> &'static [Way] {
    match step {
        StepName::TakeTerm
        | StepName::Advance
        | StepName::Track
        | StepName::Copy
        | StepName::AttachLeases
        | StepName::Tail
        | StepName::Verify
        | StepName::BeginSwitch
        | StepName::Freeze
        | StepName::ImportLast
        | StepName::Seal
        | StepName::Decide
        | StepName::Release
        | StepName::Open
        | StepName::ReverseTail => &[Way::Moved],
        StepName::Read => &[Way::Touched],
        StepName::CancelAttempt | StepName::Unfreeze => &[Way::Late],
        StepName::Redirect => &[Way::Reversed, Way::Aborted],
        StepName::Complete => &[Way::Completed],
        StepName::Drop | StepName::Forget | StepName::Finish => &[Way::Completed, Way::Aborted],
    }
}

/// A place to be killed at.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    step: StepName,
    side: &'static str,
    way: Way,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}/{:?}", self.step.as_str(), self.side, self.way)
    }
}

/// What a move came to.
#[derive(Debug)]
pub struct Ended {
    /// Whether the coordinator came to the place and was killed there.
    pub killed: bool,
    /// Whether the other router had something left to do.
    pub taken_over: bool,
    /// Whether it ended where it began, without a trace.
    pub aborted: bool,
}

impl Case {
    /// The whole matrix.
    pub fn all() -> Vec<Self> {
        let sides = |step| ["before", "after"].map(move |side| (step, side));
        let places = StepName::ALL.iter().copied().flat_map(sides);
        places
            .flat_map(|(step, side)| ways(step).iter().map(move |way| Self { step, side, way: *way }))
            .collect()
    }

    /// One side of each step, by turns, in the first way: what there is time for in every run.
    pub fn some() -> Vec<Self> {
        let chosen = |case: &Self| {
            let place = StepName::ALL.iter().position(|step| *step == case.step).unwrap_or_default();
            case.way == ways(case.step)[0] && case.side == ["before", "after"][place % 2]
        };
        Self::all().into_iter().filter(chosen).collect()
    }

    fn failpoints(&self) -> String {
        let exit = format!("{}.{}=exit", self.step.as_str(), self.side);
        match self.way {
            Way::Late => format!("seal.before=hold,{exit}"),
            Way::Aborted => format!("verify.before=hold,{exit}"),
            Way::Moved | Way::Completed | Way::Reversed | Way::Touched => exit,
        }
    }

    /// Moves the pods from `owner` to the other store, with a kill on the way. Returns who owns them then.
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
        let killed = self.killed(cluster, &mut victim, id).await?;
        let before = cluster.record(id).await?.context("the record of the move")?;
        let was_over = is_over(&before);
        // One that did not come to the place has to go too.
        victim.process.kill()?;
        let taken = self.settled(cluster, id, was_over).await;
        let taken = taken.with_context(|| format!("the record at the kill: {before}"))?;
        let over = finished(cluster, id).await?;
        let there = over["goal"] == "there" && over["phase"] == "done";
        let now = if there { to } else { owner };
        writers.some(SOME).await?;
        writers.check().await?;
        cluster.one_owner(now, writers.keys()).await?;
        let ended = Ended { killed, taken_over: taken && killed, aborted: over["phase"] == "aborted" };
        Ok((now, ended))
    }

    /// Until the coordinator has ended itself; false when it does not come to the place.
    async fn killed(&self, cluster: &Cluster, victim: &mut Router, id: u64) -> anyhow::Result<bool> {
        let request = match self.way {
            Way::Moved | Way::Late => None,
            Way::Completed | Way::Touched => Some(("switched", "complete")),
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
            asked = Some(tokio::spawn(ask_until_heard(cluster.survivor.admin.clone(), id, request)));
        }
        let began = tokio::time::Instant::now();
        while victim.process.is_running()? && began.elapsed() < REACH_LIMIT {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if let Some(asked) = asked {
            // Whoever could have answered may be gone.
            asked.abort();
        }
        Ok(!victim.process.is_running()?)
    }

    /// Until the move rests again, with the other router: it is over, or it has switched and nothing is frozen. Whether
    /// the other router coordinates it.
    async fn settled(&self, cluster: &Cluster, id: u64, was_over: bool) -> anyhow::Result<bool> {
        let resting = wait_for("the other router to take over", TAKE_OVER_LIMIT, || async {
            let record = cluster.record(id).await?.context("the record of the move")?;
            if is_over(&record) {
                return Ok(Some(record));
            }
            let taken = is_of(&record, SURVIVOR) && record["phase"] == "switched";
            let unfinished = [UnitState::Frozen, UnitState::Dropping];
            Ok((taken && cluster.none_is(&unfinished).await?).then_some(record))
        })
        .await;
        let record = match resting {
            Ok(record) => record,
            Err(error) => {
                let record = cluster.record(id).await?;
                bail!("{error:#}; the record is {record:?}, the claim {:?}", cluster.claim(id).await?);
            }
        };
        ensure!(was_over || is_of(&record, SURVIVOR), "nobody took over, but it went on: {record}");
        Ok(is_of(&record, SURVIVOR))
    }
}

fn is_over(record: &Value) -> bool {
    record["phase"] == "done" || record["phase"] == "aborted"
}

fn is_of(record: &Value, router: &str) -> bool {
    record["coordinator"].as_str().is_some_and(|coordinator| coordinator.starts_with(router))
}

/// Begins a move of the pods, and sees to it that `victim` coordinates it: the other router is stopped until it does.
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
            // Killed at once, or about to claim.
            Ok(None) => {}
            claimed => break claimed,
        }
        // No answer at all is one of a router that was killed at once.
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

/// Asks until the request is accepted, or the move is in no state for it any more.
async fn ask_until_heard(admin: Admin, id: u64, request: &'static str) {
    while admin.request(id, request).await.is_err() {
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// Has the move completed, if it is not over; its last record.
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
        Err(error) => bail!("{error:#}; the record is {:?}", cluster.record(id).await?),
    }
}
