//! Places where a test may stop or end a shard on its way to the disk and back:
//! `KINDRED_SHARD_FAILPOINTS=fsync-log.sync.before=exit@3,start.read.after=wait`.
//!
//! Each [`Point`] has a side before it and one after it. `exit` ends the process there at once, as `kill -9` would; `wait`
//! writes where it is to the file that `KINDRED_SHARD_FAILPOINT_FILE` names and stays, with the thread that came there and
//! no other, until that file is removed. With `@n` it is the n-th time that counts. Each acts once. Without the variable a
//! point is one load, and the disk is not wrapped.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

mod disk;

pub use self::disk::watched;

const VARIABLE: &str = "KINDRED_SHARD_FAILPOINTS";
const FILE_VARIABLE: &str = "KINDRED_SHARD_FAILPOINT_FILE";
/// How often `wait` looks for its file.
const LOOK: Duration = Duration::from_millis(2);

/// Names and list of all points.
macro_rules! points {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Steps of a shard between its engine and its disk.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Point {
            $($(#[$doc])* $name,)*
        }

        impl Point {
            /// Every point.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// As in the variable and in logs.
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
    /// Start: all files are read.
    StartRead = "start.read",
    /// Start: the engine is put together.
    StartEngine = "start.engine",
    /// Start: the ceiling that is above all is stored.
    StartCeiling = "start.ceiling",
    /// Start: both logs are opened, each with a new segment.
    StartLogs = "start.logs",
    /// Start: what the start found missing is handed to the logs.
    StartAppend = "start.append",
    /// Start: that is waited for.
    StartDurable = "start.durable",
    /// A segment of the log of mode fsync is read.
    FsyncLogRead = "fsync-log.read",
    /// A segment is made, under another name.
    FsyncLogCreate = "fsync-log.create",
    /// Frames, or zeros ahead of them, are written.
    FsyncLogWrite = "fsync-log.write",
    /// They are synced.
    FsyncLogSync = "fsync-log.sync",
    /// A segment gets its name.
    FsyncLogName = "fsync-log.name",
    /// The name is synced, or that names are gone.
    FsyncLogDirectory = "fsync-log.directory",
    /// A segment that no checkpoint needs is removed.
    FsyncLogRemove = "fsync-log.remove",
    /// The same of the log of mode buffered.
    BufferedLogRead = "buffered-log.read",
    /// A segment is made.
    BufferedLogCreate = "buffered-log.create",
    /// Frames are written.
    BufferedLogWrite = "buffered-log.write",
    /// They are synced.
    BufferedLogSync = "buffered-log.sync",
    /// A segment gets its name.
    BufferedLogName = "buffered-log.name",
    /// The name is synced.
    BufferedLogDirectory = "buffered-log.directory",
    /// A segment is removed.
    BufferedLogRemove = "buffered-log.remove",
    /// A checkpoint is read.
    CheckpointRead = "checkpoint.read",
    /// It is made, under another name.
    CheckpointCreate = "checkpoint.create",
    /// A part of it is written.
    CheckpointWrite = "checkpoint.write",
    /// It is synced.
    CheckpointSync = "checkpoint.sync",
    /// It gets its name.
    CheckpointName = "checkpoint.name",
    /// The name is synced, or that older ones are gone.
    CheckpointDirectory = "checkpoint.directory",
    /// An older one is removed, or one that was never finished.
    CheckpointRemove = "checkpoint.remove",
    /// The file of the clock is read.
    ClockRead = "clock.read",
    /// It is made.
    ClockCreate = "clock.create",
    /// A ceiling is written.
    ClockWrite = "clock.write",
    /// It is synced.
    ClockSync = "clock.sync",
    /// The new file gets its name.
    ClockName = "clock.name",
    /// The names of the directories above are synced.
    RootDirectory = "root.directory",
    /// Loop: a batch is handed to the logs.
    LoopAppend = "loop.append",
    /// Loop: the part of it that is of the log of mode buffered, behind that of the other log.
    LoopAppendBuffered = "loop.append-buffered",
    /// Loop: what waited for the log of mode fsync becomes visible.
    LoopPublish = "loop.publish",
    /// Loop: answers are sent.
    LoopAnswer = "loop.answer",
    /// Loop: a walk for a checkpoint begins.
    WalkBegin = "walk.begin",
    /// Loop: a slice of it.
    WalkSlice = "walk.slice",
    /// Loop: both logs are on disk up to where the walk ended, and the thread is told so.
    WalkEnd = "walk.end",
    /// Loop: the checkpoint is there; modes that waited for it are settled, and who asked for it is told.
    WalkDone = "walk.done",
    /// Loop: other modes are taken.
    ModesTake = "modes.take",
    /// Loop: the same, when it is on disk that they are weaker.
    ModesTakeLogged = "modes.take-logged",
    /// Stop: both logs are told that it was one in good order.
    StopMark = "stop.mark",
    /// Stop: the logs are closed, that of mode fsync last.
    StopClose = "stop.close",
    /// Stop: the ceiling is lowered.
    StopCeiling = "stop.ceiling",
    /// Stop: what the logs do not keep is written beside them.
    StopUnkept = "stop.unkept",
}

/// Of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Nothing of it is done.
    Before,
    /// It is done.
    After,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Before, Self::After];

    /// As in the variable.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Exit,
    Wait,
}

/// What to do, and how many times more the point is passed before.
type Armed = HashMap<(Point, Side), (Act, u64)>;

fn parse(text: &str) -> Result<Armed, String> {
    let wrong = |part: &str| {
        format!("{VARIABLE}: {part:?} is not POINT.SIDE=exit or POINT.SIDE=wait, or either with @N")
    };
    let one = |part: &str| {
        let (place, act) = part.split_once('=')?;
        let (point, side) = place.rsplit_once('.')?;
        let (act, count) = act.split_once('@').unwrap_or((act, "1"));
        let point = Point::ALL.iter().find(|known| known.as_str() == point)?;
        let side = Side::BOTH.into_iter().find(|known| known.as_str() == side)?;
        let act = match act {
            "exit" => Act::Exit,
            "wait" => Act::Wait,
            _ => return None,
        };
        let passes = count.parse::<u64>().ok()?.checked_sub(1)?;
        Some(((*point, side), (act, passes)))
    };
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| one(part).ok_or_else(|| wrong(part))).collect()
}

