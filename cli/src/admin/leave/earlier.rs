//! Moves that are in the way of `kindred leave`, such as those that an earlier run began that was killed.

use std::time::Duration;

use http::Method;
use serde_json::Value;

use crate::admin::{
    args::Run,
    client::{Client, Form},
    failure::Failure,
    output,
    wait::{self, Until},
};

/// The pause before a refused request is made again.
const AGAIN: Duration = Duration::from_secs(1);
const ASKS_MAX: usize = 60;

/// Brings them to an end: what was rehearsed is given up, what is under way is waited for, and the way back of what has switched is
/// closed, unless `rehearse`.
///
/// # Errors
/// When a move waits for an operator, or cannot be brought to an end.
pub async fn end(client: &Client, home: &str, run: &Run, rehearse: bool) -> Result<(), Failure> {
    loop {
        let moves = client.get("/api/v1/moves", Form::Objects).await?;
        let mut open = open_moves(&moves, home);
        open.retain(|one| !rehearse || one.until != Some(Until::Done));
        if open.is_empty() {
            return Ok(());
        }
        // A move that has ended its wait may have an open way back, which the next round closes.
        for one in open {
            end_one(client, &one, run).await?;
        }
    }
}

async fn end_one(client: &Client, open: &Open, run: &Run) -> Result<(), Failure> {
    let id = open.id;
    let Some(until) = open.until else {
        return Err(Failure::Refused(format!(
            "move {id} waits to be asked to switch: kindred move switch {id}, or kindred move abort {id}"
        )));
    };
    let said = match open.verb {
        Some("abort") => "is of an earlier rehearsal, and given up",
        Some(_) => "has switched: its way back is closed",
        None => "is still under way",
    };
    output::print(&format!("move {id} {said}\n"))?;
    if let Some(verb) = open.verb {
        ask(client, id, verb).await?;
    }
    match wait::all(client, vec![(id, None)], until, run).await {
        // The caller moves anew whatever an aborted move did not bring.
        Ok(()) | Err(Failure::Aborted(_)) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Asks something of a move, again while somebody else asks something of it.
async fn ask(client: &Client, id: u64, verb: &str) -> Result<(), Failure> {
    let path = format!("/api/v1/moves/{id}");
    for asked in 1.. {
        match client.change(Method::POST, &format!("{path}/{verb}"), None).await {
            // The request stands although no coordinator has answered yet, and the wait shows its outcome.
            Ok(_) | Err(Failure::Unreachable(_)) => break,
            Err(Failure::Refused(why)) => {
                if client.get(&path, Form::Objects).await?["over"] == true {
                    break;
                }
                if asked == ASKS_MAX {
                    return Err(Failure::Refused(why));
                }
            }
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}

/// A move that is not over: what is asked of it, and what is waited for; `None` if it waits for an operator.
#[derive(Debug, PartialEq, Eq)]
struct Open {
    id: u64,
    verb: Option<&'static str>,
    until: Option<Until>,
}

fn has_switched(shown: &Value) -> bool {
    matches!(shown["phase"].as_str(), Some("Switched" | "Completing"))
}

fn open_moves(moves: &Value, home: &str) -> Vec<Open> {
    let open = |shown: &Value| {
        let id = shown["metadata"]["name"].as_str()?.parse().ok()?;
        if shown["over"] == true {
            return None;
        }
        let mut legs = shown["legs"].as_array().into_iter().flatten();
        let goes_home = legs.all(|leg| leg["to"] == home);
        let (verb, until) = match shown["goal"].as_str()? {
            "there" | "back" if has_switched(shown) => (Some("complete"), Some(Until::Done)),
            "there" if shown["hold"] == true && goes_home => (Some("abort"), Some(Until::Aborted)),
            "there" if shown["hold"] == true => (None, None),
            "there" => (None, Some(Until::Switched)),
            "back" => (None, Some(Until::Back)),
            _ => (None, Some(Until::Aborted)),
        };
        Some(Open { id, verb, until })
    };
    moves["items"].as_array().into_iter().flatten().filter_map(open).collect()
}

/// Whether a Kind, by its prefix or name, has switched and could still go back.
#[must_use]
pub fn has_way_back(moves: &Value, kind: &str) -> bool {
    let stem = kind.trim_end_matches('/');
    let of_kind = |shown: &Value| {
        let legs = shown["legs"].as_array().into_iter().flatten();
        let mut units = legs.flat_map(|leg| leg["units"].as_array().into_iter().flatten());
        shown["resource"] == kind
            || units.any(|unit| {
                let start = unit["start"].as_str().unwrap_or_default();
                start == stem || start.starts_with(kind)
            })
    };
    let mut items = moves["items"].as_array().into_iter().flatten();
    items.any(|shown| shown["over"] != true && has_switched(shown) && of_kind(shown))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(id: &str, phase: &str, goal: &str, hold: bool, to: &str) -> Value {
        json!({
            "metadata": { "name": id }, "phase": phase, "goal": goal, "hold": hold, "over": phase == "Done",
            "resource": "pods",
            "legs": [{ "from": "a", "to": to, "units": [{ "start": "/registry/pods" }, { "start": "/registry/pods/" }] }],
        })
    }

    /// A run that was killed left moves that a second one did not know what to do with.
    #[test]
    fn f90_what_an_earlier_run_began_is_known() {
        let moves = json!({ "items": [
            shown("1", "Done", "there", true, "home"),
            shown("2", "Switched", "there", false, "b"),
            shown("3", "Ready", "there", true, "home"),
            shown("4", "Ready", "there", true, "b"),
            shown("5", "Copying", "there", false, "home"),
            shown("6", "Aborting", "abort", true, "home"),
            shown("7", "Switching", "back", false, "b"),
            shown("8", "Switched", "back", false, "b"),
        ]});
        let wanted = [
            (2, Some("complete"), Some(Until::Done)),
            (3, Some("abort"), Some(Until::Aborted)),
            (4, None, None),
            (5, None, Some(Until::Switched)),
            (6, None, Some(Until::Aborted)),
            (7, None, Some(Until::Back)),
            (8, Some("complete"), Some(Until::Done)),
        ];
        assert_eq!(open_moves(&moves, "home"), wanted.map(|(id, verb, until)| Open { id, verb, until }));
    }

    #[test]
    fn a_kind_with_an_open_way_back_is_known() {
        let moves = |phase: &str| json!({ "items": [shown("2", phase, "there", false, "b")] });
        assert!(has_way_back(&moves("Switched"), "/registry/pods/"));
        assert!(!has_way_back(&moves("Switched"), "/registry/podtemplates/"));
        assert!(!has_way_back(&moves("Copying"), "/registry/pods/"));
        assert!(!has_way_back(&moves("Done"), "/registry/pods/"));
    }
}
