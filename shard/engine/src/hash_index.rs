//! Numbers by the hashes of what they stand for. One large table moves all that it holds when it grows, and whoever inserts
//! waits for it; here there are many small ones, of which one at a time is divided in two (linear hashing), so that an
//! insertion moves a few hundred numbers at most, however many there are.

use hashbrown::HashTable;

/// Numbers of a table, on average at most; the fullest has about twice as many.
const FILLED: usize = 128;
/// The bits of a hash that choose the table begin here: the lower ones place a number in it, and the highest tell
/// neighbours apart.
const FIRST_BIT: u32 = 20;

/// See the module's text.
pub(crate) struct HashIndex {
    tables: Vec<HashTable<u32>>,
    len: usize,
}

/// Which of `tables` tables a hash belongs to: those up to the next power of two that do not exist yet are still in
/// the tables that they will be divided from.
fn table_of(hash: u64, tables: usize) -> usize {
    let all = tables.next_power_of_two();
    let table = (hash >> FIRST_BIT) as usize & (all - 1);
    if table < tables { table } else { table - all / 2 }
}

impl HashIndex {
    pub(crate) fn new() -> Self {
        Self { tables: vec![HashTable::new()], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn find(&self, hash: u64, is: impl FnMut(&u32) -> bool) -> Option<u32> {
        self.tables[table_of(hash, self.tables.len())].find(hash, is).copied()
    }

    /// Adds a number that is not there; `hash_of` tells the hashes of others.
    pub(crate) fn insert(&mut self, hash: u64, number: u32, hash_of: impl Fn(&u32) -> u64) {
        if self.len >= self.tables.len() * FILLED {
            self.divide(&hash_of);
        }
        let table = table_of(hash, self.tables.len());
        self.tables[table].insert_unique(hash, number, &hash_of);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, hash: u64, is: impl FnMut(&u32) -> bool) {
        let table = table_of(hash, self.tables.len());
        if let Ok(entry) = self.tables[table].find_entry(hash, is) {
            entry.remove();
            self.len -= 1;
        }
    }

    /// Makes one more table, of what belongs to it in the one where that was.
    fn divide(&mut self, hash_of: &impl Fn(&u32) -> u64) {
        let new = self.tables.len();
        let from = new - (new + 1).next_power_of_two() / 2;
        let mut table = HashTable::with_capacity(FILLED);
        for number in self.tables[from].extract_if(|number| table_of(hash_of(number), new + 1) == new) {
            table.insert_unique(hash_of(&number), number, hash_of);
        }
        self.tables.push(table);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, hash::BuildHasher};

    use hashbrown::DefaultHashBuilder;

    use super::*;

    #[test]
    fn every_hash_has_a_table_and_keeps_it_until_that_is_divided() {
        for tables in 1..100_usize {
            for hash in (0..300_u64).map(|hash| hash << FIRST_BIT) {
                let (before, after) = (table_of(hash, tables), table_of(hash, tables + 1));
                assert!(before < tables);
                assert!(after == before || after == tables, "{before} and {after} of {tables}");
            }
        }
    }

    #[test]
    fn no_insertion_moves_more_than_a_few_numbers() {
        const NUMBERS: u32 = 200_000;
        let hasher = DefaultHashBuilder::default();
        let moved = Cell::new(0_usize);
        let hash_of = |number: &u32| {
            moved.set(moved.get() + 1);
            hasher.hash_one(number)
        };
        let (mut index, mut most) = (HashIndex::new(), 0);
        for number in 0..NUMBERS {
            moved.set(0);
            index.insert(hasher.hash_one(number), number, hash_of);
            most = most.max(moved.get());
        }
        assert!(most < 10 * FILLED, "{most} hashes in one insertion");
        let find =
            |index: &HashIndex, number: u32| index.find(hasher.hash_one(number), |other| *other == number);
        assert!((0..NUMBERS).all(|number| find(&index, number) == Some(number)));
        assert_eq!(find(&index, NUMBERS), None);
        for number in (0..NUMBERS).step_by(2) {
            index.remove(hasher.hash_one(number), |other| *other == number);
            index.remove(hasher.hash_one(number), |other| *other == number);
        }
        assert!((0..NUMBERS).all(|number| find(&index, number).is_some() == (number % 2 == 1)));
        assert_eq!(index.len(), NUMBERS as usize / 2);
    }
}
