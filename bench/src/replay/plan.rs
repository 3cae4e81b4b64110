//! When each recorded request is sent again. The plan keeps the recorded intervals, and what did not overlap in the
//! trace does not overlap now where the order matters: on one connection, at one key, and for one lease.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use kindred_proto::etcdserverpb::{TxnRequest, request_op};

use super::line::{Recorded, Request};

/// How fast a trace is replayed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// So many times as fast as it was recorded.
    Times(f64),
    /// Without any intervals.
    Max,
}

impl Speed {
    /// Reads `2`, `0.5` or `max`.
    ///
    /// # Errors
    /// What to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        match text.parse::<f64>() {
            Ok(times) if times.is_finite() && (1e-3..=1e6).contains(&times) => Ok(Self::Times(times)),
            _ => Err("write a number from 0.001 to 1000000, such as 2 for twice as fast, or max".to_owned()),
        }
    }

    fn scaled(self, micros: u64) -> Duration {
        match self {
            Self::Times(times) => Duration::from_micros(micros).div_f64(times),
            Self::Max => Duration::ZERO,
        }
    }
}

/// Those whose order matters to each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Group {
    /// All requests but watches.
    All,
    Connection(usize),
    Key(Bytes),
    Lease(i64),
    /// Writes of ranges of keys.
    Wide,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The request with this number is sent.
    Send(usize),
    /// The watch of the request with this number is closed.
    Close(usize),
}

/// One thing to do.
#[derive(Debug, Clone)]
pub struct Step {
    /// The time since the beginning.
    pub due: Duration,
    pub action: Action,
    /// The groups of which so many members, in the order in which they ended in the trace, must have ended before.
    after: Vec<(usize, usize)>,
    /// Its own places in groups, in that order.
    places: Vec<(usize, usize)>,
}

/// All steps in the order in which they are due.
#[derive(Debug, Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// The number of clients' connections in the trace.
    pub connections: usize,
    /// The connection of each request.
    pub connection_of: Vec<usize>,
    /// The sizes of groups.
    groups: Vec<usize>,
}

/// What a request writes, or must be in order with.
#[derive(Debug, Default)]
struct Touched {
    keys: BTreeSet<Bytes>,
    wide: bool,
    writes: bool,
    leases: BTreeSet<i64>,
}

impl Touched {
    fn by(recorded: &Recorded, request: &Request) -> Self {
        let mut touched = Self { writes: true, ..Self::default() };
        match request {
            Request::Put(put) => {
                touched.keys.insert(put.key.clone());
                touched.leases.insert(put.lease);
            }
            Request::DeleteRange(delete) if delete.range_end.is_empty() => {
                touched.keys.insert(delete.key.clone());
            }
            Request::DeleteRange(_) => touched.wide = true,
            Request::Txn(txn) => touched.txn(txn),
            Request::LeaseGrant(grant) => {
                touched.leases.extend([grant.id, recorded.lease.unwrap_or_default()])
            }
            Request::LeaseRevoke(revoke) => drop(touched.leases.insert(revoke.id)),
            Request::LeaseKeepAlive(renew) => drop(touched.leases.insert(renew.id)),
            Request::Range(_) | Request::RangeStream(_) | Request::Watch(_) => touched.writes = false,
        }
        touched.leases.remove(&0);
        touched
    }

    fn txn(&mut self, txn: &TxnRequest) {
        for compare in &txn.compare {
            self.wide |= !compare.range_end.is_empty();
            self.keys.insert(compare.key.clone());
        }
        for op in txn.success.iter().chain(&txn.failure) {
            match &op.request {
                Some(request_op::Request::RequestPut(put)) => {
                    self.keys.insert(put.key.clone());
                    self.leases.insert(put.lease);
                }
                Some(request_op::Request::RequestDeleteRange(delete)) => {
                    self.wide |= !delete.range_end.is_empty();
                    self.keys.insert(delete.key.clone());
                }
                Some(request_op::Request::RequestTxn(txn)) => self.txn(txn),
                Some(request_op::Request::RequestRange(_)) | None => {}
            }
        }
    }
}

/// Numbers for groups and their members' ends.
#[derive(Debug, Default)]
struct Groups {
    numbers: HashMap<Group, usize>,
    /// The ends of the members of each group, with the members; sorted once all are there.
    ends: Vec<Vec<(u64, usize)>>,
}

impl Groups {
    fn number(&mut self, group: Group) -> usize {
        let next = self.numbers.len();
        let number = *self.numbers.entry(group).or_insert(next);
        if number == next {
            self.ends.push(Vec::new());
        }
        number
    }

    /// How many members had ended by this time.
    fn ended_by(&self, group: usize, time: u64) -> usize {
        self.ends[group].partition_point(|(end, _)| *end <= time)
    }
}

