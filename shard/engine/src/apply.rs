//! Executes requests: the only code that changes keys. A request is atomic and has one revision.
//!
//! As in etcd, all compares of a transaction, nested ones included, are evaluated on the state before it. Everything
//! that can be refused is checked before the first change, so a refused request changes nothing and an accepted one
//! runs to its end. Operations see what earlier operations of the same transaction did.

use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::{Key, KeyRange},
};

use crate::{
    clock::Clock,
    durability::AnswerWaits,
    error::EngineError,
    lease::LeaseTable,
    ops::{Compare, Delete, Op, OpAnswer, Put, Txn, TxnAnswer},
    read::{self},
    space::{Scope, Space},
    types::{LATEST, WallMicros},
    units::table::View,
    version::{NewVersion, Version},
};

/// The engine's state that a request works on.
pub(crate) struct Applier<'a> {
    pub space: &'a mut Space,
    pub clock: &'a mut Clock,
    pub leases: &'a mut LeaseTable,
    pub now: WallMicros,
    /// The least revision that the answer shows; the clock has reached it.
    pub min_revision: Revision,
    /// Set to what the answer waits for.
    pub waits: &'a mut AnswerWaits,
}

/// A request in execution.
struct Run<'a, 'b> {
    on: &'b mut Applier<'a>,
    /// The current revision before the request.
    begin: Revision,
    /// The request's revision, once it has written something.
    assigned: Option<Revision>,
    changes: u32,
}

impl Applier<'_> {
    pub(crate) fn apply(mut self, op: Op) -> Result<OpAnswer, EngineError> {
        let mut path = Vec::new();
        if let Op::Txn(txn) = &op {
            decide(self.space, txn, &mut path);
        }
        let mut touched = Vec::new();
        touch(&op, &mut path.iter(), &mut touched);
        touched.iter().try_for_each(|range| self.space.check_write(range, None))?;
        if matches!(op, Op::Txn(_)) {
            self.space.check_modes(&touched)?;
        }
        let scopes: Vec<Scope> = touched.iter().map(|range| self.space.scope(range)).collect();
        let begin = scopes.iter().map(|scope| self.space.applied(scope)).max().unwrap_or(Revision::ZERO);
        // A transaction without operations shows the current revision of everything.
        let begin = if scopes.is_empty() { self.space.applied(&self.space.everything()) } else { begin };
        let begin = begin.max(self.min_revision);
        self.check(&op, &mut path.iter(), begin)?;

        let mut run = Run { on: &mut self, begin, assigned: None, changes: 0 };
        let mut answer = run.execute(op, &mut path.iter());
        let header = run.assigned.unwrap_or(begin);
        if let OpAnswer::Txn(txn) = &mut answer {
            txn.header = header;
        }
        // All ranges of the request become readable at the revision in the answer's header.
        let single = matches!(scopes.as_slice(), [Scope::One(_)]);
        if !single || self.space.applied(&scopes[0]) < header {
            for range in &touched {
                let scope = self.space.scope_to_raise(range);
                self.space.raise_applied(&scope, header);
            }
        }
        if self.space.some_wait() {
            *self.waits = self.space.waits_of(touched);
        }
        Ok(answer)
    }

    /// Deletes the keys of an ended lease that exist, in this order, at one revision. `None` when there are none.
    pub(crate) fn delete_keys(mut self, keys: &[Key]) -> Option<Revision> {
        let mut run = Run { on: &mut self, begin: Revision::ZERO, assigned: None, changes: 0 };
        for key in keys {
            if run.on.space.get(key).is_some() {
                run.delete_one(key);
            }
        }
        let assigned = run.assigned;
        if self.space.some_wait() {
            *self.waits = self.space.waits_of(keys.iter().cloned().map(KeyRange::Single));
        }
        assigned
    }

    fn check<'p>(
        &self,
        op: &Op,
        path: &mut impl Iterator<Item = &'p bool>,
        begin: Revision,
    ) -> Result<(), EngineError> {
        match op {
            Op::Range(query) => {
                read::check_revision(query.revision, self.space.floor_of(&query.range), begin)?;
                self.space.check_gaps(&query.range, query.revision, &View::Now)
            }
            Op::Put(put) => {
                self.check_ceiling()?;
                self.check_put(put)
            }
            Op::Delete(_) => self.check_ceiling(),
            Op::Txn(txn) => taken(txn, path).iter().try_for_each(|op| self.check(op, path, begin)),
        }
    }

    /// Refuses to assign at or above the ceiling (R2); the caller waits until it is raised.
    fn check_ceiling(&self) -> Result<(), EngineError> {
        if self.clock.may_assign(self.now) {
            Ok(())
        } else {
            Err(EngineError::Ceiling { ceiling: self.clock.ceiling() })
        }
    }

    fn check_put(&self, put: &Put) -> Result<(), EngineError> {
        if let Some(lease) = put.lease
            && !self.leases.contains(lease)
        {
            return Err(EngineError::LeaseNotFound(lease));
        }
        if (put.ignore_value || put.ignore_lease) && self.space.get(&put.key).is_none() {
            return Err(EngineError::KeyNotFound);
        }
        Ok(())
    }
}

