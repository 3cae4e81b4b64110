//! Binds this store to a cluster: that of the first router with a lineage whose call means it, also after
//! restarts. Routers of any other cluster are refused, so that none writes here by another cluster's map. Whatever else of
//! the identity changes is written here too, or one would write over the other.

use std::path::PathBuf;
use std::sync::Arc;

use kindred_partition_config::ids::Lineage;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tonic::Status;

use crate::identity::{Identity, IdentityError};

#[derive(Debug)]
pub struct Joining {
    /// Where the identity is kept. A store without a directory stays bound only while it runs.
    directory: Option<PathBuf>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug)]
struct Kept {
    identity: Identity,
    /// The lineage is in force but not on disk yet.
    unwritten: bool,
}

/// Why a caller is refused, if it is.
fn refusal(own: Option<&Lineage>, caller: Option<&Lineage>) -> Option<String> {
    let own = own?;
    match caller {
        Some(caller) if caller == own => None,
        Some(caller) => Some(format!(
            "kindred: this store belongs to the cluster of lineage {own}, the caller to that of lineage {caller}: is this \
             another cluster's address? A cluster whose meta store was lost goes on with its routers' --lineage {own}"
        )),
        None => Some(format!(
            "kindred: this store belongs to the cluster of lineage {own}, the caller to none: it was started without --meta"
        )),
    }
}

impl Joining {
    #[must_use]
    pub fn new(identity: Identity, directory: Option<PathBuf>) -> Self {
        Self { directory, kept: Arc::new(Mutex::new(Kept { identity, unwritten: false })) }
    }

    /// Admits a caller of this lineage, or of none. With `joins`, a store without a lineage takes over the caller's.
    /// Returns the store's lineage.
    ///
    /// # Errors
    /// `FailedPrecondition` for a caller of another cluster.
    pub async fn admit(&self, caller: Option<Lineage>, joins: bool) -> Result<Option<Lineage>, Status> {
        let mut kept = self.kept.clone().lock_owned().await;
        if let Some(why) = refusal(kept.identity.lineage.as_ref(), caller.as_ref()) {
            return Err(Status::failed_precondition(why));
        }
        if joins && kept.identity.lineage.is_none() && caller.is_some() {
            tracing::info!(
                lineage = caller.as_ref().map(tracing::field::display),
                "the store belongs to this cluster from now on"
            );
            kept.identity.lineage = caller;
            kept.unwritten = true;
        }
        if kept.unwritten {
            let written;
            (kept, written) = self.write(kept).await;
            if let Err(error) = written {
                // A failing disk refuses no caller.
                tracing::warn!(%error, "the lineage is not kept yet: tried again with the next call");
            }
        }
        Ok(kept.identity.lineage.clone())
    }

    /// The identity as it is now.
    pub async fn identity(&self) -> Identity {
        self.kept.lock().await.identity.clone()
    }

    /// The lineage that is on disk.
    pub async fn kept_lineage(&self) -> Option<Lineage> {
        let kept = self.kept.lock().await;
        kept.identity.lineage.clone().filter(|_| !kept.unwritten)
    }

    /// Keeps the incarnation that a promotion has given to the store.
    ///
    /// # Errors
    /// When the disk refuses.
    pub async fn keep_incarnation(&self, incarnation: u64) -> Result<(), IdentityError> {
        let mut kept = self.kept.clone().lock_owned().await;
        let former = std::mem::replace(&mut kept.identity.incarnation, incarnation);
        let (mut kept, written) = self.write(kept).await;
        if written.is_err() {
            kept.identity.incarnation = former;
        }
        written
    }

    /// Writes the identity to disk. It comes to its end also when the caller has gone: another write beside it would mix with it.
    async fn write(
        &self,
        mut kept: OwnedMutexGuard<Kept>,
    ) -> (OwnedMutexGuard<Kept>, Result<(), IdentityError>) {
        let Some(directory) = self.directory.clone() else {
            kept.unwritten = false;
            return (kept, Ok(()));
        };
        let writing = tokio::task::spawn_blocking(move || {
            let written = kept.identity.write(&directory);
            kept.unwritten = written.is_err();
            (kept, written)
        });
        match writing.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(done) => done,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime ends, and this task with it.
            Err(Err(_)) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn lineage(text: &str) -> Option<Lineage> {
        Some(Lineage(text.to_owned()))
    }

    fn open(directory: &Path) -> Joining {
        let kept = Identity::read(directory).unwrap();
        let identity = kept.unwrap_or_else(|| {
            std::fs::create_dir_all(directory).unwrap();
            let new = Identity::random();
            new.write(directory).unwrap();
            new
        });
        Joining::new(identity, Some(directory.to_owned()))
    }

    #[tokio::test]
    async fn f36_a_store_belongs_to_the_first_cluster_that_meets_it_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let joining = open(directory.path());
        assert_eq!(joining.admit(None, true).await.unwrap(), None, "alone, it is anybody's");
        assert_eq!(joining.admit(lineage("b"), false).await.unwrap(), None, "it means another store");
        assert_eq!(joining.admit(lineage("a"), true).await.unwrap(), lineage("a"));
        for joining in [joining, open(directory.path())] {
            assert_eq!(joining.admit(lineage("a"), true).await.unwrap(), lineage("a"));
            let refused = joining.admit(lineage("b"), true).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
            assert!(
                refused.message().contains("lineage a,") && refused.message().contains("lineage b:"),
                "{refused}"
            );
            assert!(joining.admit(None, true).await.unwrap_err().message().contains("--meta"));
        }
    }

    /// It was written with the identity of the process's start, without the lineage that the store had joined since; and the
    /// lineage was written with the incarnation of the start.
    #[tokio::test]
    async fn r21_what_a_promotion_keeps_leaves_the_lineage() {
        let directory = tempfile::tempdir().unwrap();
        let joining = open(directory.path());
        joining.keep_incarnation(8).await.unwrap();
        assert_eq!(joining.kept_lineage().await, None);
        joining.admit(lineage("a"), true).await.unwrap();
        assert_eq!(joining.kept_lineage().await, lineage("a"));
        joining.keep_incarnation(9).await.unwrap();
        for identity in [joining.identity().await, Identity::read(directory.path()).unwrap().unwrap()] {
            assert_eq!((identity.incarnation, identity.lineage), (9, lineage("a")));
        }
    }

    #[tokio::test]
    async fn f36_what_could_not_be_kept_is_kept_later() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("data");
        let joining = open(&inside);
        let aside = directory.path().join("aside");
        std::fs::rename(&inside, &aside).unwrap();
        assert_eq!(joining.admit(lineage("a"), true).await.unwrap(), lineage("a"), "the disk stops no reads");
        assert!(joining.admit(lineage("b"), true).await.is_err());
        std::fs::rename(&aside, &inside).unwrap();
        joining.admit(lineage("a"), true).await.unwrap();
        assert!(open(&inside).admit(lineage("b"), true).await.is_err());
    }
}
