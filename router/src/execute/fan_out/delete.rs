//! `DeleteRange` over several stores. Each store deletes a run of neighbouring keys atomically; the parts run one after
//! another in key order, those of a ring store by store. The whole is not atomic: when a part fails, the parts before
//! it stay deleted, the rest is not tried, and the error says so. Sending the request again deletes the rest.
//!
//! While keys move, a store may refuse a part. Then all parts that are not done are placed again by the newest map.
//! Parts that are done are not repeated, even if their keys have moved since: that would delete keys that were written
//! afterwards, and falsify the count.

use std::collections::VecDeque;

use bytes::Bytes;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;
use kindred_partition_config::unit::{Unit, UnitBuckets};
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::parts::Piece;
use kindred_router_core::store::StoreIx;
use kindred_wire::kv::{KeyValueRef, put_deleted, put_deleted_prev_kv};
use kindred_wire::peek::{self, ResponseHeader};
use kindred_wire::scan::{Fields, WireError};
use prost::Message as _;
use tonic::Status;

use super::{malformed, undecodable};
use crate::execute::{Deadline, Effect, by_map, call, of_buckets, order};
use crate::not_owned::NotOwned;
use crate::routing::Routing;
use crate::stores::Stores;
use crate::waiting::Waiting;

/// The combined result of the parts.
#[derive(Debug, Default)]
struct Deleted {
    revision: i64,
    count: i64,
    /// (key, encoded key-value) in the order of the parts.
    previous: Vec<(Bytes, Bytes)>,
}

