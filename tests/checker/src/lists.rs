//! A read at revision R is exactly the state at R.
//!
//! A list without a revision is compared with the state at its header's revision: a client that lists and then watches
//! would never see a key that is missing there (A3). A list at a revision is compared with the state at that revision,
//! also when it is read in pages (A4). So are the ranges of a Txn (B11). Together with `reliable` this proves that a
//! list at R and a watch from R+1 miss nothing. `count` and `more` are about the whole range, whatever the limit (A10).

use crate::bytes::Key;
use crate::effects::{self, ReadView};
use crate::history::{KeyValue, Operation, Outcome, Request};
use crate::log::{Entry, State};
use crate::report::{Check, Report};
use crate::watch::Context;

/// Compares every read of the history with the log.
pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    for operation in &context.history.operations {
        if let (Request::List(list), Outcome::Read { header, .. }) = (&operation.request, &operation.outcome)
            && list.revision.is_some_and(|revision| revision > *header)
        {
            let message = format!("{} reads above its header {header}", operation.id);
            report.add(Check::List, message, vec![format!("{list:?}")]);
        }
        for view in effects::reads(operation) {
            report.counts.reads += 1;
            compare(context, operation, &view, report);
        }
    }
}

fn compare(context: &Context<'_>, operation: &Operation, view: &ReadView<'_>, report: &mut Report) {
    let expected = Expected::of(context, view);
    report.counts.reads_uncertain += expected.uncertain.len();
    let mut wrong = Vec::new();
    shape(view, &mut wrong);
    if !view.count_only {
        contents(view, &expected, &mut wrong);
    }
    totals(view, &expected, &mut wrong);
    if !wrong.is_empty() {
        let message = format!(
            "{} ({}) of {:?} is not the state at {}: {}",
            operation.id, operation.client, view.range, view.at, wrong[0]
        );
        wrong.push(format!("called {:?}, returned {:?}", operation.call, operation.returned));
        report.add(Check::List, message, wrong);
    }
}

/// The state of a range at one revision, as far as the log knows it.
struct Expected<'a> {
    present: Vec<(&'a Key, &'a Entry)>,
    uncertain: Vec<&'a Key>,
    /// There may be keys of which the log has no evidence.
    open: bool,
}

impl<'a> Expected<'a> {
    fn of(context: &Context<'a>, view: &'a ReadView<'_>) -> Self {
        let open = !(context.config.starts_empty && context.config.closed_world);
        let mut expected = Self { present: Vec::new(), uncertain: Vec::new(), open };
        for (key, _) in context.log.range(&view.range) {
            match context.log.state(key, view.at) {
                State::Present(entry) => expected.present.push((key, entry)),
                State::Uncertain => expected.uncertain.push(key),
                State::Absent => {}
            }
        }
        expected
    }
}

fn shape(view: &ReadView<'_>, wrong: &mut Vec<String>) {
    if let Some(pair) = view.kvs.windows(2).find(|pair| pair[0].key >= pair[1].key) {
        wrong.push(format!("keys out of order: {} before {}", pair[0].key, pair[1].key));
    }
    if let Some(kv) = view.kvs.iter().find(|kv| !view.range.contains(&kv.key)) {
        wrong.push(format!("{} is outside the range", kv.key));
    }
    if let Some(kv) = view.kvs.iter().find(|kv| kv.modified > view.at) {
        wrong.push(format!("{kv:?} is newer than the read"));
    }
    if view.limit > 0 && view.kvs.len() as u64 > view.limit {
        wrong.push(format!("{} keys, the limit is {}", view.kvs.len(), view.limit));
    }
}

fn contents(view: &ReadView<'_>, expected: &Expected<'_>, wrong: &mut Vec<String>) {
    let truncated = match view.totals {
        Some((_, more)) => more,
        None => false,
    };
    let last = view.kvs.last().map(|kv| &kv.key);
    let shown = |key: &Key| -> Option<&KeyValue> {
        view.kvs.binary_search_by(|kv| kv.key.cmp(key)).ok().map(|index| &view.kvs[index])
    };
    for (key, entry) in &expected.present {
        let beyond_the_page = truncated && last.is_none_or(|last| *key > last);
        match shown(key) {
            None if beyond_the_page => {}
            None => wrong.push(format!("misses {key}: {entry:?}")),
            Some(kv) if !entry.shows(kv) => wrong.push(format!("shows {kv:?} instead of {entry:?}")),
            Some(_) => {}
        }
    }
    for kv in view.kvs {
        let known = expected.present.binary_search_by(|(key, _)| (*key).cmp(&kv.key)).is_ok();
        if !known && !expected.open && !expected.uncertain.contains(&&kv.key) {
            wrong.push(format!("shows {kv:?}, which does not exist then"));
        }
    }
    let full = view.limit > 0 && view.kvs.len() as u64 == view.limit;
    if truncated && !full {
        wrong.push(format!("more, with {} keys under a limit of {}", view.kvs.len(), view.limit));
    }
}

fn totals(view: &ReadView<'_>, expected: &Expected<'_>, wrong: &mut Vec<String>) {
    let Some((count, more)) = view.totals else { return };
    let least = i64::try_from(expected.present.len()).unwrap_or(i64::MAX);
    let most = least.saturating_add(i64::try_from(expected.uncertain.len()).unwrap_or(i64::MAX));
    if count < least || (count > most && !expected.open) {
        wrong.push(format!("count {count}, there are {least} to {most} keys"));
    }
    let shown = i64::try_from(view.kvs.len()).unwrap_or(i64::MAX);
    if !view.count_only && more != (shown < count) {
        wrong.push(format!("more is {more} with {shown} of {count} keys"));
    }
}
