//! The world: virtual time, a seeded scheduler, and tasks that live and die with what they belong to.
//!
//! One thread, no runtime: futures are polled in an order that the seed chooses, and time moves only when nothing can
//! run. Everything random is drawn from here, so a run is a function of its seed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Virtual time since the start of the run, microseconds.
pub type Micros = u64;
pub const MS: Micros = 1_000;
pub const SECOND: Micros = 1_000_000;

/// The most steps of a run. A run with more is in a loop and ends.
pub const STEPS_MAX: u64 = 400_000;

/// The incarnation of a process, which tasks belong to. When it ends, its tasks never run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life(u64);

/// The incarnation of the world's own tasks, which never ends.
pub const NATURE: Life = Life(0);

struct Timed {
    at: Micros,
    order: u64,
    life: Life,
    run: Box<dyn FnOnce()>,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    /// The soonest is the greatest, for the heap.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

type Future0 = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    life: Life,
    /// The future; taken out while it is polled.
    future: Option<Future0>,
    wake: Arc<TaskWake>,
}

struct TaskWake {
    id: u64,
    queued: AtomicBool,
    ready: Arc<Mutex<Vec<u64>>>,
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
        }
    }
}

struct Inner {
    now: Cell<Micros>,
    orders: Cell<u64>,
    lives: Cell<u64>,
    dead: RefCell<BTreeSet<Life>>,
    heap: RefCell<BinaryHeap<Timed>>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    ready: Arc<Mutex<Vec<u64>>>,
    random: RefCell<SmallRng>,
    log: RefCell<Vec<String>>,
    steps: Cell<u64>,
}

/// A handle on the world. All clones are handles on the same world.
#[derive(Clone)]
pub struct World(Rc<Inner>);

