//! Two looks at a router give what `kindred top` shows: rates between them, and sizes at the second.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::admin::args::Order;
use crate::admin::output::{Table, bytes, text};

impl Order {
    /// In the order of the columns.
    pub const ALL: [Self; 7] =
        [Self::Calls, Self::Errors, Self::Time, Self::Traffic, Self::Size, Self::Keys, Self::Watches];

    /// The next column.
    #[must_use]
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|order| *order == self).unwrap_or_default();
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// The column's name.
    #[must_use]
    pub fn column(self) -> &'static str {
        match self {
            Self::Calls => "calls/s",
            Self::Errors => "errors/s",
            Self::Time => "mean time",
            Self::Traffic => "traffic/s",
            Self::Size => "size",
            Self::Keys => "keys",
            Self::Watches => "watches",
        }
    }
}

/// The numbers of a Kind at one look. Those of calls are since the start of the router.
#[derive(Debug, Clone, Default, PartialEq)]
struct Kind {
    stores: String,
    keys: Option<u64>,
    size: Option<u64>,
    watches: u64,
    calls: u64,
    errors: u64,
    seconds: f64,
    traffic: u64,
}

/// One look at a router.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    router: String,
    at: f64,
    kinds: BTreeMap<String, Kind>,
    /// Name, state, bytes held, and what is wrong.
    stores: Vec<[String; 4]>,
}

impl Sample {
    /// From the answers of `/api/v1/kinds` and `/api/v1/stores`.
    #[must_use]
    pub fn of(kinds: &Value, stores: &Value) -> Self {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let held = |store: &str| {
            let sizes = list(&kinds["stores"]);
            let of = sizes.iter().find(|size| size["store"] == store)?;
            of["heldBytes"].as_u64()
        };
        let stores = list(&stores["stores"]).into_iter().map(|store| {
            let name = text(&store["name"]);
            let size = held(&name).map_or("-".to_owned(), bytes);
            let wrong = [&store["trouble"], &store["standbyTrouble"]].map(text).join(" ").trim().to_owned();
            [name, text(&store["state"]), size, wrong]
        });
        Self {
            router: text(&kinds["router"]),
            at: kinds["at"].as_f64().unwrap_or_default(),
            kinds: list(&kinds["kinds"]).iter().map(|kind| (text(&kind["kind"]), Kind::of(kind))).collect(),
            stores: stores.collect(),
        }
    }
}

impl Kind {
    fn of(value: &Value) -> Self {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let traffic = &value["traffic"];
        let stores = value["stores"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(",");
        let size = value["bytes"].as_u64().zip(value["historyBytes"].as_u64());
        let mut kind = Self {
            stores,
            keys: value["keys"].as_u64(),
            size: size.map(|(live, history)| live + history),
            watches: number(&traffic["watches"]),
            traffic: number(&traffic["messageBytes"]),
            ..Self::default()
        };
        let verbs = traffic["verbs"].as_object().into_iter().flatten();
        for (_, of) in verbs.filter(|(verb, _)| *verb != "watch") {
            let failed: u64 =
                of["failed"].as_object().into_iter().flatten().map(|(_, count)| number(count)).sum();
            kind.calls += number(&of["ok"]) + failed;
            kind.errors += failed;
            kind.seconds += of["seconds"].as_f64().unwrap_or_default();
            kind.traffic += number(&of["receivedBytes"]) + number(&of["sentBytes"]);
        }
        kind
    }
}

/// A Kind's line.
#[derive(Debug, Clone, Default, PartialEq)]
struct Row {
    kind: String,
    now: Kind,
    calls: f64,
    errors: f64,
    /// Seconds of a call; `None` if there was none.
    time: Option<f64>,
    traffic: f64,
}

impl Row {
    fn weight(&self, order: Order) -> f64 {
        match order {
            Order::Calls => self.calls,
            Order::Errors => self.errors,
            Order::Time => self.time.unwrap_or_default(),
            Order::Traffic => self.traffic,
            Order::Size => self.now.size.unwrap_or_default() as f64,
            Order::Keys => self.now.keys.unwrap_or_default() as f64,
            Order::Watches => self.now.watches as f64,
        }
    }
}

/// The tables that `kindred top` shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    pub router: String,
    rows: Vec<Row>,
    stores: Vec<[String; 4]>,
}

