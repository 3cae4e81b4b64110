//! What an operator should look at, in words. Pure: made of the checks of readyz, and of what was seen of the stores.

use std::collections::HashMap;
use std::time::Duration;

use kindred_transport::admin::Check;
use serde::Serialize;

use crate::move_buffer::longest::{TOO_LONG, Waits};

/// The part of a quota above which a store is said to be nearly full, in hundredths.
const NEARLY_FULL: u64 = 90;
/// How long a wait that was too long is told of.
const TOLD_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Clients notice, or data is at risk.
    Error,
    /// Something is not as it is to be, and clients do not notice yet.
    Warning,
}

/// One thing to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alert {
    /// The same as long as it is the same trouble.
    pub id: String,
    pub level: Level,
    pub text: String,
    /// Since when it has been seen, in seconds; this begins with the first viewer.
    #[serde(rename = "forSeconds")]
    pub seconds: u64,
}

impl Alert {
    fn new(id: impl Into<String>, level: Level, text: impl Into<String>) -> Self {
        Self { id: id.into(), level, text: text.into(), seconds: 0 }
    }
}

/// What was seen of a store, beside what the checks say.
#[derive(Debug, Clone, Default)]
pub struct SeenStore {
    pub name: String,
    pub up: bool,
    /// Whether it has standbys, one of which takes over when it is lost.
    pub has_standbys: bool,
    /// How long it has held back events of others.
    pub lag: Option<Duration>,
    pub full: bool,
    pub held_bytes: u64,
    pub quota_bytes: u64,
    pub not_durable: Duration,
    /// Why a log of it cannot be written.
    pub failing: Vec<String>,
}

/// A step of a move that fails again and again.
#[derive(Debug, Clone)]
pub struct FailingStep {
    pub id: u64,
    pub resource: String,
    pub step: String,
    pub times: u64,
    pub reason: String,
}

/// Remembers since when each trouble has been there.
#[derive(Debug, Default)]
pub struct Alerts {
    since: HashMap<String, Duration>,
}

impl Alerts {
    /// All alerts at this time, the worst first.
    pub fn at(
        &mut self,
        now: Duration,
        checks: &[Check],
        stores: &[SeenStore],
        waits: Waits,
        moves: &[FailingStep],
    ) -> Vec<Alert> {
        let mut alerts: Vec<Alert> = checks.iter().filter_map(of_check).collect();
        alerts.extend(stores.iter().flat_map(of_store));
        alerts.extend(of_waits(waits));
        alerts.extend(moves.iter().map(of_move));
        self.since.retain(|id, _| alerts.iter().any(|alert| alert.id == *id));
        for alert in &mut alerts {
            let since = *self.since.entry(alert.id.clone()).or_insert(now);
            let lasted = now.saturating_sub(since);
            alert.seconds = lasted.as_secs();
            takes_over(alert, lasted, stores);
        }
        alerts.sort_by(|a, b| a.level.cmp(&b.level).then_with(|| a.id.cmp(&b.id)));
        alerts
    }
}

/// A store whose standby takes over is lost only when none has within [`TOO_LONG`].
fn takes_over(alert: &mut Alert, lasted: Duration, stores: &[SeenStore]) {
    let lost =
        stores.iter().find(|store| !store.up && store.has_standbys && alert.id == id_of_store(&store.name));
    if let Some(store) = lost {
        if lasted < TOO_LONG {
            alert.level = Level::Warning;
            alert.text += ". A standby is to take over.";
        } else {
            let name = &store.name;
            alert.text += &format!(
                ". No standby has taken over for {} s; see kindred store failover {name}.",
                lasted.as_secs()
            );
        }
    }
}

fn id_of_store(name: &str) -> String {
    format!("store-{name}")
}

