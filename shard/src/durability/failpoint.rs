//! Places where a test may stop or kill a shard on its way to the disk and back:
//! `KINDRED_SHARD_FAILPOINTS=fsync-log.sync.before=exit@3,start.read.after=wait`.
//!
//! As [`kindred_transport::failpoint`] has it, with the file that `KINDRED_SHARD_FAILPOINT_FILE` names. Without the variable
//! the disk is not wrapped.

use kindred_transport::failpoint::{Failpoints, Names};

mod disk;

pub use kindred_transport::failpoint::Side;

pub use self::disk::watched;

static FAILPOINTS: Failpoints = Failpoints::new(Names {
    variable: "KINDRED_SHARD_FAILPOINTS",
    file_variable: "KINDRED_SHARD_FAILPOINT_FILE",
    is_step: |name| Point::ALL.iter().any(|point| point.as_str() == name),
});

/// Defines the points with their names.
macro_rules! points {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Steps of a shard between its engine and its disk.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Point {
            $($(#[$doc])* $name,)*
        }

        impl Point {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name in the variable and in logs.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

points! {
    /// Start: reading all files.
    StartRead = "start.read",
    /// Start: building the engine.
    StartEngine = "start.engine",
    /// Start: storing a ceiling above everything.
    StartCeiling = "start.ceiling",
    /// Start: opening both logs, each with a new segment.
    StartLogs = "start.logs",
    /// Start: handing the new gaps to the logs.
    StartAppend = "start.append",
    /// Start: waiting until they are on disk.
    StartDurable = "start.durable",
    /// Reading a segment of the fsync log.
    FsyncLogRead = "fsync-log.read",
    /// Creating a segment, under a temporary name.
    FsyncLogCreate = "fsync-log.create",
    /// Writing frames, or zeros ahead of them.
    FsyncLogWrite = "fsync-log.write",
    /// Syncing them.
    FsyncLogSync = "fsync-log.sync",
    /// Renaming a segment to its name.
    FsyncLogName = "fsync-log.name",
    /// Syncing the directory after a rename or removal.
    FsyncLogDirectory = "fsync-log.directory",
    /// Removing a segment that no checkpoint needs.
    FsyncLogRemove = "fsync-log.remove",
    /// Reading a segment of the buffered log.
    BufferedLogRead = "buffered-log.read",
    /// Creating a segment.
    BufferedLogCreate = "buffered-log.create",
    /// Writing frames.
    BufferedLogWrite = "buffered-log.write",
    /// Syncing them.
    BufferedLogSync = "buffered-log.sync",
    /// Renaming a segment to its name.
    BufferedLogName = "buffered-log.name",
    /// Syncing the directory.
    BufferedLogDirectory = "buffered-log.directory",
    /// Removing a segment.
    BufferedLogRemove = "buffered-log.remove",
    /// Reading a checkpoint.
    CheckpointRead = "checkpoint.read",
    /// Creating one, under a temporary name.
    CheckpointCreate = "checkpoint.create",
    /// Writing a part of it.
    CheckpointWrite = "checkpoint.write",
    /// Syncing it.
    CheckpointSync = "checkpoint.sync",
    /// Renaming it to its name.
    CheckpointName = "checkpoint.name",
    /// Syncing the directory after a rename or removal.
    CheckpointDirectory = "checkpoint.directory",
    /// Removing an older or unfinished one.
    CheckpointRemove = "checkpoint.remove",
    /// Reading the clock's file.
    ClockRead = "clock.read",
    /// Creating it.
    ClockCreate = "clock.create",
    /// Writing a ceiling.
    ClockWrite = "clock.write",
    /// Syncing it.
    ClockSync = "clock.sync",
    /// Renaming the new file to its name.
    ClockName = "clock.name",
    /// Syncing the directories above.
    RootDirectory = "root.directory",
    /// Loop: handing a batch to the logs.
    LoopAppend = "loop.append",
    /// Loop: handing the buffered log its part, after the fsync log.
    LoopAppendBuffered = "loop.append-buffered",
    /// Loop: publishing what waited for the fsync log.
    LoopPublish = "loop.publish",
    /// Loop: sending answers.
    LoopAnswer = "loop.answer",
    /// Loop: beginning the walk of a checkpoint.
    WalkBegin = "walk.begin",
    /// Loop: a slice of the walk.
    WalkSlice = "walk.slice",
    /// Loop: telling the thread that both logs are on disk up to where the walk ended.
    WalkEnd = "walk.end",
    /// Loop: settling the modes that waited for a finished checkpoint, and answering its waiters.
    WalkDone = "walk.done",
    /// Loop: setting other modes.
    ModesTake = "modes.take",
    /// Loop: setting weaker modes once they are logged.
    ModesTakeLogged = "modes.take-logged",
    /// Stop: marking both logs as cleanly stopped.
    StopMark = "stop.mark",
    /// Stop: closing the logs, the fsync log last.
    StopClose = "stop.close",
    /// Stop: lowering the ceiling.
    StopCeiling = "stop.ceiling",
    /// Stop: writing the Kinds that the logs do not keep.
    StopUnkept = "stop.unkept",
}

/// The process has come to one side of a point.
pub fn reach(point: Point, side: Side) {
    FAILPOINTS.reach(point.as_str(), side);
}

/// Runs `act` between the two sides of its point.
pub fn around<T>(point: Point, act: impl FnOnce() -> T) -> T {
    reach(point, Side::Before);
    let done = act();
    reach(point, Side::After);
    done
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_point_has_a_name_of_its_own() {
        let names: HashSet<_> = Point::ALL.iter().map(|point| point.as_str()).collect();
        assert_eq!(names.len(), Point::ALL.len());
    }
}
