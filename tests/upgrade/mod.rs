//! Processes of the previous build (`tests/upgrade/PREVIOUS`) beside those of this work tree, as in a rolling upgrade and
//! its rollback by docs/operations.md. The order may lose no acknowledged write, no event and no lease, and refuse nothing
//! but what the document says. Without the previous build, which `tests/peers/install previous` makes, nothing is run.

mod builds;
mod cluster;
mod commands;
mod faults;
mod leases;
mod ledger;
mod load;
mod rolling;

use std::{path::PathBuf, time::Duration};

use builds::Builds;
use kindred_tests::scenario;

const LIMIT: Duration = Duration::from_secs(240);

fn run<F, Fut>(name: &str, body: F)
where
    F: FnOnce(PathBuf, Builds) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    match Builds::find() {
        Ok(Some(builds)) => scenario::run(name, LIMIT, |dir| body(dir, builds)),
        Ok(None) => {}
        Err(error) => panic!("{error:#}"),
    }
}

#[test]
fn a_cluster_is_upgraded_rolled_back_and_upgraded_again() {
    run("upgrade_rolling", |dir, builds| async move { rolling::run(&dir, &builds).await });
}

#[test]
fn commands_of_each_build_work_with_routers_of_the_other() {
    run("upgrade_commands", |dir, builds| async move { commands::work(&dir, &builds).await });
}

#[test]
fn a_backup_of_the_previous_build_is_restored() {
    run("upgrade_backup", |dir, builds| async move { commands::back_up(&dir, &builds).await });
}

#[test]
fn a_router_serves_on_with_the_state_it_had_when_it_cannot_read_a_new_one() {
    run("upgrade_state", |dir, builds| async move { commands::refuse_a_state(&dir, &builds).await });
}
