//! Changes as verbs (move, split, merge, drain), and operations on moves that have begun.

use http::Method;
use serde_json::{Value, json};

use super::{
    args::{DrainArgs, Existing, MergeArgs, MoveArgs, MoveStatusArgs, Output, Run, SplitArgs},
    client::{Client, Form},
    failure::Failure,
    output::{self, Table, bytes, count, text, time},
    show::show,
    wait::{self, Until},
};

/// `kindred move KIND --to STORE`.
pub async fn move_kind(client: &Client, args: &MoveArgs) -> Result<(), Failure> {
    let mut body = json!({ "kind": args.kind, "to": args.to });
    if args.hold {
        // Routers of earlier versions do not know the field.
        body["hold"] = json!(true);
    }
    let until = if args.hold { Until::Ready } else { Until::Switched };
    change_until(client, "/api/v1/move", &body, until, &args.run).await
}

pub async fn split(client: &Client, args: &SplitArgs) -> Result<(), Failure> {
    let body = json!({ "kind": args.kind, "at": args.at, "to": args.to });
    change(client, "/api/v1/split", &body, &args.run).await
}

pub async fn merge(client: &Client, args: &MergeArgs) -> Result<(), Failure> {
    let body = json!({ "kind": args.kind, "at": args.at, "to": args.to });
    change(client, "/api/v1/merge", &body, &args.run).await
}

pub async fn drain(client: &Client, args: &DrainArgs) -> Result<(), Failure> {
    let body = json!({ "store": args.store, "to": args.to });
    change(client, "/api/v1/drain", &body, &args.run).await
}

/// Requests a change, prints what it does, and waits until its moves have switched.
pub async fn change(client: &Client, path: &str, body: &Value, run: &Run) -> Result<(), Failure> {
    change_until(client, path, body, Until::Switched, run).await
}

