//! `DeleteRange` over several stores: one atomic part for each store and run of neighbouring keys, one after another in
//! key order, a ring's by store. Not atomic as a whole: when a part fails, those before it stay done, the rest is not
//! tried, and the error says so. Sending the request again deletes what is left.

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::plan::FanOut;
use kindred_wire::kv::{KeyValueRef, put_deleted, put_deleted_prev_kv};
use kindred_wire::peek::{self, ResponseHeader};
use kindred_wire::scan::{Fields, WireError};
use prost::Message as _;
use tonic::Status;

use super::ask::on_wire;
use super::{malformed, sources, undecodable};
use crate::app::App;
use crate::execute::{Deadline, Effect, call};

/// What the parts did together.
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
        // Parts follow each other in key order, but the stores of a ring interleave.
        self.previous.sort_by(|a, b| a.0.cmp(&b.0));
        let mut body = Vec::new();
        ResponseHeader { revision: self.revision, ..Default::default() }.put(&mut body);
        put_deleted(&mut body, self.count);
        self.previous.iter().for_each(|(_, encoded)| put_deleted_prev_kv(&mut body, encoded));
        body.into()
    }
}

impl App {
    /// A `DeleteRange` over several stores.
    ///
    /// # Errors
    /// The error of the first part that failed, with what was done before it.
    pub async fn delete_over(
        &self,
        fan_out: &FanOut,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Bytes, Status> {
        let request = pb::DeleteRangeRequest::decode(body).map_err(|error| undecodable(&error))?;
        let (sources, _) = sources(fan_out);
        // A store that is known to be away fails the whole before anything is done.
        sources.iter().try_for_each(|source| self.stores.get(source.store).ready())?;
        let mut deleted = Deleted::default();
        let mut done: Vec<&str> = Vec::new();
        for source in &sources {
            let store = self.stores.get(source.store);
            let (key, range_end) = on_wire(&source.range);
            let part = pb::DeleteRangeRequest { key, range_end, prev_kv: request.prev_kv };
            let bytes = Bytes::from(part.encode_to_vec());
            // Each part above those before it, so that the header is the last one's.
            let at_least = self.shown.of(&fan_out.spread).max(Revision(deleted.revision));
            let answer = call(store, Effect::Write, deadline, || async {
                store.kv().delete_range(deadline.at_least(bytes.clone(), at_least)).await
            });
            match answer.await {
                Ok(answer) => deleted.add(&answer).map_err(malformed)?,
                Err(status) => return Err(partly(&done, deleted.count, store.name(), status)),
            }
            if !done.contains(&store.name()) {
                done.push(store.name());
            }
        }
        self.shown.show(&fan_out.spread, Revision(deleted.revision));
        Ok(deleted.answer())
    }
}

/// The failure of a part: alone when nothing was done before, so that clients treat it as they would one store's.
fn partly(done: &[&str], count: i64, failed: &str, status: Status) -> Status {
    if done.is_empty() {
        return status;
    }
    let text = format!(
        "kindred: the delete is partly done: {count} keys on {done:?} are deleted, store {failed:?} failed and the rest \
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
        let status = partly(&["a", "b"], 12, "c", failed());
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert!(status.message().contains("12 keys on [\"a\", \"b\"] are deleted"), "{status:?}");
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
