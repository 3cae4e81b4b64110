//! Every invariant can fail: with one thing broken on purpose, some seed of few says so.

use kindred_sim::run::run;
use kindred_sim::sabotage::Sabotage;

/// Seeds that notice the rarer mistakes, as of this writing. They are tried first.
const NOTICE: [u64; 4] = [2236, 780, 1022, 51];
/// Seeds tried until one notices.
const SEEDS: u64 = 1_500;

fn is_noticed(sabotage: Sabotage, invariant: &str) {
    let noticed = NOTICE.into_iter().chain(0..SEEDS).find(|seed| {
        let outcome = run(*seed, Some(sabotage));
        outcome.violations.iter().any(|violation| violation.invariant == invariant)
    });
    assert!(noticed.is_some(), "{SEEDS} seeds with {sabotage:?} and {invariant} notices nothing");
}

#[test]
fn r1_two_shards_with_one_slot() {
    is_noticed(Sabotage::SharedSlot, "r1_unique");
}

#[test]
fn r3_a_clock_without_bounds() {
    is_noticed(Sabotage::UnboundedClock, "r3_bounded");
}

#[test]
fn r4_a_present_that_was_not_promised() {
    is_noticed(Sabotage::ShowsAhead, "r4_current");
}

#[test]
fn r4_no_check_against_the_future() {
    is_noticed(Sabotage::NoFutureCheck, "r4_future");
}

#[test]
fn r5_a_list_without_a_snapshot() {
    is_noticed(Sabotage::NoSnapshot, "r5_snapshot");
}

#[test]
fn r5_a_store_that_says_nothing_changed() {
    is_noticed(Sabotage::NothingChanges, "r5_snapshot");
}

#[test]
fn r5_no_pins() {
    is_noticed(Sabotage::NoPins, "r5_pins");
}

#[test]
fn r6_a_merge_without_watermarks() {
    is_noticed(Sabotage::NoWatermarks, "r6_order");
}

#[test]
fn r6_watches_of_a_merge_without_watermarks() {
    is_noticed(Sabotage::NoWatermarks, "watch_events");
}

#[test]
fn r7_progress_that_overtakes() {
    is_noticed(Sabotage::EagerProgress, "r7_progress");
}

#[test]
fn r8_a_router_that_forgets_what_it_showed() {
    is_noticed(Sabotage::ForgetfulRouter, "r8_shown");
}

#[test]
fn r8_a_watch_that_begins_too_early() {
    is_noticed(Sabotage::LooseStart, "r8_start");
}

#[test]
fn r22_a_router_that_asks_no_other_store() {
    is_noticed(Sabotage::NoOrder, "r22_order");
}

#[test]
fn r9_a_kind_that_is_kept_worse_than_it_says() {
    is_noticed(Sabotage::WeakModes, "r9_durable");
}

#[test]
fn r10_a_router_that_is_deaf_for_losses() {
    is_noticed(Sabotage::NoGaps, "r10_lost");
}

#[test]
fn r12_a_lease_that_ends_at_its_home_only() {
    is_noticed(Sabotage::NoLeaseEnd, "r12_leases");
}

#[test]
fn r12_a_home_that_says_what_its_disk_does_not_know() {
    is_noticed(Sabotage::TellsEarly, "r12_leases");
}

#[test]
fn liveness_without_a_resume() {
    is_noticed(Sabotage::NoResume, "liveness");
}

#[test]
fn r13_an_old_owner_that_serves_again() {
    is_noticed(Sabotage::EarlyUnfreeze, "r13_one_owner");
}

#[test]
fn moves_that_nobody_takes_over() {
    is_noticed(Sabotage::NoTakeover, "moves_end");
}

#[test]
fn a_decision_without_its_map() {
    is_noticed(Sabotage::LostMap, "owners_agree");
}

#[test]
fn a_router_that_does_not_give_the_state_back() {
    is_noticed(Sabotage::KeepsState, "owners_agree");
}
