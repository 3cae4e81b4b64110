//! Follows meta for as long as the router runs: lists all keys, watches from there, and lists again after every loss. A
//! newer state is taken and written to the file; a state older than the one in use is overwritten with it.

use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::state::{ClusterState, Kinship};
use kindred_proto::etcdserverpb as pb;

use super::client::{Entries, Expect, Watch, Write};
use super::lineage::foreign;
use super::live::Live;
use super::start::addressed;
use super::store::MetaStore;
use super::take::StateKeeper;
use super::{Cluster, Meta, MetaError, MetaSettings, STATE, cache, compactions, order};
use crate::execute::compact::Compactor;
use crate::moves::past::is_forgotten;
use crate::moves::{record_key, records};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The interval of compactions of meta; each leaves at least this much history, and at most twice as much.
const HISTORY: Duration = Duration::from_secs(300);
/// The least number of changes for which a compaction is made.
const WORTH_IT: i64 = 100;

/// What following uses of a router.
pub trait Following: MetaStore {
    /// A watch of all keys of kindred.
    type Watch;

    /// How meta is used.
    fn settings(&self) -> &MetaSettings;
    /// Watches all keys of kindred from a revision on, which is not in the future.
    fn watch(&self, from: i64) -> impl Future<Output = Result<Self::Watch, MetaError>>;
    /// The next response.
    fn next(&self, watch: &mut Self::Watch) -> impl Future<Output = Result<pb::WatchResponse, MetaError>>;
    /// Makes these the keys as this router has last seen them.
    fn publish(&self, entries: Arc<Entries>);
    /// Meta is of this router's cluster.
    fn confirm(&self);
    /// It may be of another one.
    fn doubt(&self, why: &str);
    /// Why meta is not followed; `None` while it is.
    fn note(&self, problem: Option<String>);
    /// Waits.
    fn pause(&self, time: Duration) -> impl Future<Output = ()>;
}

impl Following for Live {
    type Watch = Watch;

    fn settings(&self) -> &MetaSettings {
        &self.meta.settings
    }

    async fn watch(&self, from: i64) -> Result<Watch, MetaError> {
        self.meta.client.watch(from, self.keeper.stores.ticks().next()).await
    }

    async fn next(&self, watch: &mut Watch) -> Result<pb::WatchResponse, MetaError> {
        watch.next().await
    }

    fn publish(&self, entries: Arc<Entries>) {
        self.meta.entries.send_replace(entries);
    }

    fn confirm(&self) {
        self.meta.confirm();
    }

    fn doubt(&self, why: &str) {
        self.meta.doubt(why);
    }

