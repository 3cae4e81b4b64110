//! Live moves: which steps come next, and what is recorded so that another router can continue (R13-R16).
//!
//! | module | decides |
//! | --- | --- |
//! | [`record`] | what the meta store knows of a move |
//! | [`step`] | what a coordinator does to the world, one call or compare-and-swap each |
//! | [`machine`] | which steps are next |
//! | [`watchdog`] | what any router does when the coordinator is silent while keys are held up |
//! | [`conflict`] | which changes of the configuration go beside a move, and which do not |
//! | [`reconcile`] | who owns what when meta and the shards do not say the same |
//! | [`preview`] | what a move will cost |
//!
//! Three rules carry the rest:
//!
//! 1. Only a compare-and-swap of the record changes what may happen: to begin an attempt, to give it up, to decide
//!    (R15), to turn around. Calls to stores follow from the record that was written, never the other way round.
//! 2. Each of these swaps takes a new **term**, and a store refuses calls with a lower term than it has seen of the
//!    move. So a call that was delayed or sent twice cannot undo what came after it: a late `Freeze` finds the
//!    `Unfreeze` that followed, a late `Unfreeze` the next `Freeze`. The same rule fences a coordinator whose move was
//!    taken over.
//! 3. Every call may be repeated. A coordinator that takes a move over repeats all that the record does not exclude.

pub mod conflict;
pub mod machine;
pub mod preview;
pub mod reconcile;
pub mod record;
pub mod step;
pub mod watchdog;
