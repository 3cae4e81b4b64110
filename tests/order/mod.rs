//! One order of a Kind through any router (docs/design.md, Revisions). Clients write through one router and at once through the
//! next, to keys that are on different stores where the layout has several. Each later acknowledgement must have a higher
//! revision, each answer must cover what was shown before it was asked for, and a watch from an acknowledgement must show all
//! that follows it.
//!
//! While a store is away the order is not kept between routers (R22): there each watch must show all from its beginning on.
//!
//! `KINDRED_ORDER_SECONDS` is how long the clients of each case work, `KINDRED_ORDER_SEED` the seed of their choices.

mod clients;
mod seen;

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{
    faults::Fault,
    layouts::{Kind, Layout, Place, Wanted},
    scenario::{self, env_number, report},
};
use serde_json::{Value, json};

use clients::Clients;
use seen::Counts;

const LIMIT: Duration = Duration::from_secs(300);
const SECONDS: u64 = 2;
const WRITES_MIN: u64 = 100;

/// The names of the clients' keys begin with letters of all three ranges.
const PODS: Kind = Kind { resource: "pods", cuts: ["h", "s"] };

#[derive(Debug, Clone, Copy)]
struct Case {
    place: Place,
    fault: Fault,
    /// How far the clock of the store `a` is ahead of the others.
    ahead: Duration,
}

impl Case {
    fn calm(place: Place) -> Self {
        Self { place, fault: Fault::None, ahead: Duration::ZERO }
    }

    /// Whether the order may be broken there, as documented.
    fn may_break(self) -> bool {
        self.fault.sets_apart(self.place)
    }

    fn sections(self) -> Value {
        let ahead = format!("{}ms", self.ahead.as_millis());
        json!({ "up": { "stores": { "a": { "wall-clock-offset": ahead } } } })
    }
}

/// Runs a case with fresh servers.
async fn check(dir: &Path, case: Case) -> anyhow::Result<Counts> {
    let name = format!("{} fault={:?} ahead={:?}", case.place, case.fault, case.ahead);
    let sections = case.sections();
    let wanted = Wanted {
        kinds: &[PODS],
        sections: (!case.ahead.is_zero()).then_some(&sections),
        ..Wanted::default()
    };
    let seconds = env_number("KINDRED_ORDER_SECONDS", SECONDS)?;
    let seed = env_number("KINDRED_ORDER_SEED", 1)?;
    let servers = case.place.start(dir, wanted).await.with_context(|| name.clone())?;
    let clients = Clients::start(&servers.addresses, seed)?;
    clients.work(Duration::from_secs(seconds), WRITES_MIN).await?;
    let calm = clients.watches();
    if case.fault != Fault::None {
        clients.may_watch_more();
        servers.strike(case.fault, PODS.resource, PODS.cuts[0]).await.with_context(|| name.clone())?;
        clients.work(case.fault.takes(), WRITES_MIN).await?;
    }
    let found = clients.finish().await.with_context(|| name.clone())?;
    report(&format!("order {name}: {found}"));
    let sound = if case.may_break() { found.shows_all() } else { found.is_sound() };
    ensure!(sound, "{name}: {found}\n{}", found.examples.join("\n"));
    ensure!(
        case.fault.may_fail() || found.unknown == 0,
        "{name}: {found}: requests failed\n{}",
        found.failures.join("\n")
    );
    ensure!(
        case.fault == Fault::None || found.watches > calm,
        "{name}: {found}: no watch began with the fault"
    );
    Ok(found)
}

fn suite(name: &str, cases: impl IntoIterator<Item = Case>) {
    let cases: Vec<_> = cases.into_iter().collect();
    scenario::run(name, LIMIT, |dir| async move {
        for case in cases {
            check(&dir, case).await?;
        }
        Ok(())
    });
}

#[test]
fn etcd_and_kindred_have_one_order() {
    let places = [Place::ETCD, Layout::Ranges.behind(1), Layout::Whole.behind(2)];
    suite("order", places.map(Case::calm));
}

/// Two routers knew nothing of what the other had shown, so a store whose clock was behind acknowledged below another one, and a
/// watch from the earlier acknowledgement never showed the later write.
#[test]
fn f54_two_routers_keep_the_order_of_a_kind_on_several_stores() {
    let ahead = Duration::from_millis(300);
    let places = [Layout::Ranges, Layout::Ring].map(|layout| layout.behind(2));
    suite("order_two_routers", places.map(|place| Case { ahead, ..Case::calm(place) }));
}

#[test]
fn long_every_layout_has_one_order() {
    let places = [Place::ETCD].into_iter().chain(Place::all());
    let cases = places.flat_map(|place| {
        let faults = Fault::ALL.into_iter().filter(move |fault| fault.fits(place.layout));
        let apart = place.layout.is_spread().then_some(Duration::from_millis(500));
        let apart = apart.map(|ahead| Case { ahead, ..Case::calm(place) });
        faults.map(move |fault| Case { fault, ..Case::calm(place) }).chain(apart)
    });
    suite("order_all", cases);
}
