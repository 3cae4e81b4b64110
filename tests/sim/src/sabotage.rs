//! Faults in the product that a test can turn on, to prove that each invariant can fail. `make sim` has none of them.

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Two shards use the same slot (R1).
    SharedSlot,
    /// A shard raises its clock to any revision (R3).
    UnboundedClock,
    /// A shard reports its current revision without promising it (R4).
    ShowsAhead,
    /// Shards do not pin revisions for reads over several stores (R5).
    NoPins,
    /// Shards always say that nothing has changed up to T (R5).
    NothingChanges,
    /// A list has the revision of its first store, and reads each store at its own current revision (R5).
    NoSnapshot,
    /// The check for future revisions is left out: a store is raised to any revision that a client names (R4).
    NoFutureCheck,
    /// Events are delivered as they come, without waiting for other stores (R6).
    NoWatermarks,
    /// A progress answer does not wait for the watches of its stream (R7).
    EagerProgress,
    /// Reads have no minimum revision (R8).
    ForgetfulRouter,
    /// A router shows a revision without waiting for the other stores of the Kind (R22).
    NoOrder,
    /// A watch without a start begins where its first store stands (R8).
    LooseStart,
    /// A home forgets a lease that is over before the other stores have ended it (R12).
    NoLeaseEnd,
    /// A home says that a lease is over before the end is on disk (R12).
    TellsEarly,
    /// A router does not reopen the stream of a store that broke.
    NoResume,
    /// A shard treats Kinds of mode `fsync` as `buffered` (R9).
    WeakModes,
    /// Routers ignore the gaps of stores (R10).
    NoGaps,
    /// The former owner serves a unit again while the decision for another one is made (R13, R15).
    EarlyUnfreeze,
    /// No router takes over the moves of one that has died.
    NoTakeover,
    /// A decision writes the record of the move, but not the map (R15).
    LostMap,
    /// A router that knows a newer state than the meta store has does not give it back.
    KeepsState,
}
