//! What a router does with a request: `plan`, then one store, or several at one revision (`router/src/execute`).

use kindred_engine::{
    error::EngineError,
    ops::{Contents, Delete, Op, OpAnswer, Put, RangeAnswer, RangeQuery, RevisionFilter, Txn},
    units::NotOwned,
};
use kindred_partition_config::{
    ids::{Epoch, Revision},
    key::{Key, KeyRange},
    kind::KindPrefix,
};
use kindred_router_core::{
    consistent_read::{Command, ConsistentRead, Event, Mode, ReadError},
    parsed::Parsed,
    plan::{Call, Plan, plan},
    routes::Routes,
    store::StoreIx,
};

use crate::verbs::world::{World, Wrote};

/// A `Range`.
#[derive(Debug, Clone)]
pub struct Asked {
    pub key: String,
    pub end: String,
    pub revision: Option<Revision>,
    pub limit: usize,
    pub count_only: bool,
}

impl Asked {
    pub fn one(key: &str) -> Self {
        Self::span(key, "")
    }

    pub fn span(key: &str, end: &str) -> Self {
        Self { key: key.to_owned(), end: end.to_owned(), revision: None, limit: 0, count_only: false }
    }

    pub fn at(self, revision: Revision) -> Self {
        Self { revision: Some(revision), ..self }
    }

    pub fn range(&self) -> KeyRange {
        KeyRange::from_wire(self.key.clone().into(), self.end.clone().into())
    }
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub header: Revision,
    pub kvs: Vec<Wrote>,
    pub count: u64,
    pub more: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Refused {
    NotOwned(NotOwned),
    Compacted,
    Future,
    Other(String),
}

impl From<EngineError> for Refused {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::NotOwned(refused) => Self::NotOwned(refused),
            EngineError::Compacted { .. } => Self::Compacted,
            EngineError::Future { .. } => Self::Future,
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<NotOwned> for Refused {
    fn from(refused: NotOwned) -> Self {
        Self::NotOwned(refused)
    }
}

struct Source {
    store: usize,
    range: KeyRange,
    part: usize,
}

fn put(key: &str, value: &str) -> Op {
    let value = value.to_owned().into();
    Op::Put(Put {
        key: key.into(),
        value,
        lease: None,
        ignore_value: false,
        ignore_lease: false,
        prev_kv: false,
    })
}

/// The fields `key` and `range_end` of a request.
fn wire(key: &str, end: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (tag, field) in [(0x0a, key), (0x12, end)] {
        bytes.extend([tag, u8::try_from(field.len()).expect("short")]);
        bytes.extend(field.as_bytes());
    }
    bytes
}

impl World {
    /// The revision of a write; `None` when it is to be tried again.
    pub fn send_write(
        &mut self,
        e: usize,
        routes: &Routes,
        changes: &[(String, Option<String>)],
    ) -> Option<Revision> {
        let op = |(key, value): &(String, Option<String>)| match value {
            Some(value) => put(key, value),
            None => Op::Delete(Delete {
                range: KeyRange::Single(key.as_str().into()),
                buckets: None,
                prev_kv: false,
            }),
        };
        let mut ops: Vec<Op> = changes.iter().map(op).collect();
        let single = ops.len() == 1;
        let op = if single {
            ops.remove(0)
        } else {
            Op::Txn(Box::new(Txn { compares: vec![], success: ops, failure: vec![] }))
        };
        let mut kinds: Vec<KindPrefix> = Vec::new();
        for (key, _) in changes {
            kinds.extend(routes.map().spread_of(key.as_bytes()).cloned());
        }
        let min_revision = self.shown.of(&kinds);
        match self.engines[e].apply_above(self.now, op, min_revision) {
            Ok(answer) => {
                self.engines[e].publish();
                let header = match answer {
                    OpAnswer::Put { header, .. } | OpAnswer::Delete { header, .. } => header,
                    OpAnswer::Txn(txn) => txn.header,
                    OpAnswer::Range(range) => range.header,
                };
                self.shown.show(&kinds, header);
                Some(header)
            }
            Err(EngineError::NotOwned(refused)) => {
                let key = changes[0].0.clone();
                self.may_wait(
                    &format!("a write of {key} at {e}"),
                    &KeyRange::everything(),
                    routes.generation(),
                    &refused,
                );
                None
            }
            Err(other) => self.fail(&format!("a write of {changes:?} at {e}: {other}")),
        }
    }

