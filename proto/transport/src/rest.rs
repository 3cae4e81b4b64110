//! Lets a runtime look for what has arrived before a task goes on with something long.
//!
//! Tokio's runtimes run up to 61 turns of tasks between two looks at sockets and timers. Where a few tasks wake each
//! other, such as those that move long answers from a store to clients, that is 15 MB, and milliseconds, during which
//! nothing that came in is noticed. A task that yields is continued after the next look, but any other task may wake it
//! before, and all tasks that yield continue after the same look.
//!
//! So the long transfers of a thread share its turns. A turn is what runs between two looks. [`Share`] counts what a
//! transfer moves. One that has moved its share while the turn is full begins a [`Rest`]. Those that rest stand in a
//! queue, and each turn continues one of them. A transfer that moves less than its share never rests.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;

/// The bytes that all long transfers of a thread together move in a turn before they rest.
pub(crate) const TURN_BYTES: usize = 256 << 10;
/// The bytes that one transfer may move in a full turn.
const SHARE_BYTES: usize = 64 << 10;

thread_local! {
    static TURNS: Arc<Turns> = Arc::default();
}

/// Time between two calls of [`give_way`] that have an effect: each costs two switches where another thread waits.
const GIVE_WAY: Duration = Duration::from_micros(150);

/// Lets threads run that wait for the processor of this one, if there are any. It is to be called after each slice of
/// long work, and has an effect every 150 us.
///
/// A thread that wakes while all processors are busy waits until one of the running threads has had its time: on Linux
/// 3 ms with two processors. Beside a list of a million keys, with no other work on two processors, 1 % of the writes
/// waited for 5 to 8 ms before, and for 1 ms with this.
pub fn give_way() {
    thread_local! {
        static GAVE: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    if GAVE.get().is_none_or(|gave| gave.elapsed() >= GIVE_WAY) {
        std::thread::yield_now();
        // Read after it: others may have had the processor for long.
        GAVE.set(Some(Instant::now()));
    }
}

/// The turns of a thread.
#[derive(Debug, Default)]
struct Turns {
    /// The number of turns so far.
    number: AtomicU64,
    /// The bytes that were moved in this turn.
    moved: AtomicUsize,
    /// Whether a task counts the turns. Without one, the present turn does not end.
    counted: AtomicBool,
    /// Those that rest, the longest first.
    resting: Mutex<VecDeque<Weak<Look>>>,
}

impl Turns {
    fn resting(&self) -> MutexGuard<'_, VecDeque<Weak<Look>>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to count, with a new turn, unless somebody does already. Returns false outside of a runtime.
    fn count(self: &Arc<Self>) -> bool {
        if self.counted.load(Ordering::Relaxed) {
            return true;
        }
        let Ok(runtime) = Handle::try_current() else { return false };
        self.counted.store(true, Ordering::Relaxed);
        self.number.fetch_add(1, Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
        let counting = Counting(self.clone());
        runtime.spawn(async move {
            loop {
                // Continued after the next look.
                tokio::task::yield_now().await;
                if !counting.0.next() {
                    return;
                }
            }
        });
        true
    }

    /// Ends a turn in which something long was moved, and begins the next. Returns false when nothing was moved and
    /// nobody rests.
    fn next(&self) -> bool {
        give_way();
        self.number.fetch_add(1, Ordering::Relaxed);
        let moved = self.moved.swap(0, Ordering::Relaxed);
        let mut resting = self.resting();
        while let Some(look) = resting.pop_front() {
            if let Some(look) = look.upgrade() {
                drop(resting);
                look.happen();
                return true;
            }
        }
        moved > 0
    }
}

/// Ends the count of turns, also when its runtime ends.
struct Counting(Arc<Turns>);

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.counted.store(false, Ordering::Relaxed);
        let resting = std::mem::take(&mut *self.0.resting());
        for look in resting {
            if let Some(look) = look.upgrade() {
                look.happen();
            }
        }
    }
}

/// What a transfer has moved in this turn.
#[derive(Debug, Default)]
pub(crate) struct Share {
    turn: u64,
    moved: usize,
}

impl Share {
    /// Counts these bytes.
    pub(crate) fn pay(&mut self, bytes: usize) {
        TURNS.with(|turns| {
            let turn = turns.number.load(Ordering::Relaxed);
            if self.turn != turn {
                *self = Self { turn, moved: 0 };
            }
            self.moved += bytes;
            turns.moved.fetch_add(bytes, Ordering::Relaxed);
            if self.moved >= SHARE_BYTES {
                turns.count();
            }
        });
    }

    /// Whether the transfer must rest before it moves more.
    pub(crate) fn is_spent(&self) -> bool {
        self.moved >= SHARE_BYTES
            && TURNS.with(|turns| {
                // Where nobody counts, as outside of a runtime, the turn has no end.
                turns.counted.load(Ordering::Relaxed)
                    && self.turn == turns.number.load(Ordering::Relaxed)
                    && turns.moved.load(Ordering::Relaxed) >= TURN_BYTES
            })
    }
}

/// Whether a task rests, and until when.
#[derive(Debug, Default)]
pub(crate) struct Rest(Option<Arc<Look>>);

#[derive(Debug, Default)]
struct Look {
    happened: AtomicBool,
    /// That of the last poll.
    task: AtomicWaker,
}

