//! Waits for moves and shows their progress: a bar on a terminal, plain lines in a pipe.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{
    args::{Output, Run},
    client::{Client, Form},
    failure::Failure,
    output::{self, bytes, count, counted, text, time},
};

/// The polling interval.
const EVERY: Duration = Duration::from_millis(250);
/// The interval between lines in a pipe while the phase stays the same.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// How long all routers may be unreachable before the wait is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long to wait for the figures of a switch.
const FIGURES_WITHIN: Duration = Duration::from_secs(3);
const BAR: usize = 24;

/// The condition to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// All is copied and compared, and the move waits to be asked to switch.
    Ready,
    /// The keys are at their target stores.
    Switched,
    /// The keys are back at their source stores.
    Back,
    /// The move is complete and cannot be reversed.
    Done,
    Aborted,
}

/// A move's state in relation to the condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    On,
    Reached,
    /// The move was aborted, but that was not requested.
    Aborted,
    /// The move ended in another way.
    Missed,
}

fn standing(shown: &Value, until: Until) -> Standing {
    let (phase, goal) =
        (shown["phase"].as_str().unwrap_or_default(), shown["goal"].as_str().unwrap_or_default());
    let settled = matches!(phase, "Switched" | "Completing" | "Done");
    match (until, phase) {
        (Until::Ready, "Ready") => Standing::Reached,
        (Until::Aborted, "Aborted") => Standing::Reached,
        (_, "Aborted") => Standing::Aborted,
        (Until::Switched, _) if settled && goal == "there" => Standing::Reached,
        (Until::Back, _) if settled && goal == "back" => Standing::Reached,
        (Until::Done, "Done") => Standing::Reached,
        (Until::Ready, _) if settled => Standing::Missed,
        (_, "Done") => Standing::Missed,
        // An aborted move that had partly switched goes back first, and then ends as aborted.
        _ => Standing::On,
    }
}

/// Waits for all moves; each comes with its planned number of keys.
///
/// # Errors
/// When a move is aborted, the timeout passes, or no router answers.
pub async fn all(
    client: &Client,
    moves: Vec<(u64, Option<u64>)>,
    until: Until,
    run: &Run,
) -> Result<(), Failure> {
    let began = Instant::now();
    let mut ended: Vec<Value> = Vec::new();
    let mut failed = None;
    for (id, keys) in moves {
        match one(client, (id, keys), until, run, began).await {
            Ok(shown) => ended.push(shown),
            Err(Failure::Aborted(why)) => failed = Some(Failure::Aborted(why)),
            Err(failure) => return Err(failure),
        }
    }
    if run.output != Output::Table {
        output::print(&output::rendered(&json!({ "kind": "MoveList", "items": ended }), run.output)?)?;
    }
    failed.map_or(Ok(()), Err)
}

async fn one(
    client: &Client,
    (id, keys): (u64, Option<u64>),
    until: Until,
    run: &Run,
    began: Instant,
) -> Result<Value, Failure> {
    let mut screen = Screen::new(id, keys, run.output == Output::Table, began);
    let path = format!("/api/v1/moves/{id}");
    let mut heard = Instant::now();
    let mut reached = None;
    loop {
        match client.get(&path, Form::Objects).await {
            Ok(shown) => {
                heard = Instant::now();
                screen.progress(&shown);
                match standing(&shown, until) {
                    Standing::On => {}
                    // The figures follow shortly.
                    Standing::Reached
                        if screen.lacks_figures(&shown, until)
                            && reached.get_or_insert_with(Instant::now).elapsed() < FIGURES_WITHIN => {}
                    Standing::Reached => {
                        screen.clear();
                        if run.output == Output::Table {
                            output::print(&screen.figures(&shown, until))?;
                        }
                        return Ok(screen.with_figures(shown));
                    }
                    Standing::Aborted | Standing::Missed => {
                        screen.clear();
                        let why = shown["reason"].as_str().unwrap_or("it was ended by somebody else");
                        return Err(Failure::Aborted(format!(
                            "move {id} was aborted: {why}; {}",
                            left(&shown)
                        )));
                    }
                }
            }
            Err(Failure::Unreachable(why)) if heard.elapsed() >= SILENCE_MAX => {
                screen.clear();
                return Err(Failure::Unreachable(format!("{why}; move {id} goes on without this command")));
            }
            // A router is restarting or is another one; the move has been taken over meanwhile.
            Err(Failure::Unreachable(_)) => {}
            Err(failure) => {
                screen.clear();
                return Err(failure);
            }
        }
        let over = run.timeout.is_some_and(|timeout| began.elapsed() >= timeout);
        let stopped = if over { true } else { paused().await };
        if stopped {
            screen.clear();
            let why = if over { "the time is over" } else { "interrupted" };
            return Err(Failure::StillRunning(format!(
                "{why}; move {id} goes on: see kindred move status {id}, or give it up by kindred move abort {id}"
            )));
        }
    }
}

