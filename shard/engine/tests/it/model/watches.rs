//! Watch clients, and etcd's guarantees for them: ordered, unique, reliable, atomic, resumable, bookmarkable.

use kindred_engine::{
    engine::{Engine, Event, StreamId, WatchId, WatchOut, WatchSpec},
    error::EngineError,
};
use kindred_partition_config::{ids::Revision, key::KeyRange};

use crate::model::{
    reference::{Change, Kv},
    world::{Step, World, from_version, pick},
};

struct Client {
    stream: usize,
    id: WatchId,
    spec: WatchSpec,
    /// The first revision that it must get; known once it is created.
    start: Option<Revision>,
    got: Vec<Change>,
    /// No event at or below this revision may still come.
    above: Revision,
    ended: bool,
    cancelled: bool,
}

struct Stream {
    id: StreamId,
    /// The highest revision of an event or progress received.
    high: Revision,
    /// The lowest revision that an answer to a manual request must have.
    asked: Option<Revision>,
}

pub struct Clients {
    streams: Vec<Stream>,
    clients: Vec<Client>,
}

impl Clients {
    pub fn new(engine: &mut Engine) -> Self {
        let stream = |_| Stream { id: engine.watch_open(), high: Revision::ZERO, asked: None };
        Self { streams: (0..3).map(stream).collect(), clients: Vec::new() }
    }
}

pub fn step(world: &mut World, step: &Step) {
    match step {
        Step::WatchCreate { stream, range, start, no_put, no_delete, prev_kv } => {
            let spec = WatchSpec {
                range: pick(range),
                start: start.as_ref().map(|at| world.revision(at)),
                id: None,
                prev_kv: *prev_kv,
                no_put: *no_put,
                no_delete: *no_delete,
                progress_notify: *prev_kv,
                fragment: false,
            };
            create(world, stream.index(3), spec);
        }
        Step::WatchCancel(which) => {
            if world.clients.clients.is_empty() {
                return;
            }
            let client = which.get(&world.clients.clients);
            let known = !client.cancelled;
            let (stream, id) = (world.clients.streams[client.stream].id, client.id);
            assert_eq!(world.engine.watch_cancel(stream, id), known);
            let which = which.index(world.clients.clients.len());
            world.clients.clients[which].cancelled = true;
        }
        Step::Pull(stream, bytes) => {
            pull(world, stream.index(3), *bytes);
        }
        Step::Progress(stream) => request(world, stream.index(3)),
        other => panic!("{other:?}"),
    }
}

fn create(world: &mut World, stream: usize, spec: WatchSpec) {
    let id = world.clients.streams[stream].id;
    let used = WatchSpec { id: Some(WatchId(0)), ..spec.clone() };
    let taken =
        world.clients.clients.iter().any(|c| c.stream == stream && c.id == WatchId(0) && !c.cancelled);
    if taken {
        assert_eq!(world.engine.watch_create(id, used), Err(EngineError::DuplicateWatchId));
    }
    let watch = world.engine.watch_create(id, spec.clone()).expect("a free id");
    world.clients.clients.push(Client {
        stream,
        id: watch,
        start: None,
        spec,
        got: Vec::new(),
        above: Revision::ZERO,
        ended: false,
        cancelled: false,
    });
}

fn request(world: &mut World, stream: usize) {
    let ranges: Vec<KeyRange> = world
        .clients
        .clients
        .iter()
        .filter(|c| c.stream == stream && !c.cancelled && !c.ended)
        .map(|c| c.spec.range.clone())
        .collect();
    let current = world.engine.current(&ranges);
    world.engine.watch_progress(world.clients.streams[stream].id);
    let asked = &mut world.clients.streams[stream].asked;
    *asked = Some(asked.map_or(current, |asked| asked.max(current)));
}

pub fn change(event: &Event, prev_kv: bool) -> Change {
    let (key, kv) = from_version(&event.kv);
    let prev: Option<Kv> = event.prev.as_ref().map(|prev| from_version(prev).1);
    assert!(prev_kv || prev.is_none());
    Change { revision: kv.modified, key, put: (!event.is_delete()).then_some(kv), prev }
}

/// The events that a client must have got of the published history from its start to `to`.
fn due(world: &World, client: &Client, to: Revision) -> Vec<Change> {
    let Some(start) = client.start else { return Vec::new() };
    let history = world.reference.history(&client.spec.range, start).filter(|c| c.revision <= to.get());
    let filtered =
        history.filter(|c| if c.put.is_some() { !client.spec.no_put } else { !client.spec.no_delete });
    let seen = filtered.cloned().map(|mut change| {
        change.prev = change.prev.filter(|_| client.spec.prev_kv);
        change
    });
    seen.collect()
}

/// Pulls once and checks every message; false when there was none.
fn pull(world: &mut World, stream: usize, bytes: usize) -> bool {
    let out = world.engine.watch_pull(world.clients.streams[stream].id, bytes);
    let some = !out.is_empty();
    for message in out {
        hear(world, stream, message);
    }
    some
}

fn position(world: &World, stream: usize, id: WatchId) -> usize {
    let found = world.clients.clients.iter().rposition(|c| c.stream == stream && c.id == id);
    found.expect("a message names a watch of its stream")
}

