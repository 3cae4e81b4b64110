//! Attaches a lease to a store that is not its home (R12), as a sequence of steps at both.
//!
//! The lease is attached at the home, adopted at the store, then *confirmed* at the home. Between the first two steps
//! the lease may end: the end reaches the store, which does not know the lease yet, and the home forgets it. A lease
//! adopted after that would never end, nor would its keys be deleted. The home lists the store from the first step on,
//! so an end that begins after the confirmation reaches the store after the adoption.

/// The progress of an attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attaching {
    /// The home is asked for the first time.
    Asked,
    /// The store is told to adopt the lease.
    Adopting,
    /// The home is asked again.
    Confirming,
    /// The lease is over: the store is told to end what it adopted.
    Withdrawing,
}

/// The next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// At the home: record that the store holds keys of the lease. Idempotent.
    AttachAtHome,
    /// At the store: adopt the lease. Idempotent.
    AdoptAtStore {
        /// The TTL in seconds that the home granted.
        granted_ttl: i64,
    },
    /// At the store: end the lease.
    EndAtStore,
}

/// The result of a call. A failed call ends the attach; the next attach starts over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The home has the lease.
    Attached {
        /// The TTL in seconds that the home granted.
        granted_ttl: i64,
    },
    /// The home does not have the lease, or it is over.
    Unknown,
    /// The store has done what it was told.
    Done,
}

/// What follows a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Make this call next.
    Do(Attaching, Command),
    /// The store may take keys of the lease.
    Attached,
    /// This home does not have the lease, and the store does not either.
    Unknown,
}

impl Attaching {
    #[must_use]
    pub fn begin() -> (Self, Command) {
        (Self::Asked, Command::AttachAtHome)
    }

    #[must_use]
    pub fn step(self, reply: Reply) -> Next {
        match (self, reply) {
            (Self::Asked, Reply::Attached { granted_ttl }) => {
                Next::Do(Self::Adopting, Command::AdoptAtStore { granted_ttl })
            }
            (Self::Adopting, _) => Next::Do(Self::Confirming, Command::AttachAtHome),
            (Self::Confirming, Reply::Attached { .. }) => Next::Attached,
            (Self::Confirming, _) => Next::Do(Self::Withdrawing, Command::EndAtStore),
            (Self::Asked | Self::Withdrawing, _) => Next::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease at its home and at one store.
    #[derive(Clone, Default)]
    struct World {
        /// `None` once forgotten.
        home: Option<Home>,
        adopted: bool,
        keys: u32,
    }

    #[derive(Clone, Default)]
    struct Home {
        over: bool,
        attached: bool,
    }

    /// An actor that makes one atomic step at a time.
    #[derive(Clone, Copy, Debug)]
    enum Actor {
        Attacher(Attaching, Command),
        Writer,
        /// 0: end the lease at its home, 1: end it at the store, 2: forget it.
        Revoker(u8),
        Idle,
    }

    impl World {
        fn ask(&mut self) -> Reply {
            match &mut self.home {
                Some(home) if !home.over => {
                    home.attached = true;
                    Reply::Attached { granted_ttl: 9 }
                }
                _ => Reply::Unknown,
            }
        }

        fn end_at_store(&mut self) {
            self.adopted = false;
            self.keys = 0;
        }

        fn step(&mut self, actor: Actor) -> Actor {
            match actor {
                Actor::Attacher(at, command) => {
                    let reply = match command {
                        Command::AttachAtHome => self.ask(),
                        Command::AdoptAtStore { granted_ttl } => {
                            assert_eq!(granted_ttl, 9);
                            self.adopted = true;
                            Reply::Done
                        }
                        Command::EndAtStore => {
                            self.end_at_store();
                            Reply::Done
                        }
                    };
                    match at.step(reply) {
                        Next::Do(at, command) => Actor::Attacher(at, command),
                        Next::Attached => Actor::Writer,
                        Next::Unknown => Actor::Idle,
                    }
                }
                Actor::Writer => {
                    // A store refuses a put whose lease it does not know.
                    self.keys += u32::from(self.adopted);
                    Actor::Idle
                }
                Actor::Revoker(0) => {
                    let waits = self.home.as_mut().is_some_and(|home| {
                        home.over = true;
                        home.attached
                    });
                    Actor::Revoker(if waits { 1 } else { 2 })
                }
                Actor::Revoker(1) => {
                    self.end_at_store();
                    Actor::Revoker(2)
                }
                Actor::Revoker(_) => {
                    self.home = None;
                    Actor::Idle
                }
                Actor::Idle => Actor::Idle,
            }
        }
    }

    /// Tries every order of the actors' steps; returns the number of complete orders.
    fn explore(world: &World, actors: &[Actor], trace: &mut Vec<usize>) -> usize {
        let mut ends = 0;
        for (i, actor) in actors.iter().enumerate() {
            if matches!(actor, Actor::Idle) {
                continue;
            }
            let (mut world, mut actors) = (world.clone(), actors.to_vec());
            actors[i] = world.step(*actor);
            trace.push(i);
            ends += explore(&world, &actors, trace);
            trace.pop();
        }
        if actors.iter().all(|actor| matches!(actor, Actor::Idle)) {
            assert!(world.home.is_none(), "the revoker ran");
            assert!(!world.adopted && world.keys == 0, "a lease outlives its home after {trace:?}");
            return 1;
        }
        ends
    }

    #[test]
    fn no_order_of_steps_leaves_a_lease_without_a_home() {
        let (at, command) = Attaching::begin();
        let world = World { home: Some(Home::default()), ..World::default() };
        let actors = [Actor::Attacher(at, command), Actor::Attacher(at, command), Actor::Revoker(0)];
        let ends = explore(&world, &actors, &mut Vec::new());
        assert!(ends > 1000, "{ends} orders");
    }

    #[test]
    fn without_a_revoke_the_store_gets_the_lease() {
        let mut world = World { home: Some(Home::default()), ..World::default() };
        let (at, command) = Attaching::begin();
        let mut actor = Actor::Attacher(at, command);
        while !matches!(actor, Actor::Idle) {
            actor = world.step(actor);
        }
        assert_eq!((world.adopted, world.keys), (true, 1));
    }
}