/// Waits for the next poll; true if the user interrupts.
async fn paused() -> bool {
    tokio::select! {
        () = tokio::time::sleep(EVERY) => false,
        interrupted = tokio::signal::ctrl_c() => interrupted.is_ok(),
    }
}

/// Where the keys are after a move that did not reach its end.
fn left(shown: &Value) -> String {
    let legs = shown["legs"].as_array().into_iter().flatten();
    let mut owners = Vec::new();
    for leg in legs {
        let owner = text(if leg["moved"] == true { &leg["to"] } else { &leg["from"] });
        // Several stores of a ring may give to the same store.
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }
    format!("{} is on {}", text(&shown["resource"]), owners.join(", "))
}

/// What was shown of one move.
struct Screen {
    id: u64,
    keys: Option<u64>,
    began: Instant,
    /// Whether to show a bar; `None` shows no progress.
    bar: Option<bool>,
    phase: String,
    line_at: Option<Instant>,
    /// Kept, because a finished move has no coordinator that reports them.
    progress: Value,
}

impl Screen {
    fn new(id: u64, keys: Option<u64>, show: bool, began: Instant) -> Self {
        let bar = show.then(|| std::io::stdout().is_terminal());
        Self { id, keys, began, bar, phase: String::new(), line_at: None, progress: Value::Null }
    }

    fn progress(&mut self, shown: &Value) {
        if shown["progress"].is_object() {
            self.progress = shown["progress"].clone();
        }
        let phase = text(&shown["phase"]);
        let line = self.line(&phase);
        match self.bar {
            None => {}
            Some(true) => write(&format!("\r\x1b[2K{}{line}", self.bar_of())),
            Some(false) => {
                let due = self.line_at.is_none_or(|at| at.elapsed() >= LINE_EVERY);
                if due || phase != self.phase {
                    write(&format!("{line}\n"));
                    self.line_at = Some(Instant::now());
                }
            }
        }
        self.phase = phase;
    }

    /// Whether the router has not told yet how long the switch took, or how much was copied.
    fn lacks_figures(&self, shown: &Value, until: Until) -> bool {
        match until {
            Until::Ready => {
                self.keys.is_none_or(|keys| keys > 0)
                    && self.progress["keysCopied"].as_u64().unwrap_or(0) == 0
            }
            _ => shown["phase"] == "Switched" && self.progress["pauseMicros"].is_null(),
        }
    }

    fn bar_of(&self) -> String {
        let copied = self.progress["keysCopied"].as_u64().unwrap_or(0);
        let Some(keys) = self.keys.filter(|keys| *keys > 0) else { return String::new() };
        let share = (copied as f64 / keys as f64).min(1.0);
        let full = (share * BAR as f64) as usize;
        format!("[{}{}] {:3.0}% ", "#".repeat(full), "-".repeat(BAR - full), share * 100.0)
    }

    fn line(&self, phase: &str) -> String {
        let progress = &self.progress;
        let mut words = vec![format!("move {}: {phase}", self.id)];
        if let Some(copied) = progress["keysCopied"].as_u64() {
            words.push(match self.keys {
                Some(keys) => format!("{} of ~{}", count(copied), counted(keys, "key")),
                None => counted(copied, "key"),
            });
        }
        words.extend(progress["bytesCopied"].as_u64().map(bytes));
        words.extend(
            progress["lagMicros"].as_u64().map(|lag| format!("lag {}", time(Duration::from_micros(lag)))),
        );
        words.push(time(self.began.elapsed()));
        let failing = progress["failing"].as_array().into_iter().flatten();
        words.extend(
            failing.map(|step| format!("{} fails: {}", text(&step["step"]), text(&step["reason"]))).take(1),
        );
        words.join(", ")
    }

