//! Where a batch becomes as durable as its mode promises, between applying and publishing (R9).

/// The log under a shard.
#[derive(Debug)]
pub enum Log {
    /// Nothing is kept: a restart is empty, and every revision of before is compacted.
    Memory,
}

impl Log {
    /// Returns when everything applied so far is as durable as it must be to be shown.
    pub fn commit(&mut self) {
        match self {
            Self::Memory => {}
        }
    }
}
