//! The naive reference for the engine: it keeps every event.

use std::collections::BTreeMap;

use kindred_partition_config::{ids::Revision, key::KeyRange};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kv {
    pub value: Vec<u8>,
    pub create: i64,
    pub modified: i64,
    pub version: i64,
}

/// An event: a put, or a deletion (`None`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub revision: i64,
    pub key: Vec<u8>,
    pub put: Option<Kv>,
    pub prev: Option<Kv>,
}

pub type State = BTreeMap<Vec<u8>, Kv>;

#[derive(Default)]
pub struct Reference {
    pub changes: Vec<Change>,
    /// Whether each of them is published.
    pub published: Vec<bool>,
}

/// A write, without the reads around it.
#[derive(Debug, Clone)]
pub enum Write {
    Put { key: Vec<u8>, value: Vec<u8> },
    Delete { range: KeyRange },
}

impl Reference {
    /// The state after all changes up to `at`.
    pub fn state(&self, at: i64) -> State {
        Self::after(self.changes.iter().take_while(|c| c.revision <= at))
    }

    /// The state after all published changes up to `at`.
    pub fn published_state(&self, at: i64) -> State {
        Self::after(self.published().take_while(|c| c.revision <= at))
    }

    fn published(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().zip(&self.published).filter(|(_, published)| **published).map(|(c, _)| c)
    }

    pub fn add(&mut self, changes: Vec<Change>) {
        self.published.extend(changes.iter().map(|_| false));
        self.changes.extend(changes);
    }

    /// Whether a change up to `at` is not published.
    pub fn waits(&self, at: i64) -> bool {
        self.changes.iter().zip(&self.published).any(|(c, published)| c.revision <= at && !published)
    }

    fn after<'c>(changes: impl Iterator<Item = &'c Change>) -> State {
        let mut state = State::new();
        for change in changes {
            match &change.put {
                Some(kv) => state.insert(change.key.clone(), kv.clone()),
                None => state.remove(&change.key),
            };
        }
        state
    }

    pub fn latest(&self) -> State {
        self.state(i64::MAX)
    }

    pub fn last_revision(&self) -> i64 {
        self.changes.last().map_or(0, |c| c.revision)
    }

    /// The changes that writes at `revision` make to `state`, in order; none if they change nothing.
    pub fn changes_of(state: &mut State, writes: &[Write], revision: i64) -> Vec<Change> {
        let mut changes = Vec::new();
        for write in writes {
            match write {
                Write::Put { key, value } => {
                    let prev = state.get(key).cloned();
                    let kv = Kv {
                        value: value.clone(),
                        create: prev.as_ref().map_or(revision, |p| p.create),
                        modified: revision,
                        version: prev.as_ref().map_or(1, |p| p.version + 1),
                    };
                    state.insert(key.clone(), kv.clone());
                    changes.push(Change { revision, key: key.clone(), put: Some(kv), prev });
                }
                Write::Delete { range } => {
                    let doomed: Vec<Vec<u8>> =
                        state.keys().filter(|key| range.contains(key)).cloned().collect();
                    for key in doomed {
                        let prev = state.remove(&key);
                        changes.push(Change { revision, key, put: None, prev });
                    }
                }
            }
        }
        changes
    }

    /// The published changes of a range from `start` on.
    pub fn history(&self, range: &KeyRange, start: Revision) -> impl Iterator<Item = &Change> {
        let range = range.clone();
        self.published().filter(move |c| c.revision >= start.get() && range.contains(&c.key))
    }
}
