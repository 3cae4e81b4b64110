//! Writes a whole file from sorted items. The lengths of all items are known beforehand, so every page has its place before
//! the first is written, and the file can be streamed.

use std::io::{self, Write};

use super::{
    BRANCH, BUCKET_BYTES, ELEMENT_BYTES, FREELIST, HEADER_BYTES, IS_BUCKET, LEAF, MAGIC, META, META_BYTES,
    PAGE_BYTES, VERSION, fnv,
};

/// The pages before the first of a bucket: two metas, the list of free pages, the root.
const FREELIST_PAGE: u64 = 2;
const ROOT_PAGE: u64 = 3;
const FIRST_PAGE: u64 = 4;
/// The maximum number of elements of a page; bbolt counts them in 16 bits, and refuses the last number.
const ELEMENTS_MAX: usize = 0xFFFE;

/// The items of a bucket in ascending order of their keys.
pub trait Items {
    fn count(&self) -> usize;
    /// Appends a key.
    fn key(&self, at: usize, out: &mut Vec<u8>);
    fn value_bytes(&self, at: usize) -> usize;
    /// Appends a value, which has `value_bytes`.
    ///
    /// # Errors
    /// When it cannot be read.
    fn value(&self, at: usize, out: &mut Vec<u8>) -> io::Result<()>;
}

/// Items that are in memory: keys with their values.
pub struct Pairs(pub Vec<(Vec<u8>, Vec<u8>)>);

impl Items for Pairs {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn key(&self, at: usize, out: &mut Vec<u8>) {
        out.extend(&self.0[at].0);
    }

    fn value_bytes(&self, at: usize) -> usize {
        self.0[at].1.len()
    }

    fn value(&self, at: usize, out: &mut Vec<u8>) -> io::Result<()> {
        out.extend(&self.0[at].1);
        Ok(())
    }
}

/// A bucket to write.
pub struct Bucket<'a> {
    pub name: &'static str,
    pub items: &'a dyn Items,
}

/// A page with its overflow.
struct Node {
    page: u64,
    pages: u64,
    /// The first item in or below it.
    item: usize,
    /// The place of its first child, in the level below it; of a leaf, its first item.
    first: usize,
    count: usize,
}

/// The pages of a bucket: the leaves, and above each level the branches to it. The last level is one page, or there is none.
struct Tree {
    levels: Vec<Vec<Node>>,
}

/// A file of which every page has its place.
pub struct Plan<'a> {
    buckets: Vec<(Bucket<'a>, Tree)>,
    pages: u64,
}

impl<'a> Plan<'a> {
    /// Lays out a file. The buckets are in ascending order of their names.
    #[must_use]
    pub fn new(buckets: Vec<Bucket<'a>>) -> Self {
        let mut pages = FIRST_PAGE;
        let buckets = buckets.into_iter().map(|bucket| {
            let tree = Tree::plan(bucket.items, &mut pages);
            (bucket, tree)
        });
        Self { buckets: buckets.collect(), pages }
    }

    /// The size of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }

    /// Writes the file from its first byte to its last.
    ///
    /// # Errors
    /// When an item cannot be read, or the file not be written.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for id in 0..2 {
            out.write_all(&self.meta(id))?;
        }
        let mut page = Page::new(FREELIST_PAGE, FREELIST, 0, 1);
        page.write(out)?;
        page = Page::new(ROOT_PAGE, LEAF, self.buckets.len(), 1);
        for (bucket, tree) in &self.buckets {
            page.leaf(IS_BUCKET, bucket.name.as_bytes(), &tree.bucket());
        }
        page.write(out)?;
        for (bucket, tree) in &self.buckets {
            tree.write(bucket.items, out)?;
        }
        Ok(())
    }

    /// A page with a meta; that of the higher transaction id counts.
    fn meta(&self, id: u64) -> Vec<u8> {
        let mut meta = Vec::with_capacity(META_BYTES + 8);
        for number in [MAGIC, VERSION, PAGE_BYTES as u32, 0] {
            meta.extend(number.to_le_bytes());
        }
        // root, its sequence, free pages, end of the file, transaction id
        for number in [ROOT_PAGE, 0, FREELIST_PAGE, self.pages, id] {
            meta.extend(number.to_le_bytes());
        }
        meta.extend(fnv(&meta).to_le_bytes());
        let mut page = header(id, META, 0, 1);
        page.extend(meta);
        page.resize(PAGE_BYTES, 0);
        page
    }
}

impl Tree {
    fn plan(items: &dyn Items, next_page: &mut u64) -> Self {
        let mut key = Vec::new();
        let mut key_bytes = |item: usize| {
            key.clear();
            items.key(item, &mut key);
            key.len()
        };
        let sized = |item: usize| ELEMENT_BYTES + key_bytes(item) + items.value_bytes(item);
        let leaves = level(items.count(), sized, |item| item, next_page);
        let mut levels = if leaves.is_empty() { Vec::new() } else { vec![leaves] };
        while let Some(below) = levels.last().filter(|level| level.len() > 1) {
            let sized = |child: usize| ELEMENT_BYTES + key_bytes(below[child].item);
            let branches = level(below.len(), sized, |child| below[child].item, next_page);
            levels.push(branches);
        }
        Self { levels }
    }

