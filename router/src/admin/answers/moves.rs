//! The forms of moves, and of changes that begin them.

use kindred_partition_config::model::Metadata;
use schemars::JsonSchema;
use serde::Serialize;

use super::ListMetadata;
use crate::moves::Progress;

/// The moves.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MoveList {
    pub kind: String,
    pub api_version: String,
    pub metadata: ListMetadata,
    pub items: Vec<Move>,
}

/// A move of a Kind, or of a part of one.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Move {
    pub kind: String,
    pub api_version: String,
    /// The name is the number of the move.
    pub metadata: Metadata,
    /// The Kind, or `<all else>`.
    pub resource: String,
    pub phase: MovePhase,
    pub goal: MoveGoal,
    /// Whether it waits, copied and compared, to be asked to switch.
    pub hold: bool,
    /// Whether it has ended.
    pub over: bool,
    pub attempts: u64,
    /// Why it was taken back.
    pub reason: Option<String>,
    /// The process that took it over last; empty before the first.
    pub coordinator: String,
    pub legs: Vec<MoveLeg>,
    pub progress: Option<Progress>,
}

/// How far a move is.
#[derive(Debug, Serialize, JsonSchema)]
pub enum MovePhase {
    Copying,
    CatchingUp,
    Verifying,
    Ready,
    Switching,
    Switched,
    Completing,
    Done,
    Aborting,
    Aborted,
}

/// Where a move goes.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MoveGoal {
    There,
    Back,
    Abort,
}

/// What goes from one store to another.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MoveLeg {
    pub from: String,
    pub to: String,
    /// Whether it has switched.
    pub moved: bool,
    /// Whether there is no way back.
    pub one_way: bool,
    pub units: Vec<UnitShown>,
}

/// A range of keys, or the buckets of a ring in one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Unit")]
pub struct UnitShown {
    pub start: String,
    pub end: Option<String>,
    /// The number of buckets, if not all keys of the range are meant.
    pub buckets: Option<u64>,
}

/// What a change does, or in a dry run would do.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    pub kind: String,
    pub api_version: String,
    pub dry_run: bool,
    pub objects: Vec<ChangedObject>,
    /// The numbers of the moves that have begun.
    pub moves: Vec<u64>,
    pub plan: Plan,
}

/// An object that a change concerns.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ChangedObject {
    /// `TYPE/NAME`.
    pub object: String,
    /// `created`, `configured` or `deleted`.
    pub change: String,
}

/// The estimated cost of the moves of a change.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Plan {
    pub moves: Vec<PlannedMove>,
    /// Null if the change was refused by the state that this router knew.
    pub rate: Option<PlannedRate>,
}

/// The rate at which is copied.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedRate {
    pub bytes_per_second: u64,
    /// `limit`, `measured` or `assumed`.
    pub from: String,
}

/// A move with its estimated cost. The figures are absent where a store does not answer.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedMove {
    pub resource: String,
    /// The number of legs.
    pub switches: u64,
    /// What is in its way.
    pub problems: Vec<String>,
    /// What to know before it begins.
    pub notes: Vec<String>,
    pub legs: Vec<PlannedLeg>,
    #[serde(flatten)]
    pub figures: Option<Figures>,
}

/// A leg with its estimated cost.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedLeg {
    pub from: String,
    pub to: String,
    pub units: Vec<UnitShown>,
    #[serde(flatten)]
    pub figures: Option<Figures>,
    /// Whether the target has a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited: Option<bool>,
    /// The room below the tightest limit; null without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_bytes: Option<u64>,
    /// What it will take of that room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub takes_bytes: Option<u64>,
}

/// What is copied, and how long that takes.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    pub keys: u64,
    pub bytes: u64,
    pub written_per_second: u64,
    /// Null if more is written than can be copied.
    pub millis: Option<u64>,
    /// How long writes wait at the switch.
    pub pause_micros: u64,
}

/// What the stores own, compared with the map.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reconciliation {
    pub kind: String,
    pub api_version: String,
    /// Whether the differences were repaired.
    pub applied: bool,
    pub in_accord: bool,
    pub found: Vec<String>,
    pub problems: Vec<String>,
    pub failed: Vec<String>,
}
