//! A Kind has hundreds of ranges, of which every second one moves. Each is a unit, and one decision switches them all.

use std::time::Duration;

use anyhow::ensure;
use kindred_tests::{
    admin::Admin,
    etcdctl::Etcdctl,
    scenario::{self, report},
    servers::Up,
};

use crate::e2e::moves::Cli;

const LIMIT: Duration = Duration::from_secs(240);
const MOVE_LIMIT: Duration = Duration::from_secs(120);
const RANGES: usize = 600;
const UNITS: usize = 250;

/// The ranges. Those for which `moved` returns true are on b.
fn ranges(moved: impl Fn(usize) -> bool) -> impl Iterator<Item = String> {
    (0..RANGES).map(move |at| {
        let start = match at {
            0 => String::new(),
            _ => format!("rangeStart: 'n{at:03}', isRangeStartValid: true, "),
        };
        let end = match at + 1 {
            RANGES => String::new(),
            next => format!("rangeEnd: 'n{next:03}', isRangeEndValid: true, "),
        };
        let store = if moved(at) { "b" } else { "a" };
        format!("metadata: {{name: c{at}}}, resource: configmaps, {start}{end}serviceGroupId: {store}")
    })
}

fn file(moved: impl Fn(usize) -> bool) -> String {
    ranges(moved)
        .map(|range| format!("---\n{{apiVersion: v1, kind: DataPartitionConfig, {range}}}\n"))
        .collect()
}

#[test]
fn f18_hundreds_of_units_are_switched_together() {
    scenario::run("many-units", LIMIT, |dir| async move {
        let config = dir.join("config.yaml");
        let parts: String = ranges(|_| false).map(|range| format!("- {{{range}}}\n")).collect();
        let stores = "default: a\nstores:\n- {name: a, slot: 1}\n- {name: b, slot: 2}\npartitions:\n";
        std::fs::write(&config, format!("{stores}{parts}"))?;
        let up = Up::start(&dir, "up", &[format!("--config={}", config.display())]).await?;
        let (cli, etcdctl, admin) = (Cli::new(&up)?, Etcdctl::new(&up.address), Admin::at(&up.admin));
        let key = |at: usize| format!("/registry/configmaps/n{at:03}/x");
        let some: Vec<String> = (0..RANGES).step_by(15).map(key).collect();
        for key in &some {
            etcdctl.ok(&["put", key, "before"]).await?;
        }

        // A move of more units than can certainly be switched in time is refused before it begins. So is its plan.
        let wanted = dir.join("wanted.yaml");
        std::fs::write(&wanted, file(|at| at % 2 == 1))?;
        let path = wanted.display().to_string();
        for words in [["plan", "-f", &path], ["apply", "-f", &path]] {
            let said = cli.refused(&words).await?;
            ensure!(
                said.contains("300 separate parts of /registry/configmaps/ would move at once"),
                "{said}"
            );
            ensure!(said.contains("move it in parts"), "{said}");
        }
        std::fs::write(&wanted, file(|at| at % 2 == 1 && at < 2 * UNITS))?;
        let said = cli.ok(&["apply", "-f", &path, "--no-wait"]).await?;
        ensure!(said.contains("move 1 has begun"), "{said}");
        let switched = admin.until(1, MOVE_LIMIT, |shown| shown["phase"] == "Switched").await?;
        // On a busy machine an attempt may take too long and be given up, so there may be several.
        let attempts = switched["attempts"].as_u64().unwrap_or(0);
        ensure!(attempts > 0, "{switched}");
        for (at, key) in some.iter().enumerate() {
            ensure!(etcdctl.ok(&["get", key, "--print-value-only"]).await?.trim() == "before", "{key}");
            etcdctl.ok(&["put", key, &at.to_string()]).await?;
        }
        cli.ok(&["move", "reverse"]).await?;
        for (at, key) in some.iter().enumerate() {
            ensure!(etcdctl.ok(&["get", key, "--print-value-only"]).await?.trim() == at.to_string(), "{key}");
        }
        cli.ok(&["move", "complete"]).await?;
        report(&format!("{UNITS} units went there in {attempts} attempts, and back"));
        Ok(())
    });
}
