//! A hash set of numbers, which stand for objects. A single large table would move all its entries when it grows, while
//! an insertion waits. Here are many small tables, and one at a time is split in two (linear hashing), so an insertion
//! moves a few dozen numbers at most, however many there are.
//!
//! It takes six or seven bytes per number, of which the number is four. A lookup scans a table from its beginning,
//! eight numbers at a time, comparing a few bits of their hashes.

/// The average of numbers per table at which a table is split; the fullest has about twice as many.
const FILLED: usize = 32;
/// Numbers per group.
const GROUP: usize = 8;
/// Tables per piece. The list of tables is in pieces so that it does not move either when it grows.
const PIECE: usize = 1024;

/// Up to [`GROUP`] numbers, filled from the front.
#[derive(Clone, Copy, Default)]
struct Group {
    /// The [`tag`] of each number, 0 for an empty place.
    tags: [u8; GROUP],
    numbers: [u32; GROUP],
}

/// All groups but the last are full, and none is empty.
#[derive(Default)]
struct Table(Box<[Group]>);

/// The set; see the module's documentation.
pub(crate) struct HashIndex {
    pieces: Vec<Vec<Table>>,
    tables: usize,
    len: usize,
}

/// The seven highest bits of a hash, with the eighth set so that it is never 0. The lowest bits of the hash choose the
/// table.
fn tag(hash: u64) -> u8 {
    (hash >> 57) as u8 | 0x80
}

/// The index of a hash's table among `tables`. Numbers of a table that does not exist yet, up to the next power of two,
/// are in the table from which it will be split.
fn table_of(hash: u64, tables: usize) -> usize {
    let all = tables.next_power_of_two();
    let table = hash as usize & (all - 1);
    if table < tables { table } else { table - all / 2 }
}

impl Group {
    fn len(&self) -> usize {
        self.tags.iter().take_while(|tag| **tag != 0).count()
    }

    /// The place of the first number with this tag for which `is` holds.
    fn find(&self, tag: u8, mut is: impl FnMut(&u32) -> bool) -> Option<usize> {
        const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        let differ = u64::from_le_bytes(self.tags) ^ u64::from_ne_bytes([tag; GROUP]);
        // The highest bit of each equal byte, and no other.
        let mut same = !(((differ & LOW) + LOW) | differ | LOW);
        while same != 0 {
            let at = same.trailing_zeros() as usize / 8;
            if is(&self.numbers[at]) {
                return Some(at);
            }
            same &= same - 1;
        }
        None
    }
}

impl Table {
    /// The group and place of the number with this tag for which `is` holds.
    fn find(&self, tag: u8, mut is: impl FnMut(&u32) -> bool) -> Option<(usize, usize)> {
        self.0.iter().enumerate().find_map(|(group, numbers)| Some((group, numbers.find(tag, &mut is)?)))
    }

    fn insert(&mut self, tag: u8, number: u32) {
        let mut at = self.0.last().map_or(GROUP, Group::len);
        if at == GROUP {
            let mut groups = std::mem::take(&mut self.0).into_vec();
            groups.reserve_exact(1);
            groups.push(Group::default());
            (self.0, at) = (groups.into_boxed_slice(), 0);
        }
        if let Some(last) = self.0.last_mut() {
            (last.tags[at], last.numbers[at]) = (tag, number);
        }
    }

    /// Removes a number; the table's last one takes its place.
    fn remove(&mut self, (group, at): (usize, usize)) {
        let Some(last) = self.0.last_mut() else { return };
        let end = last.len() - 1;
        let moved = (std::mem::take(&mut last.tags[end]), last.numbers[end]);
        if (group, at) != (self.0.len() - 1, end) {
            let group = &mut self.0[group];
            (group.tags[at], group.numbers[at]) = moved;
        }
        if end == 0 {
            let mut groups = std::mem::take(&mut self.0).into_vec();
            groups.pop();
            self.0 = groups.into_boxed_slice();
        }
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|group| group.numbers.into_iter().take(group.len()))
    }
}

impl FromIterator<(u8, u32)> for Table {
    fn from_iter<I: IntoIterator<Item = (u8, u32)>>(entries: I) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        for (at, (tag, number)) in entries.into_iter().enumerate() {
            if at % GROUP == 0 {
                groups.push(Group::default());
            }
            let group = &mut groups[at / GROUP];
            (group.tags[at % GROUP], group.numbers[at % GROUP]) = (tag, number);
        }
        Self(groups.into_boxed_slice())
    }
}