    /// Fails unless a refusal may be: by the newest map, of what is at a switch; by an older one, with a newer number.
    pub fn may_wait(&self, what: &str, range: &KeyRange, generation: Epoch, refused: &NotOwned) {
        let told = refused.epoch > generation && refused.epoch <= self.state.generation;
        let of_kind = |kind: &KindPrefix| {
            let stem = KeyRange::Single(Key::copy_from(kind.stem()));
            kind.range().overlaps(range) || stem.overlaps(range)
        };
        let switching = self.switching_rest || self.switching.as_ref().is_some_and(of_kind);
        // Between the decision and its being heard of, a store knows only what was before.
        if told || switching {
            return;
        }
        self.fail(&format!("{what} by map {generation} is refused: {refused} (map {})", refused.epoch));
    }

    fn ask_store(
        &mut self,
        e: usize,
        asked: &Asked,
        range: &KeyRange,
        at: Option<Revision>,
        min_revision: Revision,
        generation: Epoch,
    ) -> Result<RangeAnswer, Refused> {
        let query = RangeQuery {
            range: range.clone(),
            revision: at,
            limit: asked.limit,
            sort: None,
            contents: Contents::Whole,
            count_only: asked.count_only,
            filter: RevisionFilter::default(),
        };
        self.engines[e].owns_at(range, Some(generation), at)?;
        if min_revision > Revision::ZERO {
            self.engines[e].raise_if_allowed(self.now, std::slice::from_ref(range), min_revision);
        }
        Ok(self.engines[e].range_by_map(&query, Some(generation))?)
    }

    fn raise(&mut self, source: &Source, to: Revision, generation: Epoch) -> Result<Revision, Refused> {
        let ranges = std::slice::from_ref(&source.range);
        self.engines[source.store].owns(ranges, Some(generation))?;
        Ok(self.engines[source.store].raise(self.now, ranges, to)?)
    }

    /// A `Range`, as the router of these routes answers it.
    pub fn ask(&mut self, routes: &Routes, asked: &Asked) -> Result<Answer, Refused> {
        let generation = routes.generation();
        let planned =
            plan(&Parsed::new(Call::Range, &wire(&asked.key, &asked.end)), routes).expect("no etcd");
        let spread = planned.clone().into_spread();
        let shown = self.shown.of(&spread);
        let answer = match planned {
            Plan::One { store, .. } => {
                let range = asked.range();
                let answered = match self.ask_store(store.0, asked, &range, asked.revision, shown, generation)
                {
                    // Another store of the Kind may have come to it (R4).
                    Err(Refused::Future) if !spread.is_empty() => {
                        let wanted = asked.revision.expect("of the future");
                        self.raise(
                            &Source { store: store.0, range: range.clone(), part: 0 },
                            wanted,
                            generation,
                        )?;
                        self.ask_store(store.0, asked, &range, asked.revision, shown, generation)?
                    }
                    answered => answered?,
                };
                Answer {
                    header: answered.header,
                    kvs: answered.kvs.iter().map(seen).collect(),
                    count: answered.count,
                    more: answered.more,
                }
            }
            Plan::FanOut(fan_out) => {
                let mut sources = Vec::new();
                for (part, of) in fan_out.parts.iter().enumerate() {
                    let source = |store: &StoreIx| Source { store: store.0, range: of.range.clone(), part };
                    sources.extend(of.stores.iter().map(source));
                }
                self.ask_several(&sources, asked, shown, generation)?
            }
            Plan::Health => unreachable!("nobody asks for it"),
        };
        self.shown.show(&spread, answer.header);
        Ok(answer)
    }

