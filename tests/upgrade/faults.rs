//! What clients were refused, and what the steps of an upgrade explain of it.
//!
//! docs/operations.md says what a step may do: the Kinds of a store without a standby are away while it restarts, and a
//! router that restarts breaks its connections. A handover between members may refuse a request that has waited for as
//! long as routers let it wait. Everything else is a fault.

use std::time::Duration;

use kindred_checker::history::Nanos;
use parking_lot::Mutex;

/// So long a request waits in a router for a store that changes hands (docs/high-availability.md).
const WAIT: Duration = Duration::from_secs(4);

/// Whom a step may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Struck {
    /// Nobody, but that requests may have waited for too long.
    Nobody,
    /// The Kinds with these prefixes, and what needs all stores: leases and compactions.
    Kinds(Vec<&'static str>),
    /// Whoever is connected to a router.
    Router,
}

/// A step that is over.
#[derive(Debug, Clone)]
struct Step {
    name: String,
    struck: Struck,
    began: Nanos,
    ended: Nanos,
}

/// A request that failed or whose outcome is not known.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The prefix of its Kind; none for what needs all stores.
    pub prefix: Option<&'static str>,
    pub call: Nanos,
    pub returned: Nanos,
    pub what: String,
}

/// The steps of a run, and the faults that its clients noted.
#[derive(Debug, Default)]
pub struct Faults {
    steps: Mutex<Vec<Step>>,
    noted: Mutex<Vec<Fault>>,
}

impl Faults {
    pub fn note(&self, fault: Fault) {
        self.noted.lock().push(fault);
    }

    pub fn stepped(&self, name: &str, struck: Struck, began: Nanos, ended: Nanos) {
        self.steps.lock().push(Step { name: name.to_owned(), struck, began, ended });
    }

    /// The faults that no step explains: of those that were noted, and of these.
    pub fn unexplained(&self, more: &[Fault]) -> Vec<String> {
        let steps = self.steps.lock();
        let noted = self.noted.lock();
        let mut said: Vec<String> = Vec::new();
        for fault in noted.iter().chain(more) {
            if steps.iter().any(|step| step.explains(fault)) {
                continue;
            }
            let during = steps.iter().find(|step| step.during(fault)).map_or("no step", |step| &step.name);
            let prefix = fault.prefix.unwrap_or("all stores");
            let took = fault.returned.0.saturating_sub(fault.call.0) / 1_000_000;
            said.push(format!("{prefix}, during {during}, after {took} ms: {}", fault.what));
        }
        said.sort();
        said.dedup();
        said
    }
}

impl Step {
    fn during(&self, fault: &Fault) -> bool {
        fault.call <= self.ended && fault.returned >= self.began
    }

    fn explains(&self, fault: &Fault) -> bool {
        let waited = u128::from(fault.returned.0.saturating_sub(fault.call.0)) >= WAIT.as_nanos();
        let struck = match &self.struck {
            Struck::Nobody => false,
            Struck::Kinds(prefixes) => fault.prefix.is_none_or(|prefix| prefixes.contains(&prefix)),
            Struck::Router => true,
        };
        self.during(fault) && (struck || waited)
    }
}
