//! What the loop of a standby does (R18): it takes over what its primary ships, and executes nothing itself.

use kindred_engine::{
    durability::{KindModes, Logged},
    error::EngineError,
};
use kindred_partition_config::ids::Revision;

use super::Core;
use crate::etcd_status::KvError;

/// What a standby has been told besides records.
#[derive(Debug, Clone)]
pub struct Replica {
    /// The ceiling of its primary's clock (R2).
    pub ceiling: Revision,
    /// Modes that are to be set when both logs are flushed.
    pub modes: Option<KindModes>,
    /// Whether its primary may have shown more than it has shipped.
    pub behind: bool,
    /// At a former primary that has served: its last revision before another one took its place.
    pub served_to: Option<Revision>,
}

impl Core {
    /// Takes over what the primary has shipped.
    pub fn replicate(&mut self, records: Vec<Logged>, ceiling: Revision) -> Result<(), KvError> {
        let mono = self.clock.mono();
        for logged in records {
            self.collecting |= matches!(logged, Logged::Compaction(_) | Logged::Gap(_));
            let modes = self.engine.replicate(mono, logged).map_err(EngineError::from)?;
            if let (Some(modes), Some(replica)) = (modes, &mut self.replica) {
                replica.modes = Some(modes);
            }
        }
        if let Some(replica) = &mut self.replica {
            replica.ceiling = replica.ceiling.max(ceiling);
        }
        Ok(())
    }

    /// The modes that a standby is to set now.
    pub(crate) fn modes_shipped(&mut self) -> Option<KindModes> {
        let replica = self.replica.as_mut()?;
        let modes = replica.modes.take()?;
        (self.engine.modes() != &modes).then_some(modes)
    }

    /// The primary may have shown everything below this ceiling, and not all of that is here (R14).
    pub fn is_behind(&mut self, ceiling: Revision) {
        if let Some(replica) = &mut self.replica {
            (replica.ceiling, replica.behind) = (replica.ceiling.max(ceiling), true);
        }
    }

    /// A former primary: another one may have shown everything below this ceiling. It goes on as a standby does. One that is
    /// in doubt has served nothing since its start.
    pub fn reopens(&mut self, ceiling: Revision, in_doubt: bool) {
        let served_to = (!in_doubt).then(|| self.engine.last_revision());
        self.replica = Some(Replica { ceiling, modes: None, behind: true, served_to });
    }

    /// Goes on in the primary's place. Everything must be on disk and published, a ceiling above the primary's too.
    ///
    /// # Errors
    /// When the ceiling is one that no clock could have had.
    pub fn take_over(&mut self) -> Result<(), KvError> {
        let Some(replica) = &self.replica else { return Ok(()) };
        let mono = self.clock.mono();
        let promoted = match replica.behind {
            false => self.engine.promote(replica.ceiling, mono),
            true => {
                let after = replica.served_to.unwrap_or_else(|| self.engine.found());
                self.engine.promote_behind(after, replica.ceiling, mono)
            }
        };
        promoted.map_err(EngineError::from)?;
        // It goes on, so it must not begin anew when its clock is confirmed.
        (self.replica, self.found_nothing) = (None, false);
        Ok(())
    }
}
