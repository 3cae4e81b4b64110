//! Randomness that a seed decides, and a clock that nearly stands still.
//!
//! Hash maps of the standard library and tokio's `select!` get their random numbers from `getrandom` of the C library.
//! In the test binary this file replaces that function. Its result depends only on the seed and on how often this
//! thread has called it. So each run needs a thread of its own. It also needs a process of its own, because crates have
//! counters for the whole process.
//!
//! The servers have the simulation's clock. What others have read from the machine's would depend on how busy the machine
//! is: `h2` forgets by it which streams it has reset, and then answers differently. So each look at it takes a microsecond in
//! a run, and nothing else takes time. It does not stand still, as `quanta` waits until it has moved.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, Timespec, clock_gettime as read};

static SEED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static DRAWN: Cell<u64> = const { Cell::new(0) };
    static STANDS: Cell<Option<Timespec>> = const { Cell::new(None) };
}

/// Sets the seed for all threads. Call it before the thread of a run starts.
pub fn seed(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
}

/// From now on the machine's monotonic clock moves for this thread only when it is looked at.
pub fn stop_the_clock() {
    STANDS.set(Some(read(ClockId::Monotonic)));
}

/// The time at which the clock stands, if it was stopped for this thread.
fn stands() -> Option<Timespec> {
    let step = |at: Timespec| Timespec {
        tv_sec: at.tv_sec + (at.tv_nsec + 1_000) / 1_000_000_000,
        tv_nsec: (at.tv_nsec + 1_000) % 1_000_000_000,
    };
    STANDS.try_with(|stands| stands.replace(stands.get().map(step))).ok().flatten()
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

/// Replaces the C library's function, from which the standard library reads clocks.
///
/// # Safety
/// `time` must point to a time that may be written, as for the C library's function.
#[expect(unsafe_code, reason = "takes the place of a function of the C library")]
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    let known = [
        ClockId::Realtime,
        ClockId::Monotonic,
        ClockId::ProcessCPUTime,
        ClockId::ThreadCPUTime,
        ClockId::RealtimeCoarse,
        ClockId::MonotonicCoarse,
        ClockId::Boottime,
    ];
    let Some(clock) = known.into_iter().find(|known| *known as c_int == clock) else { return -1 };
    let stands = if clock == ClockId::Monotonic { stands() } else { None };
    // SAFETY: the caller owns the time.
    unsafe { time.write(stands.unwrap_or_else(|| read(clock))) };
    0
}

/// Under load two runs of a seed had different logs: one of them had taken longer than `h2` remembers.
#[test]
fn the_clock_of_the_machine_stands_still_in_a_run() {
    use std::time::{Duration, Instant};

    let wait = || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(2) {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    };
    let passes = || {
        let began = Instant::now();
        std::thread::spawn(wait).join().unwrap();
        began.elapsed()
    };
    assert!(passes() >= Duration::from_millis(2), "it goes on elsewhere");
    stop_the_clock();
    assert!(passes() <= Duration::from_micros(10));
}
