//! Streams of a router at a shard: feeds and watches, each with a task of its own as in `shard/src/internal/feed.rs`
//! and `shard/src/etcd/watch.rs`, which take what the product's handle gives.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use kindred_engine::engine::WatchId;
use kindred_engine::error::EngineError;
use kindred_partition_config::ids::Revision;
use kindred_shard::core::{FeedOf, FeedWanted};
use kindred_shard::etcd_status::{KvError, status};
use kindred_shard::handle::Handle;
use kindred_shard::internal::units::UnitService;
use kindred_shard::read_hints::checked;

use super::units;
use crate::messages::{StreamIn, StreamOut};
use crate::net::Stream;
use crate::world::World;

/// The most messages that a router has not read.
const UNREAD_MAX: usize = 6;
/// The bytes that are pulled from the engine at a time. They are few, so that pulls end in the middle.
const PULL_BYTES: usize = 400;

/// The messages of a stream that are not served yet.
pub struct Inbox {
    stream: Rc<Stream>,
    messages: RefCell<VecDeque<StreamIn>>,
    waker: RefCell<Option<Waker>>,
}

impl Inbox {
    pub fn new(stream: &Rc<Stream>) -> Rc<Self> {
        Rc::new(Self { stream: stream.clone(), messages: RefCell::default(), waker: RefCell::default() })
    }

    /// Whether it belongs to this stream.
    pub fn is_of(&self, stream: &Rc<Stream>) -> bool {
        Rc::ptr_eq(&self.stream, stream)
    }

    pub fn push(&self, message: StreamIn) {
        self.messages.borrow_mut().push_back(message);
        self.has_room();
    }

    /// Notes that the router has read a message.
    pub fn has_room(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits for the next message from the router.
    pub(super) fn poll(&self, waker: &Waker) -> Poll<StreamIn> {
        *self.waker.borrow_mut() = Some(waker.clone());
        self.messages.borrow_mut().pop_front().map_or(Poll::Pending, Poll::Ready)
    }

    async fn next(&self) -> StreamIn {
        std::future::poll_fn(|context| self.poll(context.waker())).await
    }

    /// Whether the router has room.
    pub(super) fn may_send(&self) -> bool {
        self.stream.unread.get() < UNREAD_MAX
    }

    /// Sends a message to the router.
    pub(super) fn send(&self, world: &World, message: StreamOut) {
        self.stream.send_out(world, world.between(20, 200), message);
    }
}

/// Serves a stream until the router closes it.
pub async fn serve(world: &World, (handle, service): (&Handle, &UnitService), inbox: &Inbox) {
    let first = inbox.next().await;
    let served = match first {
        StreamIn::Close => return,
        StreamIn::Feed { ranges, start, generation } => {
            let of = FeedOf::Ranges { ranges, generation: checked(generation.0) };
            match feed(world, handle, inbox, of, start).await {
                Err(error @ (KvError::NotOwned(_) | KvError::Engine(EngineError::NotOwned(_)))) => {
                    return inbox.send(world, StreamOut::Refused(status(&error)));
                }
                served => served,
            }
        }
        StreamIn::Copy(request) => return units::copy(world, service, inbox, request).await,
        StreamIn::Verify(request) => return units::verify(world, service, inbox, request).await,
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
    of: FeedOf,
    start: Revision,
) -> Result<(), KvError> {
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
                    let id = spec.id;
                    match stream.create(spec).await? {
                        Ok(_) => {}
                        Err((KvError::Engine(EngineError::NotOwned(refused)), header)) => {
                            let id = id.expect("routers give every watch a number of its own");
                            inbox.send(world, StreamOut::WatchRefused(id, header, refused));
                        }
                        Err(error) => debug_assert!(false, "nothing else is refused: {error:?}"),
                    }
                }
                StreamIn::Cancel(watch) => drop(stream.cancel(WatchId(watch)).await?),
                StreamIn::Progress => stream.progress().await?,
                _ => return Ok(()),
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
