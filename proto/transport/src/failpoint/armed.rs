//! What the environment arms.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use super::{Names, Side};

/// How long `hold` holds.
const HOLD: Duration = Duration::from_secs(5);
/// How often `wait` looks for its file.
const LOOK: Duration = Duration::from_millis(2);

/// The failpoints of a part of this process: a static of its own.
#[derive(Debug)]
pub struct Failpoints {
    names: Names,
    armed: OnceLock<Option<Mutex<Armed>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Exit,
    Hold,
    Wait,
}

/// What to do at `STEP.SIDE`, and how many times more it is passed before.
type Armed = HashMap<String, (Act, u64)>;

impl Failpoints {
    /// Armed by these variables, which are read when the first of its points is reached.
    #[must_use]
    pub const fn new(names: Names) -> Self {
        Self { names, armed: OnceLock::new() }
    }

    /// Whether there is something to do anywhere.
    pub fn are_armed(&self) -> bool {
        self.armed().is_some()
    }

    /// This thread has come to a side of a step.
    pub fn reach(&self, step: &str, side: Side) {
        let Some((act, point)) = self.due(step, side) else { return };
        match act {
            Act::Exit => std::process::abort(),
            Act::Hold => stay(HOLD),
            Act::Wait => tell(&point, self.file().and_then(|file| wait(&file, &point))),
        }
    }

    /// This task has come to a side of a step.
    pub async fn reach_async(&self, step: &str, side: Side) {
        let Some((act, point)) = self.due(step, side) else { return };
        match act {
            Act::Exit => std::process::abort(),
            Act::Hold => tokio::time::sleep(HOLD).await,
            Act::Wait => {
                let waited = match self.file() {
                    Ok(file) => wait_async(&file, &point).await,
                    Err(error) => Err(error),
                };
                tell(&point, waited);
            }
        }
    }

    fn armed(&self) -> Option<&Mutex<Armed>> {
        let armed = self.armed.get_or_init(|| {
            let text = std::env::var(self.names.variable).ok()?;
            match parse(&self.names, &text) {
                Ok(armed) => Some(Mutex::new(armed)),
                Err(error) => {
                    tracing::error!(error, "no failpoint is set");
                    None
                }
            }
        });
        armed.as_ref()
    }

    /// What to do here and now, and where that is.
    fn due(&self, step: &str, side: Side) -> Option<(Act, String)> {
        let armed = self.armed()?;
        let point = format!("{step}.{}", side.as_str());
        let act = due(&mut armed.lock().unwrap_or_else(PoisonError::into_inner), &point)?;
        match act {
            Act::Exit => {}
            Act::Hold => tracing::warn!(point, "held at a failpoint"),
            Act::Wait => tracing::warn!(point, "waits at a failpoint"),
        }
        Some((act, point))
    }

    fn file(&self) -> io::Result<PathBuf> {
        let name = self.names.file_variable;
        let file = std::env::var_os(name).ok_or_else(|| io::Error::other(format!("{name} is not set")))?;
        Ok(file.into())
    }
}

fn parse(names: &Names, text: &str) -> Result<Armed, String> {
    let wrong = |part: &str| {
        let variable = names.variable;
        format!(
            "{variable}: {part:?} is not STEP.SIDE=exit, STEP.SIDE=hold or STEP.SIDE=wait, or one with @N"
        )
    };
    let one = |part: &str| {
        let (point, act) = part.split_once('=')?;
        let (step, side) = point.rsplit_once('.')?;
        let is_known = (names.is_step)(step) && Side::BOTH.iter().any(|known| known.as_str() == side);
        let (act, count) = act.split_once('@').unwrap_or((act, "1"));
        let act = match act {
            "exit" => Act::Exit,
            "hold" => Act::Hold,
            "wait" => Act::Wait,
            _ => return None,
        };
        let passes = count.parse::<u64>().ok()?.checked_sub(1)?;
        is_known.then(|| (point.to_owned(), (act, passes)))
    };
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| one(part).ok_or_else(|| wrong(part))).collect()
}

