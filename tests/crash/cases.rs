//! The points at which a shard ends: each side of each step between its engine and its disk. The shard's `Point` lists
//! the steps.

use std::fmt;

use kindred_shard::durability::failpoint::{Point, Side};
use rand::{Rng, rngs::StdRng};

/// The way in which a shard reaches a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A start with data.
    Start,
    /// The first start, without data.
    First,
    /// Writes, leases, checkpoints and changes of modes, all at once.
    Work,
    /// A clean stop.
    Stop,
}

/// The way to a point. The match is exhaustive, so that a new point does not compile without a way.
fn way(point: Point) -> Way {
    match point {
        Point::StartRead
        | Point::StartEngine
        | Point::StartCeiling
        | Point::StartLogs
        | Point::StartAppend
        | Point::StartDurable
        | Point::FsyncLogRead
        | Point::BufferedLogRead
        | Point::CheckpointRead
        | Point::ClockRead
        | Point::RootDirectory => Way::Start,
        Point::ClockCreate | Point::ClockName => Way::First,
        Point::FsyncLogCreate
        | Point::FsyncLogWrite
        | Point::FsyncLogSync
        | Point::FsyncLogName
        | Point::FsyncLogDirectory
        | Point::FsyncLogRemove
        | Point::BufferedLogCreate
        | Point::BufferedLogWrite
        | Point::BufferedLogSync
        | Point::BufferedLogName
        | Point::BufferedLogDirectory
        | Point::BufferedLogRemove
        | Point::CheckpointCreate
        | Point::CheckpointWrite
        | Point::CheckpointSync
        | Point::CheckpointName
        | Point::CheckpointDirectory
        | Point::CheckpointRemove
        | Point::ClockWrite
        | Point::ClockSync
        | Point::LoopAppend
        | Point::LoopAppendBuffered
        | Point::LoopPublish
        | Point::LoopAnswer
        | Point::WalkBegin
        | Point::WalkSlice
        | Point::WalkEnd
        | Point::WalkDone
        | Point::ModesTake
        | Point::ModesTakeLogged => Way::Work,
        Point::StopMark | Point::StopClose | Point::StopCeiling | Point::StopUnkept => Way::Stop,
    }
}

/// How the process ends at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The process ends itself at the point.
    Exit,
    /// One thread waits at the point and the others continue, until the process is killed.
    Wait,
}

/// One end of a shard.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub point: Point,
    pub side: Side,
    pub act: Act,
    /// The shard ends when it reaches the point for the `nth` time, counted from 1. Only the first time is certain.
    pub nth: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let act = match self.act {
            Act::Exit => "exit",
            Act::Wait => "wait",
        };
        write!(f, "{}.{}={act}@{}", self.point.as_str(), self.side.as_str(), self.nth)
    }
}

impl Case {
    /// The way in which the shard reaches the point.
    pub fn way(&self) -> Way {
        way(self.point)
    }

    /// Whether the clean stop was complete at the point, except that the process had not ended yet.
    pub fn is_behind_the_stop(&self) -> bool {
        (self.point, self.side) == (Point::StopUnkept, Side::After)
    }

    /// All cases. With `few` there is one for each point, and sides and acts alternate.
    pub fn all(few: bool, random: &mut StdRng) -> Vec<Self> {
        let mut cases = Vec::new();
        for (turn, point) in Point::ALL.iter().enumerate() {
            for (at, side) in Side::BOTH.into_iter().enumerate() {
                for act in [Act::Exit, Act::Wait] {
                    let first = Self { point: *point, side, act, nth: 1 };
                    let chosen = turn % 2 == at && (turn / 2 % 2 == 0) == (act == Act::Exit);
                    if !few || chosen {
                        cases.push(first);
                    }
                    if !few && way(*point) == Way::Work {
                        cases.push(Self { nth: random.random_range(2..40), ..first });
                    }
                }
            }
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn each_point_has_its_turn() {
        let mut random = StdRng::seed_from_u64(1);
        let few = Case::all(true, &mut random);
        assert_eq!(few.len(), Point::ALL.len());
        for (side, act) in [
            (Side::Before, Act::Exit),
            (Side::Before, Act::Wait),
            (Side::After, Act::Exit),
            (Side::After, Act::Wait),
        ] {
            assert!(few.iter().any(|case| (case.side, case.act) == (side, act)), "{side:?} {act:?}");
        }
        let all = Case::all(false, &mut random);
        assert!(all.len() > Point::ALL.len() * 6, "{}", all.len());
        assert_eq!(all[1].to_string(), "start.read.before=wait@1");
    }
}
