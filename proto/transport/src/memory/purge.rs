//! Returns freed memory to the system from a separate thread.
//!
//! mimalloc returns all memory that has been free for a second at once, from whichever thread frees next. During a
//! compaction that was the apply loop, which then spent 5 to 7 ms or more in `madvise` (`kindred-bench stalls`).
//! This thread acts earlier, so that other threads have nothing to return. The allocator has no setting for this,
//! and its function has no safe wrapper.

use std::{sync::Once, thread, time::Duration};

/// Well below the second after which the allocator acts in any thread.
const EVERY: Duration = Duration::from_millis(400);

/// Starts the thread, once per process; it runs until the process ends.
pub fn aside() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let thread = thread::Builder::new().name("memory".to_owned()).spawn(|| {
            loop {
                thread::park_timeout(EVERY);
                give_back();
            }
        });
        if let Err(error) = thread {
            tracing::debug!(%error, "no thread gives memory back: others do");
        }
    });
}

#[expect(unsafe_code, reason = "the allocator's own call, which has no arguments that could be wrong")]
fn give_back() {
    // SAFETY: any thread may call it at any time. It collects this thread's heap, which is empty, and pages that no
    // thread owns, which the allocator claims one by one as in an allocation.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(test)]
mod tests {
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
