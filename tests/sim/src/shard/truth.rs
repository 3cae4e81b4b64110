//! The events that a shard publishes, as watches of all keys report them. A watch ends when its key moves; another one
//! resumes when the shard has the key again.

use std::cell::RefCell;
use std::collections::BTreeMap;

use kindred_engine::engine::{Engine, Event, StreamId, WatchId, WatchOut, WatchSpec};
use kindred_engine::error::EngineError;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::{Key, KeyRange};

/// One watch for each key, all on one stream.
pub struct Watches {
    stream: StreamId,
    keys: Vec<(usize, Key)>,
    open: RefCell<Open>,
}

#[derive(Default)]
struct Open {
    /// The key of each watch.
    keys: BTreeMap<WatchId, usize>,
    /// Keys without a watch, and where the next one begins.
    waiting: BTreeMap<usize, Revision>,
}

impl Watches {
    /// Watches these keys of these Kinds, each from its start or from now on.
    ///
    /// # Panics
    /// When a watch is refused for another reason than that another shard has the key.
    pub fn new(
        engine: &mut Engine,
        keys: Vec<(usize, Key)>,
        start: impl Fn(usize, &Key) -> Option<Revision>,
    ) -> Self {
        let stream = engine.watch_open();
        let mut open = Open::default();
        for (at, (kind, key)) in keys.iter().enumerate() {
            let start = start(*kind, key);
            match create(engine, stream, key, start) {
                Ok(watch) => {
                    open.keys.insert(watch, at);
                }
                Err(EngineError::NotOwned(_)) => {
                    open.waiting.insert(at, start.expect("a new shard serves every key"));
                }
                Err(error) => panic!("nothing else is refused: {error}"),
            }
        }
        Self { stream, keys, open: RefCell::new(open) }
    }

    /// Passes on all events that were published since the last time, in order.
    pub fn pull(&self, engine: &mut Engine, mut give: impl FnMut(usize, &Event)) {
        let open = &mut *self.open.borrow_mut();
        let mut published: Vec<(usize, Event)> = Vec::new();
        loop {
            let said = engine.watch_pull(self.stream, usize::MAX);
            let mut ended = Vec::new();
            for out in &said {
                let (id, next) = match out {
                    WatchOut::Events { id, events, .. } => {
                        let kind = self.keys[open.keys[id]].0;
                        published.extend(events.iter().map(|event| (kind, event.clone())));
                        continue;
                    }
                    WatchOut::Moved { id, header } => (id, header.next()),
                    WatchOut::Compacted { id, floor } => (id, *floor),
                    _ => continue,
                };
                engine.watch_cancel(self.stream, *id);
                ended.extend(open.keys.remove(id).map(|at| (at, next)));
            }
            open.waiting.extend(ended);
            let mut again = false;
            open.waiting.retain(|at, next| {
                match create(engine, self.stream, &self.keys[*at].1, Some(*next)) {
                    Ok(watch) => {
                        open.keys.insert(watch, *at);
                        again = true;
                        false
                    }
                    Err(EngineError::NotOwned(_)) => true,
                    Err(error) => panic!("nothing else is refused: {error}"),
                }
            });
            if said.is_empty() && !again {
                break;
            }
        }
        published.sort_by_key(|(_, event)| event.kv.order());
        published.iter().for_each(|(kind, event)| give(*kind, event));
    }
}

fn create(
    engine: &mut Engine,
    stream: StreamId,
    key: &Key,
    start: Option<Revision>,
) -> Result<WatchId, EngineError> {
    let spec = WatchSpec {
        range: KeyRange::Single(key.clone()),
        start,
        id: None,
        prev_kv: true,
        no_put: false,
        no_delete: false,
        progress_notify: false,
        fragment: false,
    };
    engine.watch_create(stream, spec)
}
