//! Assembles an answer from fields of other answers. Adjacent fields stay one uncopied piece of the page that they
//! came in. Short runs are copied together, because a separate piece would cost more than the copy.

use std::ops::Range;

use bytes::Bytes;

use crate::rope::Rope;

/// A run of fields of at least this length becomes a piece of its own.
const RUN_MIN: usize = 4 << 10;
/// Copied fields are collected in pieces of about this length.
const GATHERED: usize = 64 << 10;

/// An answer under assembly.
#[derive(Debug, Default)]
pub struct Splice {
    done: Rope,
    gathered: Vec<u8>,
    /// Adjacent fields of a page.
    run: Option<(Bytes, Range<usize>)>,
}

impl Splice {
    #[must_use]
    pub fn len(&self) -> usize {
        self.done.len() + self.gathered.len() + self.run.as_ref().map_or(0, |(_, run)| run.len())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the field at `place` of a page; `place` includes the field's tag and length.
    ///
    /// # Panics
    /// When `place` is out of the page's bounds.
    pub fn field(&mut self, page: &Bytes, place: Range<usize>) {
        match &mut self.run {
            // Compares addresses: the page must be the same memory, not merely equal bytes.
            Some((from, run))
                if from.as_ptr() == page.as_ptr() && run.end == place.start && place.end <= from.len() =>
            {
                run.end = place.end;
            }
            _ => {
                self.end_run();
                self.run = Some((page.clone(), place));
            }
        }
    }

    /// A buffer at the end of the answer, for fields to write.
    pub fn end(&mut self) -> &mut Vec<u8> {
        self.end_run();
        &mut self.gathered
    }

    fn end_run(&mut self) {
        let Some((page, run)) = self.run.take() else { return };
        if run.len() >= RUN_MIN {
            self.end_gathered();
            self.done.push(page.slice(run));
            return;
        }
        if self.gathered.len() + run.len() > GATHERED {
            self.end_gathered();
        }
        if self.gathered.capacity() == 0 && !self.done.is_empty() {
            self.gathered.reserve(GATHERED);
        }
        self.gathered.extend_from_slice(&page[run]);
    }

    fn end_gathered(&mut self) {
        self.done.push(std::mem::take(&mut self.gathered).into());
    }

    #[must_use]
    pub fn finish(mut self) -> Rope {
        self.end_run();
        self.end_gathered();
        self.done
    }
}