impl HashIndex {
    pub(crate) fn new() -> Self {
        Self { pieces: vec![vec![Table::default()]], tables: 1, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn table(&self, table: usize) -> &Table {
        &self.pieces[table / PIECE][table % PIECE]
    }

    fn table_mut(&mut self, table: usize) -> &mut Table {
        &mut self.pieces[table / PIECE][table % PIECE]
    }

    pub(crate) fn find(&self, hash: u64, is: impl FnMut(&u32) -> bool) -> Option<u32> {
        let table = self.table(table_of(hash, self.tables));
        let (group, at) = table.find(tag(hash), is)?;
        Some(table.0[group].numbers[at])
    }

    /// Looks at the list of the table of a hash, for [`crate::keyspace::Keyspace::warm`].
    #[inline]
    pub(crate) fn warm_table(&self, hash: u64) -> usize {
        self.table(table_of(hash, self.tables)).0.len()
    }

    /// Looks at the groups of the table of a hash, and returns the first number with its tag.
    #[inline]
    pub(crate) fn warm_groups(&self, hash: u64) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// Adds a number that is not in the set. `hash_of` gives the hashes of other numbers.
    pub(crate) fn insert(&mut self, hash: u64, number: u32, hash_of: impl Fn(&u32) -> u64) {
        if self.len >= self.tables * FILLED {
            self.divide(&hash_of);
        }
        self.table_mut(table_of(hash, self.tables)).insert(tag(hash), number);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, hash: u64, is: impl FnMut(&u32) -> bool) {
        let table = self.table_mut(table_of(hash, self.tables));
        if let Some(place) = table.find(tag(hash), is) {
            table.remove(place);
            self.len -= 1;
        }
    }

    /// Adds a table and moves the numbers that belong to it from the table that held them.
    fn divide(&mut self, hash_of: &impl Fn(&u32) -> u64) {
        let new = self.tables;
        let from = self.table_mut(new - (new + 1).next_power_of_two() / 2);
        let hashed = from.numbers().map(|number| (hash_of(&number), number));
        let (go, stay): (Vec<_>, Vec<_>) = hashed.partition(|(hash, _)| table_of(*hash, new + 1) == new);
        let collect =
            |some: Vec<(u64, u32)>| some.into_iter().map(|(hash, number)| (tag(hash), number)).collect();
        *from = collect(stay);
        let table: Table = collect(go);
        match self.pieces.last_mut() {
            Some(last) if last.len() < PIECE => last.push(table),
            _ => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(table);
                self.pieces.push(piece);
            }
        }
        self.tables += 1;
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
            for hash in 0..300_u64 {
                let (before, after) = (table_of(hash, tables), table_of(hash, tables + 1));
                assert!(before < tables);
                assert!(after == before || after == tables, "{before} and {after} of {tables}");
            }
        }
    }

    /// Compares a table with a plain list, with few different tags.
    #[test]
    fn a_table_finds_what_it_holds() {
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let (mut table, mut plain) = (Table::default(), Vec::new());
        for number in 0..4000_u32 {
            let tag = |number: u32| tag(u64::from(number % 7) << 57);
            if random(100) < 52 {
                table.insert(tag(number), number);
                plain.push(number);
            } else if !plain.is_empty() {
                let number = plain.swap_remove(random(plain.len() as u64) as usize);
                let place = table.find(tag(number), |other| *other == number).unwrap();
                table.remove(place);
                assert_eq!(table.find(tag(number), |other| *other == number), None);
            }
            let mut all: Vec<u32> = table.numbers().collect();
            all.sort_unstable();
            plain.sort_unstable();
            assert_eq!(all, plain);
            assert_eq!(table.0.len(), plain.len().div_ceil(GROUP));
            assert!(plain.iter().all(|n| table.find(tag(*n), |other| other == n).is_some()));
            let rebuilt: Table = plain.iter().map(|number| (tag(*number), *number)).collect();
            assert!(rebuilt.numbers().eq(plain.iter().copied()));
        }
    }

    /// Only numbers with the wanted tag are compared.
    #[test]
    fn other_tags_are_passed_over() {
        let group =
            Group { tags: [0x80, 0x81, 0xff, 0x80, 0x81, 0x80, 0, 0], numbers: [0, 1, 2, 3, 4, 5, 6, 7] };
        for (tag, want) in [(0x80, &[0, 3, 5][..]), (0x81, &[1, 4]), (0xff, &[2]), (0xfe, &[])] {
            let mut asked = Vec::new();
            assert_eq!(
                group.find(tag, |number| {
                    asked.push(*number);
                    false
                }),
                None
            );
            assert_eq!(asked, want);
        }
        assert_eq!(group.len(), 6);
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
        let groups: usize = index.pieces.iter().flatten().map(|table| table.0.len()).sum();
        let bytes = groups * size_of::<Group>() + index.tables * size_of::<Table>();
        assert!(bytes < 7 * NUMBERS as usize, "{bytes} bytes for {NUMBERS} numbers");
        for number in (0..NUMBERS).step_by(2) {
            index.remove(hasher.hash_one(number), |other| *other == number);
            index.remove(hasher.hash_one(number), |other| *other == number);
        }
        assert!((0..NUMBERS).all(|number| find(&index, number).is_some() == (number % 2 == 1)));
        assert_eq!(index.len(), NUMBERS as usize / 2);
        for number in 0..NUMBERS {
            index.remove(hasher.hash_one(number), |other| *other == number);
        }
        assert!(index.pieces.iter().flatten().all(|table| table.0.is_empty()), "their memory is given back");
    }
}