    /// The bucket as a value. One without items is inline: an empty leaf follows.
    fn bucket(&self) -> Vec<u8> {
        let root = self.levels.last().and_then(|level| level.first()).map_or(0, |node| node.page);
        let mut value = Vec::with_capacity(BUCKET_BYTES + HEADER_BYTES);
        value.extend(root.to_le_bytes());
        value.extend(0_u64.to_le_bytes());
        if root == 0 {
            value.extend(header(0, LEAF, 0, 1));
        }
        value
    }

    fn write(&self, items: &dyn Items, out: &mut dyn Write) -> io::Result<()> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for (height, level) in self.levels.iter().enumerate() {
            for node in level {
                let kind = if height == 0 { LEAF } else { BRANCH };
                let mut page = Page::new(node.page, kind, node.count, node.pages);
                for at in node.first..node.first + node.count {
                    key.clear();
                    if height == 0 {
                        value.clear();
                        items.key(at, &mut key);
                        items.value(at, &mut value)?;
                        if value.len() != items.value_bytes(at) {
                            return Err(io::Error::other("an item is not as long as it said"));
                        }
                        page.leaf(0, &key, &value);
                    } else {
                        let child = &self.levels[height - 1][at];
                        items.key(child.item, &mut key);
                        page.branch(&key, child.page);
                    }
                }
                page.write(out)?;
            }
        }
        Ok(())
    }
}

/// Lays elements into pages, as many as there is room for. One that is larger than a page has several to itself.
fn level(
    elements: usize,
    mut sized: impl FnMut(usize) -> usize,
    item: impl Fn(usize) -> usize,
    next_page: &mut u64,
) -> Vec<Node> {
    let (mut level, mut first, mut bytes) = (Vec::new(), 0, HEADER_BYTES);
    let mut close = |first: usize, end: usize, bytes: usize| {
        let pages = bytes.div_ceil(PAGE_BYTES) as u64;
        level.push(Node { page: *next_page, pages, item: item(first), first, count: end - first });
        *next_page += pages;
    };
    for at in 0..elements {
        let size = sized(at);
        if at > first && (bytes + size > PAGE_BYTES || at - first == ELEMENTS_MAX) {
            close(first, at, bytes);
            (first, bytes) = (at, HEADER_BYTES);
        }
        bytes += size;
    }
    if first < elements {
        close(first, elements, bytes);
    }
    level
}

/// A page's header. `pages` counts the page and its overflow.
fn header(id: u64, kind: u16, count: usize, pages: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(PAGE_BYTES);
    header.extend(id.to_le_bytes());
    header.extend(kind.to_le_bytes());
    header.extend(u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
    header.extend(u32::try_from(pages - 1).unwrap_or(u32::MAX).to_le_bytes());
    header
}

/// A page that is filled: its elements come first, and then their keys and values.
struct Page {
    bytes: Vec<u8>,
    data: Vec<u8>,
    pages: u64,
    elements: usize,
    done: usize,
}

impl Page {
    fn new(id: u64, kind: u16, count: usize, pages: u64) -> Self {
        Self { bytes: header(id, kind, count, pages), data: Vec::new(), pages, elements: count, done: 0 }
    }

    /// The place at which the next element's data begins, counted from that element.
    fn position(&self) -> u32 {
        let elements_left = self.elements - self.done;
        u32::try_from(elements_left * ELEMENT_BYTES + self.data.len()).unwrap_or(u32::MAX)
    }

    fn leaf(&mut self, flags: u32, key: &[u8], value: &[u8]) {
        let lengths = [key, value].map(|part| u32::try_from(part.len()).unwrap_or(u32::MAX));
        for number in [flags, self.position(), lengths[0], lengths[1]] {
            self.bytes.extend(number.to_le_bytes());
        }
        self.data.extend(key);
        self.data.extend(value);
        self.done += 1;
    }

    fn branch(&mut self, key: &[u8], page: u64) {
        self.bytes.extend(self.position().to_le_bytes());
        self.bytes.extend(u32::try_from(key.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.bytes.extend(page.to_le_bytes());
        self.data.extend(key);
        self.done += 1;
    }

    fn write(mut self, out: &mut dyn Write) -> io::Result<()> {
        self.bytes.append(&mut self.data);
        let whole = usize::try_from(self.pages).unwrap_or(usize::MAX).saturating_mul(PAGE_BYTES);
        self.bytes.resize(whole, 0);
        out.write_all(&self.bytes)
    }
}
