//! The progress of splitting a unit off from the keyspaces that held its keys before.

use crate::keyspace::Clearing;

/// The position up to which the unit is split off.
#[derive(Debug, Clone, Default)]
pub(crate) struct Splitting {
    pub(crate) kind: usize,
    /// Index of the source keyspace within the Kind; 0 is the Kind's own.
    pub(crate) source: usize,
    pub(crate) at: Clearing,
}
