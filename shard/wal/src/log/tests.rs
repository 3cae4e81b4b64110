use super::*;
use crate::{layout::LogKind, record::Record};

const NOW: Duration = Duration::from_secs(1);

fn batch(bytes: usize) -> Batch {
    let mut batch = Batch::new();
    batch.push(&Record::Lease(&vec![7; bytes]));
    batch
}

/// A log with a segment and a sleeping writer thread.
fn asleep(kind: LogKind) -> State {
    let options = LogOptions { flush_bytes: 100, ..LogOptions::new(kind, 1) };
    let mut core = Core::new(options, LogEnd::fresh(), NOW);
    assert!(matches!(core.next(NOW), Step::Create(_)));
    core.done(NOW, Ok(()));
    let mut state = State { core, stop: false, sleeps: None, sync_sleeps: None };
    sleep(&mut state);
    state
}

fn sleep(state: &mut State) {
    let Step::Wait(until) = state.core.next(NOW) else { panic!("there is something to do") };
    state.sleeps = Some(Sleep(until));
}

#[test]
fn the_thread_is_woken_for_what_it_does_at_once() {
    for kind in LogKind::ALL {
        let mut state = asleep(kind);
        assert_eq!(state.wakes(), [false; 2], "nothing to do");
        state.core.append(NOW, batch(10)).unwrap();
        assert_eq!(state.wakes(), [true, false]);
        state.core.append(NOW, batch(10)).unwrap();
        assert_eq!(state.wakes(), [false; 2], "it was woken before");
    }
}

#[test]
fn the_thread_sleeps_on_when_there_is_more_of_what_it_waits_for() {
    let mut state = asleep(LogKind::Buffered);
    state.core.promise(NOW, Revision(1));
    assert_eq!(state.wakes(), [true, false], "it slept without an end");
    sleep(&mut state);
    state.core.promise(NOW, Revision(2));
    assert_eq!(state.wakes(), [false; 2], "it follows with the first one");
    state.core.append(NOW, batch(10)).unwrap();
    assert_eq!(state.wakes(), [true, false], "a frame is due sooner than a promise");
}

#[test]
fn the_thread_that_syncs_is_woken_once_for_what_is_synced_together() {
    let mut state = asleep(LogKind::Buffered);
    state.sync_sleeps = Some(Sleep(None));
    write(&mut state, 10);
    assert_eq!(state.wakes(), [false, true], "it slept without an end");
    sleep_to_sync(&mut state);
    write(&mut state, 10);
    assert_eq!(state.wakes(), [false; 2], "they are synced together");
    write(&mut state, 100);
    assert_eq!(state.wakes(), [false, true], "as much as is synced at once");
    let sync = state.core.next_sync(NOW).unwrap();
    assert!(matches!(state.core.synced(NOW, Some(Ok(())))[..], [Event::Durable { .. }]), "{sync:?}");
    sleep_to_sync(&mut state);
    write(&mut state, 10);
    state.wakes();
    sleep_to_sync(&mut state);
    state.core.hurry();
    assert!(state.wakes()[1], "asked for");
}

fn write(state: &mut State, bytes: usize) {
    state.core.append(NOW, batch(bytes)).unwrap();
    assert!(matches!(state.core.next(NOW), Step::Commit(_)));
    state.core.done(NOW, Ok(()));
    sleep(state);
}

fn sleep_to_sync(state: &mut State) {
    assert_eq!(state.core.next_sync(NOW), None);
    state.sync_sleeps = Some(Sleep(state.core.syncs_at()));
}
