//! Chooses the quota of a shard if no flag does, by the memory that it may use: writes are refused as NOSPACE before the
//! kernel would kill the process.

use kindred_transport::memory::limit::Memory;

/// Percentage of the memory for data. Indexes, answers in transit and the allocator need the rest.
const DATA_PERCENT: u64 = 60;
/// The least quota chosen, since a smaller one would hardly be useful.
const QUOTA_MIN: u64 = 64 << 20;

/// The part of the memory that answers may hold which their clients do not read.
const UNREAD_PART: u64 = 8;

/// The quota of each of `shards` that share this memory.
#[must_use]
pub fn quota(memory: &Memory, shards: u32) -> u64 {
    (memory.bytes / 100 * DATA_PERCENT / u64::from(shards.max(1))).max(QUOTA_MIN)
}

/// The most memory that unread answers of each of `shards` may hold, unless that would be more than the usual bound.
#[must_use]
pub fn unread(memory: Option<&Memory>, shards: u32, usual: usize) -> usize {
    let part = memory.map(|memory| memory.bytes / UNREAD_PART / u64::from(shards.max(1)));
    part.and_then(|part| usize::try_from(part).ok()).map_or(usual, |part| part.min(usual))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: u64) -> Memory {
        Memory { bytes, says: String::new() }
    }

    #[test]
    fn f41_a_quota_is_a_part_of_the_memory_and_shared() {
        let (one, five) = (quota(&memory(16 << 30), 1), quota(&memory(16 << 30), 5));
        assert!(one < (16 << 30) * 2 / 3 && one > 8 << 30);
        assert_eq!(five, one / 5);
        assert_eq!(quota(&memory(1000), 1), QUOTA_MIN);
    }

    #[test]
    fn unread_answers_hold_less_where_there_is_little() {
        assert_eq!(unread(Some(&memory(16 << 30)), 1, 1 << 30), 1 << 30);
        assert_eq!(unread(Some(&memory(1 << 30)), 1, 1 << 30), 128 << 20);
        assert_eq!(unread(Some(&memory(1 << 30)), 4, 1 << 30), 32 << 20);
        assert_eq!(unread(None, 4, 1 << 30), 1 << 30);
    }
}
