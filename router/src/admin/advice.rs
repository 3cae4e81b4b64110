//! `/api/v1/advice`: what `kindred advise` decided, told by it and kept in the meta store for all routers.

mod list;

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use schemars::JsonSchema;
use serde::Serialize;

use super::api;
use super::kinds::seconds;
use super::status::ApiError;
use crate::meta::client::{Expect, Write};
use crate::meta::live::Live;
use crate::meta::store::MetaStore;
use crate::meta::take::StateKeeper;
use crate::meta::{ADVICE, ATTEMPTS, ChangeError, Cluster, MetaError};
pub use list::{KEPT, Kept, List, Outcome, TEXT_MAX, Told};

/// The decisions of `kindred advise`, the newest first.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdviceList {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub items: Vec<Kept>,
}

pub fn routes(keeper: &Arc<StateKeeper>) -> Router {
    let (of_list, of_tell) = (keeper.cluster.clone(), keeper.clone());
    let shown = move |headers: HeaderMap| {
        let list = AdviceList { api_version: "v1", kind: "AdviceList", items: all(&of_list) };
        std::future::ready(match serde_json::to_value(&list) {
            Ok(list) => api::shown(&headers, StatusCode::OK, &list),
            Err(error) => ApiError::Unavailable(error.to_string()).into_response(),
        })
    };
    let tell = move |body: Bytes| {
        let keeper = of_tell.clone();
        async move { told(&keeper, &body).await }
    };
    Router::new().route("/api/v1/advice", get(shown).post(tell))
}

/// The decisions that this router knows of, the newest first; none without a meta store.
pub(in crate::admin) fn all(cluster: &Cluster) -> Vec<Kept> {
    let Some(meta) = &cluster.meta else { return Vec::new() };
    List::read(meta.entries().borrow().text(ADVICE)).newest_first()
}

async fn told(keeper: &Arc<StateKeeper>, body: &[u8]) -> Response {
    let told = api::body::<Told>(body).and_then(|told| Ok(told.checked(seconds(SystemTime::now()))?));
    let kept = match (told, keeper.cluster.meta.clone()) {
        (Err(error), _) => Err(error),
        (Ok(_), None) => Err(ChangeError::Meta(MetaError::None).into()),
        (Ok(new), Some(meta)) => {
            let live = Live { keeper: keeper.clone(), meta };
            keep(&live, new).await.map_err(|error| ChangeError::Meta(error).into())
        }
    };
    kept.map_or_else(ApiError::into_response, |kept| (StatusCode::CREATED, Json(kept)).into_response())
}

/// Adds a decision to the list of all routers. Returns it as it is kept.
async fn keep(meta: &impl MetaStore, new: Kept) -> Result<Kept, MetaError> {
    for _ in 0..ATTEMPTS {
        let stored = meta.get(ADVICE).await?;
        let text = stored.as_ref().and_then(|stored| std::str::from_utf8(&stored.value).ok());
        let mut list = List::read(text);
        list.add(new.clone());
        let text = serde_json::to_string(&list).map_err(|error| MetaError::Refused(error.to_string()))?;
        let mod_revision = stored.map_or(0, |stored| stored.mod_revision);
        let expect = Expect { key: ADVICE.to_owned(), mod_revision };
        if let Some(revision) = meta.commit(&[expect], vec![Write::put(ADVICE, text)]).await? {
            meta.heard(revision).await;
            return Ok(list.entries.pop().unwrap_or(new));
        }
    }
    Err(MetaError::Contended)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kindred_partition_config::state::ClusterState;
    use parking_lot::Mutex;

    use super::*;
    use crate::meta::client::{Entries, Stored};

    /// A meta store in which another router is faster so many times.
    struct Busy {
        stored: Mutex<Stored>,
        others: Mutex<u32>,
    }

    impl MetaStore for Busy {
        async fn get(&self, _: &str) -> Result<Option<Stored>, MetaError> {
            Ok(Some(self.stored.lock().clone()))
        }

        async fn list(&self) -> Result<Entries, MetaError> {
            Ok(Entries::default())
        }

        async fn commit(&self, expects: &[Expect], writes: Vec<Write>) -> Result<Option<i64>, MetaError> {
            let (mut stored, mut others) = (self.stored.lock(), self.others.lock());
            if *others > 0 {
                *others -= 1;
                let mut list = List::read(std::str::from_utf8(&stored.value).ok());
                list.add(told("of another router"));
                let value = serde_json::to_vec(&list).unwrap().into();
                *stored = Stored { value, mod_revision: stored.mod_revision + 1 };
            }
            if expects[0].mod_revision != stored.mod_revision {
                return Ok(None);
            }
            let value = writes[0].value.clone().unwrap();
            *stored = Stored { value, mod_revision: stored.mod_revision + 1 };
            Ok(Some(stored.mod_revision))
        }

        async fn commit_under(&self, _: i64, _: Write) -> Result<bool, MetaError> {
            Ok(false)
        }

        async fn grant(&self, _: Duration) -> Result<i64, MetaError> {
            Err(MetaError::None)
        }

        async fn renew(&self, _: i64) -> Result<bool, MetaError> {
            Ok(false)
        }

        fn entries(&self) -> Arc<Entries> {
            Arc::default()
        }

        async fn heard(&self, _: i64) -> bool {
            true
        }

        fn state(&self) -> Arc<ClusterState> {
            let config = kindred_partition_config::parse::DEFAULT_CONFIG;
            let config = kindred_partition_config::parse::parse_config(config).unwrap();
            Arc::new(ClusterState::bootstrap(&config).unwrap())
        }

        fn take(&self, _: Arc<ClusterState>) {}
    }

    fn told(what: &str) -> Kept {
        let (what, why) = (what.to_owned(), "because".to_owned());
        let told = Told { at: None, what, why, outcome: Outcome::Applied, reason: None };
        told.checked(1.0).unwrap()
    }

    #[tokio::test]
    async fn what_several_routers_are_told_is_kept() {
        let stored = Stored { value: "".into(), mod_revision: 5 };
        let meta = Busy { stored: Mutex::new(stored), others: Mutex::new(2) };
        assert_eq!(keep(&meta, told("own")).await.unwrap().what, "own");
        let list = List::read(std::str::from_utf8(&meta.stored.lock().value).ok());
        let whats: Vec<_> = list.entries.iter().map(|one| &*one.what).collect();
        assert_eq!(whats, ["of another router", "of another router", "own"]);
        let always = Busy { stored: Mutex::new(meta.stored.lock().clone()), others: Mutex::new(u32::MAX) };
        assert_eq!(keep(&always, told("own")).await, Err(MetaError::Contended));
    }
}
