//! Clients that read: keys, lists in pages, lists in the past and in the future, and kube-apiserver's probe.

use std::rc::Rc;

use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::{Key, KeyRange};
use kindred_proto::etcdserverpb as pb;
use kindred_proto::mvccpb::KeyValue;
use kindred_router_core::plan::Placement;

use super::Clients;
use crate::history::{Item, Read, ReadAnswer};
use crate::router::Fail;
use crate::router::reads::Ask;
use crate::world::{MS, Micros, SECOND};

fn answered(result: Result<pb::RangeResponse, Fail>) -> ReadAnswer {
    match result {
        Ok(answer) => {
            let item = |kv: KeyValue| Item {
                key: kv.key.to_vec(),
                modified: Revision(kv.mod_revision),
                create: Revision(kv.create_revision),
                version: kv.version,
                value: kv.value.to_vec(),
            };
            ReadAnswer::Data {
                header: Revision(answer.header.map_or(0, |header| header.revision)),
                items: answer.kvs.into_iter().map(item).collect(),
                count: u64::try_from(answer.count).expect("not negative"),
                more: answer.more,
            }
        }
        Err(Fail::Compacted) => ReadAnswer::Compacted,
        Err(Fail::Future) => ReadAnswer::Future,
        Err(_) => ReadAnswer::Failed,
    }
}

impl Clients {
    pub async fn list(&self, router: usize, ask: Ask, page_after: Option<Micros>) -> ReadAnswer {
        let asked = ask.clone();
        let (result, times) = self.ask(router, move |router| async move { router.range(&asked).await }).await;
        let answer = answered(result);
        if let ReadAnswer::Data { header, items, .. } = &answer {
            self.saw(ask.kind, *header);
            self.world.note(format_args!(
                "list of {:?} at {:?} limit {}: {} keys, header {header}",
                ask.range,
                ask.revision,
                ask.limit,
                items.len()
            ));
        } else {
            self.world.note(format_args!("list of {:?} at {:?}: {answer:?}", ask.range, ask.revision));
        }
        let Ask { kind, range, revision, limit, descending } = ask;
        self.history.write().reads.push(Read {
            times,
            kind,
            range,
            asked: revision,
            limit,
            descending,
            page_after,
            held_micros: self
                .net
                .shards()
                .iter()
                .map(|shard| shard.wall.highest(self.world.now()))
                .max()
                .unwrap_or(0),
            answer: answer.clone(),
        });
        answer
    }

    fn any_ask(&self) -> Ask {
        let kind = self.any_kind();
        let mut ask = Ask {
            kind,
            range: self.any_range(kind),
            revision: None,
            limit: *self.world.pick(&[0, 0, 1, 2, 5]),
            descending: self.world.chance(15),
        };
        let seen = self.seen.borrow()[kind].clone();
        match self.world.below(20) {
            0..=3 => ask.range = KeyRange::Single(self.any_key(kind)),
            4..=5 => {
                // kube-apiserver's probe reads the Kind's pseudo-key.
                let KeyRange::Span { start, .. } = self.topology.kind_range(kind) else { return ask };
                ask.range = KeyRange::Single(Key::copy_from(&start[..start.len() - 1]));
            }
            6..=9 if !seen.is_empty() => ask.revision = Some(*self.world.pick(&seen)),
            10..=12 => {
                let ahead = *self.world.pick(&[1, 1 << 10, 1 << 20, 1 << 33]);
                let base = seen.iter().max().copied().unwrap_or(Revision(1));
                ask.revision = Some(Revision(base.get() + ahead));
                if self.world.chance(50) {
                    ask.range = KeyRange::Single(self.any_key(kind));
                }
            }
            _ => {}
        }
        ask
    }
}

/// Makes so many lists.
pub async fn run(clients: Rc<Clients>, lists: usize) {
    for _ in 0..lists {
        clients.pause().await;
        if clients.over.get() {
            return;
        }
        let ask = clients.any_ask();
        let mut router = clients.any_router();
        let began = clients.world.now();
        let first = clients.list(router, ask.clone(), None).await;
        // The other pages are read at the first one's revision, maybe through another router.
        let ReadAnswer::Data { header, mut items, mut more, .. } = first else { continue };
        let at = ask.revision.unwrap_or(header);
        let Some((_, routes)) = clients.history.read().maps.last().cloned() else { continue };
        let parts = routes.parts_of(&ask.range);
        let mut stores: Vec<_> = parts.into_iter().flat_map(|part| part.stores).collect();
        stores.dedup();
        let pinned = ask.revision.is_none() && stores.len() > 1;
        while more && !clients.over.get() {
            let slow = if clients.world.chance(5) { SECOND } else { MS };
            clients.world.sleep(clients.world.between(10, slow)).await;
            if clients.world.chance(30) {
                router = clients.any_router();
            }
            let (Some(last), KeyRange::Span { start, end }) = (items.last(), &ask.range) else { break };
            let last = Key::copy_from(&last.key);
            let range = if ask.descending {
                KeyRange::Span { start: start.clone(), end: Some(last) }
            } else {
                KeyRange::Span { start: last.successor(), end: end.clone() }
            };
            let page = Ask { range, revision: Some(at), ..ask.clone() };
            let page_after = pinned.then(|| clients.world.now() - began);
            match clients.list(router, page, page_after).await {
                ReadAnswer::Data { items: next, more: further, .. } => (items, more) = (next, further),
                _ => break,
            }
        }
    }
}
