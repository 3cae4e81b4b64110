use super::*;
use crate::{layout::LogKind, record::Record};

const NOW: Duration = Duration::from_secs(1);

fn batch(bytes: usize) -> Batch {
    let mut batch = Batch::new();
    batch.push(&Record::Lease(&vec![7; bytes]));
    batch
}

/// A log whose segment is made and whose thread sleeps.
fn asleep(kind: LogKind) -> State {
    let options = LogOptions { flush_bytes: 100, ..LogOptions::new(kind, 1) };
    let mut core = Core::new(options, LogEnd::fresh(), NOW);
    assert!(matches!(core.next(NOW), Step::Create(_)));
    core.done(NOW, Ok(()));
    let mut state = State { core, stop: false, sleeps: None };
    sleep(&mut state);
    state
}

fn sleep(state: &mut State) {
    let Step::Wait(until) = state.core.next(NOW) else { panic!("there is something to do") };
    state.sleeps = Some(Sleep(until));
}

#[test]
fn the_thread_is_woken_for_what_it_does_at_once() {
    let mut state = asleep(LogKind::Fsync);
    assert!(!state.wakes(), "nothing to do");
    state.core.append(NOW, batch(10)).unwrap();
    assert!(state.wakes());
    state.core.append(NOW, batch(10)).unwrap();
    assert!(!state.wakes(), "it was woken before");
}

#[test]
fn the_thread_sleeps_on_when_there_is_more_of_what_it_waits_for() {
    let mut state = asleep(LogKind::Buffered);
    state.core.promise(NOW, Revision(1));
    assert!(state.wakes(), "it slept without an end");
    sleep(&mut state);
    state.core.promise(NOW, Revision(2));
    assert!(!state.wakes(), "it follows with the first one");
    state.core.append(NOW, batch(10)).unwrap();
    assert!(state.wakes(), "a frame is due sooner than a promise");
    sleep(&mut state);
    state.core.append(NOW, batch(10)).unwrap();
    assert!(!state.wakes(), "they are written together");
    state.core.append(NOW, batch(100)).unwrap();
    assert!(state.wakes(), "as much as is written at once");
    sleep_through(&mut state);
    state.core.append(NOW, batch(10)).unwrap();
    state.wakes();
    sleep(&mut state);
    state.core.hurry();
    assert!(state.wakes(), "asked for");
}

fn sleep_through(state: &mut State) {
    assert!(matches!(state.core.next(NOW), Step::Commit(_)));
    state.core.done(NOW, Ok(()));
    sleep(state);
}