impl View {
    /// What happened between two looks, and what is there at the second.
    #[must_use]
    pub fn between(before: &Sample, now: &Sample, order: Order) -> Self {
        let seconds = (now.at - before.at).max(0.001);
        let nothing = Kind::default();
        let mut rows: Vec<Row> = now
            .kinds
            .iter()
            .map(|(name, kind)| {
                // A router that was restarted counts from zero.
                let old = before.kinds.get(name).filter(|old| old.calls <= kind.calls).unwrap_or(&nothing);
                let calls = kind.calls - old.calls;
                let passed = (kind.seconds - old.seconds).max(0.0);
                Row {
                    kind: name.clone(),
                    now: kind.clone(),
                    calls: calls as f64 / seconds,
                    errors: kind.errors.saturating_sub(old.errors) as f64 / seconds,
                    time: (calls > 0).then(|| passed / calls as f64),
                    traffic: kind.traffic.saturating_sub(old.traffic) as f64 / seconds,
                }
            })
            .collect();
        rows.sort_by(|a, b| b.weight(order).total_cmp(&a.weight(order)).then_with(|| a.kind.cmp(&b.kind)));
        Self { router: now.router.clone(), rows, stores: now.stores.clone() }
    }

    /// The head of the table of Kinds.
    #[must_use]
    pub fn head() -> Vec<&'static str> {
        ["kind"].into_iter().chain(Order::ALL.map(Order::column)).chain(["stores"]).collect()
    }

    /// The lines of the table of Kinds.
    #[must_use]
    pub fn kinds(&self) -> Vec<Vec<String>> {
        let unknown = || "-".to_owned();
        let line = |row: &Row| {
            vec![
                row.kind.clone(),
                rate(row.calls),
                rate(row.errors),
                row.time.map_or_else(unknown, time),
                bytes(row.traffic as u64),
                row.now.size.map_or_else(unknown, bytes),
                row.now.keys.map_or_else(unknown, |keys| keys.to_string()),
                row.now.watches.to_string(),
                row.now.stores.clone(),
            ]
        };
        self.rows.iter().map(line).collect()
    }

    /// The lines of the table of stores: name, state, bytes held, and what is wrong.
    #[must_use]
    pub fn stores(&self) -> &[[String; 4]] {
        &self.stores
    }

    /// As text, for what is no terminal.
    #[must_use]
    pub fn plain(&self) -> String {
        let mut kinds = Table::new(&Self::head());
        self.kinds().into_iter().for_each(|row| kinds.row(row));
        let mut stores = Table::new(&["store", "state", "held", "trouble"]);
        self.stores.iter().for_each(|row| stores.row(row.to_vec()));
        format!("{}\n{}", kinds.render(), stores.render())
    }
}

fn rate(number: f64) -> String {
    if number == 0.0 || number >= 100.0 { format!("{number:.0}") } else { format!("{number:.1}") }
}

fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{seconds:.2} s"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A look at two Kinds after so many calls and seconds.
    pub(crate) fn look(at: f64, calls: u64, failed: u64) -> Sample {
        let verb = |ok: u64, failed: u64, seconds: f64| {
            json!({ "ok": ok, "failed": { "Unavailable": failed }, "receivedBytes": 10 * ok, "sentBytes": 90 * ok,
                "seconds": seconds })
        };
        let kinds = json!({
            "router": "r", "at": at,
            "kinds": [
                { "kind": "pods", "stores": ["a", "b"], "keys": 5, "bytes": 2048, "historyBytes": 2048,
                  "traffic": { "watches": 3, "messageBytes": 0,
                    "verbs": { "get": verb(calls, failed, calls as f64 * 0.002), "watch": verb(9, 0, 0.0) } } },
                { "kind": "leases", "stores": ["etcd"], "keys": null, "bytes": null, "historyBytes": null,
                  "traffic": null },
            ],
            "stores": [{ "store": "a", "heldBytes": 4096 }, { "store": "b", "problem": "away" }],
        });
        let stores = json!({ "stores": [
            { "name": "a", "state": "up", "trouble": null },
            { "name": "b", "state": "down", "trouble": "its log fails" },
        ] });
        Sample::of(&kinds, &stores)
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let view = View::between(&look(10.0, 100, 0), &look(12.0, 300, 4), Order::Calls);
        assert_eq!(
            view.kinds(),
            [
                vec!["pods", "102", "2.0", "2.0 ms", "9.8 KiB", "4.0 KiB", "5", "3", "a,b"],
                vec!["leases", "0", "0", "-", "0 B", "-", "-", "0", "etcd"],
            ]
            .map(|row| row.into_iter().map(str::to_owned).collect::<Vec<_>>())
        );
        assert_eq!(view.stores()[1], ["b", "down", "-", "its log fails"].map(str::to_owned));
        assert!(view.plain().starts_with("KIND "), "{}", view.plain());
        let restarted = View::between(&look(10.0, 100, 0), &look(12.0, 10, 0), Order::Calls);
        assert_eq!(restarted.kinds()[0][1], "5.0");
    }

    #[test]
    fn kinds_are_sorted_by_any_column() {
        for order in Order::ALL {
            let view = View::between(&look(0.0, 0, 0), &look(1.0, 10, 1), order);
            assert_eq!(view.kinds()[0][0], "pods", "{order:?}");
        }
        let mut order = Order::Calls;
        (0..Order::ALL.len()).for_each(|_| order = order.next());
        assert_eq!(order, Order::Calls);
    }
}