async fn change_until(
    client: &Client,
    path: &str,
    body: &Value,
    until: Until,
    run: &Run,
) -> Result<(), Failure> {
    let answer = client.change(Method::POST, &with_options(path, run), Some(body)).await?;
    if run.output != Output::Table && (run.dry_run || run.no_wait) {
        return output::print(&output::rendered(&answer, run.output)?);
    }
    let to_print = said(&answer);
    if run.output == Output::Table {
        output::print(&to_print)?;
    }
    let moves: Vec<u64> =
        answer["moves"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    if run.dry_run {
        return Ok(());
    }
    if run.no_wait {
        let hints = moves.iter().map(|id| format!("move {id} has begun; see kindred move status {id}\n"));
        return output::print(&hints.collect::<String>());
    }
    let planned = |id: &u64| {
        let at = moves.iter().position(|other| other == id)?;
        answer["plan"]["moves"][at]["keys"].as_u64()
    };
    let waited = moves.iter().map(|id| (*id, planned(id))).collect();
    wait::all(client, waited, until, run).await
}

/// A path with what the flags ask. Routers of earlier versions do not know the second option.
#[must_use]
pub fn with_options(path: &str, run: &Run) -> String {
    let options = [(run.dry_run, "dryRun=All"), (run.delete_its_keys, "deleteItsKeys=true")];
    let asked: Vec<_> = options.iter().filter(|(asked, _)| *asked).map(|(_, option)| *option).collect();
    if asked.is_empty() { path.to_owned() } else { format!("{path}?{}", asked.join("&")) }
}

/// Describes what a change does or would do.
#[must_use]
pub fn said(answer: &Value) -> String {
    let dry = answer["dryRun"].as_bool() == Some(true);
    let mut out = String::new();
    for object in answer["objects"].as_array().into_iter().flatten() {
        let suffix = if dry { " (dry run)" } else { "" };
        out += &format!("{} {}{suffix}\n", text(&object["object"]), text(&object["change"]));
    }
    let moves = answer["plan"]["moves"].as_array().map(Vec::as_slice).unwrap_or_default();
    if moves.is_empty() {
        return out + "no key moves\n";
    }
    let mut table =
        Table::new(&["kind", "from", "to", "keys", "bytes", "room", "written/s", "time", "write pause"]);
    for planned in moves {
        for leg in planned["legs"].as_array().into_iter().flatten() {
            let figure = |field: &str, form: fn(u64) -> String| {
                leg[field]
                    .as_u64()
                    .map_or_else(|| "unknown".to_owned(), |number| format!("~{}", form(number)))
            };
            let millis = |millis| time(std::time::Duration::from_millis(millis));
            // More is written than can be copied, so the copy would never finish.
            let never = leg["keys"].is_u64() && leg["millis"].is_null();
            let unlimited = leg["limited"] == false;
            table.row(vec![
                text(&planned["resource"]),
                text(&leg["from"]),
                text(&leg["to"]),
                figure("keys", count),
                figure("bytes", bytes),
                if unlimited { "no limit".to_owned() } else { figure("roomBytes", bytes) },
                figure("writtenPerSecond", bytes),
                if never { "never".to_owned() } else { figure("millis", millis) },
                figure("pauseMicros", |micros| time(std::time::Duration::from_micros(micros))),
            ]);
        }
    }
    out += &table.render();
    out += &rate(&answer["plan"]["rate"]);
    for planned in moves {
        for problem in planned["problems"].as_array().into_iter().flatten() {
            out += &format!("{}: {}\n", text(&planned["resource"]), text(problem));
        }
        for note in planned["notes"].as_array().into_iter().flatten() {
            out += &format!("{}: {}\n", text(&planned["resource"]), text(note));
        }
    }
    out
}

/// A line about the copy rate behind the estimate.
fn rate(rate: &Value) -> String {
    let Some(at) = rate["bytesPerSecond"].as_u64().map(bytes) else { return String::new() };
    let why = match rate["from"].as_str() {
        Some("limit") => "the router's --move-bytes-per-second",
        Some("measured") => "as the router made its last copy",
        _ => "a guess, as the router has copied nothing of size yet",
    };
    format!("time at {at} a second: {why}\n")
}

/// `kindred move status|reverse|complete|abort`.
pub async fn existing(client: &Client, existing: &Existing) -> Result<(), Failure> {
    let (verb, until, of) = match existing {
        Existing::Status(args) => return status(client, args).await,
        Existing::Reverse(of) => ("reverse", Until::Back, of),
        Existing::Complete(of) => ("complete", Until::Done, of),
        Existing::Abort(of) => ("abort", Until::Aborted, of),
        Existing::Switch(of) => ("switch", Until::Switched, of),
    };
    if of.run.delete_its_keys {
        return Err(Failure::Usage(format!("--delete-its-keys: {verb} begins no move")));
    }
    if of.run.dry_run {
        return Err(Failure::Usage(format!(
            "--dry-run: there is nothing to plan for {verb}; see kindred move status"
        )));
    }
    let id = match of.id {
        Some(id) => id,
        None => the_one(client, verb).await?,
    };
    let before = client.get(&format!("/api/v1/moves/{id}"), Form::Objects).await?;
    // Reversing a reversal switches to the target again.
    let until = if until == Until::Back && before["goal"] == "back" { Until::Switched } else { until };
    client.change(Method::POST, &format!("/api/v1/moves/{id}/{verb}"), None).await?;
    if of.run.no_wait {
        return output::print(&format!("move {id}: {verb} has begun; see kindred move status {id}\n"));
    }
    wait::all(client, vec![(id, None)], until, &of.run).await
}

async fn status(client: &Client, args: &MoveStatusArgs) -> Result<(), Failure> {
    match args.id {
        Some(id) => show(client, &format!("/api/v1/moves/{id}"), args.output).await,
        None => show(client, "/api/v1/moves", args.output).await,
    }
}

/// The only open move, when none is named.
async fn the_one(client: &Client, verb: &str) -> Result<u64, Failure> {
    let list = client.get("/api/v1/moves", Form::Objects).await?;
    let open = list["items"].as_array().into_iter().flatten().filter(|item| item["over"] != true);
    let ids: Vec<u64> = open.filter_map(|item| text(&item["metadata"]["name"]).parse().ok()).collect();
    match ids[..] {
        [id] => Ok(id),
        [] => Err(Failure::Refused(format!("no move is under way, so there is none to {verb}"))),
        _ => {
            let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
            Err(Failure::Usage(format!("several moves are under way: name one of {}", ids.join(", "))))
        }
    }
}