impl Look {
    fn happen(&self) {
        self.happened.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Rest {
    /// Begins a rest. The task of this context is woken at its end.
    pub(crate) fn begin(&mut self, cx: &mut Context<'_>) {
        let look = Arc::new(Look::default());
        look.task.register(cx.waker());
        TURNS.with(|turns| {
            if turns.count() {
                turns.resting().push_back(Arc::downgrade(&look));
            } else {
                look.happen();
            }
        });
        self.0 = Some(look);
    }

    /// Pending during a rest.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(look) = &self.0 {
            look.task.register(cx.waker());
            if !look.happened.load(Ordering::Acquire) {
                return Poll::Pending;
            }
            self.0 = None;
        }
        Poll::Ready(())
    }
}

/// Rests once.
pub(crate) async fn rest() {
    let mut rest = Rest::default();
    poll_fn(|cx| {
        rest.begin(cx);
        Poll::Ready(())
    })
    .await;
    poll_fn(|cx| rest.poll_over(cx)).await;
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::io::Write as _;
    use std::rc::Rc;
    use std::task::Waker;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Two tasks wake each other for ever. What arrives at a socket is noticed at the next rest all the same.
    #[tokio::test]
    async fn f37_what_arrives_is_noticed_within_one_rest_however_busy_others_are() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        let mut server = tokio::net::TcpStream::from_std(server).unwrap();
        let (turns, arrived) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None)));
        let local = tokio::task::LocalSet::new();
        let (counted, noted) = (turns.clone(), arrived.clone());
        local.spawn_local(async move {
            let mut byte = [0];
            server.read_exact(&mut byte).await.unwrap();
            noted.set(Some(counted.get()));
        });
        local
            .run_until(async {
                let mut rest = Rest::default();
                let noted = arrived.clone();
                poll_fn(|cx| {
                    // As another task would.
                    cx.waker().wake_by_ref();
                    if rest.poll_over(cx).is_pending() {
                        return Poll::Pending;
                    }
                    turns.set(turns.get() + 1);
                    if turns.get() == 100 {
                        client.write_all(b"x").unwrap();
                    }
                    rest.begin(cx);
                    if noted.get().is_some() { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            })
            .await;
        // The loopback network may take a moment; a runtime that does not look would need 61 turns.
        assert!(arrived.get().unwrap() < 100 + 30, "{:?}", arrived.get());
    }

    /// Moves pieces for ever, and notes in which turn each was moved.
    async fn transfer(name: usize, piece: usize, moved: Rc<RefCell<Vec<(u64, usize)>>>) {
        let mut share = Share::default();
        loop {
            share.pay(piece);
            moved.borrow_mut().push((TURNS.with(|turns| turns.number.load(Ordering::Relaxed)), name));
            if share.is_spent() {
                rest().await;
            }
        }
    }

    #[tokio::test]
    async fn transfers_that_are_long_share_each_turn_and_continue_in_order() {
        const TRANSFERS: usize = 7;
        const PIECE: usize = 32 << 10;
        let moved = Rc::new(RefCell::new(Vec::new()));
        let local = tokio::task::LocalSet::new();
        for name in 0..TRANSFERS {
            local.spawn_local(transfer(name, PIECE, moved.clone()));
        }
        let enough = async {
            while moved.borrow().len() < 10_000 {
                tokio::task::yield_now().await;
            }
        };
        local.run_until(enough).await;
        let (mut turns, mut of) = (BTreeMap::<u64, usize>::new(), [0; TRANSFERS]);
        for (turn, name) in &*moved.borrow() {
            *turns.entry(*turn).or_default() += PIECE;
            of[*name] += 1;
        }
        // The first turn, before anyone counted, has a share of each.
        let longest = turns.values().skip(1).max().copied().unwrap();
        assert!(longest <= TURN_BYTES + TRANSFERS * SHARE_BYTES, "{longest}");
        assert!(turns.len() > 10_000 * PIECE / (2 * TURN_BYTES), "{} turns", turns.len());
        let (least, most) = (of.iter().min().unwrap(), of.iter().max().unwrap());
        assert!(most - least <= 2 * TURN_BYTES / PIECE, "{of:?}");
    }

    #[tokio::test]
    async fn those_that_rest_continue_when_one_of_them_is_gone() {
        let (mut gone, mut stays) = (Rest::default(), Rest::default());
        poll_fn(|cx| {
            gone.begin(cx);
            stays.begin(cx);
            Poll::Ready(())
        })
        .await;
        drop(gone);
        poll_fn(|cx| stays.poll_over(cx)).await;
    }

    /// The queue of a thread outlives the runtime that empties it.
    #[test]
    fn those_that_rest_continue_when_their_runtime_is_gone() {
        let mut rest = Rest::default();
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(poll_fn(|cx| {
            rest.begin(cx);
            Poll::Ready(())
        }));
        let mut noop = Context::from_waker(Waker::noop());
        assert!(rest.poll_over(&mut noop).is_ready());
        rest.begin(&mut noop);
        assert!(rest.poll_over(&mut noop).is_ready(), "there is nobody who looks");
    }

    #[tokio::test]
    async fn a_rest_ends_and_wakes_whoever_polled_last() {
        poll_fn(|cx| {
            assert!(Rest::default().poll_over(cx).is_ready(), "none has begun");
            Poll::Ready(())
        })
        .await;
        let mut rest = Rest::default();
        // Another task begins it than the one that waits for its end.
        rest.begin(&mut Context::from_waker(Waker::noop()));
        assert!(rest.poll_over(&mut Context::from_waker(Waker::noop())).is_pending());
        poll_fn(|cx| rest.poll_over(cx)).await;
        super::rest().await;
    }
}
