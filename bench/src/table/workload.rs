//! The workloads of the table.

use crate::load::Kind;

/// A workload, as named on the command line; in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Workload {
    Put,
    TxnPut,
    /// Optimistic updates of nodes' Lease objects.
    LeaseFlood,
    Get,
    /// A `limit=1` range over the whole Kind.
    Probe,
    List500,
    /// A mix of the workloads above.
    Mixed,
    /// Events at watchers. It comes last, because a router keeps reading what was watched for some time.
    Watch,
}

impl Workload {
    pub const ALL: [Self; 8] = [
        Self::Put,
        Self::TxnPut,
        Self::LeaseFlood,
        Self::Get,
        Self::Probe,
        Self::List500,
        Self::Mixed,
        Self::Watch,
    ];

    /// The type of operation; `None` if events are counted.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Self::Put => Some(Kind::Put),
            Self::TxnPut => Some(Kind::TxnPut),
            Self::LeaseFlood => Some(Kind::LeaseFlood),
            Self::Get => Some(Kind::Get),
            Self::Probe => Some(Kind::Probe),
            Self::List500 => Some(Kind::List),
            Self::Mixed => Some(Kind::Mixed),
            Self::Watch => None,
        }
    }

    /// The divisor for the number of operations; a watched write has many events.
    pub fn part(self) -> u64 {
        self.kind().map_or(4, Kind::part)
    }

    /// The title of the row.
    pub fn name(self, watchers: usize) -> String {
        self.kind().map_or_else(|| format!("watch, {watchers} watchers"), |kind| kind.name().to_owned())
    }

    /// Describes one operation to readers of the table.
    pub fn what(self) -> &'static str {
        match self {
            Self::Put => "put of one of the keys",
            Self::TxnPut => {
                "optimistic update: a transaction that compares the mod revision and puts, else gets"
            }
            Self::LeaseFlood => {
                "the same of a Lease object (protobuf, about 480 B) under `/registry/leases/kube-node-lease/`, \
                 of as many nodes as there are keys, in turn, as kubelets renew theirs"
            }
            Self::Get => "get of one key",
            Self::Probe => "`limit=1` over all keys, by which an apiserver asks for the current revision",
            Self::List500 => "a page of 500 keys with their values",
            Self::Mixed => {
                "of a hundred: 60 lease renewals, 20 optimistic updates, 15 gets, 4 probes, 1 page of 500"
            }
            Self::Watch => {
                "an event at one of the watchers, each a stream of its own over all that is written; the writes (puts) are \
                 not counted, but what they cost is in it; the latency is from the beginning of the write to the event"
            }
        }
    }
}
