//! Chooses where a version is cut into two allocations.
//!
//! mimalloc and jemalloc have four size classes per power of two and round up to the next: 1040 bytes take 1280. Where
//! that wastes much, the first allocation gets the next lower class and the rest one of its own.

use super::block::{CUT_BYTES, WHOLE_BYTES};

/// The least saving that is worth another allocation.
const WORTH_BYTES: usize = 32;

/// The distance between the size classes around a size.
fn step(bytes: usize) -> usize {
    1 << (bytes - 1).ilog2().saturating_sub(2).max(4)
}

/// The size class that an allocation takes.
pub(super) fn taken(bytes: usize) -> usize {
    bytes.next_multiple_of(step(bytes))
}

/// How many of `len` bytes go into the first allocation: all of them, or at least `whole`.
pub(super) fn place(len: usize, whole: usize) -> usize {
    let bytes = WHOLE_BYTES + len;
    let all = taken(bytes);
    if all - bytes < WORTH_BYTES {
        return len;
    }
    // The first allocation fills the next lower class.
    let below = all - step(bytes);
    match below.checked_sub(CUT_BYTES) {
        Some(first) if first >= whole && below + taken(len - first) + WORTH_BYTES <= all => first,
        _ => len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_are_the_allocators() {
        let table = [(16, 16), (17, 32), (65, 80), (128, 128), (129, 160), (256, 256), (257, 320)];
        for (bytes, want) in table.into_iter().chain([(513, 640), (1024, 1024), (1025, 1280), (4097, 5120)]) {
            assert_eq!(taken(bytes), want, "{bytes}");
        }
    }

    #[test]
    fn a_cut_saves_memory_and_leaves_little_over() {
        let (mut most, mut cut) = (0, 0);
        for len in 1..70_000 {
            let first = place(len, 0);
            let whole = taken(WHOLE_BYTES + len);
            let spent = match len - first {
                0 => whole,
                rest => {
                    cut += 1;
                    let spent = taken(CUT_BYTES + first) + taken(rest);
                    assert_eq!(taken(CUT_BYTES + first), CUT_BYTES + first);
                    assert!(spent + WORTH_BYTES <= whole, "{len} cut at {first}");
                    spent
                }
            };
            most = most.max((spent - WHOLE_BYTES - len) * 1000 / (len + 1000));
        }
        assert!(cut > 60_000, "{cut} were cut");
        assert!(most <= 40, "{most} in a thousand left over");
    }

    #[test]
    fn what_must_be_whole_is() {
        let len = 1100;
        let first = place(len, 0);
        assert!(first < len);
        assert_eq!((place(len, first), place(len, first + 1)), (first, len));
    }
}
