use proptest::prelude::*;

use super::*;

const LIMIT: usize = 1000;

fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

/// Cuts bytes into frames of these lengths, repeatedly; empty frames are allowed.
fn frames(bytes: &[u8], lengths: &[usize]) -> Vec<Bytes> {
    let (mut rest, mut frames, mut turn) = (bytes, Vec::new(), 0);
    while !rest.is_empty() {
        let at = lengths[turn % lengths.len()].min(rest.len());
        // Ensures progress if all lengths are zero.
        let at = if turn % lengths.len() == lengths.len() - 1 { at.max(1) } else { at };
        let (frame, behind) = rest.split_at(at);
        frames.push(Bytes::copy_from_slice(frame));
        (rest, turn) = (behind, turn + 1);
    }
    frames
}

fn read(frames: Vec<Bytes>) -> Result<Bytes, MessageError> {
    let mut reader = MessageReader::new(LIMIT);
    for frame in frames {
        reader.push(frame)?;
    }
    reader.finish()
}

/// The result of tonic's decoder for the same frames: code and text.
fn tonic_reads(frames: Vec<Bytes>) -> Result<Bytes, (tonic::Code, String)> {
    use kindred_proto::raw::RawDecoder;
    use tokio_stream::StreamExt as _;

    struct Frames(std::vec::IntoIter<Bytes>);
    impl hyper::body::Body for Frames {
        type Data = Bytes;
        type Error = Status;
        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Status>>> {
            std::task::Poll::Ready(self.0.next().map(|frame| Ok(hyper::body::Frame::data(frame))))
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let answer = runtime.block_on(async {
        let body = Frames(frames.into_iter());
        let mut stream = tonic::Streaming::new_request(RawDecoder, body, None, Some(LIMIT));
        let message =
            stream.next().await.transpose()?.ok_or_else(|| Status::internal("Missing request message."))?;
        stream.trailers().await?;
        Ok(message)
    });
    answer.map_err(|status: Status| (status.code(), status.message().to_owned()))
}

#[test]
fn a_message_in_one_frame_is_not_copied() {
    let frame = Bytes::from(framed(b"hello"));
    let mut reader = MessageReader::new(LIMIT);
    reader.push(frame.clone()).unwrap();
    let message = reader.finish().unwrap();
    assert_eq!(message.as_ptr(), frame[PREFIX_BYTES..].as_ptr());
    assert_eq!(read(vec![Bytes::from(framed(b""))]).unwrap(), Bytes::new());
}

#[test]
fn what_is_wrong_is_said() {
    let error = |bytes: &[u8]| read(vec![Bytes::copy_from_slice(bytes)]).unwrap_err();
    assert_eq!(error(b""), MessageError::Missing);
    assert_eq!(error(&[0, 0, 0]), MessageError::Truncated);
    assert_eq!(error(&[0, 0, 0, 0, 2]), MessageError::Missing);
    assert_eq!(error(&[0, 0, 0, 0, 2, b'x']), MessageError::Truncated);
    assert_eq!(error(&[1, 0, 0, 0, 0]), MessageError::Compressed);
    assert_eq!(error(&[7, 0, 0, 0, 0]), MessageError::Flag(7));
    let long = error(&[0, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(long, MessageError::TooLong { found: 0xffff_ffff, limit: LIMIT });
    let status = Status::from(long);
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert_eq!(status.message(), "grpc: received message larger than max (4294967295 vs. 1000)");
    assert_eq!(error(&[&framed(b"one")[..], &[0, 0]].concat()), MessageError::Truncated);
    assert_eq!(error(&[&framed(b"one")[..], &[9, 0, 0, 0, 0]].concat()), MessageError::Flag(9));
    let two = [framed(b"one"), framed(b"two")].concat();
    assert_eq!(read(vec![two.into()]).unwrap(), Bytes::from_static(b"one"));
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_message(
        message in prop::collection::vec(any::<u8>(), 0..=LIMIT),
        lengths in prop::collection::vec(0usize..400, 1..6),
    ) {
        prop_assert_eq!(read(frames(&framed(&message), &lengths)).unwrap(), Bytes::from(message));
    }

    #[test]
    fn any_bytes_give_what_tonic_gives(
        parts in prop::collection::vec(
            prop_oneof![
                4 => prop::collection::vec(any::<u8>(), 0..40).prop_map(|message| framed(&message)),
                1 => prop::collection::vec(any::<u8>(), 0..8),
                1 => prop::collection::vec(0u8..3, 0..8),
                1 => Just(vec![0, 0, 0, 0, 9]),
                1 => Just(vec![0, 0, 0, 0x10, 0]),
            ],
            0..4,
        ),
        lengths in prop::collection::vec(0usize..20, 1..6),
    ) {
        let frames = frames(&parts.concat(), &lengths);
        match (read(frames.clone()), tonic_reads(frames)) {
            (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours, theirs),
            (Err(ours), Err((code, text))) => {
                let status = Status::from(ours);
                if let MessageError::TooLong { found, limit } = ours {
                    prop_assert_eq!(code, tonic::Code::OutOfRange);
                    let expected = format!("found {found} bytes, the limit is: {limit} bytes");
                    prop_assert!(text.ends_with(&expected), "{}", text);
                } else {
                    prop_assert_eq!((status.code(), status.message()), (code, text.as_str()));
                }
            }
            (ours, theirs) => prop_assert!(false, "{ours:?} against {theirs:?}"),
        }
    }
}