impl World {
    /// The world of a seed, at time zero.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Rc::new(Inner {
            now: Cell::new(0),
            orders: Cell::new(0),
            lives: Cell::new(0),
            dead: RefCell::default(),
            heap: RefCell::default(),
            tasks: RefCell::default(),
            ready: Arc::default(),
            random: RefCell::new(SmallRng::seed_from_u64(seed)),
            log: RefCell::default(),
            steps: Cell::new(0),
        }))
    }

    #[must_use]
    pub fn now(&self) -> Micros {
        self.0.now.get()
    }

    /// The number of steps so far: events and polls.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.steps.get()
    }

    /// The next number of a sequence that orders everything that happens.
    pub fn order(&self) -> u64 {
        let order = self.0.orders.get() + 1;
        self.0.orders.set(order);
        order
    }

    // ---- chance

    /// A random number below `end`, which is not zero.
    pub fn below(&self, end: u64) -> u64 {
        self.0.random.borrow_mut().random_range(0..end)
    }

    /// A random number of the range, both ends included.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        self.0.random.borrow_mut().random_range(low..=high)
    }

    /// True with a probability of `percent` in a hundred.
    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A random element of a list that is not empty.
    pub fn pick<'t, T>(&self, of: &'t [T]) -> &'t T {
        &of[self.index(of.len())]
    }

    /// A random index into a list of this length, which is not zero.
    pub fn index(&self, length: usize) -> usize {
        self.0.random.borrow_mut().random_range(0..length)
    }

    // ---- what happened

    /// Writes a line into the run's log.
    pub fn note(&self, line: fmt::Arguments<'_>) {
        self.0.log.borrow_mut().push(format!("{:>10} {line}", self.now()));
    }

    #[must_use]
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.log.borrow_mut())
    }

    // ---- tasks

    #[must_use]
    pub fn born(&self) -> Life {
        self.0.lives.set(self.0.lives.get() + 1);
        Life(self.0.lives.get())
    }

    /// Ends an incarnation and drops its tasks.
    pub fn kill(&self, life: Life) {
        self.0.dead.borrow_mut().insert(life);
        let gone: Vec<u64> = {
            let tasks = self.0.tasks.borrow();
            tasks.iter().filter(|(_, task)| task.life == life).map(|(id, _)| *id).collect()
        };
        for id in gone {
            // Dropped outside the borrow, because dropping a future may end other things.
            let task = self.0.tasks.borrow_mut().remove(&id);
            drop(task);
        }
    }

    /// Whether an incarnation has not ended.
    #[must_use]
    pub fn lives(&self, life: Life) -> bool {
        !self.0.dead.borrow().contains(&life)
    }

    pub fn after(&self, delay: Micros, life: Life, run: impl FnOnce() + 'static) {
        let order = self.order();
        let at = self.now() + delay;
        self.0.heap.borrow_mut().push(Timed { at, order, life, run: Box::new(run) });
    }

    pub fn spawn(&self, life: Life, future: impl Future<Output = ()> + 'static) {
        if !self.lives(life) {
            return;
        }
        let id = self.order();
        let wake = Arc::new(TaskWake { id, queued: AtomicBool::new(false), ready: self.0.ready.clone() });
        let task = Task { life, future: Some(Box::pin(future)), wake: wake.clone() };
        self.0.tasks.borrow_mut().insert(id, task);
        wake.wake();
    }

    pub async fn sleep(&self, delay: Micros) {
        let (wake, woken) = answer();
        self.after(delay, NATURE, move || wake.send(()));
        woken.await;
    }

    /// The output of a future, if it comes in time.
    pub async fn within<T>(&self, limit: Micros, future: impl Future<Output = T>) -> Option<T> {
        use futures_util::future::{Either, select};
        let (future, limit) = (std::pin::pin!(future), std::pin::pin!(self.sleep(limit)));
        match select(future, limit).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(_) => None,
        }
    }

    // ---- running

    fn next_ready(&self) -> Option<u64> {
        let mut ready = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.is_empty() {
            return None;
        }
        let at = if ready.len() == 1 { 0 } else { self.index(ready.len()) };
        Some(ready.swap_remove(at))
    }

    /// Runs until this time, or until nothing is left to do.
    pub fn run_until(&self, end: Micros) {
        while self.steps() < STEPS_MAX {
            if let Some(id) = self.next_ready() {
                self.0.steps.set(self.0.steps.get() + 1);
                self.poll(id);
                continue;
            }
            let next = {
                let mut heap = self.0.heap.borrow_mut();
                if heap.peek().is_none_or(|next| next.at > end) { None } else { heap.pop() }
            };
            let Some(Timed { at, life, run, .. }) = next else { break };
            self.0.now.set(at);
            if self.lives(life) {
                self.0.steps.set(self.0.steps.get() + 1);
                run();
            }
        }
        self.0.now.set(self.now().max(end));
    }

    fn poll(&self, id: u64) {
        let (future, wake) = {
            let mut tasks = self.0.tasks.borrow_mut();
            let Some(task) = tasks.get_mut(&id) else { return };
            task.wake.queued.store(false, Ordering::Relaxed);
            (task.future.take(), task.wake.clone())
        };
        let Some(mut future) = future else { return };
        let waker = Waker::from(wake);
        let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut tasks = self.0.tasks.borrow_mut();
        if done {
            tasks.remove(&id);
            drop(tasks);
            drop(future);
        } else if let Some(task) = tasks.get_mut(&id) {
            task.future = Some(future);
        } else {
            // It ended its own incarnation.
            drop(tasks);
            drop(future);
        }
    }

    /// Drops all tasks and plans, which hold handles on the world.
    pub fn end(&self) {
        let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
        drop(tasks);
        let heap = std::mem::take(&mut *self.0.heap.borrow_mut());
        drop(heap);
    }
}

/// A value on its way from one task to another.
struct Slot<T> {
    value: Option<T>,
    closed: bool,
    waker: Option<Waker>,
}

/// The sending end. If it is dropped without a value, the other end gets `None`.
pub struct Answer<T>(Rc<RefCell<Slot<T>>>);

/// The receiving end.
pub struct Answered<T>(Rc<RefCell<Slot<T>>>);

/// A channel for one value.
#[must_use]
pub fn answer<T>() -> (Answer<T>, Answered<T>) {
    let slot = Rc::new(RefCell::new(Slot { value: None, closed: false, waker: None }));
    (Answer(slot.clone()), Answered(slot))
}

impl<T> Answer<T> {
    /// Sends the value. The other end may be gone.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
    }

    #[must_use]
    pub fn is_wanted(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        let waker = {
            let mut slot = self.0.borrow_mut();
            slot.closed = true;
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Answered<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = self.0.borrow_mut();
        if let Some(value) = slot.value.take() {
            return Poll::Ready(Some(value));
        }
        if slot.closed {
            return Poll::Ready(None);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// A notification of a change. Several before it is taken count as one, as with tokio's `Notify` and one waiter.
#[derive(Default)]
pub struct Bell {
    rung: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Bell {
    pub fn ring(&self) {
        self.rung.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits for the next ring. A ring before that nobody has taken counts.
    pub async fn rung(&self) {
        std::future::poll_fn(|context| {
            if self.rung.replace(false) {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
