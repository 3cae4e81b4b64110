//! Streams of a router at a shard: feeds and watches, each with a task of its own as in `shard/src/internal/feed.rs`
//! and `shard/src/etcd/watch.rs`, which take what the product's handle gives.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use kindred_engine::engine::WatchId;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_shard::core::{FeedOf, FeedWanted};
use kindred_shard::etcd_status::KvError;
use kindred_shard::handle::Handle;

use crate::messages::{StreamIn, StreamOut};
use crate::net::Stream;
use crate::world::World;

/// Messages made ahead of a router.
const UNREAD_MAX: usize = 6;
/// Bytes pulled from the engine at a time; small, so that pulls end in the middle.
const PULL_BYTES: usize = 400;

/// What has arrived on a stream and is not served yet.
pub struct Inbox {
    stream: Rc<Stream>,
    messages: RefCell<VecDeque<StreamIn>>,
    waker: RefCell<Option<Waker>>,
}

impl Inbox {
    /// An empty one.
    pub fn new(stream: &Rc<Stream>) -> Rc<Self> {
        Rc::new(Self { stream: stream.clone(), messages: RefCell::default(), waker: RefCell::default() })
    }

    /// Whether it belongs to this stream.
    pub fn is_of(&self, stream: &Rc<Stream>) -> bool {
        Rc::ptr_eq(&self.stream, stream)
    }

    /// A message has arrived.
    pub fn push(&self, message: StreamIn) {
        self.messages.borrow_mut().push_back(message);
        self.has_room();
    }

    /// The router has read a message.
    pub fn has_room(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<StreamIn> {
        *self.waker.borrow_mut() = Some(waker.clone());
        self.messages.borrow_mut().pop_front().map_or(Poll::Pending, Poll::Ready)
    }

    async fn next(&self) -> StreamIn {
        std::future::poll_fn(|context| self.poll(context.waker())).await
    }

    fn may_send(&self) -> bool {
        self.stream.unread.get() < UNREAD_MAX
    }

    fn send(&self, world: &World, message: StreamOut) {
        self.stream.send_out(world, world.between(20, 200), message);
    }
}

/// Serves a stream until the router closes it.
pub async fn serve(world: &World, handle: &Handle, inbox: &Inbox) {
    let first = inbox.next().await;
    let served = match first {
        StreamIn::Close => return,
        StreamIn::Feed { ranges, start } => feed(world, handle, inbox, ranges, start).await,
        first => watch(world, handle, inbox, first).await,
    };
    debug_assert!(served.is_ok(), "routers ask for nothing that is refused: {served:?}");
}

enum Step<T> {
    In(StreamIn),
    Out(T),
}

async fn feed(
    world: &World,
    handle: &Handle,
    inbox: &Inbox,
    ranges: Vec<KeyRange>,
    start: Revision,
) -> Result<(), KvError> {
    let of = FeedOf::Ranges { ranges, generation: None };
    let wanted = FeedWanted { of, start: Revision::from_wire(start.get()) };
    let (feed, mut messages) = handle.feed(wanted).await?;
    loop {
        let step = std::future::poll_fn(|context| {
            if let Poll::Ready(message) = inbox.poll(context.waker()) {
                return Poll::Ready(Step::In(message));
            }
            if inbox.may_send() { messages.poll_next(context).map(Step::Out) } else { Poll::Pending }
        });
        match step.await {
            Step::In(StreamIn::Advance(to)) => feed.advance(to).await?,
            Step::In(_) | Step::Out(None) => return Ok(()),
            Step::Out(Some(out)) => inbox.send(world, StreamOut::Feed(out)),
        }
    }
}

async fn watch(world: &World, handle: &Handle, inbox: &Inbox, first: StreamIn) -> Result<(), KvError> {
    let stream = handle.watch().await?;
    let woken = stream.woken();
    let (mut next, mut pull) = (Some(first), false);
    loop {
        if let Some(message) = next.take() {
            match message {
                StreamIn::Watch(spec) => {
                    let created = stream.create(spec).await?;
                    debug_assert!(created.is_ok(), "routers give every watch a number of its own");
                }
                StreamIn::Cancel(watch) => drop(stream.cancel(WatchId(watch)).await?),
                StreamIn::Progress => stream.progress().await?,
                StreamIn::Close | StreamIn::Feed { .. } | StreamIn::Advance(_) => return Ok(()),
            }
            pull = true;
        }
        let mut notified = pin!(woken.notified());
        let step = std::future::poll_fn(|context| {
            if let Poll::Ready(message) = inbox.poll(context.waker()) {
                return Poll::Ready(Step::In(message));
            }
            pull |= notified.as_mut().poll(context).is_ready();
            if pull && inbox.may_send() { Poll::Ready(Step::Out(())) } else { Poll::Pending }
        });
        match step.await {
            Step::In(message) => next = Some(message),
            Step::Out(()) => {
                let out = stream.pull(PULL_BYTES).await?;
                pull = !out.is_empty();
                if pull {
                    inbox.send(world, StreamOut::Watch(out));
                }
            }
        }
    }
}
