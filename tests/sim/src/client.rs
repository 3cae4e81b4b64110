//! Clients. Each is a task that asks a router for something, waits a little, and asks again; the seed decides all of
//! it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::{Key, KeyRange};

use crate::history::{History, Times};
use crate::meta::MetaStore;
use crate::net::Net;
use crate::router::{Fail, Router};
use crate::topology::{KINDS, Topology};
use crate::world::{MS, NATURE, SECOND, World, answer};

pub mod admin;
pub mod keeper;
pub mod lister;
pub mod watcher;
pub mod writer;

pub struct Clients {
    pub world: World,
    pub net: Rc<Net>,
    /// The record of the run.
    pub history: Rc<History>,
    /// The first map and the stores.
    pub topology: Rc<Topology>,
    pub meta: Rc<MetaStore>,
    /// The routers; `None` while one is stopped.
    pub routers: RefCell<Vec<Option<Rc<Router>>>>,
    /// Operators move Kinds in this run.
    pub moving: bool,
    /// Whether the meta store may lose its last writes.
    pub forgetful: bool,
    /// Stores restart in this run, and their disks fail.
    pub restarting: bool,
    /// A store may be lost for ever in this run, and is replaced.
    pub replacing: bool,
    /// The store that is lost.
    pub lost: Cell<Option<usize>>,
    /// Clients that are not done.
    pub busy: Cell<usize>,
    /// Whether the run ends. Clients begin nothing then.
    pub over: Cell<bool>,
    /// The last revisions that clients have seen, by Kind. Later requests name them.
    pub seen: RefCell<Vec<Vec<Revision>>>,
    /// The number of keys of each Kind. It is small, so that clients use the same keys.
    pub keys: usize,
}

impl Clients {
    /// Whether all stores run, with the one in place of the lost one.
    pub fn all_run(&self) -> bool {
        let shards = self.net.shards();
        let lost = self.lost.get();
        let there = shards.iter().enumerate().filter(|(at, _)| match lost {
            Some(lost) => *at != lost,
            None => *at < shards.len() - 1,
        });
        there.into_iter().all(|(_, shard)| shard.runs())
    }

    /// Waits between two requests, mostly for a short time.
    pub async fn pause(&self) {
        let pause = match self.world.below(100) {
            0..=69 => self.world.between(50, 4 * MS),
            70..=94 => self.world.between(MS, 200 * MS),
            _ => self.world.between(200 * MS, 4 * SECOND),
        };
        self.world.sleep(pause).await;
    }

    pub fn any_router(&self) -> usize {
        self.world.index(self.routers.borrow().len())
    }

    /// Asks a router, and records when the request was sent, received, answered and finished.
    pub async fn ask<T: 'static, F>(
        &self,
        router: usize,
        request: impl FnOnce(Rc<Router>) -> F + 'static,
    ) -> (Result<T, Fail>, Times)
    where
        F: Future<Output = Result<T, Fail>> + 'static,
    {
        let (started, started_at) = (self.world.order(), self.world.now());
        self.world.sleep(self.net.delay()).await;
        let serving = self.routers.borrow()[router].clone();
        let times = Cell::new((None, None));
        let result = match serving {
            None => Err(Fail::Unavailable),
            Some(serving) => {
                let (reply, replied) = answer();
                let (world, net, life) = (self.world.clone(), self.net.clone(), serving.life);
                let arrived = self.world.order();
                times.set((Some((life, arrived)), None));
                self.world.spawn(life, async move {
                    let result = request(serving).await;
                    let left = world.order();
                    let back = net.delay();
                    world.after(back, life, move || reply.send((result, left)));
                });
                match replied.await {
                    Some((result, left)) => {
                        times.set((Some((life, arrived)), Some(left)));
                        result
                    }
                    None => Err(Fail::Unknown),
                }
            }
        };
        let (router, left) = times.get();
        let (finished, finished_at) = (self.world.order(), self.world.now());
        (result, Times { started, router, left, finished, started_at, finished_at })
    }

    /// Runs a client as long as it has something to do.
    pub fn start(self: &Rc<Self>, client: impl Future<Output = ()> + 'static) {
        self.busy.set(self.busy.get() + 1);
        let this = self.clone();
        self.world.spawn(NATURE, async move {
            client.await;
            this.busy.set(this.busy.get() - 1);
        });
    }

    /// Notes that a client has seen a revision of a Kind.
    pub fn saw(&self, kind: usize, revision: Revision) {
        let seen = &mut self.seen.borrow_mut()[kind];
        seen.push(revision);
        if seen.len() > 16 {
            seen.remove(0);
        }
    }

    /// A random Kind. The Kinds on several stores come more often.
    pub fn any_kind(&self) -> usize {
        [0, 1, 1, 1, 2, 2, 2][self.world.index(7)] % KINDS
    }

    /// A random key of a Kind.
    pub fn any_key(&self, kind: usize) -> Key {
        self.topology.key(kind, self.world.index(self.keys))
    }

    /// A random range of a Kind: the whole Kind, a namespace, or all keys from one on.
    pub fn any_range(&self, kind: usize) -> KeyRange {
        let whole = self.topology.kind_range(kind);
        match self.world.below(10) {
            0..=5 => whole,
            6..=7 => {
                let key = self.any_key(kind);
                let cut = key.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                KeyRange::prefix(Key::copy_from(&key[..=cut]))
            }
            _ => {
                let (a, b) = (self.any_key(kind), self.any_key(kind));
                let (start, end) = if a <= b { (a, b) } else { (b, a) };
                KeyRange::Span { start, end: Some(end.successor()) }
            }
        }
    }
}
