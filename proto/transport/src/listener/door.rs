//! Limits connections that have not shown what they want: those in a TLS handshake or before the first bytes of
//! HTTP.
//!
//! Each of them takes a place. Their clients are unknown, so places are few, and silent clients lose theirs first.
//! If all are taken, the address with most of them gives one up: its oldest that has been silent, or has been in
//! progress for long. So a thousand silent sockets delay no other client, wherever they come from.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connection::Peer;

/// The silence after which a connection may lose its place. By then the bytes that a client sends after connecting
/// have arrived.
const SILENT: Duration = Duration::from_millis(100);
/// The time after which a connection may lose its place even if it has sent something.
const SLOW: Duration = Duration::from_secs(2);
/// The same for an address that has more than half of the places: others must not wait for it. A thousand handshakes that
/// are begun in a second and not ended would stop everybody for seconds.
const SLOW_OF_MOST: Duration = Duration::from_millis(500);

/// The connections of this process that were given up, by reason.
#[derive(Debug, Default)]
struct Counted {
    failed: AtomicU64,
    late: AtomicU64,
    displaced: AtomicU64,
    idle: AtomicU64,
}

static COUNTED: Counted = Counted {
    failed: AtomicU64::new(0),
    late: AtomicU64::new(0),
    displaced: AtomicU64::new(0),
    idle: AtomicU64::new(0),
};

/// Why a server gave up a connection, as labelled in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenUp {
    /// The TLS handshake failed.
    Failed,
    /// The time limit for the handshake or the first bytes passed.
    Late,
    /// Another connection took its place.
    Displaced,
    /// It was silent and had no streams.
    Idle,
}

impl GivenUp {
    pub const ALL: [Self; 4] = [Self::Failed, Self::Late, Self::Displaced, Self::Idle];

    /// The label in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Failed => "handshake_failed",
            Self::Late => "late",
            Self::Displaced => "displaced",
            Self::Idle => "idle",
        }
    }

    /// The number of such connections in this process.
    #[must_use]
    pub fn count(self) -> u64 {
        self.counter().load(Ordering::Relaxed)
    }

    fn counter(self) -> &'static AtomicU64 {
        match self {
            Self::Failed => &COUNTED.failed,
            Self::Late => &COUNTED.late,
            Self::Displaced => &COUNTED.displaced,
            Self::Idle => &COUNTED.idle,
        }
    }

    pub(crate) fn counted(self) {
        self.counter().fetch_add(1, Ordering::Relaxed);
    }
}

/// The group of addresses whose places count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum From {
    Ip(IpAddr),
    /// The /64 network of an IPv6 address, because its owner has all of its addresses.
    Net([u16; 4]),
    Unix,
}

impl From {
    fn of(peer: Peer) -> Self {
        match peer {
            Peer::Unix => Self::Unix,
            Peer::Tcp(address) => match address.ip().to_canonical() {
                IpAddr::V6(ip) if !ip.is_loopback() => {
                    let [a, b, c, d, ..] = ip.segments();
                    Self::Net([a, b, c, d])
                }
                ip => Self::Ip(ip),
            },
        }
    }
}

/// A connection at the door.
#[derive(Debug)]
struct Waiting {
    id: u64,
    from: From,
    since: Instant,
    spoke: Arc<AtomicBool>,
    closed: CancellationToken,
}

impl Waiting {
    /// The time from which it may lose its place, if this address has most places.
    fn until(&self, most: Option<From>) -> Instant {
        let after = match self.spoke.load(Ordering::Relaxed) {
            false => SILENT,
            true if most == Some(self.from) => SLOW_OF_MOST,
            true => SLOW,
        };
        self.since + after
    }
}

/// The places of one port. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Door {
    places: usize,
    waiting: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// In the order of arrival.
    waiting: Vec<Waiting>,
}

/// A place at the door, freed on drop.
#[derive(Debug)]
pub(super) struct Pass {
    door: Door,
    id: u64,
    spoke: Arc<AtomicBool>,
}

impl Door {
    pub fn new(places: usize) -> Self {
        Self { places: places.max(1), waiting: Arc::default() }
    }

    /// Whether there is a place; otherwise the time from which one can be taken from another connection. One may be
    /// freed before.
    pub fn room(&self, now: Instant) -> Result<(), Instant> {
        let state = self.waiting.lock();
        if state.waiting.len() < self.places {
            return Ok(());
        }
        let most = state.with_most();
        let until = state.waiting.iter().map(|waiting| waiting.until(most)).min().unwrap_or(now);
        if until <= now { Ok(()) } else { Err(until) }
    }

    /// Takes a place, if necessary from another connection, whose token is then cancelled. Call [`Door::room`]
    /// first.
    pub fn enter(&self, peer: Peer, now: Instant, closed: CancellationToken) -> Pass {
        let mut state = self.waiting.lock();
        if state.waiting.len() >= self.places
            && let Some(at) = state.gives_way(now)
        {
            let given_up = state.waiting.remove(at);
            given_up.closed.cancel();
            GivenUp::Displaced.counted();
        }
        let (id, spoke) = (state.next, Arc::new(AtomicBool::new(false)));
        state.next += 1;
        state.waiting.push(Waiting { id, from: From::of(peer), since: now, spoke: spoke.clone(), closed });
        drop(state);
        Pass { door: self.clone(), id, spoke }
    }
}