fn armed() -> Option<&'static Mutex<Armed>> {
    static ARMED: OnceLock<Option<Mutex<Armed>>> = OnceLock::new();
    let armed = ARMED.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        match parse(&text) {
            Ok(armed) => Some(Mutex::new(armed)),
            Err(error) => {
                tracing::error!(error, "no failpoint is set");
                None
            }
        }
    });
    armed.as_ref()
}

/// The process has come to one side of a point.
pub fn reach(point: Point, side: Side) {
    let Some(armed) = armed() else { return };
    let act = due(&mut armed.lock().unwrap_or_else(PoisonError::into_inner), point, side);
    match act {
        None => {}
        Some(Act::Exit) => std::process::abort(),
        Some(Act::Wait) => {
            let name = format!("{}.{}", point.as_str(), side.as_str());
            let waited = match std::env::var_os(FILE_VARIABLE) {
                Some(file) => wait(Path::new(&file), &name),
                None => Err(std::io::Error::other(format!("{FILE_VARIABLE} is not set"))),
            };
            if let Err(error) = waited {
                tracing::error!(point = name, %error, "a failpoint did not wait");
            }
        }
    }
}

/// Does something with the sides of its point around it.
pub fn around<T>(point: Point, act: impl FnOnce() -> T) -> T {
    reach(point, Side::Before);
    let done = act();
    reach(point, Side::After);
    done
}

fn due(armed: &mut Armed, point: Point, side: Side) -> Option<Act> {
    let (act, passes) = armed.get_mut(&(point, side))?;
    match passes.checked_sub(1) {
        Some(left) => {
            *passes = left;
            None
        }
        None => {
            let act = *act;
            armed.remove(&(point, side));
            Some(act)
        }
    }
}

/// Makes the file, and waits until it is gone.
fn wait(file: &Path, point: &str) -> std::io::Result<()> {
    std::fs::write(file, point)?;
    while file.try_exists()? {
        std::thread::park_timeout(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_a_name_of_its_own_that_is_understood() {
        for point in Point::ALL {
            for side in Side::BOTH {
                let text = format!("{}.{}=wait@3", point.as_str(), side.as_str());
                assert_eq!(parse(&text).unwrap(), [((*point, side), (Act::Wait, 2))].into(), "{text}");
            }
        }
        let both = parse("start.read.after=exit, clock.sync.before=wait,").unwrap();
        assert_eq!(both.len(), 2);
        for wrong in [
            "start.read=exit",
            "start.read.after",
            "start.read.after=stop",
            "x.after=exit",
            "clock.sync.after=exit@0",
        ] {
            assert!(parse(wrong).unwrap_err().contains("POINT.SIDE=exit"), "{wrong}");
        }
    }

    #[test]
    fn the_nth_time_counts_and_once() {
        let mut armed = parse("loop.append.after=exit@3").unwrap();
        let mut reached = || due(&mut armed, Point::LoopAppend, Side::After);
        assert_eq!([reached(), reached(), reached(), reached()], [None, None, Some(Act::Exit), None]);
        let mut armed = parse("loop.append.after=exit").unwrap();
        assert_eq!(due(&mut armed, Point::LoopAppend, Side::Before), None);
        assert_eq!(due(&mut armed, Point::LoopAppend, Side::After), Some(Act::Exit));
    }

    #[test]
    fn waits_until_its_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("held");
        let waited = file.clone();
        let waiting = std::thread::spawn(move || wait(&waited, "clock.sync.after"));
        let began = std::time::Instant::now();
        while std::fs::read_to_string(&file).unwrap_or_default() != "clock.sync.after" {
            assert!(began.elapsed() < Duration::from_secs(30), "no file");
            std::thread::park_timeout(LOOK);
        }
        std::thread::park_timeout(LOOK * 10);
        assert!(!waiting.is_finished());
        std::fs::remove_file(&file).unwrap();
        waiting.join().unwrap().unwrap();
    }
}
