//! `/api/v1/adoption`: who still writes directly to the stock etcds that are being adopted.

use serde_json::{Value, json};

use crate::stores::Stores;
use crate::stores::writes::{Change, Others, SETTLED};

/// The number of changes that are shown of a store, the latest.
const SHOWN: usize = 10_000;

/// Each etcd that is being adopted, with the changes that this router did not make. `watchedSeconds` is null while they are
/// not seen.
pub fn shown(router: &str, stores: &Stores, is_adopting: impl Fn(usize) -> bool) -> Value {
    let adopted = stores.iter().filter(|store| !store.is_removed() && is_adopting(store.index.0));
    let of_store = |name: &str, others: Option<Others>| {
        let watched = others.as_ref().map(|others| others.watched);
        let changes = others.map(|others| others.changes).unwrap_or_default();
        let from = changes.len().saturating_sub(SHOWN);
        // What was left out was seen, and nobody hears of it.
        let shown = changes.get(from).filter(|_| from > 0).map(Change::age);
        let watched = watched.map(|watched| shown.map_or(watched, |shown| watched.min(shown)).as_secs_f64());
        let writes: Vec<Value> = changes[from..].iter().map(change).collect();
        json!({
            "store": name, "watchedSeconds": watched, "unsettledSeconds": SETTLED.as_secs_f64(),
            "writesOfOthers": writes,
        })
    };
    let stores: Vec<Value> =
        adopted.map(|store| of_store(store.name(), store.writes().of_others())).collect();
    json!({ "router": router, "stores": stores })
}

fn change(change: &Change) -> Value {
    json!({
        "revision": change.revision, "key": String::from_utf8_lossy(&change.key),
        "secondsAgo": change.age().as_secs_f64(),
    })
}
