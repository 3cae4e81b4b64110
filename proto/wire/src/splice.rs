//! An answer out of fields of others: what lay side by side goes on as one piece of the page that it came in, uncopied; what
//! is short is gathered, since a piece of its own would cost more than a copy.

use std::ops::Range;

use bytes::Bytes;

use crate::rope::Rope;

/// A run of fields of at least this many bytes is a piece of its own.
const RUN_MIN: usize = 4 << 10;
/// Bytes that are gathered in one piece.
const GATHERED: usize = 64 << 10;

/// An answer that is being put together.
#[derive(Debug, Default)]
pub struct Splice {
    done: Rope,
    gathered: Vec<u8>,
    /// Fields that lie side by side in a page.
    run: Option<(Bytes, Range<usize>)>,
}

impl Splice {
    /// How many bytes it has so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.done.len() + self.gathered.len() + self.run.as_ref().map_or(0, |(_, run)| run.len())
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a field of a page behind all others: the bytes at `place`, its tag and length included.
    ///
    /// # Panics
    /// When the page does not have the place.
    pub fn field(&mut self, page: &Bytes, place: Range<usize>) {
        match &mut self.run {
            // The same bytes, not merely equal ones.
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

    /// The end of all so far, for fields that are written.
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

    /// The whole.
    #[must_use]
    pub fn finish(mut self) -> Rope {
        self.end_run();
        self.end_gathered();
        self.done
    }
}
