//! Clients that watch. Each has one stream with some watches. When the stream ends, it opens another one at any router,
//! and every watch resumes behind the last event that it got.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_wire::answer::{WatchResponse, watch_events};
use kindred_wire::kv::{EventRef, EventType, KeyValueRef};
use kindred_wire::peek::WatchCreateRequest;
use kindred_wire::watch_request;

use super::Clients;
use crate::history::{Create, Got, Heard, Logical, StreamRecord};
use crate::router::Router;
use crate::router::session::Session;
use crate::world::{Bell, MS, Micros, NATURE, SECOND, answer};

#[derive(Default)]
struct Mail {
    messages: RefCell<VecDeque<Bytes>>,
    /// The time at which the last message arrives.
    last: Cell<Micros>,
    gone: Cell<bool>,
    bell: Bell,
}

struct Connection {
    session: Rc<Session>,
    router: Rc<Router>,
    mail: Rc<Mail>,
    record: usize,
    /// The time at which the last request arrives.
    last: Cell<Micros>,
    ids: Cell<i64>,
    /// Creates without an answer, in order. A refusal does not name its create.
    creating: RefCell<VecDeque<i64>>,
    /// The watch and the events of a message whose last fragment has not come.
    begun: RefCell<Option<(i64, Vec<Got>)>>,
}

impl Connection {
    fn open(clients: &Rc<Clients>, router: Rc<Router>) -> Self {
        let world = &clients.world;
        let record = {
            let mut record = clients.history.write();
            let stream = StreamRecord {
                router: router.life,
                creates: Vec::new(),
                asked: Vec::new(),
                heard: Vec::new(),
            };
            record.streams.push(stream);
            record.streams.len() - 1
        };
        let mail = Rc::new(Mail::default());
        let (to, way, net) = (mail.clone(), world.clone(), clients.net.clone());
        let deliver = move |message| {
            let at = (way.now() + net.delay()).max(to.last.get());
            to.last.set(at);
            let mail = to.clone();
            way.after(at - way.now(), NATURE, move || {
                match message {
                    Some(message) => mail.messages.borrow_mut().push_back(message),
                    None => mail.gone.set(true),
                }
                mail.bell.ring();
            });
        };
        let session = Session::serve(&router, Box::new(deliver));
        // It is dropped when the router's process ends.
        let (alive, gone) = answer::<()>();
        world.spawn(router.life, async move {
            std::future::pending::<()>().await;
            alive.send(());
        });
        let to = mail.clone();
        world.spawn(NATURE, async move {
            gone.await;
            to.gone.set(true);
            to.bell.ring();
        });
        Self {
            session,
            router,
            mail,
            record,
            last: Cell::new(0),
            ids: Cell::new(0),
            creating: RefCell::default(),
            begun: RefCell::default(),
        }
    }

    /// Sends a request. Requests arrive in the order in which they were sent.
    fn send(&self, clients: &Clients, request: impl FnOnce(&Rc<Session>) + 'static) {
        let world = &clients.world;
        let at = (world.now() + clients.net.delay()).max(self.last.get());
        self.last.set(at);
        let session = self.session.clone();
        world.after(at - world.now(), self.router.life, move || request(&session));
    }

    fn watch(&self, clients: &Clients, logical: usize) {
        self.ids.set(self.ids.get() + 1);
        let (id, order) = (self.ids.get(), clients.world.order());
        self.creating.borrow_mut().push_back(id);
        let notify = clients.world.chance(50);
        let request = {
            let mut record = clients.history.write();
            let Logical { kind, range, prev_kv, no_delete, next, .. } = record.logicals[logical].clone();
            record.streams[self.record].creates.push(Create { order, watch: id, logical, start: next });
            clients.world.note(format_args!(
                "stream {} watch {id} of Kind {kind}, {range:?} from {next:?}, prev_kv: {prev_kv}, no_delete: \
                 {no_delete}, notify: {notify}",
                self.record
            ));
            let (key, range_end) = range.to_wire();
            watch_request::create(&WatchCreateRequest {
                key: &key,
                range_end: &range_end,
                start_revision: next.map_or(0, Revision::get),
                progress_notify: notify,
                no_put: false,
                no_delete,
                prev_kv,
                watch_id: id,
                fragment: clients.world.chance(30),
            })
        };
        self.request(clients, request);
    }

    fn request(&self, clients: &Clients, request: Vec<u8>) {
        self.send(clients, move |session| session.request(request.into()));
    }

    /// Decodes a message; `None` for a fragment that is not the last one.
    fn heard(&self, message: &Bytes) -> Option<Heard> {
        let response = WatchResponse::parse(message).expect("a router writes watch responses");
        let begun = self.begun.borrow_mut().take();
        if begun.is_none() && !response.fragment {
            return Some(self.of_whole(&response, message));
        }
        let (id, mut events) = begun.unwrap_or((response.watch_id, Vec::new()));
        assert_eq!(id, response.watch_id, "the fragments of a message come one after the other");
        assert!(response.events > 0, "only events are in fragments");
        events.extend(watch_events(message).map(|event| got(event.expect("an event"))));
        if response.fragment {
            self.begun.replace(Some((id, events)));
            return None;
        }
        let header = Revision(response.header.map_or(0, |header| header.revision));
        Some(Heard::Events { watch: id, header, events })
    }

