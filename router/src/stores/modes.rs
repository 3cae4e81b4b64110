//! The durability modes of the Kinds (R9) and the bounds of their history: every shard is told them at its handshakes and
//! after every change, and answers which of the modes it cannot keep.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kindred_partition_config::history::HistoryBounds;
use kindred_partition_config::kind::KindPrefix;
use kindred_partition_config::model::Durability;
use kindred_partition_config::validate::KindSettings;
use kindred_proto::shard_v1 as pb;
use tonic::Code;

use super::Store;
use super::failure::Failure;

/// How long a shard has to accept the modes.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The durability modes of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Modes {
    /// The revision of the cluster's state, which grows with every change of its objects.
    pub generation: u64,
    /// The Kinds for which the configuration sets a mode.
    pub kinds: Vec<(KindPrefix, Durability)>,
    /// The Kinds for which the configuration bounds the history.
    pub history: Vec<(KindPrefix, HistoryBounds)>,
}

impl Modes {
    /// The modes that are set in a state of this revision.
    #[must_use]
    pub fn new(generation: u64, kinds: &[KindSettings]) -> Self {
        let bounded = kinds.iter().filter(|of| !of.history.is_none());
        let history = bounded.map(|of| (of.kind.clone(), of.history)).collect();
        let kinds = kinds.iter().filter_map(|of| Some((of.kind.clone(), of.durability?))).collect();
        Self { generation, kinds, history }
    }

    fn request(&self) -> pb::SetModesRequest {
        let mode = |(kind, mode): &(KindPrefix, Durability)| pb::KindMode {
            prefix: kind.as_key().0.clone(),
            mode: to_wire(*mode) as i32,
        };
        let bound = |(kind, bounds): &(KindPrefix, HistoryBounds)| pb::KindHistory {
            prefix: kind.as_key().0.clone(),
            max_bytes: bounds.bytes.unwrap_or_default(),
            max_seconds: bounds.seconds.unwrap_or_default(),
        };
        pb::SetModesRequest {
            generation: self.generation,
            default_mode: pb::Durability::Unspecified as i32,
            modes: self.kinds.iter().map(mode).collect(),
            history: self.history.iter().map(bound).collect(),
        }
    }
}

/// A Kind whose mode a shard cannot keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmet {
    /// The Kind's prefix; empty for all Kinds without a mode in the configuration.
    pub prefix: bytes::Bytes,
    /// The configured mode.
    pub wanted: Option<Durability>,
    /// The mode that is in force.
    pub has: Option<Durability>,
    /// The reason, and what to do.
    pub reason: String,
}

/// One incarnation of a shard. The UUID belongs to it because a store with an emptied disk counts its incarnations anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incarnation {
    pub uuid: Option<String>,
    pub number: u64,
}

/// A shard's last answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Told {
    /// The shard's incarnation and the generation in the last call that succeeded.
    last: Option<(Incarnation, u64)>,
    /// The generation that the shard keeps to.
    pub in_force: u64,
    /// What the shard cannot keep.
    pub unmet: Vec<Unmet>,
    /// Why the last call failed.
    pub problem: Option<String>,
}

/// The answer of one store about modes: written by its monitor, read by the admin API.
#[derive(Debug, Default)]
pub struct ToldCell(Mutex<Arc<Told>>);

impl ToldCell {
    #[must_use]
    pub fn get(&self) -> Arc<Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, told: Told) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(told);
    }
}

/// Tells a shard the modes, unless it has accepted this generation in this incarnation. If the call fails, the shard keeps to
/// the modes it has, and is told again with the next handshake.
pub async fn tell(store: &Store, incarnation: Incarnation, modes: &Modes) {
    let before = store.told().get();
    if before
        .last
        .as_ref()
        .is_some_and(|(told, generation)| *told == incarnation && *generation == modes.generation)
    {
        return;
    }
    let mut shard = store.shard();
    let answer = match tokio::time::timeout(TIMEOUT, shard.set_modes(modes.request())).await {
        Ok(Ok(answer)) => answer.into_inner(),
        Ok(Err(status)) if status.code() == Code::Unimplemented => {
            let problem = "it does not know durability modes: run the same version of kindred everywhere";
            return failed(store, &before, problem);
        }
        Ok(Err(status)) => return failed(store, &before, Failure::of(status).reason()),
        Err(_) => return failed(store, &before, &format!("no answer within {TIMEOUT:?}")),
    };
    if answer.generation > modes.generation {
        tracing::warn!(
            store = store.name(),
            ours = modes.generation,
            its = answer.generation,
            "the store keeps the durability modes of a newer configuration than this router's"
        );
    }
    let unmet: Vec<_> = answer.unmet.into_iter().map(unmet).collect();
    for Unmet { prefix, wanted, has, reason } in unmet.iter().filter(|unmet| !before.unmet.contains(unmet)) {
        let kind = String::from_utf8_lossy(prefix);
        let (wanted, has) = (words(*wanted), words(*has));
        tracing::warn!(store = store.name(), %kind, wanted, has, reason, "the store cannot be as durable as it is to be");
    }
    let last = Some((incarnation, modes.generation));
    store.told().set(Told { last, in_force: answer.generation, unmet, problem: None });
}

fn failed(store: &Store, before: &Told, problem: &str) {
    if before.problem.as_deref() != Some(problem) {
        tracing::warn!(
            store = store.name(),
            problem,
            "the store could not be told how durable each Kind is to be"
        );
        store.told().set(Told { problem: Some(problem.to_owned()), ..before.clone() });
    }
}

fn unmet(unmet: pb::UnmetMode) -> Unmet {
    let (wanted, has) = (from_wire(unmet.wanted()), from_wire(unmet.has()));
    Unmet { prefix: unmet.prefix, wanted, has, reason: unmet.reason }
}

fn to_wire(mode: Durability) -> pb::Durability {
    match mode {
        Durability::None => pb::Durability::None,
        Durability::Buffered => pb::Durability::Buffered,
        Durability::Fsync => pb::Durability::Fsync,
    }
}

fn from_wire(mode: pb::Durability) -> Option<Durability> {
    match mode {
        pb::Durability::Unspecified => None,
        pb::Durability::None => Some(Durability::None),
        pb::Durability::Buffered => Some(Durability::Buffered),
        pb::Durability::Fsync => Some(Durability::Fsync),
    }
}

/// A mode for people.
#[must_use]
pub fn words(mode: Option<Durability>) -> &'static str {
    mode.map_or("the shard's default", Durability::word)
}