impl State {
    /// The address with more than half of the places, when all are taken.
    fn with_most(&self) -> Option<From> {
        let mut of: HashMap<From, usize> = HashMap::new();
        for waiting in &self.waiting {
            *of.entry(waiting.from).or_default() += 1;
        }
        of.into_iter().find(|(_, count)| *count > self.waiting.len() / 2).map(|(from, _)| from)
    }

    /// The index of the oldest connection that may lose its place, of the address with most such connections.
    fn gives_way(&self, now: Instant) -> Option<usize> {
        let mut of: HashMap<From, usize> = HashMap::new();
        let mut candidates = Vec::new();
        let with_most = self.with_most();
        for (at, waiting) in self.waiting.iter().enumerate() {
            if waiting.until(with_most) <= now {
                *of.entry(waiting.from).or_default() += 1;
                candidates.push((at, waiting.from));
            }
        }
        let most = of.values().copied().max()?;
        candidates.into_iter().find(|(_, from)| of.get(from) == Some(&most)).map(|(at, _)| at)
    }
}

impl Pass {
    /// Records that the client has sent something.
    pub fn spoke(&self) {
        self.spoke.store(true, Ordering::Relaxed);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.door.waiting.lock();
        if let Ok(at) = state.waiting.binary_search_by_key(&self.id, |waiting| waiting.id) {
            state.waiting.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Test {
        door: Door,
        begin: Instant,
    }

    impl Test {
        fn at(&self, millis: u64) -> Instant {
            self.begin + Duration::from_millis(millis)
        }

        fn enter(&self, from: &str, millis: u64) -> (Pass, CancellationToken) {
            let token = CancellationToken::new();
            let peer = Peer::Tcp(format!("{from}:1").parse().unwrap());
            (self.door.enter(peer, self.at(millis), token.clone()), token)
        }
    }

    fn test(places: usize) -> Test {
        Test { door: Door::new(places), begin: Instant::now() }
    }

    #[test]
    fn f35_the_silent_of_the_address_with_most_give_way() {
        let test = test(4);
        let (_one, kept) = test.enter("10.0.0.1", 0);
        let flood: Vec<_> = (1..4).map(|at| test.enter("10.0.0.9", at)).collect();
        // No connection has been silent for long enough.
        assert_eq!(test.door.room(test.at(50)), Err(test.at(100)));
        assert_eq!(test.door.room(test.at(103)), Ok(()));
        let (_two, next) = test.enter("10.0.0.2", 103);
        assert_eq!(
            flood.iter().map(|(_, token)| token.is_cancelled()).collect::<Vec<_>>(),
            [true, false, false]
        );
        // Dropping a pass whose place was taken frees nothing.
        drop(flood);
        assert!(!kept.is_cancelled() && !next.is_cancelled());
        let others: Vec<_> = (0..2).map(|_| test.enter("10.0.0.3", 104)).collect();
        assert!(!kept.is_cancelled() && others.iter().all(|(_, token)| !token.is_cancelled()));
        assert_eq!(test.door.room(test.at(99)), Err(test.at(100)));
    }

    #[test]
    fn f35_who_speaks_keeps_its_place_longer() {
        let test = test(2);
        let (first, first_token) = test.enter("10.0.0.1", 0);
        first.spoke();
        let (_second, second_token) = test.enter("10.0.0.1", 1);
        let (_third, _) = test.enter("10.0.0.2", 200);
        assert!(!first_token.is_cancelled() && second_token.is_cancelled());
        assert_eq!(test.door.room(test.at(200)), Err(test.at(300)));
        let (fourth, _) = test.enter("10.0.0.1", 2500);
        assert!(first_token.is_cancelled(), "it is under way for too long, and the oldest");
        drop((first, fourth));
        assert_eq!(test.door.room(test.at(0)), Ok(()), "a place was given back");
    }

    /// 1,100 handshakes a second that are begun and not ended took all places, each for two seconds, and everybody waited.
    #[test]
    fn f82_handshakes_of_one_address_that_do_not_end_stop_nobody() {
        let test = test(100);
        let mut flood = Vec::new();
        for number in 0..1_000 {
            // One in ten milliseconds, each of which says something.
            let millis = number * 10;
            assert_eq!(test.door.room(test.at(millis)), Ok(()), "{number}");
            let (pass, token) = test.enter("10.0.0.9", millis);
            pass.spoke();
            flood.push((pass, token));
        }
        let (honest, token) = test.enter("10.0.0.1", 10_000);
        honest.spoke();
        for millis in 10_001..10_040 {
            flood.push(test.enter("10.0.0.9", millis));
        }
        assert!(!token.is_cancelled());
    }

    #[test]
    fn f35_a_network_of_ipv6_is_one_address() {
        let of = |text: &str| From::of(Peer::Tcp(text.parse().unwrap()));
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:2]:2"));
        assert_ne!(of("[2001:db8:1::1]:1"), of("[2001:db8:2::1]:1"));
        assert_eq!(of("[::ffff:10.0.0.1]:1"), of("10.0.0.1:2"));
        assert_ne!(of("[::1]:1"), of("10.0.0.1:1"));
    }
}
