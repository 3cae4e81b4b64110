//! Clients that write: puts, deletes, and optimistic transactions as kube-apiserver sends them.

use std::rc::Rc;

use kindred_engine::ops::{Compare, CompareResult, CompareTarget, Delete, Op, OpAnswer, Put, Txn, TxnAnswer};
use kindred_partition_config::ids::{LeaseId, Revision};
use kindred_partition_config::key::{Key, KeyRange};

use super::Clients;
use crate::history::{Times, Write, WriteAnswer};
use crate::router::Fail;

#[derive(Debug, Clone)]
pub enum What {
    Put(Option<LeaseId>),
    Delete,
    /// Writes the key if this is its mod revision.
    Update(Revision),
    /// Deletes the key if this is its mod revision.
    Remove(Revision),
}

fn put(key: &Key, value: String, lease: Option<LeaseId>) -> Op {
    Op::Put(Put {
        key: key.clone(),
        value: value.into(),
        lease,
        ignore_value: false,
        ignore_lease: false,
        prev_kv: false,
    })
}

fn guarded(key: &Key, at: Revision, then: Op) -> Op {
    let compare = Compare {
        range: KeyRange::Single(key.clone()),
        target: CompareTarget::Mod(at.get()),
        result: CompareResult::Equal,
    };
    let read = Op::Range(crate::router::reads::query(KeyRange::Single(key.clone()), None, 0));
    Op::Txn(Box::new(Txn { compares: vec![compare], success: vec![then], failure: vec![read] }))
}

fn answered(answer: Result<OpAnswer, Fail>) -> WriteAnswer {
    match answer {
        Ok(OpAnswer::Put { header, .. }) => WriteAnswer::Done(header),
        Ok(OpAnswer::Delete { header, deleted: 0, .. }) => WriteAnswer::Nothing(header),
        Ok(OpAnswer::Delete { header, .. }) => WriteAnswer::Done(header),
        Ok(OpAnswer::Txn(TxnAnswer { header, succeeded: true, responses })) => {
            let nothing = matches!(responses.as_slice(), [OpAnswer::Delete { deleted: 0, .. }]);
            if nothing { WriteAnswer::Nothing(header) } else { WriteAnswer::Done(header) }
        }
        Ok(OpAnswer::Txn(TxnAnswer { header, .. })) => WriteAnswer::Nothing(header),
        Ok(OpAnswer::Range(answer)) => WriteAnswer::Nothing(answer.header),
        Err(fail) => failed(fail),
    }
}

fn failed(fail: Fail) -> WriteAnswer {
    match fail {
        Fail::NoLease => WriteAnswer::NoLease,
        Fail::Unknown => WriteAnswer::Unknown,
        _ => WriteAnswer::Refused,
    }
}

impl Clients {
    /// One write of one key.
    pub async fn write(
        &self,
        router: usize,
        kind: usize,
        key: Key,
        value: String,
        what: What,
    ) -> WriteAnswer {
        let range = KeyRange::Single(key.clone());
        let lease = if let What::Put(lease) = what { lease } else { None };
        let op = match what {
            What::Put(lease) => put(&key, value, lease),
            What::Delete => Op::Delete(Delete { range: range.clone(), buckets: None, prev_kv: false }),
            What::Update(at) => guarded(&key, at, put(&key, value, None)),
            What::Remove(at) => {
                guarded(&key, at, Op::Delete(Delete { range: range.clone(), buckets: None, prev_kv: false }))
            }
        };
        let (result, times) =
            self.ask(router, move |router| async move { router.write(kind, &key, op, lease).await }).await;
        self.wrote(times, kind, range, lease, answered(result))
    }

    fn wrote(
        &self,
        times: Times,
        kind: usize,
        range: KeyRange,
        lease: Option<LeaseId>,
        answer: WriteAnswer,
    ) -> WriteAnswer {
        self.world.note(format_args!("write of {} {range:?}: {answer:?}", kind));
        if let WriteAnswer::Done(at) | WriteAnswer::Nothing(at) = answer {
            self.saw(kind, at);
        }
        self.history.write().writes.push(Write { times, kind, range, lease, answer });
        answer
    }
}

/// A writer, which makes so many writes.
pub async fn run(clients: Rc<Clients>, name: usize, writes: usize) {
    let mut known: Vec<(Key, Revision)> = Vec::new();
    for number in 0..writes {
        clients.pause().await;
        if clients.over.get() {
            return;
        }
        let (router, kind) = (clients.any_router(), clients.any_kind());
        if clients.world.chance(4) {
            let range = clients.any_range(kind);
            let asked = range.clone();
            let (result, times) = clients
                .ask(router, move |router| async move { router.delete_over(kind, &asked).await })
                .await;
            let answer = match result {
                Ok((at, 0)) => WriteAnswer::Nothing(at),
                Ok((at, _)) => WriteAnswer::Done(at),
                Err(fail) => failed(fail),
            };
            clients.wrote(times, kind, range, None, answer);
            continue;
        }
        let mut key = clients.any_key(kind);
        if let Some((of, _)) = known.last()
            && clients.topology.kind_of(of) == kind
            && clients.world.chance(50)
        {
            key = of.clone();
        }
        let last = known.iter().rfind(|(of, _)| *of == key).map_or(Revision::ZERO, |(_, at)| *at);
        let what = match clients.world.below(10) {
            0..=3 => What::Put(None),
            4 => What::Delete,
            5..=7 => What::Update(last),
            _ => What::Remove(last),
        };
        let value = format!("{name}.{number}");
        if let WriteAnswer::Done(at) = clients.write(router, kind, key.clone(), value, what).await {
            known.push((key, at));
        }
    }
}
