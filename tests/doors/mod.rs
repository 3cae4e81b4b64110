//! Who may do what at which port (R27): every method of gRPC and every path of HTTP is asked as everybody, in every layout. The table of
//! the page on threats is written by this test, and a method that is in no table of methods fails it.

mod ask;
mod calls;
mod places;

use std::{path::Path, time::Duration};

use anyhow::ensure;
use kindred_tests::scenario::{self, report};

use crate::{
    compatibility::documented::documented,
    doors::{calls::Class, places::Place},
};

const LIMIT: Duration = Duration::from_secs(300);

/// A line of the table.
struct Line {
    layout: &'static str,
    port: &'static str,
    who: &'static str,
    may: Vec<Class>,
}

async fn lines(place: &Place) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for door in &place.doors {
        for who in &door.identities {
            let may = ask::may(&door.url, who, &door.calls).await?;
            lines.push(Line { layout: door.layout, port: door.port, who: who.name, may });
        }
    }
    Ok(lines)
}

/// What holds whatever the table says.
fn check(line: &Line) -> anyhow::Result<()> {
    let Line { layout, port, who, may } = line;
    let may_any = |classes: &[Class]| classes.iter().any(|class| may.contains(class));
    let keys = [Class::Keys, Class::Gateway, Class::Stores, Class::Follow];
    let changes = [&keys[..], &[Class::Change]].concat();
    let told = format!("{layout}, {port}: {who} may {may:?}");
    if who.starts_with("a page of somebody else") {
        ensure!(!may_any(&changes), "{told}");
    }
    if ["nobody", "certificate of another authority"].contains(who) {
        ensure!(!may_any(&changes) && !may_any(&[Class::Look, Class::Metrics]), "{told}");
    }
    if ["Prometheus", "token to look"].contains(who) {
        ensure!(!may_any(&changes), "{told}");
    }
    // Otherwise a server that has ended would look like one whose doors are shut.
    for (who_may, at, all) in [
        ("apiserver", "clients' port of a router", &[Class::Keys, Class::Gateway][..]),
        ("process of the machine", "clients' port of a router", &[Class::Keys, Class::Gateway]),
        ("router", "port of a store", &[Class::Keys, Class::Stores, Class::Follow]),
        ("router", "port of the meta store", &[Class::Keys]),
        ("member of the store", "port of a store", &[Class::Follow]),
        ("admin", "admin port of a router", &[Class::Look, Class::Live, Class::Change]),
        ("token to change", "admin port of a router", &[Class::Look, Class::Live, Class::Change]),
        ("Prometheus", "admin port of a store", &[Class::Metrics]),
    ] {
        ensure!(*who != who_may || *port != at || all.iter().all(|class| may.contains(class)), "{told}");
    }
    let of_cluster = port.contains("of a store") || port.contains("of the meta store");
    if of_cluster && !["router", "has the cluster's secret", "member of the store"].contains(who) {
        ensure!(!may_any(&keys), "{told}");
    }
    if *who == "member of the store" {
        ensure!(!may_any(&[Class::Keys, Class::Stores]), "{told}");
    }
    Ok(())
}

fn table(lines: &[Line]) -> String {
    let mut table = "| layout | port | who | may |\n| --- | --- | --- | --- |\n".to_owned();
    for Line { layout, port, who, may } in lines {
        let may: Vec<_> = may.iter().map(|class| class.word()).collect();
        let may = if may.is_empty() { "nothing".to_owned() } else { may.join(", ") };
        table += &format!("| {layout} | {port} | {who} | {may} |\n");
    }
    table
}

/// Findings 55, 80, 81 and 83 were each one cell of this table that nobody had looked at.
#[test]
fn r27_every_door_is_as_the_page_says() {
    scenario::run("doors", LIMIT, |dir| async move {
        let mut all = Vec::new();
        for (name, layout) in [("deploy", 0), ("up", 1), ("auto-tls", 2), ("alone", 3)] {
            let dir = dir.join(name);
            std::fs::create_dir(&dir)?;
            all.extend(lines(&started(&dir, layout).await?).await?);
        }
        all.iter().try_for_each(check)?;
        report(&format!("doors lines={}", all.len()));
        documented("docs/threat-model.md", "doors", &table(&all))
    });
}

async fn started(dir: &Path, layout: usize) -> anyhow::Result<Place> {
    match layout {
        0 => places::certificates_of_deploy(dir).await,
        1 => places::up(dir).await,
        2 => places::auto_tls(dir).await,
        _ => places::shards_alone(dir).await,
    }
}
