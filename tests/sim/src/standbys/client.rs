//! Clients: each does one thing after the other, at whoever a router takes for the primary, and sometimes at another one.

use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::Key;

use super::world::{Event, MEMBERS, ROUTERS, Sim, at_url};
use crate::world::{MS, SECOND};

pub const KEYS: usize = 2;

#[must_use]
pub fn key(at: usize) -> Key {
    Key::from(format!("/registry/pods/a/{at}").as_str())
}

#[derive(Debug, Clone)]
pub struct Request {
    pub client: usize,
    pub op: u64,
    pub router: usize,
    pub key: usize,
    /// The value, of a write.
    pub write: Option<u64>,
}

/// A version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub key: usize,
    pub revision: Revision,
    /// How often the key was written; 0 if it is not known.
    pub version: i64,
    pub value: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Shown(Option<Shown>),
    Refused,
}

/// What a client is doing.
#[derive(Debug, Clone)]
pub struct Doing {
    op: u64,
    key: usize,
    write: Option<u64>,
    /// What was shown before it began.
    floor: Revision,
    /// After how many promotions by force it began.
    epoch: u64,
}

#[derive(Debug, Default)]
pub struct Client {
    next: u64,
    doing: Option<Doing>,
}

impl Sim {
    pub fn client_begins(&mut self, client: usize) {
        let router = self.below(ROUTERS);
        let at = self.routers[router].store().endpoints.first().and_then(|url| at_url(url));
        let other = self.below(MEMBERS);
        let at = if self.percent(10) { other } else { at.unwrap_or(other) };
        let (at_key, writes) = (self.below(KEYS), self.percent(60));
        let it = &mut self.clients[client];
        it.next += 1;
        let op = it.next;
        let write = writes.then_some(op * 10 + client as u64);
        let (floor, epoch) = (self.truth.floor(at_key), self.truth.epoch);
        self.clients[client].doing = Some(Doing { op, key: at_key, write, floor, epoch });
        let patience = self.between(500 * MS, 3 * SECOND);
        self.after(patience, None, Event::ClientGivesUp(client, op));
        // Routers send nothing to a store that does not fit (R1).
        if !self.processes[at].up || !self.is_the_store(at) {
            let delay = self.delay();
            return self.after(delay, None, Event::Reply(client, op, Reply::Refused));
        }
        let request = Request { client, op, router, key: at_key, write };
        self.throw(MEMBERS + router, at, Some(at), Event::Request(request));
    }

    pub fn client_hears(&mut self, client: usize, op: u64, reply: Reply) {
        let Some(doing) = self.clients[client].doing.take_if(|doing| doing.op == op) else { return };
        if let Reply::Shown(shown) = reply
            && doing.epoch == self.truth.epoch
        {
            if doing.write.is_some() {
                self.counts.writes += 1;
            } else {
                self.counts.reads += 1;
            }
            self.truth_hears(doing.key, doing.floor, doing.write, shown.as_ref());
            self.truth.served_at = self.now;
        }
        self.client_goes_on(client);
    }

    pub fn client_gives_up(&mut self, client: usize, op: u64) {
        if self.clients[client].doing.take_if(|doing| doing.op == op).is_some() {
            self.client_goes_on(client);
        }
    }

    fn client_goes_on(&mut self, client: usize) {
        let most = self.plan.client_pause;
        let pause = self.between(5 * MS, most);
        self.after(pause, None, Event::Begin(client));
    }
}