    fn of_whole(&self, response: &WatchResponse<'_>, message: &Bytes) -> Heard {
        let header = Revision(response.header.map_or(0, |header| header.revision));
        let id = response.watch_id;
        if response.created {
            let watch = self.creating.borrow_mut().pop_front().expect("it answers a create");
            assert!(id == watch || response.canceled, "creates are answered in their order");
            return match response.canceled {
                true => Heard::Cancelled { watch },
                false => Heard::Created { watch, header },
            };
        }
        match (response.canceled, Revision::from_wire(response.compact_revision)) {
            (true, Some(floor)) => return Heard::Compacted { watch: id, floor },
            (true, None) => return Heard::Cancelled { watch: id },
            (false, _) => {}
        }
        let events: Vec<Got> = watch_events(message).map(|event| got(event.expect("an event"))).collect();
        match events.is_empty() {
            true => Heard::Progress { watch: (id >= 0).then_some(id), at: header },
            false => Heard::Events { watch: id, header, events },
        }
    }
}

/// A watcher, which reads until the run is over.
pub async fn run(clients: Rc<Clients>) {
    let world = clients.world.clone();
    let logicals: Vec<usize> = (0..world.between(1, 3)).map(|_| begin(&clients)).collect();
    let restless = world.chance(60);
    let slow = world.chance(20);
    loop {
        clients.pause().await;
        let router = clients.routers.borrow()[clients.any_router()].clone();
        let Some(router) = router else { continue };
        let connection = Connection::open(&clients, router);
        for logical in &logicals {
            connection.watch(&clients, *logical);
        }
        read(&clients, &connection, restless, slow).await;
        connection.session.hang_up();
    }
}

/// Begins a random watch, from now or from a revision that a client has seen.
fn begin(clients: &Clients) -> usize {
    let world = &clients.world;
    let kind = clients.any_kind();
    let range =
        if world.chance(25) { KeyRange::Single(clients.any_key(kind)) } else { clients.any_range(kind) };
    let seen = clients.seen.borrow()[kind].clone();
    let next = if seen.is_empty() || world.chance(50) { None } else { Some(world.pick(&seen).next()) };
    let logical = Logical { kind, range, prev_kv: world.chance(50), no_delete: world.chance(15), next };
    let mut record = clients.history.write();
    record.logicals.push(logical);
    record.logicals.len() - 1
}

/// Reads a connection until it ends or the client hangs up.
async fn read(clients: &Rc<Clients>, connection: &Connection, restless: bool, slow: bool) {
    let world = &clients.world;
    let enough = world.now() + world.between(5 * MS, *world.pick(&[50 * MS, 2 * SECOND, 20 * SECOND]));
    loop {
        let over = clients.over.get();
        if !over && restless && world.now() > enough {
            return;
        }
        let next = connection.mail.messages.borrow_mut().pop_front();
        let Some(message) = next else {
            if connection.mail.gone.get() {
                return;
            }
            let wait = if over { 5 * SECOND } else { world.between(MS, 300 * MS) };
            let rung = world.within(wait, connection.mail.bell.rung()).await;
            if rung.is_none() && !over && world.chance(40) {
                let asked = world.order();
                clients.history.write().streams[connection.record].asked.push(asked);
                connection.request(clients, watch_request::progress());
            }
            continue;
        };
        if let Some(heard) = connection.heard(&message) {
            hear(clients, connection, heard);
        }
        if slow && !over && world.chance(20) {
            world.sleep(world.between(MS, 3 * SECOND)).await;
        }
        connection.send(clients, |session| session.read_one());
    }
}

fn hear(clients: &Rc<Clients>, connection: &Connection, heard: Heard) {
    let (order, at) = (clients.world.order(), clients.world.now());
    clients.world.note(format_args!("stream {} {heard:?}", connection.record));
    let mut again = Vec::new();
    {
        let record = &mut *clients.history.write();
        let stream = &mut record.streams[connection.record];
        let logical_of = |watch: i64| {
            stream.creates.iter().find(|create| create.watch == watch).map(|create| create.logical)
        };
        match &heard {
            Heard::Created { watch, header } => {
                if let Some(logical) = logical_of(*watch) {
                    record.logicals[logical].next.get_or_insert(header.next());
                }
            }
            Heard::Events { watch, events, .. } => {
                if let (Some(logical), Some(last)) = (logical_of(*watch), events.last()) {
                    record.logicals[logical].next = Some(last.revision.next());
                }
            }
            Heard::Progress { watch, at } => {
                for create in &stream.creates {
                    let next = &mut record.logicals[create.logical].next;
                    // It does not cover watches that do not exist yet.
                    let exists = stream.heard.iter().any(|(_, _, heard)| {
                        matches!(heard, Heard::Created { watch, .. } if *watch == create.watch)
                    });
                    if exists && watch.is_none_or(|watch| watch == create.watch) {
                        *next = next.map(|next| next.max(at.next()));
                    }
                }
            }
            Heard::Compacted { watch, .. } => {
                if let Some(logical) = logical_of(*watch) {
                    // A real client would list again and watch from there.
                    record.logicals[logical].next = None;
                    again.push(logical);
                }
            }
            Heard::Cancelled { watch } => again.extend(logical_of(*watch)),
        }
        stream.heard.push((order, at, heard));
    }
    for logical in again {
        connection.watch(clients, logical);
    }
}

/// An encoded event as its client reads it.
fn got(event: &[u8]) -> Got {
    let event = EventRef::parse(event).expect("a router sends events");
    let kv = KeyValueRef::parse(event.kv).expect("with a key");
    let prev = event.prev_kv.map(|prev| KeyValueRef::parse(prev).expect("with a key"));
    Got {
        revision: Revision(kv.mod_revision),
        key: kv.key.to_vec(),
        is_delete: event.event_type == EventType::Delete,
        prev: prev.map(|prev| Revision(prev.mod_revision)),
    }
}
