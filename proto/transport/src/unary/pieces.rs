//! Extracts the single message of an answer from DATA frames as a rope of uncopied pieces.

use bytes::{Buf as _, Bytes};
use kindred_wire::rope::Rope;

use super::message::{MessageError, PREFIX_BYTES};

/// Accepts frames and returns the message.
#[derive(Debug, Default)]
pub struct PieceReader {
    prefix: [u8; PREFIX_BYTES],
    /// The number of prefix bytes that have arrived.
    begun: usize,
    /// The number of message bytes still to come, once the prefix is complete.
    left: usize,
    message: Rope,
}

impl PieceReader {
    /// Adds the next frame.
    ///
    /// # Errors
    /// When the bytes so far are invalid.
    pub fn push(&mut self, mut frame: Bytes) -> Result<(), MessageError> {
        if self.begun < PREFIX_BYTES {
            let taken = frame.len().min(PREFIX_BYTES - self.begun);
            frame.copy_to_slice(&mut self.prefix[self.begun..self.begun + taken]);
            self.begun += taken;
            if self.begun < PREFIX_BYTES {
                return Ok(());
            }
            let [flag, length @ ..] = self.prefix;
            match flag {
                0 => self.left = u32::from_be_bytes(length) as usize,
                1 => return Err(MessageError::Compressed),
                flag => return Err(MessageError::Flag(flag)),
            }
        }
        self.left = self.left.checked_sub(frame.len()).ok_or(MessageError::Surplus)?;
        self.message.push(frame);
        Ok(())
    }

    /// The message, at the end of the body.
    ///
    /// # Errors
    /// When there is none, or it is incomplete.
    pub fn finish(self) -> Result<Rope, MessageError> {
        match (self.begun, self.left) {
            (0, _) => Err(MessageError::NoAnswer),
            (PREFIX_BYTES, 0) => Ok(self.message),
            _ => Err(MessageError::Truncated),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(frames: impl IntoIterator<Item = Bytes>) -> Result<Rope, MessageError> {
        let mut reader = PieceReader::default();
        frames.into_iter().try_for_each(|frame| reader.push(frame))?;
        reader.finish()
    }

    fn framed(message: &[u8]) -> Bytes {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[0], &length[..], message].concat().into()
    }

    proptest! {
        #[test]
        fn a_message_is_what_was_sent_however_it_is_cut(
            message in prop::collection::vec(any::<u8>(), 0..60),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let whole = framed(&message);
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
            at.extend([0, whole.len()]);
            at.sort_unstable();
            let frames: Vec<Bytes> = at.windows(2).map(|pair| whole.slice(pair[0]..pair[1])).collect();
            let inside = |bytes: &[u8]| whole.as_ptr_range().contains(&bytes.as_ptr());
            let mut read_all = read(frames.iter().cloned()).unwrap();
            prop_assert_eq!(read_all.len(), message.len());
            let mut taken = Vec::new();
            while read_all.has_remaining() {
                // Each piece is a part of a frame, not a copy.
                prop_assert!(inside(read_all.chunk()));
                taken.extend_from_slice(read_all.chunk());
                read_all.advance(read_all.chunk().len());
            }
            prop_assert_eq!(&taken, &message);
            // One byte too few, then one too many.
            let part = whole.slice(..whole.len() - 1);
            prop_assert_eq!(read([part]).unwrap_err(), MessageError::Truncated);
            let more = frames.into_iter().chain([Bytes::from_static(b"x")]);
            prop_assert_eq!(read(more).unwrap_err(), MessageError::Surplus);
        }
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        assert_eq!(read([]).unwrap_err(), MessageError::NoAnswer);
        assert_eq!(read([Bytes::from_static(&[0, 0])]).unwrap_err(), MessageError::Truncated);
        assert_eq!(read([Bytes::from_static(&[1, 0, 0, 0, 0])]).unwrap_err(), MessageError::Compressed);
        assert_eq!(read([Bytes::from_static(&[7, 0, 0, 0, 0])]).unwrap_err(), MessageError::Flag(7));
    }
}
