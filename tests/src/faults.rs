//! What happens to the servers of a place while clients work.

use std::{process::Command, time::Duration};

use anyhow::ensure;
use serde_json::json;

use crate::{
    admin::Admin,
    layouts::{Layout, Place, Servers},
    servers::Up,
};

const MOVE_LIMIT: Duration = Duration::from_secs(60);
/// How long a paused process stands still. It is longer than a connection may be silent.
const PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// A Kind moves to the store `b` and back.
    Moves,
    /// A Kind is split at a name, and merged.
    Split,
    /// `kill -9` of the shard `a`, which starts again. With standbys one of them takes over.
    Shard,
    /// The shard `a` stands still, and goes on.
    Pause,
    /// `kill -9` of the last router, which starts again.
    Router,
    /// `kill -9` of the meta store, which starts again.
    Meta,
}

impl Fault {
    pub const ALL: [Self; 7] =
        [Self::None, Self::Moves, Self::Split, Self::Shard, Self::Pause, Self::Router, Self::Meta];

    /// Whether requests may fail while it happens. Nobody is to notice a move, or that the meta store is away.
    #[must_use]
    pub const fn may_fail(self) -> bool {
        matches!(self, Self::Shard | Self::Pause | Self::Router)
    }

    /// Whether it can happen there. A Kind that is on several stores would be on another layout after a move.
    #[must_use]
    pub fn fits(self, layout: Layout) -> bool {
        let routed = Layout::ROUTED.contains(&layout);
        match self {
            Self::None => true,
            Self::Moves | Self::Split => matches!(layout, Layout::Whole | Layout::Standbys),
            Self::Shard | Self::Pause => {
                routed && !matches!(layout, Layout::Default | Layout::Stock | Layout::Together)
            }
            Self::Router => routed && layout != Layout::Together,
            Self::Meta => routed && layout != Layout::Together,
        }
    }

    /// Whether a router may answer below what another has shown (R22): nobody waits for a store that is away, and while a Kind is
    /// split the store that keys go to is not asked.
    #[must_use]
    pub fn sets_apart(self, place: Place) -> bool {
        let away = matches!(self, Self::Shard | Self::Pause) && place.layout.is_spread();
        place.routers > 1 && (away || self == Self::Split)
    }

    /// How much longer clients have to work for it.
    #[must_use]
    pub const fn takes(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            _ => Duration::from_secs(3),
        }
    }
}

impl Servers {
    /// Lets a fault happen to the servers, and to the Kind `resource` if it is a move.
    ///
    /// # Errors
    /// If the place does not have what the fault is about, or a move fails.
    pub async fn strike(&self, fault: Fault, resource: &str, split_at: &str) -> anyhow::Result<()> {
        let layout = self.place.layout;
        ensure!(fault.fits(layout), "{fault:?} at {layout}");
        let Some(up) = self.up() else { return Ok(()) };
        let admin = Admin::at(&up.admin);
        match fault {
            Fault::None => Ok(()),
            Fault::Moves => {
                for store in ["b", "a"] {
                    changed(&admin, "move", &json!({ "kind": resource, "to": store })).await?;
                }
                Ok(())
            }
            Fault::Split => {
                let split = json!({ "kind": resource, "at": split_at, "to": "b" });
                changed(&admin, "split", &split).await?;
                changed(&admin, "merge", &json!({ "kind": resource, "to": "a" })).await
            }
            Fault::Shard => signal(primary(up)?, "-KILL"),
            Fault::Pause => {
                let pid = primary(up)?;
                signal(pid, "-STOP")?;
                tokio::time::sleep(PAUSE).await;
                // A primary that a standby has replaced may have ended.
                let gone = signal(pid, "-CONT").is_err();
                ensure!(!gone || layout == Layout::Standbys, "the shard has ended in its pause");
                Ok(())
            }
            Fault::Router => match self.place.routers {
                1 => up.kill_router("router"),
                routers => up.kill_router(&format!("router-{routers}")),
            },
            Fault::Meta => up.kill_shard("meta"),
        }
    }
}

/// The process of the store `a` that serves it in the beginning.
fn primary(up: &Up) -> anyhow::Result<u32> {
    up.pid_in(&up.data_dir.join("stores").join("a"))
}

fn signal(pid: u32, signal: &str) -> anyhow::Result<()> {
    ensure!(Command::new("kill").args([signal, &pid.to_string()]).status()?.success(), "kill {signal} {pid}");
    Ok(())
}

/// Changes where a Kind is, and waits until all its moves are over.
async fn changed(admin: &Admin, verb: &str, body: &serde_json::Value) -> anyhow::Result<()> {
    for id in admin.change(verb, body).await? {
        admin.until(id, MOVE_LIMIT, |shown| shown["phase"] == "Switched").await?;
        admin.request(id, "complete").await?;
        admin.until(id, MOVE_LIMIT, |shown| shown["over"] == true).await?;
    }
    Ok(())
}
