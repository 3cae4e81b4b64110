//! Keeps the members of each store that has standbys: looks at them, and does what [`kindred_router_core::standbys`]
//! decides. Every router does this for every store; the record in the meta store, changed by compare-and-swap, decides
//! between them (R19).

pub mod calls;
pub mod failover;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use kindred_partition_config::map::StoreIdx;
use kindred_partition_config::state::{ClusterState, MembersChange, MembersRefusal, StoreObject, StoreState};
use kindred_proto::shard_v1 as pb;
use kindred_router_core::standbys::{self, Look, Role, Said, Step, addresses, has_members};
use kindred_transport::Endpoint;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::meta::take::StateKeeper;
use crate::meta::{ChangeError, Next};
use crate::stores::Store;
use crate::stores::members::Shown;
use crate::stores::monitor::hello_of;
use calls::Calls;

/// How often members are looked at, and while something is under way.
const EVERY: Duration = Duration::from_millis(200);
const HURRY: Duration = Duration::from_millis(25);
/// How long a look waits for answers. A member that hangs is not to hold up what is done with the others.
const PATIENCE: Duration = Duration::from_millis(50);

/// Looks after the members of a store, for ever.
pub async fn run(keeper: Arc<StateKeeper>, store: Arc<Store>) {
    if keeper.cluster.meta.is_none() {
        return;
    }
    let Ok(at) = u16::try_from(store.index.0).map(StoreIdx) else { return };
    let mut states = keeper.cluster.states();
    let mut rounds = Rounds::new(keeper.clone(), store.clone(), at);
    loop {
        let object = object(&states.borrow_and_update(), at).filter(has_members);
        let Some(object) = object else {
            rounds.forget();
            if states.changed().await.is_err() {
                return;
            }
            continue;
        };
        let began = Instant::now();
        let pause = rounds.round(&object).await;
        tokio::select! {
            () = tokio::time::sleep_until(began + pause) => {}
            () = store.members().wished() => {}
            changed = states.changed() => if changed.is_err() { return },
        }
    }
}

fn object(state: &ClusterState, at: StoreIdx) -> Option<StoreObject> {
    let object = state.stores.get(usize::from(at.0))?;
    (object.state != StoreState::Removed).then(|| object.clone())
}

/// What is kept between two looks at the members of one store.
struct Rounds {
    keeper: Arc<StateKeeper>,
    store: Arc<Store>,
    at: StoreIdx,
    began: Instant,
    calls: Arc<Calls>,
    /// The members that are being asked, and when they were.
    asking: JoinSet<(String, Duration, Result<Said, String>)>,
    asked: BTreeSet<String>,
    looks: BTreeMap<String, Look>,
    /// What was said last, so that the log says it once.
    told: Option<String>,
}

impl Rounds {
    fn new(keeper: Arc<StateKeeper>, store: Arc<Store>, at: StoreIdx) -> Self {
        let calls = Arc::new(Calls::new(keeper.stores.connector().clone()));
        let (asking, asked, looks) = (JoinSet::new(), BTreeSet::new(), BTreeMap::new());
        Self { keeper, store, at, began: Instant::now(), calls, asking, asked, looks, told: None }
    }

    fn forget(&mut self) {
        self.looks.clear();
        self.store.members().show(Shown::default());
    }

    /// Looks at all members, and takes the next steps. Returns after which time to look again.
    async fn round(&mut self, object: &StoreObject) -> Duration {
        let urls = addresses(object);
        self.looks.retain(|url, _| urls.contains(url));
        self.look(&urls).await;
        let wish = self.store.members().wish();
        let decision = standbys::decide(object, &self.looks, self.began.elapsed(), wish.as_ref());
        // While something is done, all is not well yet.
        let trouble = match (&decision.trouble, decision.steps.is_empty()) {
            (None, false) => Some("its record of members is about to change".to_owned()),
            (trouble, _) => trouble.clone(),
        };
        if decision.trouble.is_some() || decision.steps.is_empty() {
            self.tell(trouble.as_deref());
        }
        self.show(object, &urls, trouble);
        let done = join_all(decision.steps.iter().map(|step| self.step(step))).await;
        let failed = done.into_iter().filter_map(Result::err).inspect(|why| {
            tracing::debug!(store = self.store.name(), why, "a step of a store's members was refused");
        });
        let failed = failed.count() > 0;
        match (decision.steps.is_empty(), failed, decision.hurry) {
            // What was done shows at once in what the members say.
            (false, false, _) => Duration::ZERO,
            (_, _, true) | (false, true, _) => HURRY,
            _ => EVERY,
        }
    }