impl Deleted {
    fn add(&mut self, answer: &Bytes) -> Result<(), WireError> {
        self.revision = self.revision.max(peek::header_revision(answer)?);
        for field in Fields::new(answer) {
            let field = field?;
            match field.number {
                2 => self.count += field.varint()?.cast_signed(),
                3 => {
                    let encoded = field.bytes()?;
                    let key = KeyValueRef::parse(encoded)?.key;
                    self.previous.push((answer.slice_ref(key), answer.slice_ref(encoded)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn answer(mut self) -> Bytes {
        // Parts are in key order, but the stores of a ring interleave.
        self.previous.sort_by(|a, b| a.0.cmp(&b.0));
        let mut body = Vec::new();
        ResponseHeader { revision: self.revision, ..Default::default() }.put(&mut body);
        put_deleted(&mut body, self.count);
        self.previous.iter().for_each(|(_, encoded)| put_deleted_prev_kv(&mut body, &encoded[..]));
        body.into()
    }
}

/// What a delete uses of a router and its stores.
pub trait Deleting {
    /// The pieces of a range without these units, placed by the newest map, and the generation of that map.
    fn left_of(&self, range: &KeyRange, done: &[Unit]) -> (VecDeque<Piece>, Epoch);
    /// Whether a store is there.
    ///
    /// # Errors
    /// The status of one that is away.
    fn ready(&self, store: StoreIx) -> Result<(), Status>;
    /// The store's name, for people.
    fn name(&self, store: StoreIx) -> String;
    /// The revision that the answer must have at least.
    fn min_revision(&self) -> Revision;
    /// Deletes what the request says of these buckets at a store, by the map of this generation.
    fn delete(
        &self,
        store: StoreIx,
        request: Bytes,
        buckets: Option<&UnitBuckets>,
        min_revision: Revision,
        generation: Epoch,
    ) -> impl Future<Output = Result<Bytes, Status>>;
    /// Waits for a newer map than the one of this generation, or a little.
    ///
    /// # Errors
    /// When the client does not wait so long.
    fn wait(&mut self, generation: Epoch) -> impl Future<Output = Result<(), Status>>;
    /// Notes that the client sees this revision of the last store, and returns when all stores of the Kinds stand there (R22).
    fn show(&self, last: StoreIx, revision: Revision) -> impl Future<Output = ()>;
}

/// A `DeleteRange` over several stores.
///
/// # Errors
/// The error of the first part that failed, with what was deleted before it.
pub async fn delete_over(stores: &mut impl Deleting, body: Bytes) -> Result<Bytes, Status> {
    let request = pb::DeleteRangeRequest::decode(body).map_err(|error| undecodable(&error))?;
    let range = KeyRange::from_wire(request.key.clone(), request.range_end.clone());
    // Units that are done: one that moves to a store whose turn is still to come must not be deleted again.
    let mut done = Done::default();
    let (mut left, mut generation) = stores.left_of(&range, &done.units);
    // If a store is known to be away, the whole fails before anything is deleted.
    left.iter().try_for_each(|piece| stores.ready(piece.store))?;
    let (mut deleted, mut last) = (Deleted::default(), None);
    while let Some(piece) = left.pop_front() {
        let name = stores.name(piece.store);
        let (key, range_end) = piece.range.to_wire();
        let part = pb::DeleteRangeRequest { key, range_end, prev_kv: request.prev_kv };
        let part = Bytes::from(part.encode_to_vec());
        // Each part gets a revision above the parts before it, so that the header is the last part's.
        let min_revision = stores.min_revision().max(Revision(deleted.revision));
        match stores.delete(piece.store, part, piece.buckets.as_ref(), min_revision, generation).await {
            Ok(answer) => {
                deleted.add(&answer).map_err(malformed)?;
                last = Some(piece.store);
                done.add(&name, piece.units);
            }
            // Nothing was executed yet, so the caller can plan the whole anew.
            Err(status) if done.units.is_empty() => return Err(status),
            Err(status) if NotOwned::of(&status).is_some() => {
                if let Err(status) = stores.wait(generation).await {
                    return Err(partly(&done.stores, deleted.count, &name, status));
                }
                (left, generation) = stores.left_of(&range, &done.units);
            }
            Err(status) => return Err(partly(&done.stores, deleted.count, &name, status)),
        }
    }
    if let Some(last) = last {
        stores.show(last, Revision(deleted.revision)).await;
    }
    Ok(deleted.answer())
}

/// The stores of a router, for one delete.
struct Calls<'a> {
    stores: &'a Stores,
    routing: &'a Routing,
    spread: &'a [KindPrefix],
    body: Bytes,
    deadline: Deadline,
    waiting: Waiting<'a>,
}

impl Deleting for Calls<'_> {
    fn left_of(&self, range: &KeyRange, done: &[Unit]) -> (VecDeque<Piece>, Epoch) {
        let routes = self.routing.load();
        (routes.pieces_left(range, done).into(), routes.generation())
    }

    fn ready(&self, store: StoreIx) -> Result<(), Status> {
        self.stores.get(store).ready()
    }

    fn name(&self, store: StoreIx) -> String {
        self.stores.get(store).name().to_owned()
    }

    fn min_revision(&self) -> Revision {
        self.routing.min_revision(self.spread)
    }

    async fn delete(
        &self,
        store: StoreIx,
        request: Bytes,
        buckets: Option<&UnitBuckets>,
        min_revision: Revision,
        generation: Epoch,
    ) -> Result<Bytes, Status> {
        let store = self.stores.get(store);
        call(store, Effect::Write, self.deadline, || async {
            let request = by_map(self.deadline.min_revision(request.clone(), min_revision), generation);
            store.kv().delete_range(of_buckets(request, buckets)).await
        })
        .await
    }

    async fn wait(&mut self, generation: Epoch) -> Result<(), Status> {
        self.waiting.wait(generation, &self.body).await
    }

    async fn show(&self, last: StoreIx, revision: Revision) {
        self.routing.show(self.spread, revision);
        order::keep(self.routing, self.spread, last, revision).await;
    }
}

/// As [`delete_over`], at these stores, for a client with this deadline.
///
/// # Errors
/// As [`delete_over`].
pub async fn delete_at(
    (stores, routing): (&Stores, &Routing),
    spread: &[KindPrefix],
    body: Bytes,
    deadline: Deadline,
) -> Result<Bytes, Status> {
    let waiting = Waiting::new(routing, Effect::Write, deadline.at());
    let mut calls = Calls { stores, routing, spread, body: body.clone(), deadline, waiting };
    delete_over(&mut calls, body).await
}

/// The parts that are done.
#[derive(Debug, Default)]
struct Done {
    units: Vec<Unit>,
    /// The stores that executed them, each once.
    stores: Vec<String>,
}

impl Done {
    fn add(&mut self, store: &str, mut units: Vec<Unit>) {
        self.units.append(&mut units);
        if !self.stores.iter().any(|name| name == store) {
            self.stores.push(store.to_owned());
        }
    }
}

/// The error for a failed part. If nothing was done before it, it is that store's error unchanged, so that clients
/// treat it as they would treat a single store's.
fn partly(done: &[String], count: i64, failed: &str, status: Status) -> Status {
    if done.is_empty() {
        return status;
    }
    let deleted = match count {
        1 => format!("1 key on {done:?} is deleted"),
        _ => format!("{count} keys on {done:?} are deleted"),
    };
    let text = format!(
        "kindred: the delete is partly done: {deleted}, store {failed:?} failed and the rest \
         was not tried ({}); send it again",
        status.message()
    );
    Status::new(status.code(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_named() {
        let failed = || Status::unavailable("kindred: store \"c\" is away");
        assert_eq!(partly(&[], 0, "c", failed()).message(), failed().message());
        let status = partly(&["a".to_owned(), "b".to_owned()], 12, "c", failed());
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert!(status.message().contains("12 keys on [\"a\", \"b\"] are deleted"), "{status:?}");
        assert!(
            partly(&["a".to_owned()], 1, "c", failed()).message().contains("1 key on [\"a\"] is deleted")
        );
        assert!(!kindred_wire::refusal::clients_resend_writes_on(status.message()));
    }

    #[test]
    fn answers_add_up_in_key_order() {
        let kv =
            |key: &str| kindred_proto::mvccpb::KeyValue { key: key.to_owned().into(), ..Default::default() };
        let part = |revision: i64, keys: &[&str]| {
            let header = pb::ResponseHeader { revision, ..Default::default() };
            let prev_kvs: Vec<_> = keys.iter().map(|key| kv(key)).collect();
            let deleted = prev_kvs.len() as i64;
            Bytes::from(pb::DeleteRangeResponse { header: Some(header), deleted, prev_kvs }.encode_to_vec())
        };
        let mut deleted = Deleted::default();
        deleted.add(&part(7, &["b", "d"])).unwrap();
        deleted.add(&part(5, &["a", "c"])).unwrap();
        let answer = pb::DeleteRangeResponse::decode(deleted.answer()).unwrap();
        let keys: Vec<_> = answer.prev_kvs.iter().map(|kv| kv.key.as_ref()).collect();
        assert_eq!((answer.deleted, keys), (4, vec![b"a".as_ref(), b"b", b"c", b"d"]));
        assert_eq!(answer.header.unwrap().revision, 7);
    }
}
