//! Standbys by log shipping (R18, R19, R20), decided without I/O and clock. Times are since some beginning, by the
//! monotonic clock of the process that decides; no two processes compare theirs.
//!
//! | module | decides |
//! | --- | --- |
//! | [`primary`] | what all standbys have received, and whether the primary may answer |
//! | [`follower`] | whether a standby acknowledges, and when it may be promoted |
//! | [`member`] | what a member does when it is told of the record |
//!
//! Around them: [`shipping`] on the loop of a primary, [`following`], the connection of a standby, [`membership`] and
//! [`role`], what a member knows and remembers of itself.

use std::time::Duration;

pub use kindred_partition_config::ids::MemberId;

pub mod follower;
pub mod following;
pub mod member;
pub mod membership;
pub mod primary;
pub mod reclaim;
pub mod role;
pub mod shipping;

/// How long the acknowledgements of a standby allow the primary to answer (R20).
pub const LEASE: Duration = Duration::from_secs(1);
/// How often a primary sends something, if only an empty batch.
pub const BEAT: Duration = Duration::from_millis(200);
/// How long a standby waits after its last acknowledgement before it may be promoted. It is longer than [`LEASE`], so
/// that clocks may run at different speeds.
pub const WAIT: Duration = Duration::from_millis(1_100);

/// The number of a shipped batch, from 1 in each term of a primary; 0 is before the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);