    fn clear(&self) {
        if self.bar == Some(true) {
            write("\r\x1b[2K");
        }
    }

    /// The last line, with the cost of the move.
    fn figures(&self, shown: &Value, until: Until) -> String {
        let mut line = match until {
            Until::Ready => format!("move {}: copied and compared; {}", self.id, left(shown)),
            Until::Switched | Until::Back => format!("move {}: {}", self.id, left(shown)),
            Until::Done => format!("move {} is done: {}, and there is no way back", self.id, left(shown)),
            Until::Aborted => format!("move {} is aborted: {}", self.id, left(shown)),
        };
        if let (Some(keys), Some(size)) =
            (self.progress["keysCopied"].as_u64(), self.progress["bytesCopied"].as_u64())
        {
            line += &format!("; {}, {}", counted(keys, "key"), bytes(size));
        }
        line += &format!(" in {}", time(self.began.elapsed()));
        if let Some(pause) = self.progress["pauseMicros"].as_u64() {
            line += &format!("; longest write pause {}", time(Duration::from_micros(pause)));
        }
        line.push('\n');
        if until == Until::Ready {
            return line
                + &format!(
                    "kindred move switch {0} switches it, kindred move abort {0} gives it up\n",
                    self.id
                );
        }
        let mut legs = shown["legs"].as_array().into_iter().flatten();
        if until != Until::Aborted && legs.any(|leg| leg["oneWay"] == true) {
            line += "a stock etcd is one of the two: there is no way back, and what has left an etcd stays there, out of use\n";
        } else if matches!(until, Until::Switched | Until::Back) && shown["phase"] == "Switched" {
            line += &format!(
                "the way back is open: kindred move reverse {0} takes it, kindred move complete {0} closes it\n",
                self.id
            );
        }
        line
    }

    fn with_figures(&self, mut shown: Value) -> Value {
        if shown["progress"].is_null() {
            shown["progress"] = self.progress.clone();
        }
        shown["waitedMillis"] = json!(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX));
        shown
    }
}

/// Errors are ignored, because progress is not a result.
fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_the_wait_is_over() {
        let shown = |phase: &str, goal: &str| json!({ "phase": phase, "goal": goal });
        assert_eq!(standing(&shown("Copying", "there"), Until::Switched), Standing::On);
        assert_eq!(standing(&shown("Switched", "there"), Until::Switched), Standing::Reached);
        assert_eq!(standing(&shown("Switched", "there"), Until::Back), Standing::On);
        assert_eq!(standing(&shown("Switched", "back"), Until::Back), Standing::Reached);
        assert_eq!(standing(&shown("Switched", "there"), Until::Done), Standing::On);
        assert_eq!(standing(&shown("Done", "there"), Until::Done), Standing::Reached);
        assert_eq!(standing(&shown("Aborting", "abort"), Until::Aborted), Standing::On);
        assert_eq!(standing(&shown("Aborted", "abort"), Until::Aborted), Standing::Reached);
        assert_eq!(standing(&shown("Aborted", "abort"), Until::Switched), Standing::Aborted);
        assert_eq!(standing(&shown("Done", "there"), Until::Back), Standing::Missed);
    }

    #[test]
    fn what_is_said_of_a_move() {
        let mut screen = Screen::new(3, Some(1000), false, Instant::now());
        screen.progress = json!({ "keysCopied": 250, "bytesCopied": 2048, "lagMicros": 1500 });
        assert!(
            screen.line("Copying").starts_with("move 3: Copying, 250 of ~1,000 keys, 2.0 KiB, lag 1.5 ms, ")
        );
        screen.progress["failing"] = json!([{ "step": "copy", "times": 2, "reason": "store \"b\" is away" }]);
        assert!(screen.line("Copying").ends_with("copy fails: store \"b\" is away"));
        assert_eq!(screen.bar_of(), "[######------------------]  25% ");
        screen.progress["pauseMicros"] = json!(18_300);
        let shown = json!({ "resource": "pods", "phase": "Switched", "goal": "there",
            "legs": [{ "from": "a", "to": "b", "moved": true }] });
        let figures = screen.figures(&shown, Until::Switched);
        assert!(figures.starts_with("move 3: pods is on b; 250 keys, 2.0 KiB in "), "{figures}");
        assert!(figures.contains("longest write pause 18.3 ms\nthe way back is open"), "{figures}");
    }
}
