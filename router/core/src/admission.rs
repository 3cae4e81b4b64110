//! Which long lists run at once, and which wait.
//!
//! A list of a large Kind costs its stores, its router and the network more than thousands of other calls, and clients
//! begin all of theirs at once when apiservers start. So lists whose answers are predicted to be long ([`sizes`]) run in
//! a lane of their own: a few at a time, the others in order, taking turns between clients. Everything else never waits
//! here. What would have to wait too long is refused before anything is read.
//!
//! A state machine without time and without tasks: `router/src/admission.rs` drives it.

use std::collections::{BTreeMap, VecDeque};

pub mod rate;
pub mod sizes;

/// The limits of the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Lists that run at once; at least one.
    pub lists: usize,
    /// Predicted bytes of the answers of all lists that run. One list always runs, however long it is.
    pub bytes: u64,
    /// Lists that may wait, of all clients together.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { lists: 4, bytes: 256 << 20, waiting: 1000 }
    }
}

/// A list that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What becomes of a list that asks.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry<T> {
    /// It runs; [`Lane::ended`] must be told of its end. It gets its token back.
    Runs(T),
    /// It waits, and its token comes out of a later call.
    Waits(Ticket),
    /// Too many wait already. It gets its token back.
    Refused(T),
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: Ticket,
    bytes: u64,
    token: T,
}

/// A list that begins to run: its predicted bytes, and its token.
pub type Begun<T> = (u64, T);

/// The lane. A token stands for a list, and goes back to the caller when the list may run.
#[derive(Debug)]
pub struct Lane<T> {
    limits: Limits,
    running: usize,
    running_bytes: u64,
    /// Those that wait, by client. No queue is empty.
    waiting: BTreeMap<String, VecDeque<Waiting<T>>>,
    /// The clients of `waiting`, each once; the next list is the first one's.
    turns: VecDeque<String>,
    count: usize,
    next: u64,
}

