//! `kindred verify` prints a hash for each Kind. It covers the Kind's keys and values in key order, but not their
//! revisions, leases or shards, so a cluster restored from a backup has the same hashes.

use std::collections::BTreeMap;

use kindred_partition_config::kind::KindScheme;
use kindred_proto::mvccpb::KeyValue;
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use super::args::Through;
use super::etcd::Etcd;
use super::kinds::{OTHER, prefix_of};
use super::rate::Rate;
use super::snapshot::Snapshot;
use crate::admin::args::{Connect, Output};
use crate::admin::client::Client;
use crate::admin::output::{self, Table, bytes, count};
use crate::admin::{context, failure::Failure};

#[derive(Default)]
pub struct Contents {
    keys: u64,
    bytes: u64,
    hash: Xxh3,
}

impl Contents {
    /// Adds the next key in key order. Lengths are hashed as well, so that different contents never hash the same
    /// input.
    pub fn add(&mut self, kv: &KeyValue) {
        for part in [&kv.key, &kv.value] {
            self.hash.update(&(part.len() as u64).to_le_bytes());
            self.hash.update(part);
            self.bytes += part.len() as u64;
        }
        self.keys += 1;
    }

    #[must_use]
    pub fn hash(&self) -> String {
        format!("{:016x}", self.hash.digest())
    }
}

#[derive(Default)]
struct Kinds(BTreeMap<String, Contents>);

impl Kinds {
    fn add(&mut self, scheme: &KindScheme, kv: &KeyValue) {
        let kind = prefix_of(scheme, &kv.key).and_then(|prefix| scheme.kind_prefix(prefix.as_bytes()));
        let name = kind.map_or_else(|| OTHER.to_owned(), |kind| scheme.name_of(&kind));
        self.0.entry(name).or_default().add(kv);
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&["kind", "keys", "bytes", "hash"]);
        for (kind, contents) in &self.0 {
            table.row(vec![kind.clone(), count(contents.keys), bytes(contents.bytes), contents.hash()]);
        }
        table
    }

    fn json(&self) -> Vec<Value> {
        let shown = self.0.iter().map(|(kind, contents)| {
            json!({ "kind": kind, "keys": contents.keys, "bytes": contents.bytes, "hash": contents.hash() })
        });
        shown.collect()
    }
}

pub async fn run(through: &Through, outer: &Connect) -> Result<(), Failure> {
    let address = context::address(&through.connect.over(outer))?;
    let client = Client::new(&address)?;
    let snapshot = Snapshot::take(&client).await?;
    let urls = through.endpoints_or(&snapshot.client_urls);
    let etcd = Etcd::connect(urls, &address.tls, &through.login).await?;
    let scheme = KindScheme::new(&snapshot.etcd_prefix);
    let (mut kinds, mut rate) = (Kinds::default(), Rate::new(through.rate));
    let reading = snapshot.read(&etcd, &mut rate, |kv| {
        kinds.add(&scheme, kv);
        Ok(())
    });
    tokio::select! {
        read = snapshot.renewed_during(&client, reading) => read?,
        _ = tokio::signal::ctrl_c() => return Err(Failure::Refused("interrupted".to_owned())),
    }
    if through.output != Output::Table {
        let shown =
            json!({ "revision": snapshot.revision, "clusterId": snapshot.cluster_id, "kinds": kinds.json() });
        return output::print(&output::rendered(&shown, through.output)?);
    }
    output::print(&kinds.table().render())?;
    output::print(&format!("cluster {} at revision {}\n", snapshot.cluster_id, snapshot.revision))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &'static str, value: &'static str, mod_revision: i64) -> KeyValue {
        KeyValue { key: key.into(), value: value.into(), mod_revision, ..Default::default() }
    }

    fn hash(kvs: &[KeyValue]) -> String {
        let mut contents = Contents::default();
        kvs.iter().for_each(|kv| contents.add(kv));
        contents.hash()
    }

    #[test]
    fn a_hash_is_of_keys_and_values_alone() {
        let one = hash(&[kv("a", "1", 5), kv("b", "2", 6)]);
        assert_eq!(one, hash(&[kv("a", "1", 7), kv("b", "2", 8)]));
        for other in [
            hash(&[kv("a", "1", 5)]),
            hash(&[kv("a", "2", 5), kv("b", "1", 6)]),
            hash(&[kv("a", "1b", 5), kv("", "2", 6)]),
            hash(&[kv("a1", "", 5), kv("b", "2", 6)]),
        ] {
            assert_ne!(one, other);
        }
        // Hashes are compared across versions of this program.
        assert_eq!(hash(&[]), "2d06800538d394c2");
    }

    #[test]
    fn keys_of_no_kind_have_a_hash_of_their_own() {
        let scheme = KindScheme::new("/registry");
        let mut kinds = Kinds::default();
        for key in ["/registry/pods/a/x", "/registry/pods/b/x", "/registry/minions/x", "elsewhere"] {
            kinds.add(&scheme, &kv(key, "v", 1));
        }
        let told: Vec<_> = kinds.0.iter().map(|(kind, contents)| (kind.as_str(), contents.keys)).collect();
        assert_eq!(told, [("<other>", 1), ("nodes", 1), ("pods", 2)]);
    }
}
