//! Clients: each a task that asks some router for something, waits a little, and asks again, as its seed has it.

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

/// What clients share.
pub struct Clients {
    /// The world.
    pub world: World,
    /// For the delays.
    pub net: Rc<Net>,
    /// What happens is written there.
    pub history: Rc<History>,
    /// Who serves what.
    pub topology: Rc<Topology>,
    /// The meta store.
    pub meta: Rc<MetaStore>,
    /// The routers that run now.
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
    /// The run ends: nobody begins anything.
    pub over: Cell<bool>,
    /// The highest revisions that clients have seen, by Kind; what they ask for later.
    pub seen: RefCell<Vec<Vec<Revision>>>,
    /// Keys of each Kind; few, so that clients meet.
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

    /// A pause between two requests: mostly short.
    pub async fn pause(&self) {
        let pause = match self.world.below(100) {
            0..=69 => self.world.between(50, 4 * MS),
            70..=94 => self.world.between(MS, 200 * MS),
            _ => self.world.between(200 * MS, 4 * SECOND),
        };
        self.world.sleep(pause).await;
    }

    /// A router, whichever.
    pub fn any_router(&self) -> usize {
        self.world.index(self.routers.borrow().len())
    }

    /// Asks a router, and notes when the request was where.
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

    /// A client was shown a revision of a Kind.
    pub fn saw(&self, kind: usize, revision: Revision) {
        let seen = &mut self.seen.borrow_mut()[kind];
        seen.push(revision);
        if seen.len() > 16 {
            seen.remove(0);
        }
    }

    /// A Kind: the spread ones more often.
    pub fn any_kind(&self) -> usize {
        [0, 1, 1, 1, 2, 2, 2][self.world.index(7)] % KINDS
    }

    /// A key of a Kind.
    pub fn any_key(&self, kind: usize) -> Key {
        self.topology.key(kind, self.world.index(self.keys))
    }

    /// A range of a Kind: all of it, a namespace, from some key on.
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