impl Plan {
    /// The plan of the requests that can be made.
    pub fn of(trace: &[Recorded], speed: Speed) -> Self {
        let mut plan = Self::default();
        let (mut groups, mut names) = (Groups::default(), HashMap::new());
        let (all, wide) = (groups.number(Group::All), groups.number(Group::Wide));
        // For each request, the groups that it is in or waits for.
        let mut of = Vec::with_capacity(trace.len());
        for (at, recorded) in trace.iter().enumerate() {
            let next = names.len();
            let connection = *names.entry(recorded.connection.as_str()).or_insert(next);
            plan.connection_of.push(connection);
            let Ok(request) = &recorded.request else {
                of.push((Vec::new(), Vec::new()));
                continue;
            };
            let touched = Touched::by(recorded, request);
            let mut member = vec![groups.number(Group::Connection(connection))];
            member.extend(touched.keys.into_iter().map(|key| groups.number(Group::Key(key))));
            member.extend(touched.leases.into_iter().map(|lease| groups.number(Group::Lease(lease))));
            let mut waits = member.clone();
            if touched.wide {
                waits.push(all);
                member.push(wide);
            } else if touched.writes {
                waits.push(wide);
            }
            member.push(all);
            if matches!(request, Request::Watch(_)) {
                // Nothing waits for the end of a watch.
                member.clear();
            }
            member.iter().for_each(|group| groups.ends[*group].push((recorded.ends, at)));
            of.push((member, waits));
        }
        groups.ends.iter_mut().for_each(|ends| ends.sort_unstable());
        plan.connections = names.len();
        plan.groups = groups.ends.iter().map(Vec::len).collect();
        let start = beginning(trace);
        for (at, (recorded, (member, waits))) in trace.iter().zip(&of).enumerate() {
            let Ok(request) = &recorded.request else { continue };
            let by = |group: &usize, time| {
                Some((*group, groups.ended_by(*group, time))).filter(|(_, count)| *count > 0)
            };
            let place = |group: &usize| {
                let found = groups.ends[*group].binary_search(&(recorded.ends, at));
                (*group, found.expect("it was put there"))
            };
            let due = |time: u64| speed.scaled(time.saturating_sub(start));
            plan.steps.push(Step {
                due: due(recorded.begins),
                action: Action::Send(at),
                after: waits.iter().filter_map(|group| by(group, recorded.begins)).collect(),
                places: member.iter().map(place).collect(),
            });
            if matches!(request, Request::Watch(_)) {
                plan.steps.push(Step {
                    due: due(recorded.ends),
                    action: Action::Close(at),
                    after: by(&all, recorded.ends).into_iter().collect(),
                    places: Vec::new(),
                });
            }
        }
        // Without intervals as well, what began earlier is sent earlier.
        let began = |step: &Step| match step.action {
            Action::Send(at) => (step.due, trace[at].begins, 0),
            Action::Close(at) => (step.due, trace[at].ends, 1),
        };
        plan.steps.sort_by_key(began);
        plan
    }
}

/// The beginning of the trace. A watch may have begun long before it.
fn beginning(trace: &[Recorded]) -> u64 {
    let made = || trace.iter().filter(|recorded| recorded.request.is_ok());
    let calls = made().filter(|recorded| !matches!(recorded.request, Ok(Request::Watch(_))));
    let first = calls.map(|recorded| recorded.begins).min();
    first.or_else(|| made().map(|recorded| recorded.ends).min()).unwrap_or_default()
}

/// How far a group is: so many of its members have ended, in the order of the trace, and these behind them.
#[derive(Debug, Default)]
struct Progress {
    ended: usize,
    behind: BTreeSet<usize>,
    /// Steps that wait for a number.
    waiting: BTreeMap<usize, Vec<usize>>,
}

/// Says which steps may be taken, as time passes and requests end.
#[derive(Debug)]
pub struct Schedule {
    groups: Vec<Progress>,
    /// For each step, the groups that are not as far as it needs, and whether it is due.
    missing: Vec<(usize, bool)>,
}

impl Schedule {
    pub fn of(plan: &Plan) -> Self {
        let mut groups: Vec<Progress> = plan.groups.iter().map(|_| Progress::default()).collect();
        for (at, step) in plan.steps.iter().enumerate() {
            for (group, count) in &step.after {
                groups[*group].waiting.entry(*count).or_default().push(at);
            }
        }
        let missing = plan.steps.iter().map(|step| (step.after.len(), false)).collect();
        Self { groups, missing }
    }

    /// A step is due. Returns whether it may be taken now; if not, `ended` returns it later.
    pub fn due(&mut self, step: usize) -> bool {
        self.missing[step].1 = true;
        self.missing[step].0 == 0
    }

    /// A request has ended. Returns the steps that are due and that nothing holds back any more.
    pub fn ended(&mut self, step: &Step) -> Vec<usize> {
        let mut free = Vec::new();
        for (group, place) in &step.places {
            let group = &mut self.groups[*group];
            group.behind.insert(*place);
            while group.behind.remove(&group.ended) {
                group.ended += 1;
            }
            while let Some(first) = group.waiting.first_entry().filter(|first| *first.key() <= group.ended) {
                for waiting in first.remove() {
                    let (missing, due) = &mut self.missing[waiting];
                    *missing -= 1;
                    if *missing == 0 && *due {
                        free.push(waiting);
                    }
                }
            }
        }
        free
    }
}

#[cfg(test)]
mod tests;
