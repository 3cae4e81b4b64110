//! The part of a handshake that runs on the loop (R3, R14).

use kindred_engine::engine::WallMicros;
use kindred_partition_config::ids::{Revision, SLOT_BITS};
use tonic::Status;

use super::Core;

/// A caller's reference time, and when a store that replaces another one may open.
#[derive(Debug, Clone, Copy)]
pub struct Handshake {
    /// `None` if the caller has no reference.
    pub reference: Option<WallMicros>,
    pub opens_at: WallMicros,
    /// Whether the shard waits for its ceiling before it opens. A caller that has waited long enough says no, so that a shard whose
    /// disk takes nothing serves reads.
    pub patient: bool,
}

/// Whether a shard serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    Open,
    /// It opens as soon as its disk works and has a ceiling above the present.
    AtCeiling,
    /// Not before its clock agrees, and the store that it replaces has ended.
    Waits,
}

impl Core {
    /// Takes over the caller's reference time if the own clock agrees, and opens the shard when it is time. Returns the
    /// wall clock's reading, and whether the shard serves. One that has just opened may show something only when everything
    /// so far is durable.
    ///
    /// # Errors
    /// When the shard began before the store that it replaces can have ended.
    pub fn meet(&mut self, handshake: Handshake) -> Result<(WallMicros, Opening), Status> {
        let Handshake { reference, opens_at, patient } = handshake;
        if reference.is_some_and(|reference| self.clock.confirm(reference)) {
            tracing::info!("a handshake confirmed the clock");
        }
        if !self.opened {
            // A caller that does not know of `opens_at` must not open the shard early.
            self.opens_at = self.opens_at.max(opens_at);
            if self.clock.is_confirmed() && self.clock.wall() >= self.opens_at {
                let is_ready = self.engine.may_assign(self.clock.wall()) && !self.disk.is_failing();
                if self.has_begun() && !is_ready && patient {
                    return Ok((self.clock.reading(), Opening::AtCeiling));
                }
                self.opened = true;
                // The shard has served nothing yet. The engine begins at a confirmed time, so its floor is right too.
                self.begin();
                if is_ready {
                    self.engine.go_on(self.clock.wall());
                }
                tracing::info!("serving");
            }
        }
        if self.opened && first_of(opens_at) > self.engine.floor() {
            return Err(Status::failed_precondition(format!(
                "kindred: this store began at revision {}, before the store that it replaces can have ended: start it \
                 with --in-cluster and without data (R14)",
                self.engine.floor()
            )));
        }
        Ok((self.clock.reading(), self.opening()))
    }

    #[must_use]
    pub fn opening(&self) -> Opening {
        if self.opened { Opening::Open } else { Opening::Waits }
    }
}

/// A revision below all that a clock assigns at this time.
fn first_of(at: WallMicros) -> Revision {
    Revision(i64::try_from(at.0).map_or(i64::MAX, |micros| micros.saturating_mul(1 << SLOT_BITS)))
}