    fn ask_several(
        &mut self,
        sources: &[Source],
        asked: &Asked,
        shown: Revision,
        generation: Epoch,
    ) -> Result<Answer, Refused> {
        let mut pages: Vec<Option<RangeAnswer>> = sources.iter().map(|_| None).collect();
        let mode = asked.revision.map_or(Mode::Now, Mode::At);
        let (at, header) =
            self.snapshot(sources, mode, shown, generation, |world, ix, at, min_revision| {
                let page = world.ask_store(
                    sources[ix].store,
                    asked,
                    &sources[ix].range,
                    at,
                    min_revision,
                    generation,
                )?;
                let header = page.header;
                pages[ix] = Some(page);
                Ok(header)
            })?;
        let (mut kvs, mut count) = (Vec::new(), 0);
        let parts = sources.last().map_or(0, |source| source.part + 1);
        for part in 0..parts {
            let mut of_part: Vec<Wrote> = Vec::new();
            for (source, page) in sources.iter().zip(&pages).filter(|(source, _)| source.part == part) {
                let page =
                    page.as_ref().unwrap_or_else(|| panic!("store {} was not asked at {at}", source.store));
                of_part.extend(page.kvs.iter().map(seen));
                count += page.count;
            }
            of_part.sort_by(|a, b| a.key.cmp(&b.key));
            kvs.extend(of_part);
        }
        let more =
            asked.limit > 0 && kvs.len() > asked.limit || count > kvs.len() as u64 && !asked.count_only;
        if asked.limit > 0 {
            kvs.truncate(asked.limit);
        }
        Ok(Answer { header, kvs, count, more })
    }

    /// Runs a `ConsistentRead`; `read` asks a source at a revision or the present, with a hint, and gives its header.
    fn snapshot(
        &mut self,
        sources: &[Source],
        mode: Mode,
        shown: Revision,
        generation: Epoch,
        mut read: impl FnMut(&mut Self, usize, Option<Revision>, Revision) -> Result<Revision, Refused>,
    ) -> Result<(Revision, Revision), Refused> {
        let participants: Vec<_> = (0..sources.len()).map(StoreIx).collect();
        let (mut machine, mut commands) = ConsistentRead::start(mode, &participants, shown);
        while let Some(command) = commands.pop() {
            let event = match command {
                Command::Done { at, header } => return Ok((at, header)),
                Command::Read { store, min_revision } => {
                    Event::Answered { store, header: read(self, store.0, None, min_revision)? }
                }
                Command::ReadAt { store, revision } => {
                    let min_revision = revision.max(shown);
                    match read(self, store.0, Some(revision), min_revision) {
                        Ok(header) => Event::Answered { store, header },
                        Err(Refused::Compacted) => Event::Compacted { store },
                        Err(other) => return Err(other),
                    }
                }
                Command::Current { store, min_revision } => {
                    let current = self.raise(&sources[store.0], min_revision, generation)?;
                    Event::Raised { store, current }
                }
                Command::Raise { store, to } => {
                    Event::Raised { store, current: self.raise(&sources[store.0], to, generation)? }
                }
                Command::Confirm { store, since, to } => {
                    self.raise(&sources[store.0], to, generation)?;
                    let source = &sources[store.0];
                    match self.engines[source.store].changed(std::slice::from_ref(&source.range), since) {
                        true => Event::Changed { store, to },
                        false => Event::Unchanged { store, to },
                    }
                }
            };
            let more = machine.step(event).map_err(|error| match error {
                ReadError::Compacted(_) => Refused::Compacted,
                ReadError::Future { .. } => Refused::Future,
                other => Refused::Other(other.to_string()),
            })?;
            commands.extend(more);
        }
        Err(Refused::Other("a read ended without a revision".to_owned()))
    }

    /// The current revision of what a watch is of, to which all its stores are raised (R8).
    pub fn current_of(&mut self, routes: &Routes, key: &str, end: &str) -> Result<Revision, Refused> {
        let fan_out = kindred_router_core::plan::plan_watch_parts(key.as_bytes(), end.as_bytes(), routes);
        let fan_out = fan_out.expect("no etcd");
        let mut sources = Vec::new();
        for (part, of) in fan_out.parts.iter().enumerate() {
            let source = |store: &StoreIx| Source { store: store.0, range: of.range.clone(), part };
            sources.extend(of.stores.iter().map(source));
        }
        let shown = self.shown.of(&fan_out.spread);
        let unread = |_: &mut Self, _, _, _| Err(Refused::Other("nothing is read".to_owned()));
        let (_, header) = self.snapshot(&sources, Mode::Current, shown, routes.generation(), unread)?;
        self.shown.show(&fan_out.spread, header);
        Ok(header)
    }
}

pub fn seen(version: &kindred_engine::version::Version) -> Wrote {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let value = (!version.is_tombstone()).then(|| text(&version.value()));
    Wrote { key: text(version.key()), at: version.mod_revision(), value }
}
