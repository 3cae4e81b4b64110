//! Places where a test may stop or end this process: `KINDRED_FAILPOINTS=freeze.before=exit,decide.after=hold`.
//!
//! `exit` ends the process at once, as `kill -9` would; `hold` says where it is on standard error and stays there for
//! [`HOLD`]; `wait` writes where it is to the file that `KINDRED_FAILPOINT_FILE` names, and stays until that file is
//! removed. Each acts once. Without the variable a failpoint is one load.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How long `hold` holds.
const HOLD: Duration = Duration::from_secs(5);
/// How often `wait` looks for its file.
const LOOK: Duration = Duration::from_millis(2);
const VARIABLE: &str = "KINDRED_FAILPOINTS";
const FILE_VARIABLE: &str = "KINDRED_FAILPOINT_FILE";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Exit,
    Hold,
    Wait,
}

fn parse(text: &str) -> Result<HashMap<String, Act>, String> {
    let one = |part: &str| match part.split_once('=') {
        Some((point, "exit")) => Ok((point.to_owned(), Act::Exit)),
        Some((point, "hold")) => Ok((point.to_owned(), Act::Hold)),
        Some((point, "wait")) => Ok((point.to_owned(), Act::Wait)),
        _ => Err(format!("{VARIABLE}: {part:?} is not POINT=exit, POINT=hold or POINT=wait")),
    };
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(one).collect()
}

/// The process has come to the failpoint `step.side`.
pub async fn reach(step: &str, side: &str) {
    static POINTS: OnceLock<Option<Mutex<HashMap<String, Act>>>> = OnceLock::new();
    let points = POINTS.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        match parse(&text) {
            Ok(points) => Some(Mutex::new(points)),
            Err(error) => {
                tracing::error!(error, "no failpoint is set");
                None
            }
        }
    });
    let Some(points) = points else { return };
    let point = format!("{step}.{side}");
    let act = points.lock().unwrap_or_else(PoisonError::into_inner).remove(&point);
    match act {
        None => {}
        Some(Act::Exit) => std::process::abort(),
        Some(Act::Hold) => {
            tracing::warn!(point, "held at a failpoint");
            tokio::time::sleep(HOLD).await;
        }
        Some(Act::Wait) => {
            tracing::warn!(point, "waits at a failpoint");
            let file = std::env::var_os(FILE_VARIABLE);
            let waited = match &file {
                Some(file) => wait(Path::new(file), &point).await,
                None => Err(std::io::Error::other(format!("{FILE_VARIABLE} is not set"))),
            };
            if let Err(error) = waited {
                tracing::error!(point, %error, "a failpoint did not wait");
            }
        }
    }
}

/// Makes the file, and waits until it is gone.
async fn wait(file: &Path, point: &str) -> std::io::Result<()> {
    std::fs::write(file, point)?;
    while file.try_exists()? {
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_what_to_do_there() {
        let points = parse("freeze.before=exit, decide.after=hold,open.after=wait,").unwrap();
        assert_eq!(points.get("freeze.before"), Some(&Act::Exit));
        assert_eq!(points.get("decide.after"), Some(&Act::Hold));
        assert_eq!(points.get("open.after"), Some(&Act::Wait));
        assert!(parse("freeze.before").unwrap_err().contains("POINT=exit"));
    }

    #[tokio::test]
    async fn waits_until_its_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("held");
        let (waited, here) = (file.clone(), tokio::time::Instant::now());
        let waiting = tokio::spawn(async move { wait(&waited, "open.after").await });
        while std::fs::read_to_string(&file).unwrap_or_default() != "open.after" {
            assert!(here.elapsed() < Duration::from_secs(10), "no file");
            tokio::time::sleep(LOOK).await;
        }
        tokio::time::sleep(LOOK * 10).await;
        assert!(!waiting.is_finished());
        std::fs::remove_file(&file).unwrap();
        waiting.await.unwrap().unwrap();
    }
}