/// A check that failed, or passed with a warning.
fn of_check(check: &Check) -> Option<Alert> {
    let name = check.name.as_str();
    // These pass, and say by their name what is wrong.
    for problems in ["cluster-state (", "owners ("] {
        if let Some(problem) = name.strip_prefix(problems).and_then(|rest| rest.strip_suffix(')')) {
            return Some(Alert::new(name, Level::Warning, sentence(problem)));
        }
    }
    let (level, what) = match (&check.result, &check.warning) {
        (Err(why), _) => (Level::Error, why),
        (Ok(()), Some(what)) => (Level::Warning, what),
        (Ok(()), None) => return None,
    };
    let text = match name.split_once('-') {
        // A store that is not up serves nobody.
        Some(("store", store)) => {
            let is_up = what.starts_with("up, ");
            let level = if is_up { Level::Warning } else { Level::Error };
            return Some(Alert::new(name, level, format!("Store {store} is {what}")));
        }
        Some(("standbys", store)) => format!("Store {store}: {what}"),
        _ => match name {
            // What the lag of the stores says is more exact.
            "watches" => return None,
            "running" => "This router is stopping.".to_owned(),
            "meta" => format!("The meta store: {what}"),
            "stores" | "clock" => sentence(what),
            _ => format!("{name}: {what}"),
        },
    };
    Some(Alert::new(name, level, text))
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn of_store(store: &SeenStore) -> Vec<Alert> {
    let (name, mut alerts) = (&store.name, Vec::new());
    if let Some(lag) = store.lag {
        let level = if lag >= TOO_LONG { Level::Error } else { Level::Warning };
        let seconds = lag.as_secs_f64();
        let mut text = format!("Store {name} has held back events of watches for {seconds:.1} s.");
        if level == Level::Error {
            text += " A kube-apiserver answers lists late after 3 s.";
        }
        alerts.push(Alert::new(format!("lag-{name}"), level, text));
    }
    if store.full {
        let text = format!("Store {name} is full and takes no writes; raise its quota or make room.");
        alerts.push(Alert::new(format!("full-{name}"), Level::Error, text));
    } else if store.quota_bytes > 0
        && u128::from(store.held_bytes) * 100 >= u128::from(store.quota_bytes) * u128::from(NEARLY_FULL)
    {
        let part = u128::from(store.held_bytes) * 100 / u128::from(store.quota_bytes);
        let text = format!("Store {name} uses {part} % of its quota.");
        alerts.push(Alert::new(format!("full-{name}"), Level::Warning, text));
    }
    for why in &store.failing {
        let text = format!("Store {name} cannot write its log: {why}");
        alerts.push(Alert::new(format!("log-{name}-{why}"), Level::Error, text));
    }
    if store.not_durable >= TOO_LONG {
        let seconds = store.not_durable.as_secs_f64();
        let text =
            format!("Store {name} has acknowledged writes that are not on its disk for {seconds:.1} s.");
        alerts.push(Alert::new(format!("disk-{name}"), Level::Warning, text));
    }
    alerts
}

fn of_waits(waits: Waits) -> Option<Alert> {
    let id = "held";
    if waits.longest >= TOO_LONG {
        let (writes, seconds) = (waits.requests, waits.longest.as_secs_f64());
        let text = format!("{writes} writes wait because their keys move, the oldest for {seconds:.1} s.");
        return Some(Alert::new(id, Level::Error, text));
    }
    let (ago, waited) = waits.last_long.filter(|(ago, _)| *ago < TOLD_FOR)?;
    let text = format!(
        "A write waited {:.1} s because its keys moved, {} s ago; see the moves for the reason.",
        waited.as_secs_f64(),
        ago.as_secs()
    );
    Some(Alert::new(id, Level::Warning, text))
}

fn of_move(failing: &FailingStep) -> Alert {
    let FailingStep { id, resource, step, times, reason } = failing;
    let text = format!("Move {id} of {resource}: {step} failed {times} times: {reason}");
    Alert::new(format!("move-{id}-{step}"), Level::Warning, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn said(alerts: &[Alert]) -> Vec<(Level, &str)> {
        alerts.iter().map(|alert| (alert.level, alert.text.as_str())).collect()
    }

    fn at(alerts: &mut Alerts, seconds: u32, checks: &[Check], stores: &[SeenStore]) -> Vec<Alert> {
        alerts.at(SECOND * seconds, checks, stores, Waits::default(), &[])
    }

    fn passed(name: &str) -> Check {
        Check::new(name, Ok::<(), String>(()))
    }

    #[test]
    fn checks_are_said_in_words_and_what_is_well_is_not_said() {
        let checks = [
            passed("stores"),
            passed("running"),
            Check::warning("meta", "no answer"),
            passed("cluster-state (partition 3 has no owner)"),
            Check::warning("store-a", "down: connection refused"),
            Check::warning("store-b", "up, and its disk is full"),
            passed("store-c"),
            Check::warning("standbys-c", "one standby of two is in sync"),
            Check::warning("watches", "store a has held back 2 feed(s) for 4 s"),
        ];
        let alerts = Alerts::default().at(SECOND, &checks, &[], Waits::default(), &[]);
        let expected = [
            (Level::Error, "Store a is down: connection refused"),
            (Level::Warning, "Partition 3 has no owner"),
            (Level::Warning, "The meta store: no answer"),
            (Level::Warning, "Store c: one standby of two is in sync"),
            (Level::Warning, "Store b is up, and its disk is full"),
        ];
        assert_eq!(said(&alerts), expected);
    }

    #[test]
    fn a_store_with_standbys_is_lost_after_three_seconds_without_one() {
        let mut alerts = Alerts::default();
        let checks = [Check::warning("store-a", "down: killed")];
        let stores = [SeenStore { name: "a".to_owned(), has_standbys: true, ..SeenStore::default() }];
        let first = at(&mut alerts, 10, &checks, &stores);
        assert_eq!(said(&first), [(Level::Warning, "Store a is down: killed. A standby is to take over.")]);
        let later = at(&mut alerts, 14, &checks, &stores);
        assert_eq!((later[0].level, later[0].seconds), (Level::Error, 4));
        assert!(later[0].text.contains("for 4 s; see kindred store failover a"), "{}", later[0].text);
        assert_eq!(at(&mut alerts, 15, &[], &[]), []);
        assert_eq!(at(&mut alerts, 20, &checks, &stores)[0].seconds, 0, "it is another trouble");
    }

    #[test]
    fn the_three_seconds_count_for_lag_and_for_held_writes() {
        let lagging = |millis| SeenStore {
            name: "a".to_owned(),
            up: true,
            lag: Some(Duration::from_millis(millis)),
            ..SeenStore::default()
        };
        let level = |store: SeenStore| of_store(&store)[0].level;
        assert_eq!((level(lagging(2900)), level(lagging(3000))), (Level::Warning, Level::Error));
        let waits = |longest, last_long| of_waits(Waits { requests: 2, longest, last_long });
        assert_eq!(waits(SECOND * 2, None), None);
        assert_eq!(waits(SECOND * 3, None).unwrap().level, Level::Error);
        assert_eq!(waits(SECOND, Some((SECOND * 5, SECOND * 4))).unwrap().level, Level::Warning);
        assert_eq!(waits(SECOND, Some((SECOND * 61, SECOND * 4))), None);
    }

    #[test]
    fn a_store_says_what_is_wrong_with_its_room_and_its_disk() {
        let store = |held_bytes, full| SeenStore {
            name: "a".to_owned(),
            up: true,
            held_bytes,
            quota_bytes: 1000,
            full,
            ..SeenStore::default()
        };
        assert_eq!(of_store(&store(899, false)), []);
        assert_eq!(of_store(&store(905, false))[0].text, "Store a uses 90 % of its quota.");
        assert_eq!(of_store(&store(905, true))[0].level, Level::Error);
        let disk = SeenStore {
            not_durable: SECOND * 4,
            failing: vec!["no space left on device".to_owned()],
            ..store(0, false)
        };
        assert_eq!(of_store(&disk).len(), 2);
    }
}
