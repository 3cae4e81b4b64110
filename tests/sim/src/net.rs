//! The network between routers and shards: unary calls that overtake each other, ordered streams, delays, and links
//! that break. A broken link loses all that was under way on it, and each lost request may have been executed. A stream
//! never loses a message in its middle.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use kindred_router_core::store::StoreIx;

use crate::messages::{CallError, Reply, Request, StreamIn, StreamOut};
use crate::shard::Shard;
use crate::shard::files::End;
use crate::world::{Answer, Life, MS, Micros, NATURE, SECOND, World, answer};

/// How long a router waits for a store.
const READ_LIMIT: Micros = 20 * SECOND;
const WRITE_LIMIT: Micros = 10 * SECOND;

/// Receives the messages of a shard.
pub type Deliver = Box<dyn Fn(StreamOut)>;

/// One router's connection to one shard.
#[derive(Default)]
struct Link {
    down: Cell<bool>,
    generation: Rc<Cell<u64>>,
    breaks: RefCell<Vec<Answer<()>>>,
    streams: RefCell<Vec<Rc<Stream>>>,
}

/// An ordered stream between a router and a shard.
pub struct Stream {
    life: Life,
    /// Whether neither end has closed it.
    open: Cell<bool>,
    /// When the last message in each direction arrives.
    last_in: Cell<Micros>,
    last_out: Cell<Micros>,
    /// The number of messages that are on their way or not read yet.
    pub unread: Cell<usize>,
    shard: Rc<Shard>,
    /// The incarnation of the shard that it leads to.
    pub to_life: Option<Life>,
    to_router: RefCell<Option<Deliver>>,
}

pub struct Net {
    world: World,
    shards: Vec<Rc<Shard>>,
    links: Vec<Vec<Link>>,
    /// How many messages in a hundred are late.
    late_percent: u64,
    late_max: Micros,
    /// Whether no message is late any more.
    calm: Cell<bool>,
}

impl Net {
    /// Links between so many routers and all shards.
    #[must_use]
    pub fn new(world: World, routers: usize, shards: Vec<Rc<Shard>>) -> Self {
        let link = |shard: &Rc<Shard>| Link { down: Cell::new(!shard.runs()), ..Link::default() };
        let links = (0..routers).map(|_| shards.iter().map(link).collect()).collect();
        let late_percent = *world.pick(&[0, 0, 2, 10, 30]);
        let late_max = *world.pick(&[2 * MS, 20 * MS, 300 * MS]);
        Self { world, shards, links, late_percent, late_max, calm: Cell::new(false) }
    }

    /// How long the next message takes.
    pub fn delay(&self) -> Micros {
        if !self.calm.get() && self.late_percent > 0 && self.world.chance(self.late_percent) {
            self.world.between(MS, self.late_max)
        } else {
            self.world.between(20, 300)
        }
    }

    #[must_use]
    pub fn shards(&self) -> &[Rc<Shard>] {
        &self.shards
    }

    /// Whether a router can reach a store, as its monitor knows.
    #[must_use]
    pub fn is_up(&self, router: usize, store: StoreIx) -> bool {
        !self.links[router][store.0].down.get()
    }

    /// Breaks a link, and loses all that is under way on it. It stays down until it is healed.
    pub fn cut(&self, router: usize, store: usize) {
        let link = &self.links[router][store];
        link.down.set(true);
        link.generation.set(link.generation.get() + 1);
        for waiting in link.breaks.borrow_mut().drain(..) {
            waiting.send(());
        }
        let streams = std::mem::take(&mut *link.streams.borrow_mut());
        for stream in streams {
            self.end(&stream);
        }
    }

    /// Connects a link again, if the store's process runs.
    pub fn heal(&self, router: usize, store: usize) {
        self.links[router][store].down.set(!self.shards[store].runs());
    }

    /// Ends a store's process and breaks all its links.
    pub fn end_store(&self, store: usize, how: End) {
        self.shards[store].stop(how);
        (0..self.links.len()).for_each(|router| self.cut(router, store));
    }

    /// Starts a store's process and connects the routers to it.
    pub fn start_store(&self, store: usize) {
        self.shards[store].start();
        (0..self.links.len()).for_each(|router| self.heal(router, store));
    }

    /// Heals all links, and nothing is late any more.
    pub fn calm_down(&self) {
        self.calm.set(true);
        for links in &self.links {
            links.iter().zip(&self.shards).for_each(|(link, shard)| link.down.set(!shard.runs()));
        }
    }