impl<T> Lane<T> {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            running: 0,
            running_bytes: 0,
            waiting: BTreeMap::new(),
            turns: VecDeque::new(),
            count: 0,
            next: 0,
        }
    }

    /// Lists that run, and lists that wait.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.running, self.count)
    }

    /// A list of a client whose answer is predicted to have so many bytes.
    pub fn ask(&mut self, client: &str, bytes: u64, token: T) -> Entry<T> {
        // Those that wait come first, even where this one would fit.
        if self.count == 0 && self.fits(bytes) {
            self.begin(bytes);
            return Entry::Runs(token);
        }
        if self.count >= self.limits.waiting {
            return Entry::Refused(token);
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        self.count += 1;
        let waiting = Waiting { ticket, bytes, token };
        match self.waiting.get_mut(client) {
            Some(queue) => queue.push_back(waiting),
            None => {
                self.waiting.insert(client.to_owned(), [waiting].into());
                self.turns.push_back(client.to_owned());
            }
        }
        Entry::Waits(ticket)
    }

    /// A list that was predicted to have so many bytes has ended. Returns those that begin.
    pub fn ended(&mut self, bytes: u64) -> Vec<Begun<T>> {
        self.running -= 1;
        self.running_bytes -= bytes;
        self.admit()
    }

    /// A client has given up a list that waits. Returns those that begin, since it may have been in their way.
    pub fn gave_up(&mut self, client: &str, ticket: Ticket) -> Vec<Begun<T>> {
        let Some(queue) = self.waiting.get_mut(client) else { return Vec::new() };
        let before = queue.len();
        queue.retain(|waiting| waiting.ticket != ticket);
        self.count -= before - queue.len();
        if queue.is_empty() {
            self.waiting.remove(client);
            self.turns.retain(|turn| turn != client);
        }
        self.admit()
    }

    /// Other limits. Lists that run go on; returns those that begin.
    pub fn limit(&mut self, limits: Limits) -> Vec<Begun<T>> {
        self.limits = limits;
        self.admit()
    }

    fn fits(&self, bytes: u64) -> bool {
        self.running == 0
            || (self.running < self.limits.lists
                && self.running_bytes.saturating_add(bytes) <= self.limits.bytes)
    }

    fn begin(&mut self, bytes: u64) {
        self.running += 1;
        self.running_bytes = self.running_bytes.saturating_add(bytes);
    }

    fn admit(&mut self) -> Vec<Begun<T>> {
        let mut begun = Vec::new();
        // A long list is not overtaken by shorter ones, or it might wait for ever.
        while let Some(bytes) = self.first().filter(|bytes| self.fits(*bytes)) {
            let Some(client) = self.turns.pop_front() else { break };
            let Some(queue) = self.waiting.get_mut(&client) else { break };
            let first = queue.pop_front();
            if queue.is_empty() {
                self.waiting.remove(&client);
            } else {
                self.turns.push_back(client);
            }
            self.count -= 1;
            self.begin(bytes);
            begun.extend(first.map(|waiting| (waiting.bytes, waiting.token)));
        }
        begun
    }

    /// The predicted bytes of the list whose turn is next.
    fn first(&self) -> Option<u64> {
        Some(self.waiting.get(self.turns.front()?)?.front()?.bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lane(lists: usize, bytes: u64) -> Lane<u32> {
        Lane::new(Limits { lists, bytes, waiting: 5 })
    }

    fn tokens(begun: Vec<Begun<u32>>) -> Vec<u32> {
        begun.into_iter().map(|(_, token)| token).collect()
    }

    #[test]
    fn a_few_run_and_the_others_take_turns_between_clients() {
        let mut lane = lane(2, 1000);
        assert_eq!(lane.ask("a", 10, 1), Entry::Runs(1));
        assert_eq!(lane.ask("a", 10, 2), Entry::Runs(2));
        for (client, token) in [("a", 3), ("a", 4), ("b", 5)] {
            assert!(matches!(lane.ask(client, 10, token), Entry::Waits(_)));
        }
        assert_eq!(tokens(lane.ended(10)), [3]);
        assert_eq!(tokens(lane.ended(10)), [5], "b has its turn before a has a second one");
        assert_eq!(tokens(lane.ended(10)), [4]);
        assert_eq!(lane.counts(), (2, 0));
    }

    #[test]
    fn one_list_always_runs_and_a_long_one_is_not_overtaken() {
        let mut lane = lane(4, 100);
        assert_eq!(lane.ask("a", 60, 1), Entry::Runs(1));
        assert!(matches!(lane.ask("b", 5000, 2), Entry::Waits(_)));
        assert!(matches!(lane.ask("c", 1, 3), Entry::Waits(_)), "it fits, and does not pass the other");
        assert_eq!(tokens(lane.ended(60)), [2]);
        assert_eq!(tokens(lane.ended(5000)), [3]);
    }

    #[test]
    fn what_is_too_much_is_refused_and_what_was_given_up_makes_room() {
        let mut lane = lane(1, 100);
        assert_eq!(lane.ask("a", 1, 0), Entry::Runs(0));
        let mut tickets = Vec::new();
        for token in 1..=5 {
            let Entry::Waits(ticket) = lane.ask("a", 1, token) else { panic!("it waits") };
            tickets.push(ticket);
        }
        assert_eq!(lane.ask("b", 1, 6), Entry::Refused(6));
        assert_eq!(lane.gave_up("a", tickets[0]), []);
        assert_eq!(lane.gave_up("a", tickets[0]), [], "twice is once");
        assert!(matches!(lane.ask("b", 1, 6), Entry::Waits(_)));
        assert_eq!(tokens(lane.limit(Limits { lists: 3, bytes: 100, waiting: 5 })), [2, 6]);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Ask(u8, u64),
        End(prop::sample::Index),
        GiveUp(prop::sample::Index),
        Limit(usize, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..4_u8, 0..200_u64).prop_map(|(client, bytes)| Step::Ask(client, bytes)),
            3 => any::<prop::sample::Index>().prop_map(Step::End),
            1 => any::<prop::sample::Index>().prop_map(Step::GiveUp),
            1 => (1..4_usize, 0..300_u64).prop_map(|(lists, bytes)| Step::Limit(lists, bytes)),
        ]
    }

    proptest! {
        #[test]
        fn no_list_is_lost_limits_hold_and_a_client_is_served_in_its_order(
            steps in prop::collection::vec(step(), 0..120)
        ) {
            let mut limits = Limits { lists: 2, bytes: 200, waiting: 8 };
            let mut lane = Lane::new(limits);
            let mut running: Vec<(u64, u32)> = Vec::new();
            let mut waiting: Vec<(u8, u64, u32, Ticket)> = Vec::new();
            let mut next = 0;
            for step in steps {
                let before = running.len();
                let begun = match step {
                    Step::Ask(client, bytes) => {
                        next += 1;
                        match lane.ask(&client.to_string(), bytes, next) {
                            Entry::Runs(token) => vec![(bytes, token)],
                            Entry::Waits(ticket) => {
                                prop_assert!(!running.is_empty(), "something runs, or it would");
                                waiting.push((client, bytes, next, ticket));
                                vec![]
                            }
                            Entry::Refused(_) => {
                                prop_assert_eq!(waiting.len(), limits.waiting);
                                vec![]
                            }
                        }
                    }
                    Step::End(which) if !running.is_empty() => {
                        let (bytes, _) = running.swap_remove(which.index(running.len()));
                        lane.ended(bytes)
                    }
                    Step::GiveUp(which) if !waiting.is_empty() => {
                        let (client, _, _, ticket) = waiting.remove(which.index(waiting.len()));
                        lane.gave_up(&client.to_string(), ticket)
                    }
                    Step::Limit(lists, bytes) => {
                        limits = Limits { lists, bytes, ..limits };
                        lane.limit(limits)
                    }
                    Step::End(_) | Step::GiveUp(_) => vec![],
                };
                for (bytes, token) in begun {
                    if let Some(at) = waiting.iter().position(|(_, _, of, _)| *of == token) {
                        let (client, ..) = waiting.remove(at);
                        let earlier = waiting[..at].iter().any(|(of, ..)| *of == client);
                        prop_assert!(!earlier, "the first of its client");
                    }
                    running.push((bytes, token));
                    let sum: u64 = running.iter().map(|(bytes, _)| bytes).sum();
                    prop_assert!(
                        running.len() == 1 || (running.len() <= limits.lists && sum <= limits.bytes)
                            || running.len() <= before,
                        "{running:?} {limits:?}"
                    );
                }
                prop_assert_eq!(lane.counts(), (running.len(), waiting.len()));
                prop_assert!(waiting.is_empty() || !running.is_empty(), "somebody waits and nobody runs");
            }
        }
    }
}
