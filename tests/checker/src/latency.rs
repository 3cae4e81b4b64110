//! Optional: no operation slower than a bound. A history cannot show why, but it can show that writes waited (B6:
//! slow watchers delay puts; B7, B10: a long operation stops the process).

use crate::history::{Nanos, Outcome};
use crate::report::{Check, Report};
use crate::watch::Context;

/// Compares every acknowledged operation with the bound.
pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    let Some(Nanos(bound)) = context.config.latency_max else { return };
    for operation in &context.history.operations {
        let took = operation.returned.0.saturating_sub(operation.call.0);
        if operation.outcome != Outcome::Unknown && took > bound {
            let message = format!("{} took {} ms", operation.id, took / 1_000_000);
            report.add(Check::Latency, message, vec![format!("{operation:?}")]);
        }
    }
}