fn hear(world: &mut World, stream: usize, message: WatchOut) {
    match message {
        WatchOut::Created { id, header } => {
            let client = position(world, stream, id);
            let client = &mut world.clients.clients[client];
            assert_eq!(client.start, None, "created once");
            client.start = Some(client.spec.start.unwrap_or(header.next()));
        }
        WatchOut::Events { id, header, events, .. } => hear_events(world, stream, id, header, &events),
        WatchOut::Compacted { id, floor, .. } => {
            let client = position(world, stream, id);
            assert!(floor <= world.floor_of(&world.clients.clients[client].spec.range));
            let client = &mut world.clients.clients[client];
            assert!(client.start.is_some() && !client.ended);
            client.ended = true;
            let client = &world.clients.clients[position(world, stream, id)];
            let all = due(world, client, Revision(i64::MAX));
            let missed = all.get(client.got.len()).map(|c| Revision(c.revision));
            let before = missed.is_some_and(|missed| missed < floor) || client.start < Some(floor);
            assert!(before, "cancelled although nothing was lost");
        }
        WatchOut::Moved { .. } => panic!("nothing moves here"),
        WatchOut::Canceled { id, .. } => {
            assert!(world.clients.clients[position(world, stream, id)].cancelled)
        }
        WatchOut::Progress { id: Some(id), header } => {
            let which = position(world, stream, id);
            assert!(!world.clients.clients[which].cancelled && !world.clients.clients[which].ended);
            promised(world, which, header);
            // R7: a client may resume every watch of the stream behind any progress.
            for which in 0..world.clients.clients.len() {
                let client = &world.clients.clients[which];
                if client.stream == stream
                    && !client.cancelled
                    && !client.ended
                    && client.start <= Some(header)
                {
                    promised(world, which, header);
                }
            }
            let high = &mut world.clients.streams[stream].high;
            assert!(header >= *high, "progress {header} below {high}");
            *high = header;
        }
        WatchOut::Progress { id: None, header } => {
            let high = world.clients.streams[stream].high;
            assert!(header >= high, "progress {header} below {high}");
            world.clients.streams[stream].high = header;
            if world.clients.streams[stream].asked.is_some_and(|asked| header >= asked) {
                world.clients.streams[stream].asked = None;
            }
            for which in 0..world.clients.clients.len() {
                let client = &world.clients.clients[which];
                if client.stream == stream && !client.cancelled && !client.ended {
                    promised(world, which, header);
                }
            }
        }
    }
}

fn hear_events(world: &mut World, stream: usize, id: WatchId, header: Revision, events: &[Event]) {
    let which = position(world, stream, id);
    let client = &mut world.clients.clients[which];
    assert!(client.start.is_some(), "created comes first");
    assert!(!client.cancelled && !client.ended, "nothing after the end");
    let last = Revision(events.last().expect("never empty").kv.mod_revision().get());
    let first = events[0].kv.mod_revision();
    assert!(first > client.above, "{first} at or below the promise {}", client.above);
    // Atomic: a revision is never split over two messages.
    assert!(client.got.last().is_none_or(|c| c.revision < first.get()));
    assert!(header >= last);
    client.got.extend(events.iter().map(|event| change(event, client.spec.prev_kv)));
    let client = &world.clients.clients[which];
    let want = due(world, client, last);
    assert_eq!(client.got, want, "watch {:?} of {:?}", id, client.spec.range);
    let high = &mut world.clients.streams[stream].high;
    *high = (*high).max(last);
}

/// Checks a promise: everything up to `header` was delivered, and nothing up to it may still come.
fn promised(world: &mut World, which: usize, header: Revision) {
    let client = &world.clients.clients[which];
    let start = client.start.expect("progress after created");
    let shown = if client.spec.start.is_none() { start.prev() } else { start };
    assert!(shown <= header, "a promise below the watch's start");
    assert_eq!(client.got, due(world, client, header), "B1/A7: progress {header} overtakes events");
    // What was promised is readable (Kubernetes compares its cache at that revision).
    let range = client.spec.range.clone();
    if header >= world.floor_of(&range) {
        world.check_range(&range, Some(header), 0);
        let current = world.engine.current(std::slice::from_ref(&range));
        assert!(current >= header, "{range:?} shows {current} below {header}");
    }
    world.clients.clients[which].above = header;
}

/// Pulls everything: every watch that did not end must have the whole history of its range.
pub fn finish(world: &mut World) {
    for stream in 0..3 {
        while pull(world, stream, 64) {}
    }
    for client in &world.clients.clients {
        assert!(client.start.is_some());
        if !client.cancelled && !client.ended {
            let want = due(world, client, Revision(i64::MAX));
            assert_eq!(client.got, want, "the end of {:?}", client.spec);
        }
    }
    for stream in 0..3 {
        request(world, stream);
        while pull(world, stream, 1 << 20) {}
        let alive = |c: &&Client| c.stream == stream && !c.cancelled && !c.ended;
        let ids: Vec<&Client> = world.clients.clients.iter().filter(alive).collect();
        let asked = world.clients.streams[stream].asked;
        // A watch that begins now may be told of what was current when it began.
        let shown = |c: &Client| if c.spec.start.is_none() { c.start.map(Revision::prev) } else { c.start };
        let future = ids.iter().any(|c| shown(c) > Some(asked.unwrap_or(Revision(0))));
        assert!(asked.is_none() || ids.is_empty() || future, "no answer to a progress request at {asked:?}");
    }
    world.engine.validate();
}
