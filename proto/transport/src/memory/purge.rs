//! Returns freed memory to the system from a separate thread.
//!
//! mimalloc returns all memory that has been free for a second at once, from whichever thread frees next. During a
//! compaction that was the apply loop, which then spent 5 to 7 ms or more in `madvise` (`kindred-bench stalls`).
//! This thread acts earlier, so that other threads have nothing to return. The allocator has no setting for this,
//! and its function has no safe wrapper.

use std::{sync::Once, thread, time::Duration};

use crate::clock::process_cpu;

/// The pause of a process that works, well below the second after which the allocator acts in any thread.
const BUSY: Duration = Duration::from_millis(400);
/// The first pause of a process that does next to nothing. It doubles up to [`IDLE_MAX`] while that lasts.
const IDLE: Duration = Duration::from_secs(1);
/// What is freed as a process begins to work is returned within so long, or by the threads that work.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// The share of a processor above which a process works, in parts of a hundred.
const BUSY_PERCENT: u32 = 2;

/// Starts the thread, once per process; it runs until the process ends.
pub fn aside() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let thread = thread::Builder::new().name("memory".to_owned()).spawn(|| {
            let (mut last, mut every) = (process_cpu(), BUSY);
            loop {
                thread::park_timeout(every);
                give_back();
                let now = process_cpu();
                every = pause(now.saturating_sub(last), every);
                last = now;
            }
        });
        if let Err(error) = thread {
            tracing::debug!(%error, "no thread gives memory back: others do");
        }
    });
}

/// The next pause of a process that used so much of a processor in the last one.
fn pause(used: Duration, last: Duration) -> Duration {
    if used * 100 > last * BUSY_PERCENT { BUSY } else { (last * 2).clamp(IDLE, IDLE_MAX) }
}

#[expect(unsafe_code, reason = "the allocator's own call, which has no arguments that could be wrong")]
fn give_back() {
    // SAFETY: any thread may call it at any time. It collects this thread's heap, which is empty, and pages that no
    // thread owns, which the allocator claims one by one as in an allocation.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::{BUSY, Duration, IDLE, IDLE_MAX, pause};

    #[test]
    fn a_process_that_does_nothing_is_woken_less_and_less_often() {
        let used = Duration::from_millis;
        assert_eq!([pause(used(8), BUSY), pause(used(9), BUSY)], [IDLE, BUSY]);
        assert_eq!([pause(used(20), IDLE), pause(used(21), IDLE)], [IDLE * 2, BUSY]);
        assert_eq!([pause(used(80), IDLE_MAX), pause(used(81), IDLE_MAX)], [IDLE_MAX, BUSY]);
    }

    #[global_allocator]
    static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

    /// Only unowned memory is returned: threads that allocate meanwhile keep theirs.
    #[test]
    fn memory_in_use_is_left_alone() {
        super::aside();
        let churn = |seed: u8| {
            let mut kept: Vec<Vec<u8>> = Vec::new();
            for round in 0..2_000_usize {
                kept.push(vec![seed; 1 + round * 37 % 9_000]);
                if round % 3 == 2 {
                    kept.swap_remove(round * 7 % kept.len());
                }
                if round % 200 == 0 {
                    super::give_back();
                }
            }
            kept.iter().flatten().all(|byte| *byte == seed)
        };
        let threads: Vec<_> = (1..5).map(|seed| std::thread::spawn(move || churn(seed))).collect();
        assert!(threads.into_iter().all(|thread| thread.join().is_ok_and(|intact| intact)));
    }
}
