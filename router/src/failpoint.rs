//! Where a test may stop or end a router: a side of a step of a move, `KINDRED_FAILPOINTS=freeze.before=exit`.

use kindred_router_core::moves::step::StepName;
use kindred_transport::failpoint::{Failpoints, Names, Side};

static FAILPOINTS: Failpoints = Failpoints::new(Names {
    variable: "KINDRED_FAILPOINTS",
    file_variable: "KINDRED_FAILPOINT_FILE",
    is_step: |name| StepName::ALL.iter().any(|step| step.as_str() == name),
});

/// The process has come to one side of a step.
pub async fn reach(step: StepName, side: Side) {
    FAILPOINTS.reach_async(step.as_str(), side).await;
}
