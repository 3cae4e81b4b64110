//! Bytes in memory of their own: the only unsafe code of the engine.
//!
//! A shared slice of the standard library takes 16 bytes beside its bytes and two pointers for a handle, and a box for
//! bytes that were cut off 16 more. A block takes 8, its handle is one pointer, and only a block that is cut has 12 more.
//!
//! Whoever has a handle may read. Nothing is changed after `new` but the number of handles, so handles may go to other
//! threads. The last handle frees the block.

use std::{
    alloc::{self, Layout},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, Ordering, fence},
};

/// The beginning of a block's memory. [`Rest`] follows if the block is cut, then its bytes.
#[repr(C)]
struct Head {
    handles: AtomicU32,
    /// The number of bytes here, and [`CUT`].
    len: u32,
}

/// The second part of a block, which it owns. Its fields lie close together.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct Rest {
    bytes: NonNull<u8>,
    len: u32,
}

/// A bit of [`Head::len`]: the block has a [`Rest`].
const CUT: u32 = 1 << 31;
/// What a block takes beside its bytes.
pub(super) const WHOLE_BYTES: usize = size_of::<Head>();
/// What a block that is cut takes beside its bytes.
pub(super) const CUT_BYTES: usize = size_of::<Head>() + size_of::<Rest>();
/// More handles are taken for a leak, as in the standard library. They would fill 16 GiB.
const HANDLES_MAX: u32 = i32::MAX.cast_unsigned();

/// A handle to immutable bytes in one or two parts.
pub(super) struct Block(NonNull<Head>);

// SAFETY: a block owns its bytes, which nobody changes, and the number of handles is atomic.
unsafe impl Send for Block {}
// SAFETY: the same.
unsafe impl Sync for Block {}

/// The memory of a block with these parts.
fn layout(is_cut: bool, len: usize) -> Layout {
    let beside = if is_cut { CUT_BYTES } else { WHOLE_BYTES };
    // `Rest` would need less, but its pointer is then aligned.
    let layout = Layout::from_size_align(beside + len, align_of::<usize>());
    layout.expect("the length is below 2 GiB")
}

impl Block {
    /// Copies the pieces into the first part, one after the other, and `rest` into the second.
    ///
    /// # Panics
    /// If a part has 2 GiB or more, which no message does.
    pub(super) fn new(pieces: &[&[u8]], rest: &[u8]) -> Self {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let short = |len: usize| u32::try_from(len).ok().filter(|len| len & CUT == 0);
        let (Some(here), Some(behind)) = (short(len), short(rest.len())) else {
            panic!("a version of 2 GiB or more");
        };
        let is_cut = behind > 0;
        let layout = layout(is_cut, len);
        let head = Head { handles: AtomicU32::new(1), len: here | if is_cut { CUT } else { 0 } };
        // SAFETY: the layout has a size above 0. It has room for the head, the rest if there is one, and then for all
        // pieces, whose lengths add up to `len`; so each write is within the memory and aligned. The memory is new, so
        // it overlaps with no piece. A box of bytes is never null.
        unsafe {
            let Some(memory) = NonNull::new(alloc::alloc(layout)) else { alloc::handle_alloc_error(layout) };
            let block = Self(memory.cast());
            block.0.write(head);
            if is_cut {
                let bytes = Box::into_raw(Box::<[u8]>::from(rest)).cast();
                block.rest_at().write(Rest { bytes: NonNull::new_unchecked(bytes), len: behind });
            }
            let mut at = block.bytes_at(is_cut);
            for piece in pieces {
                ptr::copy_nonoverlapping(piece.as_ptr(), at.as_ptr(), piece.len());
                at = at.add(piece.len());
            }
            block
        }
    }

    fn head(&self) -> &Head {
        // SAFETY: a handle points to a head, which `new` wrote and which lives as long as the handle.
        unsafe { self.0.as_ref() }
    }

