//! What a replay says at its end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use kindred_transport::metrics::calls::{CODES, code_index};
use tonic::Code;

use super::line::{Recorded, Request};
use super::send::Done;
use crate::stats::Latency;

/// The calls of a method of one Kind.
#[derive(Debug, Default)]
struct Row {
    /// In nanoseconds.
    recorded: Vec<u64>,
    replayed: Vec<u64>,
    errors_recorded: BTreeMap<String, u64>,
    errors_replayed: BTreeMap<String, u64>,
}

/// What happened so far.
#[derive(Debug, Default)]
pub struct Report {
    rows: BTreeMap<(String, String), Row>,
    /// Transactions whose compares held in the trace, and those of them whose compares did not hold here.
    held: (u64, u64),
    /// Those whose compares did not hold in the trace, and those of them whose compares held here.
    not_held: (u64, u64),
    read_first: u64,
    /// Watches, their events, and those that ended before they were to be closed.
    watches: (u64, u64, u64),
    sent: u64,
    /// How late requests were sent, in nanoseconds; without the recorded intervals none is late.
    late: Vec<u64>,
    /// By reason: how many lines, and the first of them.
    not_replayed: BTreeMap<&'static str, (u64, usize)>,
    lost: u64,
    pub leases_from_before: u64,
}

impl Report {
    /// Begins with what the trace itself says.
    pub fn of(trace: &[Recorded]) -> Self {
        let mut report = Self::default();
        for recorded in trace {
            report.lost += recorded.lost;
            if let Err(why) = recorded.request {
                let (count, first) = report.not_replayed.entry(why).or_insert((0, recorded.line));
                *count += 1;
                *first = recorded.line.min(*first);
            }
        }
        report
    }

    /// Notes the end of a request that was sent so late.
    pub fn note(&mut self, recorded: &Recorded, done: &Done, late: Option<Duration>) {
        let row = self.rows.entry((recorded.method.to_string(), recorded.kind.to_string())).or_default();
        row.recorded.push(recorded.took().saturating_mul(1000));
        row.replayed.push(nanos(done.took));
        let code = match &done.answer {
            Ok(_) => Code::Ok,
            Err(status) => status.code(),
        };
        if recorded.code != CODES[0] {
            *row.errors_recorded.entry(recorded.code.clone()).or_default() += 1;
        }
        if code != Code::Ok {
            *row.errors_replayed.entry(CODES[code_index(code)].to_owned()).or_default() += 1;
        }
        self.sent += 1;
        self.late.extend(late.map(nanos));
        self.read_first += u64::from(done.read_first);
        if matches!(done.sent, Request::Watch(_)) {
            self.watches.0 += 1;
            self.watches.1 += done.events;
            self.watches.2 += u64::from(code != Code::Ok);
        }
        if let (Some(then), Some(now)) =
            (recorded.succeeded, done.answer.as_ref().ok().and_then(|answer| answer.succeeded))
        {
            let count = if then { &mut self.held } else { &mut self.not_held };
            count.0 += 1;
            count.1 += u64::from(then != now);
        }
    }

    /// In Markdown.
    pub fn text(&self, took: Duration) -> String {
        let mut out = String::from(
            "| method | Kind | count | errors, recorded | errors, replayed | recorded p50 ms | p99 | max | replayed p50 ms | p99 | max |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        let mut say = |line: String| {
            out += &line;
            out.push('\n');
        };
        for ((method, kind), row) in &self.rows {
            say(format!(
                "| {method} | {} | {} | {} | {} | {} | {} |",
                kind.replace('|', "\\|"),
                row.replayed.len(),
                errors(&row.errors_recorded),
                errors(&row.errors_replayed),
                times(&row.recorded),
                times(&row.replayed),
            ));
        }
        say(format!("\nreplayed: requests={} seconds={:.2}", self.sent, took.as_secs_f64()));
        if !self.late.is_empty() {
            let Latency { p50, p99, max, .. } = Latency::of(self.late.clone());
            let (p50, p99, max) = (p50 / 1e3, p99 / 1e3, max / 1e3);
            say(format!("sent late by: p50 {p50:.2} ms, p99 {p99:.2} ms, at most {max:.2} ms"));
        }
        let ((held, failed), (not_held, held_now)) = (self.held, self.not_held);
        if held + not_held > 0 {
            say(format!(
                "compares: {failed} of {held} transactions whose compares held in the trace failed them; {held_now} of \
                 {not_held} that had failed them did not"
            ));
        }
        if self.read_first > 0 {
            say(format!("revisions: {} keys were read first, as nothing had shown them", self.read_first));
        }
        if self.watches.0 > 0 {
            let (count, events, early) = self.watches;
            say(format!("watches: {count}, with {events} events; {early} ended early"));
        }
        if self.leases_from_before > 0 {
            say(format!("leases: {} from before the trace were granted first", self.leases_from_before));
        }
        if self.lost > 0 {
            say(format!("lost: the trace says that it lacks {} calls, which were not sent", self.lost));
        }
        for (why, (count, first)) in &self.not_replayed {
            say(format!("not replayed: {count}, the first in line {first}: {why}"));
        }
        out
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn errors(of: &BTreeMap<String, u64>) -> String {
    let mut out = String::new();
    for (code, count) in of {
        let comma = if out.is_empty() { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(out, "{comma}{code} {count}");
    }
    if out.is_empty() { "0".to_owned() } else { out }
}

fn times(nanos: &[u64]) -> String {
    let Latency { p50, p99, max, .. } = Latency::of(nanos.to_vec());
    format!("{:.2} | {:.2} | {:.2}", p50 / 1e3, p99 / 1e3, max / 1e3)
}

#[cfg(test)]
mod tests {
    use kindred_proto::etcdserverpb as pb;
    use tonic::Status;

    use super::super::line::tests::put;
    use super::super::live::Answer;
    use super::*;

    fn recorded(code: &str, request: Result<Request, &'static str>) -> Recorded {
        Recorded {
            line: 3,
            connection: "a".to_owned(),
            kind: "pods".into(),
            method: "Txn".into(),
            begins: 1000,
            ends: 3000,
            code: code.to_owned(),
            succeeded: Some(true),
            revision: None,
            lease: None,
            request,
            lost: 2,
        }
    }

    #[test]
    fn a_report_has_counts_errors_times_and_reasons() {
        let (ok, failed) = (
            recorded("OK", Ok(Request::Txn(pb::TxnRequest::default()))),
            recorded("Unavailable", Ok(Request::Put(put("k", "v")))),
        );
        let strange = recorded("OK", Err("a reason"));
        let mut report = Report::of(&[ok.clone(), failed.clone(), strange]);
        let done = |answer| Done {
            took: Duration::from_millis(5),
            sent: Request::Txn(pb::TxnRequest::default()),
            answer,
            events: 0,
            read_first: true,
        };
        let refused = Answer { succeeded: Some(false), ..Answer::default() };
        report.note(&ok, &done(Ok(refused)), Some(Duration::from_millis(1)));
        report.note(&failed, &done(Err(Status::not_found("x"))), None);
        let text = report.text(Duration::from_secs(2));
        for part in [
            "| Txn | pods | 2 | Unavailable 1 | NotFound 1 | 2.00 | 2.00 | 2.00 | 5.00 | 5.00 | 5.00 |",
            "requests=2 seconds=2.00",
            "sent late by: p50 1.00 ms, p99 1.00 ms, at most 1.00 ms",
            "compares: 1 of 1 ",
            "2 keys were read first",
            "lacks 6 calls",
            "not replayed: 1, the first in line 3: a reason",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("watches:"));
    }
}
