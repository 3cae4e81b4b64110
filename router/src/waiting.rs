//! A request whose keys are moving: it waits in the router's [`MoveBuffer`](crate::move_buffer::MoveBuffer).

use kindred_partition_config::ids::Epoch;
use kindred_transport::grpc;
use kindred_wire::peek;
use kindred_wire::refusal::KindredError;
use tokio::time::Instant;
use tonic::Status;

use crate::execute::Effect;
use crate::execute::routed::Waits;
use crate::move_buffer::Buffered;
use crate::routing::Routing;

/// A request that may have to wait; it takes no room before it does.
#[derive(Debug)]
pub struct Waiting<'a> {
    routing: &'a Routing,
    effect: Effect,
    deadline: Instant,
    buffered: Option<Buffered<'a>>,
}

impl<'a> Waiting<'a> {
    /// A request whose client waits until `deadline`.
    #[must_use]
    pub fn new(routing: &'a Routing, effect: Effect, deadline: Instant) -> Self {
        Self { routing, effect, deadline, buffered: None }
    }

    /// Waits for a map newer than `known`, or for a short pause, before the request is sent again.
    ///
    /// # Errors
    /// [`KindredError::UnitMoving`] when it has waited long enough, `ResourceExhausted` when too much waits; nothing
    /// was executed.
    pub async fn wait(&mut self, known: Epoch, request: &[u8]) -> Result<(), Status> {
        let buffered = match &mut self.buffered {
            Some(buffered) => buffered,
            none => none.insert(self.routing.move_buffer.begin(self.effect, request.len(), self.deadline)?),
        };
        if buffered.wait(known, &mut self.routing.generations()).await {
            return Ok(());
        }
        // Field 1 of every request is its key; of a Txn it is the first compare, encoded.
        let key = peek::RangeRequest::parse(request).map(|range| range.key.to_vec()).unwrap_or_default();
        Err(grpc::refusal(&KindredError::UnitMoving { key }))
    }
}

/// For what has no bytes of its own.
impl Waits for Waiting<'_> {
    fn known(&self) -> Epoch {
        *self.routing.generations().borrow()
    }

    async fn wait(&mut self, known: Epoch) -> Result<(), Status> {
        Waiting::wait(self, known, &[]).await
    }
}
