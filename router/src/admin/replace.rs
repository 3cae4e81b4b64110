//! `POST /api/v1/replace`: a new, empty store in place of one that is lost with its data (R14). No other change takes
//! keys from an owner that did not give them away, so the operator must assert that the owner is dead.

use kindred_partition_config::ids::StoreName;
use kindred_partition_config::map::StoreIdx;
use kindred_partition_config::state::{Change, ClusterState};
use kindred_partition_config::validate::FieldError;
use kindred_router_core::clock_offset::MAX_OFFSET_MICROS;
use kindred_router_core::moves::record::Phase;
use kindred_router_core::parts::store_ix;
use schemars::JsonSchema;
use serde::Deserialize;

use super::status::ApiError;
use super::verbs::{Known, known_moves};
use crate::moves::mover::Mover;
use crate::stores::state;

/// The request's body.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceBody {
    store: StoreName,
    /// The addresses of the new store; empty if `kindred up` starts it.
    #[serde(default)]
    endpoints: Vec<String>,
    /// The operator asserts that the process is dead and stays dead.
    #[serde(default)]
    force: bool,
}

/// A checked replacement.
#[derive(Debug, Clone)]
pub struct Replace {
    store: StoreName,
    /// The place of the lost store.
    at: Option<StoreIdx>,
    endpoints: Vec<String>,
    /// When the new store may open, in microseconds since the Unix epoch.
    opens_at: u64,
}

impl ReplaceBody {
    /// Checks the request.
    ///
    /// # Errors
    /// When the operator does not assert that the process is dead, when it answers, or when a move of its keys is just
    /// being decided.
    pub fn checked(self, mover: &Mover) -> Result<Replace, ApiError> {
        let cluster = &mover.keeper.cluster;
        let lives = |at: StoreIdx| {
            // A store that was just added may not be in the list yet.
            let phase = (usize::from(at.0) < mover.stores.len())
                .then(|| mover.stores.get(store_ix(at)).state().phase());
            phase.as_deref().and_then(lives)
        };
        self.checked_by(&cluster.state(), &known_moves(cluster), lives, mover.stores.clocks().reference())
    }

    /// The same, given the state, the moves, what shows that a process is alive, and the time by which the stores go.
    ///
    /// # Errors
    /// As of [`ReplaceBody::checked`].
    pub fn checked_by(
        self,
        state: &ClusterState,
        moves: &Known,
        lives: impl Fn(StoreIdx) -> Option<&'static str>,
        now: Option<u64>,
    ) -> Result<Replace, ApiError> {
        let Self { store, endpoints, force } = self;
        let at = state.store(&store).map(|(at, _)| at);
        if let Some(at) = at {
            if let Some(lives) = lives(at) {
                let what_to_do = format!("to take its keys away run kindred drain {store}");
                return Err(field("store", format!("store {:?} {lives}", store.0), what_to_do));
            }
            let mut of_store = moves.values().map(|(record, _)| record).filter(|record| {
                matches!(record.phase, Phase::Switching { .. })
                    && record.legs.iter().any(|leg| leg.from == at || leg.to == at)
            });
            if let Some(record) = of_store.next() {
                let why = format!("move {} is just being decided: try again in some seconds", record.id.0);
                return Err(ApiError::Conflict(why));
            }
        }
        if !force {
            let message = format!(
                "store {:?} did not give its keys away: what only it has is lost, and should its process still serve somebody, that \
                 is lost too",
                store.0
            );
            let what_to_do = "see to it that the process is dead and stays so, and say --force";
            return Err(field("force", message, what_to_do));
        }
        let now = now.ok_or_else(|| {
            ApiError::Unavailable(
                "the clocks of the stores are not known yet: try again in some seconds".to_owned(),
            )
        })?;
        Ok(Replace { store, at, endpoints, opens_at: opens_at(now) })
    }
}

/// What shows that the process is alive; `None` if it does not answer, or another one does in its place.
fn lives(phase: &state::Phase) -> Option<&'static str> {
    match phase {
        state::Phase::Up(_) => Some("is up"),
        state::Phase::Skewed(_) => Some("answers, with a wrong clock"),
        state::Phase::Connecting => Some("was not asked yet whether it is there"),
        state::Phase::Down(_) | state::Phase::Refused(_) | state::Phase::Foreign(_) => None,
    }
}

fn field(path: &str, message: String, what_to_do: impl Into<String>) -> ApiError {
    vec![FieldError { path: path.to_owned(), message, what_to_do: what_to_do.into() }].into()
}

/// When a store in place of a lost one may open, given the reference time `now`. The lost store has assigned and
/// promised nothing above: its clock was ahead by at most one maximum offset, and could be raised by at most another
/// one (R3).
fn opens_at(now: u64) -> u64 {
    now.saturating_add(2 * MAX_OFFSET_MICROS)
}

impl Replace {
    /// The change of the state.
    ///
    /// # Errors
    /// When it is invalid, by field, or the store was replaced meanwhile.
    pub fn change(&self, state: &ClusterState) -> Result<Change, ApiError> {
        if state.store(&self.store).map(|(at, _)| at) != self.at {
            let why = format!("store {:?} is another one by now: see kindred status", self.store.0);
            return Err(ApiError::Conflict(why));
        }
        let (next, _) = state.replace_store(&self.store, self.endpoints.clone(), self.opens_at)?;
        Ok(Change { desired: next.map.clone(), state: next, transfers: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r14_the_clock_of_the_lost_store_has_not_been_there() {
        let now = 1_767_225_600_000_000;
        assert_eq!(opens_at(now) - now, 20_000_000);
    }

    #[test]
    fn r14_two_who_replace_a_store_replace_it_once() {
        let config = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}]\npartitions: []\n";
        let config = kindred_partition_config::parse::parse_config(config).unwrap();
        let state = ClusterState::bootstrap(&config).unwrap();
        let (store, at) = (StoreName("b".to_owned()), Some(StoreIdx(1)));
        let replace = Replace { store, at, endpoints: Vec::new(), opens_at: 7 };
        let next = replace.change(&state).unwrap().state;
        assert_eq!(next.store(&replace.store).map(|(at, _)| at), Some(StoreIdx(2)));
        assert!(matches!(replace.change(&next), Err(ApiError::Conflict(_))));
    }

    #[test]
    fn r14_only_what_does_not_answer_is_replaced() {
        let identity =
            state::Identity { uuid: None, slot: None, version: String::new(), incarnation: 1, features: 0 };
        for phase in
            [state::Phase::Up(identity), state::Phase::Skewed(String::new()), state::Phase::Connecting]
        {
            assert!(lives(&phase).is_some(), "{phase:?}");
        }
        let gone = [state::Phase::Down, state::Phase::Refused, state::Phase::Foreign];
        for phase in gone.map(|phase| phase(String::new())) {
            assert_eq!(lives(&phase), None, "{phase:?}");
        }
    }
}
