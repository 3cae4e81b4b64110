//! Everything that was written, whichever engine owned it then.

use kindred_engine::{engine::Event, version::Version};
use kindred_partition_config::{ids::Revision, key::KeyRange};

/// A version or a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrote {
    pub key: String,
    pub at: Revision,
    /// `None` for a deletion.
    pub value: Option<String>,
    pub create: Revision,
    pub version: i64,
    pub lease: i64,
    /// The version of the key before this revision.
    pub prev: Option<Box<Wrote>>,
}

impl Wrote {
    /// This event without the previous version.
    pub fn bare(&self) -> Self {
        Self { prev: None, ..self.clone() }
    }
}

/// Every event, in the order of revisions.
#[derive(Default)]
pub struct Reference {
    pub events: Vec<Wrote>,
}

pub fn seen(version: &Version) -> Wrote {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    Wrote {
        key: text(version.key()),
        at: version.mod_revision(),
        value: (!version.is_tombstone()).then(|| text(&version.value())),
        create: version.create_revision(),
        version: version.version(),
        lease: version.lease(),
        prev: None,
    }
}

pub fn seen_event(event: &Event) -> Wrote {
    Wrote { prev: event.prev.as_ref().map(|prev| Box::new(seen(prev))), ..seen(&event.kv) }
}

impl Reference {
    pub fn at(&self, key: &str, at: Revision) -> Option<Wrote> {
        let last = self.events.iter().rev().find(|e| e.at <= at && e.key == key)?;
        last.value.is_some().then(|| last.bare())
    }

    pub fn now(&self, key: &str) -> Option<Wrote> {
        self.at(key, Revision(i64::MAX))
    }

    pub fn list(&self, range: &KeyRange, at: Revision, ours: impl Fn(&str) -> bool) -> Vec<Wrote> {
        let mut keys: Vec<&str> = self.events.iter().map(|event| event.key.as_str()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|key| range.contains(key.as_bytes()) && ours(key));
        keys.into_iter().filter_map(|key| self.at(key, at)).collect()
    }

    /// The events from `from` on.
    pub fn since(&self, range: &KeyRange, from: Revision, ours: impl Fn(&str) -> bool) -> Vec<Wrote> {
        let wanted = |e: &&Wrote| e.at >= from && range.contains(e.key.as_bytes()) && ours(&e.key);
        self.events.iter().filter(wanted).cloned().collect()
    }

    /// Adds the events of one request in its order, at the revision that it was given. Events are kept in the order of
    /// revisions, though one store's revision may be below another's.
    pub fn wrote(&mut self, at: Revision, changes: Vec<(String, Option<(String, i64)>)>) {
        let mut fresh: Vec<Wrote> = Vec::new();
        for (key, put) in changes {
            let before = self.at(&key, at.prev());
            let within = fresh.iter().rev().find(|event| event.key == key);
            let live = match within {
                Some(event) => event.value.is_some().then(|| event.bare()),
                None => before.clone(),
            };
            let (create, version) = match (&live, &put) {
                (_, None) => (Revision(0), 0),
                (Some(live), _) => (live.create, live.version + 1),
                (None, _) => (at, 1),
            };
            let prev = before.filter(|_| create != at).map(Box::new);
            let (value, lease) = put.map_or((None, 0), |(value, lease)| (Some(value), lease));
            fresh.push(Wrote { key, at, value, create, version, lease, prev });
        }
        let place = self.events.partition_point(|event| event.at <= at);
        self.events.splice(place..place, fresh);
    }
}
