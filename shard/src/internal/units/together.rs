//! Executes calls about many units together, and answers them after one flush of the log.

use kindred_engine::units::UnitError;
use kindred_proto::shard_v1::{unit_answer::Answer, unit_call::Call};
use tonic::Status;

use super::UnitService;
use crate::{
    apply_loop::{Raise, call},
    core::jobs::{Jobs, Turn},
    etcd_status::{KvError, status},
};

impl UnitService {
    /// Makes one call.
    pub(super) async fn alone(&self, call: Call) -> Result<Answer, Status> {
        match self.made(vec![call]).await?.pop() {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(refused)) => Err(status(&KvError::Unit(refused))),
            None => Err(Status::internal("kindred: a call about a unit has no answer")),
        }
    }

    /// Makes several calls; each has its own answer.
    pub(super) async fn made(&self, calls: Vec<Call>) -> Result<Vec<Result<Answer, UnitError>>, Status> {
        let mut jobs = Jobs::read(calls)?;
        if let Some(to) = jobs.clock() {
            // A ceiling (R2) may not be above the source's clock yet, if that is ahead of this one's.
            let raise = Raise { ranges: Vec::new(), to, generation: None };
            self.handle.call_raised(raise, call::Reachable {}).await?;
        }
        let flushed = jobs.want_flush();
        loop {
            jobs = match jobs.answers() {
                Ok(answers) => return Ok(answers),
                Err(jobs) => jobs,
            };
            let turn = Turn::new(flushed, self.incarnation(), self.metrics);
            let run = call::RunJobs { jobs, turn };
            jobs = match flushed {
                true => self.handle.call_flushed(run).await?,
                false => self.handle.call_visible(run).await?,
            };
        }
    }
}