fn due(armed: &mut Armed, point: &str) -> Option<Act> {
    let (act, passes) = armed.get_mut(point)?;
    match passes.checked_sub(1) {
        Some(left) => {
            *passes = left;
            None
        }
        None => {
            let act = *act;
            armed.remove(point);
            Some(act)
        }
    }
}

fn stay(time: Duration) {
    let began = Instant::now();
    while let Some(left) = time.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Makes the file, and waits until it is gone.
fn wait(file: &Path, point: &str) -> io::Result<()> {
    std::fs::write(file, point)?;
    while file.try_exists()? {
        stay(LOOK);
    }
    Ok(())
}

/// The same of a task.
async fn wait_async(file: &Path, point: &str) -> io::Result<()> {
    std::fs::write(file, point)?;
    while file.try_exists()? {
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

fn tell(point: &str, waited: io::Result<()>) {
    if let Err(error) = waited {
        tracing::error!(point, %error, "a failpoint did not wait");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names = Names {
        variable: "KINDRED_FAILPOINTS",
        file_variable: "KINDRED_FAILPOINT_FILE",
        is_step: |step| matches!(step, "freeze" | "start.read"),
    };

    #[test]
    fn points_and_what_to_do_there() {
        let armed = parse(&NAMES, "freeze.before=exit, freeze.after=hold@2,start.read.after=wait,").unwrap();
        let wanted = [
            ("freeze.before".to_owned(), (Act::Exit, 0)),
            ("freeze.after".to_owned(), (Act::Hold, 1)),
            ("start.read.after".to_owned(), (Act::Wait, 0)),
        ];
        assert_eq!(armed, wanted.into());
        for wrong in
            ["freeze=exit", "freeze.before", "freeze.before=stop", "x.after=exit", "freeze.after=exit@0"]
        {
            assert!(parse(&NAMES, wrong).unwrap_err().contains("STEP.SIDE=exit"), "{wrong}");
        }
    }

    #[test]
    fn the_nth_time_counts_and_once() {
        let mut armed = parse(&NAMES, "freeze.after=exit@3").unwrap();
        let mut reached = || due(&mut armed, "freeze.after");
        assert_eq!([reached(), reached(), reached(), reached()], [None, None, Some(Act::Exit), None]);
        let mut armed = parse(&NAMES, "freeze.after=exit").unwrap();
        assert_eq!(due(&mut armed, "freeze.before"), None);
        assert_eq!(due(&mut armed, "freeze.after"), Some(Act::Exit));
    }

    /// No variable is set where this runs.
    #[test]
    fn without_the_variable_nothing_is_armed() {
        let names = Names { variable: "KINDRED_NO_FAILPOINTS", ..NAMES };
        let failpoints = Failpoints::new(names);
        failpoints.reach("freeze", Side::Before);
        assert!(!failpoints.are_armed());
    }

    #[test]
    fn a_thread_waits_until_its_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("held");
        let waited = file.clone();
        let waiting = std::thread::spawn(move || wait(&waited, "start.read.after"));
        let began = Instant::now();
        while std::fs::read_to_string(&file).unwrap_or_default() != "start.read.after" {
            assert!(began.elapsed() < Duration::from_secs(30), "no file");
            stay(LOOK);
        }
        stay(LOOK * 10);
        assert!(!waiting.is_finished());
        std::fs::remove_file(&file).unwrap();
        waiting.join().unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_task_waits_until_its_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("held");
        let (waited, began) = (file.clone(), Instant::now());
        let waiting = tokio::spawn(async move { wait_async(&waited, "freeze.after").await });
        while std::fs::read_to_string(&file).unwrap_or_default() != "freeze.after" {
            assert!(began.elapsed() < Duration::from_secs(30), "no file");
            tokio::time::sleep(LOOK).await;
        }
        tokio::time::sleep(LOOK * 10).await;
        assert!(!waiting.is_finished());
        std::fs::remove_file(&file).unwrap();
        waiting.await.unwrap().unwrap();
    }
}