impl Run<'_, '_> {
    fn execute(&mut self, op: Op, path: &mut dyn Iterator<Item = &bool>) -> OpAnswer {
        match op {
            Op::Range(query) => {
                // As in etcd, a negative revision that passes the check (nothing was compacted) reads the present.
                let at = query.revision.filter(|at| *at > Revision::ZERO).unwrap_or(LATEST);
                OpAnswer::Range(read::execute(self.on.space, &query, at, self.header(), &View::Now, None))
            }
            Op::Put(put) => self.put(put),
            Op::Delete(delete) => self.delete(&delete),
            Op::Txn(txn) => {
                let succeeded = path.next().copied().unwrap_or(false);
                let ops = if succeeded { txn.success } else { txn.failure };
                let responses = ops.into_iter().map(|op| self.execute(op, path)).collect();
                // etcd leaves a nested transaction's header empty. The outermost header is set at the end.
                OpAnswer::Txn(TxnAnswer { header: Revision::ZERO, succeeded, responses })
            }
        }
    }

    fn header(&self) -> Revision {
        self.assigned.unwrap_or(self.begin)
    }

    /// The request's revision, and the position of the next change in it.
    fn assign(&mut self) -> (Revision, u32) {
        let revision = *self.assigned.get_or_insert_with(|| self.on.clock.assign(self.on.now));
        let sub = self.changes;
        self.changes += 1;
        (revision, sub)
    }

    fn put(&mut self, put: Put) -> OpAnswer {
        let (revision, sub) = self.assign();
        let prev = self.on.space.get(&put.key).cloned();
        let old_lease = prev.as_ref().and_then(Version::lease_id);
        let kept = prev.as_ref().filter(|_| put.ignore_value).map(Version::value);
        let value = kept.as_deref().unwrap_or(&put.value);
        let lease = if put.ignore_lease { old_lease } else { put.lease };
        let version = Version::put(&NewVersion {
            key: &put.key,
            value,
            create: prev.as_ref().map_or(revision, Version::create_revision),
            modified: revision,
            sub,
            version: prev.as_ref().map_or(1, |prev| prev.version() + 1),
            lease,
        });
        self.on.space.write(version);
        self.move_lease(&put.key, old_lease, lease);
        OpAnswer::Put { header: revision, prev: prev.filter(|_| put.prev_kv) }
    }

    fn move_lease(&mut self, key: &Key, old: Option<LeaseId>, new: Option<LeaseId>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.on.leases.detach_key(old, key);
        }
        if let Some(new) = new {
            // A copy: the key may be a slice of the request's buffer, which must not live as long as the lease.
            let attached = self.on.leases.attach_key(new, &Key::copy_from(key));
            debug_assert!(attached.is_ok(), "checked before the request began");
        }
    }

    fn delete(&mut self, delete: &Delete) -> OpAnswer {
        let mut doomed = self.on.space.collect(&delete.range, LATEST, 0, &View::Now);
        if let Some(buckets) = delete.buckets {
            doomed.retain(|version| buckets.contain(version.key()));
        }
        for version in &doomed {
            self.delete_one(version.key());
        }
        let deleted = doomed.len() as u64;
        OpAnswer::Delete {
            header: self.header(),
            deleted,
            prev: if delete.prev_kv { doomed } else { Vec::new() },
        }
    }

    fn delete_one(&mut self, key: &[u8]) {
        let (revision, sub) = self.assign();
        let before = self.on.space.write(Version::tombstone(key, revision, sub));
        let lease = before.and_then(|version| version.lease_id());
        if let Some(lease) = lease {
            self.on.leases.detach_key(lease, &Key::copy_from(key));
        }
    }
}

/// The operations of the branch that a decided transaction takes.
fn taken<'t, 'p>(txn: &'t Txn, path: &mut impl Iterator<Item = &'p bool>) -> &'t [Op] {
    if path.next().copied().unwrap_or(false) { &txn.success } else { &txn.failure }
}

/// Decides the branch of a transaction and of those nested in the branches taken, in the order of their execution.
fn decide(space: &Space, txn: &Txn, path: &mut Vec<bool>) {
    let holds = txn.compares.iter().all(|compare| holds(space, compare));
    path.push(holds);
    for op in if holds { &txn.success } else { &txn.failure } {
        if let Op::Txn(nested) = op {
            decide(space, nested, path);
        }
    }
}

fn touch(op: &Op, path: &mut dyn Iterator<Item = &bool>, ranges: &mut Vec<KeyRange>) {
    match op {
        Op::Range(query) => ranges.push(query.range.clone()),
        Op::Put(put) => ranges.push(KeyRange::Single(put.key.clone())),
        Op::Delete(delete) => ranges.push(delete.range.clone()),
        Op::Txn(txn) => {
            let ops = if path.next().copied().unwrap_or(false) { &txn.success } else { &txn.failure };
            ranges.extend(txn.compares.iter().map(|compare| compare.range.clone()));
            for op in ops {
                touch(op, path, ranges);
            }
            // Transactions of kube-apiserver name only one key.
            ranges.dedup();
        }
    }
}

fn holds(space: &Space, compare: &Compare) -> bool {
    match &compare.range {
        KeyRange::Single(key) => compare.holds_for_all(space.get(key).map_or(&[], std::slice::from_ref)),
        range => compare.holds_for_all(&space.collect(range, LATEST, 0, &View::Now)),
    }
}