    /// Whom each call means.
    fn meant(&self) -> pb::Meant {
        let spec = self.store.spec();
        let hello = hello_of(&self.keeper.cluster, self.keeper.identity.cluster_id, &self.store, &spec);
        pb::Meant {
            store_uuid: hello.store_uuid,
            lineage: hello.lineage,
            slot: spec.slot.map(|slot| u32::from(slot.get())),
            store: spec.name.0.clone(),
        }
    }

    /// Asks the members that are not being asked yet, and takes what they answer soon.
    async fn look(&mut self, urls: &[String]) {
        let now = self.began.elapsed();
        let meant = self.meant();
        for url in urls {
            if self.asked.insert(url.clone()) {
                let (calls, url, meant) = (self.calls.clone(), url.clone(), meant.clone());
                self.asking.spawn(async move {
                    let answer = calls.ask(&url, meant).await;
                    (url, now, answer)
                });
            }
        }
        let until = Instant::now() + PATIENCE;
        while let Ok(Some(answered)) = tokio::time::timeout_at(until, self.asking.join_next()).await {
            let Ok((url, asked, answer)) = answered else { continue };
            self.asked.remove(&url);
            if !urls.contains(&url) {
                continue;
            }
            let look = self.looks.entry(url).or_default();
            match answer {
                Ok(said) => look.answered(asked, as_configured(said, urls)),
                Err(why) => look.failed(why),
            }
        }
    }

    fn tell(&mut self, trouble: Option<&str>) {
        if self.told.as_deref() == trouble {
            return;
        }
        match trouble {
            Some(trouble) => tracing::warn!(store = self.store.name(), "{trouble}"),
            None => tracing::info!(store = self.store.name(), "all standbys are in sync"),
        }
        self.told = trouble.map(str::to_owned);
    }

    fn show(&self, object: &StoreObject, urls: &[String], trouble: Option<String>) {
        let members = urls.iter().map(|url| {
            let look = self.looks.get(url).cloned().unwrap_or_default();
            let said = match (look.said, look.failed) {
                (Some((_, said)), None) => Ok(said),
                (_, failed) => Err(failed.unwrap_or_else(|| "not asked yet".to_owned())),
            };
            (url.clone(), said)
        });
        let in_sync = object.members.as_ref().map_or(0, |members| members.in_sync.len());
        let wanted = object.standby.as_ref().map_or(0, |standby| standby.endpoints.len());
        let shown = Shown { trouble, members: members.collect(), wanted, in_sync };
        self.store.members().show(shown);
    }

    async fn step(&self, step: &Step) -> Result<(), String> {
        let Step::Write { read, term, change } = step else {
            let done = self.calls.tell(step, self.meant()).await;
            if done.is_ok() && matches!(step, Step::Promote { .. }) {
                tracing::info!(store = self.store.name(), ?step, "a standby serves the store");
                self.store.members().count_failover();
                // It is to be reached at once.
                self.store.relinked().notify_one();
            }
            return done;
        };
        let change_of = |state: &ClusterState| -> Result<Next, MembersRefusal> {
            state.with_members(self.at, *read, *term, change).map(Next::from)
        };
        match self.keeper.change(change_of).await {
            Ok(_) => {
                self.written(*term, change);
                Ok(())
            }
            Err(ChangeError::Refused(refusal)) => Err(refusal.to_string()),
            Err(ChangeError::Meta(error)) => Err(error.to_string()),
        }
    }

    fn written(&self, term: kindred_partition_config::ids::Term, change: &MembersChange) {
        let store = self.store.name();
        match change {
            MembersChange::Begin(primary) => {
                tracing::info!(store, %term, %primary, "the store has a record of its members")
            }
            MembersChange::InSync(members) => {
                tracing::info!(store, %term, ?members, "these standbys are in sync")
            }
            MembersChange::Adopt { member, endpoint } => {
                tracing::warn!(store, %term, %member, endpoint, "the record had lost that this member serves");
            }
            MembersChange::Promote { member, endpoint, forced } => {
                tracing::warn!(store, %term, %member, endpoint, forced = forced.is_some(), "a standby takes the primary's place");
            }
        }
    }
}

/// Names the primary that a standby looks for by its address in the configuration, if it is one of these.
fn as_configured(mut said: Said, urls: &[String]) -> Said {
    let follows: Option<Endpoint> = said.follows.parse().ok();
    let same = |url: &&String| follows.is_some() && url.parse().ok() == follows;
    if let Some(url) = urls.iter().find(same) {
        said.follows.clone_from(url);
    }
    said
}

/// The role of a member in a word.
#[must_use]
pub fn word(role: Role) -> &'static str {
    match role {
        Role::Primary => "primary",
        Role::Standby => "standby",
        Role::Superseded => "superseded",
    }
}
