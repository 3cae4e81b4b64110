//! Randomness that a seed decides.
//!
//! Hash maps of the standard library and tokio's `select!` get their random numbers from `getrandom` of the C library.
//! In the test binary this file replaces that function. Its result depends only on the seed and on how often this
//! thread has called it. So each run needs a thread of its own. It also needs a process of its own, because crates have
//! counters for the whole process.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

static SEED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static DRAWN: Cell<u64> = const { Cell::new(0) };
}

/// Sets the seed for all threads. Call it before the thread of a run starts.
pub fn seed(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
}

/// The next 64 bits of this thread (SplitMix64).
fn next() -> u64 {
    let drawn = DRAWN.with(|drawn| drawn.replace(drawn.get().wrapping_add(1)));
    let state = SEED.load(Ordering::Relaxed) ^ drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Replaces the C library's function, as the comment of this file explains.
///
/// # Safety
/// `buffer` must point to `length` bytes that may be written, as for the C library's function.
#[expect(unsafe_code, reason = "takes the place of a function of the C library")]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: c_uint) -> isize {
    let bytes = buffer.cast::<u8>();
    for at in 0..length {
        let byte = (next() >> 32) as u8;
        // SAFETY: the caller owns `length` bytes at `buffer`.
        unsafe { bytes.add(at).write(byte) };
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}
