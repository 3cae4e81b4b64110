//! `POST /api/v1/failover`: another member serves the store from now on. Planned, nothing is lost and requests wait for
//! a moment; by force, a standby that may lack the last changes takes the place of a primary that is dead (R14).

use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::ids::{MemberId, StoreName};
use kindred_partition_config::state::StoreObject;
use kindred_partition_config::validate::FieldError;
use kindred_router_core::clock_offset::MAX_OFFSET_MICROS;
use kindred_router_core::parts::store_ix;
use kindred_router_core::standbys::{Role, Wish};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::admin::status::ApiError;
use crate::moves::mover::Mover;
use crate::stores::Store;
use crate::stores::members::Shown;

/// How long a planned handover may take; usually it takes some ten milliseconds.
const HANDOVER_MAX: Duration = Duration::from_secs(5);
/// By force, the store opens when every clock has passed what the lost primary may have shown.
const FORCE_MAX: Duration = Duration::from_secs(45);
/// How often the outcome is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// The request's body.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FailoverBody {
    store: StoreName,
    /// The address of the standby; the first one that is in sync if absent.
    #[serde(default)]
    to: Option<String>,
    /// The operator asserts that the primary's process is dead and stays dead.
    #[serde(default)]
    force: bool,
}

fn field(path: &str, message: String, what_to_do: impl Into<String>) -> ApiError {
    vec![FieldError { path: path.to_owned(), message, what_to_do: what_to_do.into() }].into()
}

/// Removes the wish when nobody waits for it any more.
struct Wished<'s>(&'s Store);

impl Drop for Wished<'_> {
    fn drop(&mut self) {
        self.0.members().set_wish(None);
    }
}

impl FailoverBody {
    fn wish(&self, object: &StoreObject, shown: &Shown, now: Option<u64>) -> Result<Wish, ApiError> {
        let name = &self.store;
        let Some(standby) = &object.standby else {
            let what_to_do = format!("kindred store standby add {name} --endpoint URL");
            return Err(field("store", format!("store {:?} has no standbys", name.0), what_to_do));
        };
        let said = |url: &str| {
            shown.members.iter().find(|(at, _)| at == url).and_then(|(_, said)| said.as_ref().ok())
        };
        let in_sync = |url: &&String| {
            let record = object.members.as_ref();
            said(url).is_some_and(|said| record.is_some_and(|record| record.in_sync.contains(&said.id)))
        };
        let to = match &self.to {
            Some(to) if standby.endpoints.contains(to) => to.clone(),
            Some(to) if self.force && object.endpoints.contains(to) => to.clone(),
            Some(to) => {
                let message = format!("{to} is none of its standbys");
                return Err(field("to", message, format!("name one of {}", standby.endpoints.join(", "))));
            }
            None if self.force
                && object.members.as_ref().is_none_or(|record| record.primary.is_unknown()) =>
            {
                let trouble = shown.trouble.clone().unwrap_or_default();
                let message =
                    format!("there is no record of the members, so nobody knows who is in sync: {trouble}");
                return Err(field("to", message, "name the member that is to serve"));
            }
            None => match standby.endpoints.iter().find(in_sync).or(standby.endpoints.first()) {
                Some(to) => to.clone(),
                None => return Err(field("to", "there is no standby".to_owned(), "add one")),
            },
        };
        if !self.force {
            if in_sync(&&to) {
                return Ok(Wish::Handover { to });
            }
            let trouble = shown.trouble.clone().unwrap_or_else(|| "it was not asked yet".to_owned());
            let message = format!("{to} is not in sync, so it would lack acknowledged writes: {trouble}");
            let what_to_do = "wait until it is; only if the primary's process is dead for good, say --force";
            return Err(field("to", message, what_to_do));
        }
        let primary = object.endpoints.first().map_or("", String::as_str);
        // Another one there is one that lost its disk.
        let is_it = |id: &MemberId| match &object.members {
            Some(record) => record.primary == *id,
            None => to != primary,
        };
        let lives = said(primary).is_some_and(|said| {
            said.role == Role::Primary && said.bound && !said.in_doubt && is_it(&said.id)
        });
        if lives {
            let message = format!("the primary at {primary} lives");
            return Err(field(
                "force",
                message,
                "leave out --force: a standby in sync takes over without loss",
            ));
        }
        let now = now.ok_or_else(|| {
            ApiError::Unavailable(
                "the clocks of the stores are not known yet: try again in some seconds".to_owned(),
            )
        })?;
        // Without a record it is whoever was the primary.
        let dead = object.members.as_ref().map_or_else(MemberId::unknown, |record| record.primary.clone());
        Ok(Wish::Force { to, dead, opens_at: now.saturating_add(2 * MAX_OFFSET_MICROS) })
    }

    /// Has a standby serve, and waits until this router uses it.
    ///
    /// # Errors
    /// When it cannot take over, or has not within some time; then the wish is taken back.
    pub async fn run(self, mover: &Arc<Mover>) -> Result<Value, ApiError> {
        let state = mover.keeper.cluster.state();
        let Some((at, object)) = state.store(&self.store) else {
            let known: Vec<_> = state.stores.iter().map(|store| store.name.0.as_str()).collect();
            let message = format!("there is no store {:?}", self.store.0);
            return Err(field("store", message, format!("name one of {}", known.join(", "))));
        };
        if mover.keeper.cluster.meta.is_none() {
            return Err(ApiError::NotImplemented(crate::meta::MetaError::None.to_string()));
        }
        let store = mover.stores.get(store_ix(at)).clone();
        let wish = self.wish(object, &store.members().shown(), mover.stores.clocks().reference())?;
        let (to, limit) = match &wish {
            Wish::Handover { to } => (to.clone(), HANDOVER_MAX),
            Wish::Force { to, .. } => (to.clone(), FORCE_MAX),
        };
        let named = |object: &StoreObject| {
            let record = object.members.as_ref().filter(|record| !record.primary.is_unknown());
            record.map(|record| record.term)
        };
        let (before, dead) = (named(object), wish.dead().cloned());
        let began = Instant::now();
        store.members().set_wish(Some(wish));
        let _wished = Wished(&store);
        loop {
            let state = mover.keeper.cluster.state();
            let now = state.store(&self.store).map(|(_, object)| object);
            let is_it =
                now.is_some_and(|object| object.endpoints.first() == Some(&to) && named(object) != before);
            let serves = now.and_then(|object| object.members.as_ref()).map(|record| &record.primary);
            if let (Some(dead), Some(serves)) = (&dead, serves.filter(|serves| !serves.is_unknown()))
                && serves != dead
                && !is_it
            {
                let message = format!("another member is the primary by now: {serves}");
                return Err(field("to", message, "see kindred status"));
            }
            if is_it && store.ready().is_ok() {
                let millis = began.elapsed().as_millis();
                return Ok(json!({
                    "kind": "Failover", "apiVersion": "v1", "store": self.store, "primary": to, "millis": millis,
                }));
            }
            if began.elapsed() >= limit {
                let trouble = store.members().shown().trouble.clone();
                let why = trouble.unwrap_or_else(|| store.state().reason());
                let what =
                    format!("store {}: {to} does not serve after {} s: {why}", self.store, limit.as_secs());
                return Err(ApiError::Unavailable(what));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
