//! The matrix of cases: every boundary of every step of a move, every way to reach it, and every fault there.

use std::fmt;

use kindred_router_core::moves::step::StepName;
use kindred_tests::proxy::Cut;

use crate::kills::cluster::{META, Wiring};

/// How the coordinator is brought to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A move runs.
    Moved,
    /// The move is completed.
    Completed,
    /// The move is reversed.
    Reversed,
    /// The move is aborted while both sides are compared.
    Aborted,
    /// An attempt takes too long.
    Late,
    /// The test writes the move's record without the coordinator, and then makes a request to it.
    Touched,
    /// The stores see a higher term of the move than its record has, as after a loss of the meta store's last writes.
    Outbid,
}

/// The ways to a step. The match is exhaustive, so that a new step does not compile without a way.
fn ways(step: StepName) -> &'static [Way] {
    match step {
        StepName::TakeTerm
        | StepName::Advance
        | StepName::Track
        | StepName::Copy
        | StepName::AttachLeases
        | StepName::Tail
        | StepName::Verify
        | StepName::BeginSwitch
        | StepName::Freeze
        | StepName::ImportLast
        | StepName::Seal
        | StepName::Confirm
        | StepName::Decide
        | StepName::Release
        | StepName::Open
        | StepName::ReverseTail => &[Way::Moved],
        StepName::Read => &[Way::Touched],
        StepName::Unseal => &[Way::Outbid],
        StepName::CancelAttempt | StepName::Unfreeze => &[Way::Late],
        StepName::Redirect => &[Way::Reversed, Way::Aborted],
        StepName::Complete => &[Way::Completed],
        StepName::Drop | StepName::Forget | StepName::Finish => &[Way::Completed, Way::Aborted],
    }
}

/// The boundary of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Before,
    After,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Before, Self::After];

    fn word(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// A server, by its role when the move begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Source,
    Target,
    Meta,
}

impl Server {
    const ALL: [Self; 3] = [Self::Source, Self::Target, Self::Meta];

    fn word(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Target => "target",
            Self::Meta => "meta",
        }
    }

    /// The name of the server in a move between these stores.
    pub fn name(self, from: &'static str, to: &'static str) -> &'static str {
        match self {
            Self::Source => from,
            Self::Target => to,
            Self::Meta => META,
        }
    }
}

/// The routers, which are the only clients of servers. Servers connect to nobody, and routers not to one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    Coordinator,
    Survivor,
}

/// The fault of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The coordinator is killed and not started again.
    KillCoordinator,
    /// A server is killed and started again.
    Kill(Server),
    /// The network between two processes is cut for a while.
    Cut(Client, Server),
}

impl Fault {
    /// All kills of servers.
    fn kills() -> impl Iterator<Item = Self> {
        Server::ALL.into_iter().map(Self::Kill)
    }

    /// All cuts of links.
    fn cuts() -> impl Iterator<Item = Self> {
        let clients = [Client::Coordinator, Client::Survivor];
        clients.into_iter().flat_map(|client| Server::ALL.map(|server| Self::Cut(client, server)))
    }

    /// Whether requests to the survivor may fail, because a store or the link to it is away.
    pub fn is_felt(self) -> bool {
        matches!(self, Self::Kill(Server::Source | Server::Target))
            || matches!(self, Self::Cut(Client::Survivor, Server::Source | Server::Target))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KillCoordinator => f.write_str("kill-coordinator"),
            Self::Kill(server) => write!(f, "kill-{}", server.word()),
            Self::Cut(Client::Coordinator, server) => write!(f, "cut-coordinator-{}", server.word()),
            Self::Cut(Client::Survivor, server) => write!(f, "cut-survivor-{}", server.word()),
        }
    }
}

/// A fault at one side of one step, which the coordinator reaches in one way.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    step: StepName,
    pub side: Side,
    pub way: Way,
    pub fault: Fault,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}/{:?}/{}", self.step.as_str(), self.side.word(), self.way, self.fault)
    }
}

impl Case {
    /// The whole matrix.
    pub fn all() -> Vec<Self> {
        let faults = || [Fault::KillCoordinator].into_iter().chain(Fault::kills()).chain(Fault::cuts());
        let places = StepName::ALL.iter().flat_map(|step| Side::BOTH.map(|side| (*step, side)));
        places
            .flat_map(|(step, side)| ways(step).iter().map(move |way| (step, side, *way)))
            .flat_map(|(step, side, way)| faults().map(move |fault| Self { step, side, way, fault }))
            .collect()
    }

    /// The cases of `make test`: for each step and its first way a kill of the coordinator, a kill of a server, and a
    /// cut. Sides, servers and cuts alternate.
    pub fn some() -> Vec<Self> {
        let (kills, cuts): (Vec<_>, Vec<_>) = (Fault::kills().collect(), Fault::cuts().collect());
        let chosen = |(place, step): (usize, &StepName)| {
            let (step, way) = (*step, ways(*step)[0]);
            let side = |turn: usize| Side::BOTH[turn % 2];
            let (kill, cut) = (kills[place % kills.len()], cuts[place % cuts.len()]);
            // The number of cuts is even, so without the second term a cut would always have the same side.
            let of_cut = side(place + place / cuts.len());
            [
                Self { step, side: side(place), way, fault: Fault::KillCoordinator },
                Self { step, side: side(place + 1), way, fault: kill },
                Self { step, side: of_cut, way, fault: cut },
            ]
        };
        StepName::ALL.iter().enumerate().flat_map(chosen).collect()
    }

    /// The kind of cluster that the case needs.
    pub fn wiring(&self) -> Wiring {
        match self.fault {
            Fault::KillCoordinator | Fault::Kill(_) => Wiring::Direct,
            Fault::Cut(..) => Wiring::Linked,
        }
    }

    /// How the network is cut: silently before a step, with refused connections after it.
    pub fn cut(&self) -> Cut {
        match self.side {
            Side::Before => Cut::Silent,
            Side::After => Cut::Refused,
        }
    }

    /// The failpoints that bring the coordinator to the place, and end it or hold it there.
    pub fn failpoints(&self) -> String {
        let act = if self.fault == Fault::KillCoordinator { "exit" } else { "wait" };
        let there = format!("{}.{}={act}", self.step.as_str(), self.side.word());
        match self.way {
            Way::Late => format!("seal.before=hold,{there}"),
            Way::Aborted => format!("verify.before=hold,{there}"),
            Way::Moved | Way::Completed | Way::Reversed | Way::Touched | Way::Outbid => there,
        }
    }
}
