//! A file's content as readers see it and as it is durable.

use super::random::Random;

/// The unit that the disk writes atomically.
const SECTOR: u64 = 512;

#[derive(Debug, Default)]
pub(super) struct Inode {
    /// The content that readers see.
    pub(super) seen: Vec<u8>,
    /// The durable content.
    durable: Vec<u8>,
    /// The changes since the last sync, in order.
    unsynced: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    Length(u64),
}

impl Inode {
    pub(super) fn synced(content: Vec<u8>) -> Self {
        Self { durable: content.clone(), seen: content, unsynced: Vec::new() }
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        put(&mut self.seen, offset, bytes);
        self.unsynced.push(Change::Write { offset, bytes: bytes.to_vec() });
    }

    pub(super) fn set_length(&mut self, length: u64) {
        resize(&mut self.seen, length);
        self.unsynced.push(Change::Length(length));
    }

    pub(super) fn flip(&mut self, bit: u64) {
        for content in [&mut self.seen, &mut self.durable] {
            let at = usize::try_from(bit / 8).unwrap_or(usize::MAX);
            if let Some(byte) = content.get_mut(at) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    pub(super) fn sync(&mut self) {
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::Write { offset, bytes } => put(&mut self.durable, offset, &bytes),
                Change::Length(length) => resize(&mut self.durable, length),
            }
        }
    }

    /// Makes some changes durable and forgets the others, which stay visible until a crash.
    pub(super) fn fail_sync(&mut self, random: &mut Random) {
        self.settle_some(random);
    }

    /// Makes some changes durable and discards the others.
    pub(super) fn crash(&mut self, random: &mut Random) {
        self.settle_some(random);
        self.seen.clone_from(&self.durable);
    }

    fn settle_some(&mut self, random: &mut Random) {
        let changes = std::mem::take(&mut self.unsynced);
        // One time in eight each, all or none of the changes become durable, which independent choices per sector
        // hardly ever produce.
        let all = random.below(8);
        let last = changes.len().saturating_sub(1);
        for (index, change) in changes.into_iter().enumerate() {
            match change {
                Change::Length(length) if all != 1 && (all == 0 || random.coin()) => {
                    resize(&mut self.durable, length)
                }
                Change::Length(_) => {}
                Change::Write { offset, bytes } => {
                    let whole = bytes.len() as u64;
                    // The last write may have been in progress, so it may end at any sector.
                    let end = if index == last && random.coin() {
                        ((offset + random.below(whole + 1)) / SECTOR * SECTOR).saturating_sub(offset)
                    } else {
                        whole
                    };
                    let mut at = 0;
                    while at < end {
                        let next = (((offset + at) / SECTOR + 1) * SECTOR - offset).min(end);
                        if all == 0 || (all > 1 && random.coin()) {
                            let part = usize::try_from(at).unwrap_or(0)..usize::try_from(next).unwrap_or(0);
                            put(&mut self.durable, offset + at, &bytes[part]);
                        }
                        at = next;
                    }
                }
            }
        }
    }
}

fn put(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let Ok(from) = usize::try_from(offset) else { return };
    if bytes.is_empty() {
        return;
    }
    let end = from + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[from..end].copy_from_slice(bytes);
}

fn resize(content: &mut Vec<u8>, length: u64) {
    content.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
}