    /// The place of the rest, if there is one.
    fn rest_at(&self) -> NonNull<Rest> {
        // SAFETY: the memory is at least as long as a head.
        unsafe { self.0.add(1).cast() }
    }

    /// The place of the bytes.
    fn bytes_at(&self, is_cut: bool) -> NonNull<u8> {
        let beside = if is_cut { CUT_BYTES } else { WHOLE_BYTES };
        // SAFETY: the memory begins with that much.
        unsafe { self.0.cast().add(beside) }
    }

    /// The second part, if there is one.
    fn rest(&self) -> Option<Rest> {
        // SAFETY: with this bit there is a rest, which `new` wrote.
        (self.head().len & CUT != 0).then(|| unsafe { self.rest_at().read() })
    }

    /// The first part.
    #[inline]
    pub(super) fn first(&self) -> &[u8] {
        let len = self.head().len;
        let at = self.bytes_at(len & CUT != 0);
        // SAFETY: `new` wrote that many bytes there; they live as long as the handle, and nobody changes them.
        unsafe { NonNull::slice_from_raw_parts(at, (len & !CUT) as usize).as_ref() }
    }

    /// The second part, which may be empty.
    #[inline]
    pub(super) fn second(&self) -> &[u8] {
        self.rest().map_or(&[], |Rest { bytes, len }| {
            // SAFETY: the block owns this box, whose bytes nobody changes.
            unsafe { NonNull::slice_from_raw_parts(bytes, len as usize).as_ref() }
        })
    }

    /// The lengths of both parts, which takes less than to look at their bytes.
    pub(super) fn lengths(&self) -> [usize; 2] {
        [(self.head().len & !CUT) as usize, self.rest().map_or(0, |rest| rest.len as usize)]
    }
}

impl Clone for Block {
    fn clone(&self) -> Self {
        // Whoever counts has a handle, so the block lives; nothing else depends on the order.
        if self.head().handles.fetch_add(1, Ordering::Relaxed) > HANDLES_MAX {
            std::process::abort();
        }
        Self(self.0)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // What others read through their handles comes before this one's end, and all ends before the memory's.
        if self.head().handles.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        let [len, _] = self.lengths();
        let rest = self.rest();
        // SAFETY: this was the last handle, and no other can come. The rest was a box of this length, and the block's
        // memory has the layout with which `new` got it.
        unsafe {
            if let Some(Rest { bytes, len }) = rest {
                drop(Box::from_raw(ptr::slice_from_raw_parts_mut(bytes.as_ptr(), len as usize)));
            }
            alloc::dealloc(self.0.cast().as_ptr(), layout(rest.is_some(), len));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_as_little_as_it_says() {
        assert_eq!((WHOLE_BYTES, CUT_BYTES), (8, 20));
        assert_eq!((size_of::<Block>(), size_of::<Option<Block>>()), (8, 8));
    }

    /// Covers every alignment of the bytes and of their ends; valgrind sees reads beyond them.
    #[test]
    fn both_parts_are_what_was_put_in() {
        let bytes: Vec<u8> = (0..=255).collect();
        for len in 0..70 {
            for rest in 0..20 {
                let (one, two) = bytes[..len].split_at(len / 3);
                let block = Block::new(&[one, &[], two], &bytes[100..100 + rest]);
                let other = block.clone();
                drop(block);
                assert_eq!((other.first(), other.second()), (&bytes[..len], &bytes[100..100 + rest]));
                assert_eq!(other.lengths(), [len, rest]);
            }
        }
    }

    #[test]
    fn handles_of_many_threads_free_it_once() {
        for rest in [&b""[..], b"rest"] {
            let block = Block::new(&[b"bytes"], rest);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    let mine = block.clone();
                    scope.spawn(move || {
                        for _ in 0..1000 {
                            let again = mine.clone();
                            assert_eq!((again.first(), again.second()), (&b"bytes"[..], rest));
                        }
                    });
                }
            });
            assert_eq!(block.head().handles.load(Ordering::Relaxed), 1);
        }
    }
}
