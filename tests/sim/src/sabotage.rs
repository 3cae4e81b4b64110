//! What can be broken on purpose, to prove that each invariant can fail. Never anything in a run of `make sim`.

/// One thing that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// Two shards assign with one slot (R1).
    SharedSlot,
    /// A shard follows any number (R3).
    UnboundedClock,
    /// A shard shows its present without having promised it (R4).
    ShowsAhead,
    /// Shards hold nothing for reads over several of them (R5).
    NoPins,
    /// Shards say that nothing changed up to T (R5).
    NothingChanges,
    /// A list shows what its first store shows, and reads each store at its own present (R5).
    NoSnapshot,
    /// The check against the future is left out: what the store shows is raised to whatever a client names (R4).
    NoFutureCheck,
    /// Events are shown as they come, whatever other stores may still have (R6).
    NoWatermarks,
    /// A progress answer does not wait for the watches of its stream (R7).
    EagerProgress,
    /// Reads ask for no revision at least (R8).
    ForgetfulRouter,
    /// A watch without a start begins where its first store stands (R8).
    LooseStart,
    /// A lease that is over is forgotten without its other stores being told (R12).
    NoLeaseEnd,
    /// A home says that a lease is over in the turn in which it ends, whatever the disk has of that (R12).
    TellsEarly,
    /// A store that lost its connection is not watched again.
    NoResume,
    /// A shard keeps what must be on disk as if it need not be (R9).
    WeakModes,
    /// Routers do not hear what stores have lost (R10).
    NoGaps,
    /// A unit is served again by its old owner while it is decided that another one has it (R13, R15).
    EarlyUnfreeze,
    /// Nobody takes over the moves of a router that died.
    NoTakeover,
    /// A decision is recorded of the move, and its map is not (R15).
    LostMap,
    /// A router that knows a newer state than the meta store has does not give it back.
    KeepsState,
}
