//! Reads a file, without trust in what it says.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::{
    BRANCH, BUCKET_BYTES, BoltError, ELEMENT_BYTES, HEADER_BYTES, IS_BUCKET, LEAF, MAGIC, META_BYTES,
    VERSION, fnv,
};

/// The maximum height of a tree: a file of 2^64 bytes would not be as high.
const HEIGHT_MAX: usize = 32;
/// The sizes that a page can have.
const PAGE_BYTES: std::ops::RangeInclusive<u32> = 512..=1 << 20;

/// An open file.
#[derive(Debug)]
pub struct Reader {
    file: File,
    page_bytes: u64,
    /// The number of pages in the file, by its length.
    pages: u64,
    root: u64,
}

/// Takes the items of a tree: flags, key, value.
type Each<'a, E> = &'a mut dyn FnMut(u32, &[u8], &[u8]) -> Result<(), E>;

/// A page with its overflow.
struct Page {
    id: u64,
    kind: u16,
    count: usize,
    bytes: Vec<u8>,
}

impl Reader {
    /// Opens a file at its newest meta.
    ///
    /// # Errors
    /// When it cannot be read, or is no file of bbolt.
    pub fn new(file: File) -> Result<Self, BoltError> {
        let length = file.metadata()?.len();
        let mut first = [0; HEADER_BYTES + META_BYTES + 8];
        if length < first.len() as u64 {
            return Err(BoltError::NotBolt("it is too short"));
        }
        file.read_exact_at(&mut first, 0)?;
        // The second meta is a page behind the first, which says how large that is, unless it is damaged.
        let sizes = [u32_at(&first, HEADER_BYTES + 8), 4096, 16384, 65536];
        let sizes = sizes.into_iter().filter(|size| PAGE_BYTES.contains(size) && size.is_power_of_two());
        let places = [0].into_iter().chain(sizes.map(u64::from));
        let mut best: Option<(u64, u32, u64)> = None;
        for place in places {
            let mut page = [0; HEADER_BYTES + META_BYTES + 8];
            if file.read_exact_at(&mut page, place).is_err() {
                continue;
            }
            let meta = &page[HEADER_BYTES..];
            let valid = u32_at(meta, 0) == MAGIC
                && u32_at(meta, 4) == VERSION
                && u64_at(meta, META_BYTES) == fnv(&meta[..META_BYTES])
                && PAGE_BYTES.contains(&u32_at(meta, 8));
            let txid = u64_at(meta, 48);
            if valid && best.is_none_or(|(newest, ..)| txid > newest) {
                best = Some((txid, u32_at(meta, 8), u64_at(meta, 16)));
            }
        }
        let Some((_, page_bytes, root)) = best else {
            return Err(BoltError::NotBolt("neither of its metas is valid"));
        };
        let page_bytes = u64::from(page_bytes);
        Ok(Self { file, page_bytes, pages: length / page_bytes, root })
    }

    /// Passes every item of a bucket to `each`, in key order. Returns whether there is such a bucket.
    ///
    /// # Errors
    /// When the file is damaged, and those of `each`.
    pub fn each<E: From<BoltError>>(
        &self,
        bucket: &str,
        mut each: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut found = None;
        self.walk(self.root, HEIGHT_MAX, &mut |flags, name, value| {
            if flags & IS_BUCKET != 0 && name == bucket.as_bytes() {
                found = Some(value.to_vec());
            }
            Ok::<(), BoltError>(())
        })?;
        let Some(value) = found else { return Ok(false) };
        if value.len() < BUCKET_BYTES {
            return Err(self.damaged(self.root, "a bucket is too short").into());
        }
        let mut item = |_, key: &[u8], value: &[u8]| each(key, value);
        match u64_at(&value, 0) {
            0 => {
                let page = Page::parse(0, value[BUCKET_BYTES..].to_vec())?;
                self.page(&page, 0, &mut item)?;
            }
            root => self.walk(root, HEIGHT_MAX, &mut item)?,
        }
        Ok(true)
    }

    fn walk<E: From<BoltError>>(&self, id: u64, height: usize, each: Each<'_, E>) -> Result<(), E> {
        self.page(&self.read(id)?, height, each)
    }

    fn page<E: From<BoltError>>(&self, page: &Page, height: usize, each: Each<'_, E>) -> Result<(), E> {
        for at in 0..page.count {
            match page.kind {
                LEAF => {
                    let (flags, key, value) = page.leaf(at)?;
                    each(flags, key, value)?;
                }
                BRANCH if height > 0 => self.walk(page.child(at)?, height - 1, each)?,
                BRANCH => return Err(self.damaged(page.id, "its tree has no end").into()),
                _ => return Err(self.damaged(page.id, "it is no page of a tree").into()),
            }
        }
        Ok(())
    }

    fn read(&self, id: u64) -> Result<Page, BoltError> {
        if id >= self.pages {
            return Err(self.damaged(id, "it is behind the end of the file"));
        }
        let mut header = [0; HEADER_BYTES];
        self.file.read_exact_at(&mut header, id * self.page_bytes)?;
        let pages = 1 + u64::from(u32_at(&header, 12));
        if id + pages > self.pages {
            return Err(self.damaged(id, "it reaches behind the end of the file"));
        }
        if u64_at(&header, 0) != id {
            return Err(self.damaged(id, "another page is there"));
        }
        let mut bytes = vec![0; usize::try_from(pages * self.page_bytes).unwrap_or(usize::MAX)];
        self.file.read_exact_at(&mut bytes, id * self.page_bytes)?;
        Page::parse(id, bytes)
    }

    fn damaged(&self, page: u64, what: &'static str) -> BoltError {
        BoltError::Damaged { page, what }
    }
}

impl Page {
    fn parse(id: u64, bytes: Vec<u8>) -> Result<Self, BoltError> {
        if bytes.len() < HEADER_BYTES {
            return Err(BoltError::Damaged { page: id, what: "it is too short" });
        }
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Ok(Self { id, kind: number(8), count: usize::from(number(10)), bytes })
    }

    fn damaged(&self, what: &'static str) -> BoltError {
        BoltError::Damaged { page: self.id, what }
    }

    /// The place of an element.
    fn element(&self, at: usize) -> Result<usize, BoltError> {
        let place = HEADER_BYTES + at * ELEMENT_BYTES;
        if place + ELEMENT_BYTES > self.bytes.len() {
            return Err(self.damaged("an element is outside of it"));
        }
        Ok(place)
    }

    fn leaf(&self, at: usize) -> Result<(u32, &[u8], &[u8]), BoltError> {
        let place = self.element(at)?;
        let number = |at: usize| u32_at(&self.bytes, place + at);
        let [position, key_bytes, value_bytes] = [4, 8, 12].map(|at| number(at) as usize);
        let data = self.bytes.get(place + position..).unwrap_or_default();
        match data.get(..key_bytes).zip(data.get(key_bytes..key_bytes + value_bytes)) {
            Some((key, value)) => Ok((number(0), key, value)),
            None => Err(self.damaged("an item is outside of it")),
        }
    }

    fn child(&self, at: usize) -> Result<u64, BoltError> {
        Ok(u64_at(&self.bytes, self.element(at)? + 8))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_le_bytes)
}
