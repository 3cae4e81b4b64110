//! Decisions are told to a router, which keeps them for all routers and shows them on its page.

use std::time::{Duration, SystemTime};

use http::Method;
use serde_json::{Value, json};

use super::rules::Proposal;
use crate::admin::args::Output;
use crate::admin::client::{Client, Form};
use crate::admin::failure::Failure;
use crate::admin::output::{self, Table, text};

/// The longest text that a router takes, in bytes.
const TEXT_MAX: usize = 1000;
const PATH: &str = "/api/v1/advice";

/// What became of a proposal.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// It is the operator's to do.
    Proposed,
    /// It is not made yet, for this reason.
    Waited(&'a str),
    Applied,
    /// It was tried, and failed for this reason.
    Failed(&'a str),
}

/// The body of the request.
fn body(at: u64, proposal: &Proposal, outcome: Outcome<'_>) -> Value {
    let (word, reason) = match outcome {
        Outcome::Proposed => ("proposed", None),
        Outcome::Waited(why) => ("waited", Some(why)),
        Outcome::Applied => ("applied", None),
        Outcome::Failed(why) => ("failed", Some(why)),
    };
    json!({
        "at": at, "what": clipped(&proposal.what), "why": clipped(&proposal.why), "outcome": word,
        "reason": reason.map(clipped),
    })
}

fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

/// Tells a decision.
///
/// # Errors
/// Why the router does not keep it.
pub async fn tell(client: &Client, proposal: &Proposal, outcome: Outcome<'_>) -> Result<(), Failure> {
    client.change(Method::POST, PATH, Some(&body(now().as_secs(), proposal, outcome))).await.map(drop)
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Prints the decisions that the routers keep, the newest first.
pub async fn history(client: &Client, output: Output) -> Result<(), Failure> {
    let kept = client.get(PATH, Form::Objects).await?;
    match output {
        Output::Table => output::print(&table(&kept, now())),
        output => output::print(&output::rendered(&kept, output)?),
    }
}

fn table(kept: &Value, now: Duration) -> String {
    let mut table = Table::new(&["AGO", "TIMES", "OUTCOME", "WHAT", "REASON", "BECAUSE"]);
    for one in kept["items"].as_array().into_iter().flatten() {
        let at = Duration::try_from_secs_f64(one["at"].as_f64().unwrap_or_default()).unwrap_or_default();
        let ago = Duration::from_secs(now.saturating_sub(at).as_secs());
        let mut cells = vec![output::time(ago)];
        cells.extend(["times", "outcome", "what", "reason", "why"].map(|field| text(&one[field])));
        table.row(cells);
    }
    match table.is_empty() {
        true => "no decision is kept; advise --auto and --apply tell theirs\n".to_owned(),
        false => table.render(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(why: &str) -> Proposal {
        Proposal {
            what: "move pods to b".to_owned(),
            why: why.to_owned(),
            effect: String::new(),
            change: None,
        }
    }

    #[test]
    fn a_decision_has_what_the_router_asks_for() {
        let sent = body(7, &proposal("a is full"), Outcome::Waited("these are quiet hours"));
        let expected = json!({
            "at": 7, "what": "move pods to b", "why": "a is full", "outcome": "waited", "reason": "these are quiet hours",
        });
        assert_eq!(sent, expected);
        let long = "ä".repeat(TEXT_MAX);
        let sent = body(7, &proposal(&long), Outcome::Failed(&long));
        for field in ["why", "reason"] {
            assert_eq!(sent[field].as_str().unwrap().len(), TEXT_MAX);
        }
        assert_eq!(body(7, &proposal("x"), Outcome::Applied)["reason"], Value::Null);
        assert_eq!(body(7, &proposal("x"), Outcome::Proposed)["outcome"], "proposed");
    }

    #[test]
    fn decisions_are_shown_in_a_table() {
        let kept = json!({ "items": [
            { "at": 90.5, "first": 10.0, "times": 3, "what": "move pods to b", "why": "a is full", "outcome": "waited",
              "reason": "these are quiet hours" },
        ]});
        let shown = table(&kept, Duration::from_secs(100));
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].starts_with("AGO"), "{shown}");
        for part in ["9.0 s", " 3 ", "waited", "move pods to b", "these are quiet hours", "a is full"] {
            assert!(lines[1].contains(part), "{part}: {shown}");
        }
        assert!(table(&json!({ "items": [] }), Duration::ZERO).contains("no decision"));
    }
}