    /// Makes a call, which is sent again once where that is safe (R11).
    ///
    /// # Errors
    /// The shard's error, or how the call was lost.
    pub async fn call(&self, router: usize, store: StoreIx, request: Request) -> Result<Reply, CallError> {
        let is_read = request.is_read();
        let limit = if is_read { READ_LIMIT } else { WRITE_LIMIT };
        let mut again = is_read;
        loop {
            if !self.is_up(router, store) {
                return Err(CallError::Down);
            }
            let sent = self.world.within(limit, self.send(router, store, request.clone())).await;
            match sent {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(CallError::Lost)) if again => again = false,
                Some(Err(CallError::Lost)) if is_read => return Err(CallError::Down),
                Some(Err(error)) => return Err(error),
                None => return Err(if is_read { CallError::Down } else { CallError::Lost }),
            }
        }
    }

    /// Makes a call that is sent once, with this time limit.
    ///
    /// # Errors
    /// As above.
    pub async fn once(
        &self,
        router: usize,
        store: StoreIx,
        request: Request,
        limit: Micros,
    ) -> Result<Reply, CallError> {
        if !self.is_up(router, store) {
            return Err(CallError::Down);
        }
        let sent = self.world.within(limit, self.send(router, store, request)).await;
        sent.unwrap_or(Err(CallError::Lost))
    }

    async fn send(&self, router: usize, store: StoreIx, request: Request) -> Result<Reply, CallError> {
        let link = &self.links[router][store.0];
        let (broken, breaks) = answer();
        {
            let mut waiting = link.breaks.borrow_mut();
            waiting.retain(Answer::is_wanted);
            waiting.push(broken);
        }
        let (reply, replied) = answer();
        let (shard, world, back) = (self.shards[store.0].clone(), self.world.clone(), self.delay());
        let (generation, then, life) = (link.generation.clone(), link.generation.get(), shard.life());
        self.world.after(self.delay(), NATURE, move || {
            // A request on a link that broke meanwhile may have arrived.
            if generation.get() != then && world.chance(50) {
                return;
            }
            shard.receive(
                life,
                request,
                Box::new(move |result| world.after(back, NATURE, move || reply.send(result))),
            );
        });
        use futures_util::future::{Either, select};
        match select(replied, breaks).await {
            Either::Left((Some(result), _)) => result,
            Either::Left((None, _)) | Either::Right(_) => Err(CallError::Lost),
        }
    }

    /// Opens a stream. What the shard sends goes to `to_router` as long as the router lives.
    pub fn open(&self, router: usize, life: Life, store: StoreIx, to_router: Deliver) -> Rc<Stream> {
        let stream = Rc::new(Stream {
            life,
            open: Cell::new(true),
            last_in: Cell::new(0),
            last_out: Cell::new(0),
            unread: Cell::new(0),
            to_life: self.shards[store.0].life(),
            shard: self.shards[store.0].clone(),
            to_router: RefCell::new(Some(to_router)),
        });
        let link = &self.links[router][store.0];
        if link.down.get() {
            self.end(&stream);
        } else {
            let mut streams = link.streams.borrow_mut();
            streams.retain(|stream| stream.open.get());
            streams.push(stream.clone());
        }
        stream
    }

    /// Sends a message on a stream. Messages arrive in the order in which they were sent.
    pub fn send_in(&self, stream: &Rc<Stream>, message: StreamIn) {
        if !stream.open.get() {
            return;
        }
        let at = (self.world.now() + self.delay()).max(stream.last_in.get());
        stream.last_in.set(at);
        let to = stream.clone();
        self.world.after(at - self.world.now(), NATURE, move || {
            if to.open.get() {
                to.shard.receive_in(&to, message);
            }
        });
    }

    /// Closes a stream for its router. The shard learns of that later.
    pub fn close(&self, stream: &Rc<Stream>) {
        *stream.to_router.borrow_mut() = None;
        if stream.open.replace(false) {
            let gone = stream.clone();
            self.world.after(self.delay(), NATURE, move || gone.shard.receive_in(&gone, StreamIn::Close));
        }
    }

    /// Breaks a stream. Each end learns of that in its own time.
    fn end(&self, stream: &Rc<Stream>) {
        if !stream.open.replace(false) {
            return;
        }
        let (to, life) = (stream.clone(), stream.life);
        self.world.after(self.delay(), life, move || {
            let deliver = to.to_router.borrow_mut().take();
            if let Some(deliver) = deliver {
                deliver(StreamOut::Broken);
            }
        });
        let gone = stream.clone();
        self.world.after(self.delay(), NATURE, move || gone.shard.receive_in(&gone, StreamIn::Close));
    }

    /// Closes the streams of a router's process that has ended.
    pub fn end_life(&self, life: Life) {
        for link in self.links.iter().flatten() {
            let ended: Vec<_> =
                link.streams.borrow().iter().filter(|stream| stream.life == life).cloned().collect();
            ended.iter().for_each(|stream| self.close(stream));
        }
    }
}

impl Stream {
    /// Whether neither end has closed it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.get()
    }

    /// Sends a shard's message after `delay`. Messages arrive in the order in which they were sent.
    pub fn send_out(self: &Rc<Self>, world: &World, delay: Micros, message: StreamOut) {
        if !self.open.get() {
            return;
        }
        self.unread.set(self.unread.get() + 1);
        let at = (world.now() + delay).max(self.last_out.get());
        self.last_out.set(at);
        let to = self.clone();
        world.after(at - world.now(), self.life, move || {
            if !to.open.get() {
                return;
            }
            let deliver = to.to_router.borrow_mut().take();
            if let Some(deliver) = deliver {
                deliver(message);
                let mut back = to.to_router.borrow_mut();
                if to.open.get() && back.is_none() {
                    *back = Some(deliver);
                }
            }
        });
    }

    /// Notes that the router has read a message, so that the shard may make another.
    pub fn read_one(self: &Rc<Self>) {
        self.unread.set(self.unread.get().saturating_sub(1));
        self.shard.may_pull(self);
    }
}
