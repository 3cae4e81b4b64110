//! Places where a test may stop or end this process: `KINDRED_FAILPOINTS=freeze.before=exit,decide.after=hold`.
//!
//! `exit` ends the process at once, as `kill -9` would; `hold` says where it is on standard error and stays there for
//! [`HOLD`]; either acts once. Without the variable a failpoint is one load.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How long `hold` holds.
const HOLD: Duration = Duration::from_secs(5);
const VARIABLE: &str = "KINDRED_FAILPOINTS";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Exit,
    Hold,
}

fn parse(text: &str) -> Result<HashMap<String, Act>, String> {
    let one = |part: &str| match part.split_once('=') {
        Some((point, "exit")) => Ok((point.to_owned(), Act::Exit)),
        Some((point, "hold")) => Ok((point.to_owned(), Act::Hold)),
        _ => Err(format!("{VARIABLE}: {part:?} is not POINT=exit or POINT=hold")),
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_what_to_do_there() {
        let points = parse("freeze.before=exit, decide.after=hold,").unwrap();
        assert_eq!(points.get("freeze.before"), Some(&Act::Exit));
        assert_eq!(points.get("decide.after"), Some(&Act::Hold));
        assert!(parse("freeze.before").unwrap_err().contains("POINT=exit"));
    }
}
