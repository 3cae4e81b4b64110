//! A request is placed by the newest map. Where a store refuses it because its keys are moving, nothing was executed,
//! and it is placed again by the next map, or a little later (R11).

use kindred_partition_config::ids::Epoch;
use tonic::Status;

use crate::not_owned::NotOwned;

/// Waits while keys move.
pub trait Waits {
    /// The generation of the newest map.
    fn known(&self) -> Epoch;
    /// Waits for a map newer than `known`, or for a short pause, before something is asked again.
    ///
    /// # Errors
    /// When it has waited long enough; nothing was executed.
    fn wait(&mut self, known: Epoch) -> impl Future<Output = Result<(), Status>>;
}

/// A request that is placed by a map.
pub trait Routed: Waits {
    /// Where the request goes.
    type Plan;
    /// Its answer.
    type Answer;

    /// Where the newest map places the request, and the generation of that map.
    ///
    /// # Errors
    /// When it has no place, or is refused whatever the map is.
    fn plan(&self) -> Result<(Self::Plan, Epoch), Status>;
    /// Carries out a plan that was made by the map of this generation.
    fn run(&self, plan: Self::Plan, generation: Epoch) -> impl Future<Output = Result<Self::Answer, Status>>;
}

/// Sends a request until a store executes it or refuses it for another reason than a move.
///
/// # Errors
/// Those of the plan, of the store, and of a wait that took too long.
pub async fn route<R: Routed>(request: &mut R) -> Result<R::Answer, Status> {
    loop {
        let (plan, generation) = request.plan()?;
        match request.run(plan, generation).await {
            Err(status) if NotOwned::of(&status).is_some() => request.wait(generation).await?,
            Err(status) if NotOwned::waits_for_takeover(&status) => {
                if request.wait(generation).await.is_err() {
                    return Err(status);
                }
            }
            answered => return answered,
        }
    }
}

/// Asks a store until its keys do not move any more. The error is the store's when that takes too long.
///
/// # Errors
/// The last of the store.
pub async fn settled<T, Fut: Future<Output = Result<T, Status>>>(
    waits: &mut impl Waits,
    ask: impl Fn() -> Fut,
) -> Result<T, Status> {
    loop {
        let known = waits.known();
        match ask().await {
            Err(status) if NotOwned::of(&status).is_some() => {
                if waits.wait(known).await.is_err() {
                    return Err(status);
                }
            }
            answered => return answered,
        }
    }
}