    fn note(&self, problem: Option<String>) {
        self.meta.set_problem(problem);
    }

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// Runs for ever.
pub async fn run(keeper: Arc<StateKeeper>, compactor: Arc<Compactor>, meta: Arc<Meta>) {
    let live = Live { keeper: keeper.clone(), meta: meta.clone() };
    tokio::join!(
        follow(&live),
        keep(&keeper.cluster, &meta),
        compact(&meta),
        compactions::run(&compactor, &meta, keeper.stores.ticks())
    );
}

/// Follows meta for ever.
pub async fn follow(meta: &impl Following) {
    let mut backoff = BACKOFF_MIN;
    loop {
        match once(meta, &mut backoff).await {
            // One member is gone, or the watch was behind. The next list says whether meta is away, and has what was
            // missed.
            Ok(Lost(why)) => tracing::info!(why, "the meta store is listed again"),
            Err(error) => {
                meta.note(Some(error.to_string()));
                if let MetaError::Foreign(why) = &error {
                    meta.doubt(why);
                }
            }
        }
        meta.pause(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Why a watch has ended.
struct Lost(String);

/// Follows meta until something fails, or the watch is lost.
async fn once(meta: &impl Following, backoff: &mut Duration) -> Result<Lost, MetaError> {
    let mut entries = listed(meta).await?;
    meta.confirm();
    meta.note(None);
    saw(meta, &entries)?;
    let listed = entries.revision;
    // The next revision is in the future. An event that the list contains changes nothing when it comes again.
    let mut watch = match meta.watch(listed).await {
        Ok(watch) => watch,
        Err(error) => return lost(error),
    };
    loop {
        let answer = match meta.next(&mut watch).await {
            Ok(answer) => answer,
            Err(error) => return lost(error),
        };
        // It was restored since the list, or its member lags: changes up to the listed revision might be missed.
        if let Some(header) = &answer.header
            && header.revision < listed
        {
            return Ok(Lost(format!("it was at revision {listed}, and is back at {}", header.revision)));
        }
        *backoff = BACKOFF_MIN;
        for event in &answer.events {
            entries.apply(event);
        }
        entries.revision = entries.revision.max(answer.header.map_or(0, |header| header.revision));
        if !answer.events.is_empty() {
            saw(meta, &entries)?;
        }
    }
}

fn lost(error: MetaError) -> Result<Lost, MetaError> {
    match error {
        MetaError::Unavailable(why) => Ok(Lost(why)),
        MetaError::Compacted => Ok(Lost(error.to_string())),
        error => Err(error),
    }
}

/// Lists all keys. Returns once meta has a valid state that is not older than the one in use and has the addresses of
/// `--store`; writes that state if needed.
async fn listed(meta: &impl Following) -> Result<Entries, MetaError> {
    loop {
        // Read before asking meta: the answer lacks what this router changes meanwhile.
        let own = meta.state();
        let entries = meta.list().await?;
        let (found, mod_revision) = match entries.keys.get(STATE) {
            None => (None, 0),
            Some(stored) => (Some(ClusterState::from_json(&stored.value)?), stored.mod_revision),
        };
        let has_lost = found.as_ref().is_none_or(|found| order(found) < order(&own));
        let next = match found {
            Some(found) => match put_right(&found, &own, meta.settings())? {
                None => return Ok(entries),
                Some(next) => next,
            },
            None => {
                tracing::warn!(own = ?order(&own), "the meta store has no state: it gets this router's");
                meta.settings().founding.upgrade(&own)
            }
        };
        let write = match super::write(&next) {
            Ok(write) => write,
            // Meta keeps its state, and this router goes on with the newest one that it knows.
            Err(error) if mod_revision > 0 => {
                tracing::error!(%error, "the meta store's state is not replaced");
                return Ok(entries);
            }
            Err(error) => return Err(error),
        };
        // If another router is faster, the next list shows its write.
        let mut expects = vec![Expect { key: STATE.to_owned(), mod_revision }];
        let mut writes = vec![write];
        if has_lost {
            put_moves_back(&meta.entries(), &entries, &mut expects, &mut writes);
        }
        meta.commit(&expects, writes).await?;
    }
}

/// Adds writes that restore records of moves that meta has lost, or has in an older version, to the write of a lost
/// state. Without its record a move could not go on.
fn put_moves_back(known: &Entries, there: &Entries, expects: &mut Vec<Expect>, writes: &mut Vec<Write>) {
    let found = records(there);
    for (id, (record, _)) in records(known) {
        let before = found.get(&id);
        if before.is_none_or(|(before, _)| record.is_newer_than(before)) {
            tracing::warn!(move_id = id.0, phase = ?record.phase, "the meta store gets the record of a move back");
            let mod_revision = before.map_or(0, |(_, version)| *version);
            expects.push(Expect { key: record_key(id), mod_revision });
            writes.push(Write::put(record_key(id), record.to_json()));
        }
    }
    // Adds deletions of records of moves that were finished and deleted before, so that such moves do not begin again.
    for (id, (_, mod_revision)) in found.into_iter().filter(|(id, _)| is_forgotten(known, *id)) {
        tracing::warn!(
            move_id = id.0,
            "the meta store had forgotten a move that was over, and does so again"
        );
        expects.push(Expect { key: record_key(id), mod_revision });
        writes.push(Write { value: None, ..Write::put(record_key(id), "") });
    }
}

/// The state to write in place of meta's, if any: this router's if meta has lost a newer one; else meta's own, with the
/// addresses of `--store` and with a lineage if an earlier version wrote it.
///
/// # Errors
/// When meta's state belongs, or may belong, to another cluster.
fn put_right(
    found: &ClusterState,
    own: &ClusterState,
    settings: &MetaSettings,
) -> Result<Option<ClusterState>, MetaError> {
    if let Some(why) = foreign(own, found) {
        return Err(MetaError::Foreign(why));
    }
    if order(found) < order(own) {
        if own.kinship(found) != Kinship::Same {
            let why = format!(
                "it has an older state than this router's, of revision {} and not of {}, and nothing says whether both are of one \
                 cluster; restart this router",
                found.revision, own.revision
            );
            return Err(MetaError::Foreign(why));
        }
        tracing::warn!(has = ?order(found), own = ?order(own), "the meta store has lost data: it gets this router's state");
        return Ok(Some(own.clone()));
    }
    let next = settings.founding.upgrade(&addressed(found.clone(), &settings.addresses));
    Ok((next != *found).then_some(next))
}

/// Takes the state if it has changed, and publishes all keys.
fn saw(meta: &impl Following, entries: &Entries) -> Result<(), MetaError> {
    let Some(stored) = entries.keys.get(STATE) else {
        return Err(MetaError::Refused(format!("{STATE} was deleted; it is written again")));
    };
    let changed = meta.entries().keys.get(STATE) != Some(stored);
    if changed {
        let state = ClusterState::from_json(&stored.value)?;
        if let Some(why) = foreign(&meta.state(), &state) {
            return Err(MetaError::Foreign(why));
        }
        meta.take(Arc::new(state));
    }
    meta.publish(Arc::new(entries.clone()));
    Ok(())
}

/// Writes every state that is taken to the file. That includes changes by this router itself whose event never arrives
/// because meta goes away.
async fn keep(cluster: &Cluster, meta: &Meta) {
    let Some(path) = &meta.settings.cache else { return };
    let mut states = cluster.states();
    loop {
        let (path, state) = (path.clone(), states.borrow_and_update().clone());
        let written = tokio::task::spawn_blocking(move || cache::write(&path, &state)).await;
        if let Ok(Err(error)) = written {
            tracing::error!(%error, "the state was not written; a start without the meta store would use an older one");
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}

/// Compacts meta, whose history is needed only for watches that resume. If the etcd is shared with others, their
/// history is compacted too, as kube-apiserver does.
async fn compact(meta: &Meta) {
    let (mut before, mut compacted) = (0, 0);
    loop {
        tokio::time::sleep(HISTORY).await;
        if before > compacted + WORTH_IT {
            match meta.client.compact(before).await {
                Ok(()) => compacted = before,
                Err(error) => tracing::debug!(%error, "the meta store was not compacted"),
            }
        }
        before = meta.entries.borrow().revision;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use kindred_partition_config::ids::{ClusterId, Lineage, MoveId, StoreName};
    use kindred_partition_config::parse::{DEFAULT_CONFIG, parse_config};
    use kindred_proto::mvccpb;
    use kindred_router_core::moves::record::{MoveRecord, Phase};

    use super::super::client::Stored;
    use super::super::lineage::Founding;
    use super::super::start::with_addresses;
    use super::*;

    fn bare() -> ClusterState {
        ClusterState::bootstrap(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap()
    }

    fn of(lineage: &str) -> ClusterState {
        bare().founded(ClusterId(7), &Lineage(lineage.to_owned()))
    }

    fn settings(addresses: &[&str]) -> MetaSettings {
        let address = |name: &&str| (StoreName((*name).to_owned()), vec!["127.0.0.1:7".to_owned()]);
        MetaSettings {
            endpoints: Vec::new(),
            cache: None,
            addresses: addresses.iter().map(address).collect(),
            config: None,
            founding: Founding::default(),
        }
    }

    /// A meta store that answers one list and one watch.
    struct Scripted {
        list: Entries,
        answers: Vec<pb::WatchResponse>,
        settings: MetaSettings,
        state: Arc<ClusterState>,
        published: RefCell<Vec<Arc<Entries>>>,
    }

    impl MetaStore for Scripted {
        async fn get(&self, _: &str) -> Result<Option<Stored>, MetaError> {
            Ok(None)
        }

        async fn list(&self) -> Result<Entries, MetaError> {
            Ok(self.list.clone())
        }

        async fn commit(&self, _: &[Expect], _: Vec<Write>) -> Result<Option<i64>, MetaError> {
            Ok(None)
        }

        async fn commit_under(&self, _: i64, _: Write) -> Result<bool, MetaError> {
            Ok(false)
        }

        async fn grant(&self, _: Duration) -> Result<i64, MetaError> {
            Err(MetaError::Unavailable("it grants nothing".to_owned()))
        }

        async fn renew(&self, _: i64) -> Result<bool, MetaError> {
            Ok(false)
        }

        fn entries(&self) -> Arc<Entries> {
            self.published.borrow().last().cloned().unwrap_or_default()
        }

        async fn heard(&self, _: i64) -> bool {
            false
        }

        fn state(&self) -> Arc<ClusterState> {
            self.state.clone()
        }

        fn take(&self, _: Arc<ClusterState>) {}
    }

    impl Following for Scripted {
        type Watch = std::vec::IntoIter<pb::WatchResponse>;

        fn settings(&self) -> &MetaSettings {
            &self.settings
        }

        async fn watch(&self, from: i64) -> Result<Self::Watch, MetaError> {
            assert_eq!(from, self.list.revision);
            Ok(self.answers.clone().into_iter())
        }

        async fn next(&self, watch: &mut Self::Watch) -> Result<pb::WatchResponse, MetaError> {
            watch.next().ok_or_else(|| MetaError::Unavailable("the script is over".to_owned()))
        }

        fn publish(&self, entries: Arc<Entries>) {
            self.published.borrow_mut().push(entries);
        }

        fn confirm(&self) {}

        fn doubt(&self, _: &str) {}

        fn note(&self, _: Option<String>) {}

        async fn pause(&self, _: Duration) {}
    }

    /// Follows a store that was listed at revision 90. Returns why it is listed again, and the revision that is known.
    async fn followed(revisions: &[i64]) -> (String, i64) {
        let value = of("a").to_json().into();
        let keys = [(STATE.to_owned(), Stored { value, mod_revision: 3 })];
        let answer = |revision: &i64| {
            let kv = mvccpb::KeyValue {
                key: "/kindred/moves/8".into(),
                mod_revision: *revision,
                ..mvccpb::KeyValue::default()
            };
            let header = Some(pb::ResponseHeader { revision: *revision, ..pb::ResponseHeader::default() });
            let event = mvccpb::Event { kv: Some(kv), ..mvccpb::Event::default() };
            pb::WatchResponse { header, events: vec![event], ..pb::WatchResponse::default() }
        };
        let meta = Scripted {
            list: Entries { revision: 90, keys: keys.into() },
            answers: revisions.iter().map(answer).collect(),
            settings: settings(&[]),
            state: Arc::new(of("a")),
            published: RefCell::default(),
        };
        let Lost(why) = once(&meta, &mut BACKOFF_MIN.clone()).await.unwrap();
        (why, meta.entries().revision)
    }

    #[tokio::test]
    async fn a_store_that_went_back_since_the_list_is_listed_again() {
        // A watch from the future would be silent until then.
        let (why, known) = followed(&[41, 91]).await;
        assert_eq!(why, "it was at revision 90, and is back at 41");
        assert_eq!(known, 90);
        let (why, known) = followed(&[90, 93, 92]).await;
        assert_eq!((&*why, known), ("the script is over", 93), "headers of a watch need not rise");
    }

    /// A router whose stores have other addresses after a restart neither treats meta's state as lost nor overwrites
    /// changes that others made there.
    #[test]
    fn f51_addresses_of_a_restart_are_a_change_of_the_newest_state() {
        let settings = settings(&["pods", "nodes"]);
        let before = of("a");
        let own = with_addresses(before.clone(), &settings.addresses);
        let written = put_right(&before, &own, &settings).unwrap().unwrap();
        assert!(order(&written) > order(&before));
        assert_eq!(put_right(&written, &own, &settings), Ok(None));

        let by_another = before.identify_store(&StoreName("events".to_owned()), "u").unwrap();
        let written = put_right(&by_another, &own, &settings).unwrap().unwrap();
        assert_eq!(written.store(&StoreName("events".to_owned())).unwrap().1.uuid.as_deref(), Some("u"));
        assert_eq!(written.store(&StoreName("pods".to_owned())).unwrap().1.endpoints, ["127.0.0.1:7"]);
    }

    #[test]
    fn f30_a_move_that_was_over_and_forgotten_does_not_begin_again() {
        let change = bare().move_kind("pods", &StoreName("events".to_owned())).unwrap();
        let entries = |moves: &[(u64, Phase)]| {
            let record = |(id, phase): &(u64, Phase)| {
                let mut record = MoveRecord::new(MoveId(*id), &change.transfers).unwrap();
                record.phase = *phase;
                let value = record.to_json().into();
                (record_key(MoveId(*id)), Stored { value, mod_revision: 3 })
            };
            Entries { revision: 9, keys: moves.iter().map(record).collect() }
        };
        // Meta is back at the time when moves 7 and 8 were under way. Since then 8 has ended and 7 was deleted.
        let there = entries(&[(7, Phase::Switched), (8, Phase::Copying)]);
        let known = entries(&[(8, Phase::Done), (9, Phase::Done)]);
        let (mut expects, mut writes) = (Vec::new(), Vec::new());
        put_moves_back(&known, &there, &mut expects, &mut writes);
        let written: Vec<_> =
            writes.iter().map(|write| (write.key.as_str(), write.value.is_some())).collect();
        let want = [("/kindred/moves/8", true), ("/kindred/moves/9", true), ("/kindred/moves/7", false)];
        assert_eq!(written, want);
        let expected: Vec<_> = expects.iter().map(|expect| expect.mod_revision).collect();
        assert_eq!(expected, [3, 0, 3]);
    }

    #[test]
    fn f03_a_state_is_written_over_an_older_one_of_its_own_cluster_alone() {
        let newer = |state: &ClusterState| state.identify_store(&StoreName("pods".to_owned()), "u").unwrap();
        let settings = settings(&[]);
        let put = |found: &ClusterState, own: &ClusterState| put_right(found, own, &settings);
        let (a, b) = (of("a"), of("b"));
        assert_eq!(put(&a, &newer(&a)), Ok(Some(newer(&a))), "it was lost");
        assert_eq!(put(&newer(&a), &a), Ok(None));
        for (found, own) in
            [(&b, newer(&a)), (&newer(&b), a.clone()), (&bare(), newer(&a)), (&b, newer(&bare()))]
        {
            assert!(matches!(put(found, &own), Err(MetaError::Foreign(_))), "{found:?}");
        }
        // A state that an earlier version wrote, and one in use by a router that began with an earlier version's.
        let upgraded = put(&bare(), &bare()).unwrap().unwrap();
        assert!(upgraded.lineage.is_some() && order(&upgraded) > order(&bare()));
        assert_eq!(put(&newer(&b), &bare()), Ok(None), "another router has upgraded it");
    }
}
