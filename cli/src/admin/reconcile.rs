//! `kindred reconcile`.

use http::Method;
use serde_json::{Value, json};

use super::{
    args::{Output, ReconcileArgs},
    client::Client,
    failure::Failure,
    output::{self, text},
};

/// Prints where the stores' ownership differs from the map, and repairs it with `--apply`.
pub async fn reconcile(client: &Client, args: &ReconcileArgs) -> Result<(), Failure> {
    let answer =
        client.change(Method::POST, "/api/v1/reconcile", Some(&json!({ "apply": args.apply }))).await?;
    if args.output != Output::Table {
        output::print(&output::rendered(&answer, args.output)?)?;
    } else {
        output::print(&said(&answer))?;
    }
    match answer["failed"].as_array().and_then(|failed| failed.first()) {
        Some(failed) => {
            Err(Failure::Refused(format!("{}; what came before is done: run it again", text(failed))))
        }
        None => Ok(()),
    }
}

fn said(answer: &Value) -> String {
    let lines = |field: &str, label: &str| {
        let lines = answer[field].as_array().into_iter().flatten();
        lines.map(|line| format!("{label}{}\n", text(line))).collect::<String>()
    };
    if answer["inAccord"] == true {
        return "The map says what the stores own; nothing is left behind by a move.\n".to_owned();
    }
    let found = lines("found", "");
    let next = match (answer["applied"] == true, found.is_empty()) {
        (false, false) => "Nothing was changed. To repair it run kindred reconcile --apply\n",
        (true, false) => "Repaired.\n",
        _ => "",
    };
    let next = if answer["failed"].as_array().is_some_and(|failed| !failed.is_empty()) { "" } else { next };
    found + &lines("problems", "Not repaired: ") + next
}
