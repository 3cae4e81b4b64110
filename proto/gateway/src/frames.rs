//! Messages in the body of a gRPC call: a flag byte, the length in four bytes, the message.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt as _;
use tonic::body::Body;
use tonic::{Code, Status};

const HEAD: usize = 5;

/// A message as a frame.
#[must_use]
pub fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEAD + message.len());
    frame.put_u8(0);
    // A request is limited far below.
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

/// The messages of an answer as they come.
pub struct Frames {
    body: Body,
    arrived: BytesMut,
    status: Option<Status>,
}

impl Frames {
    #[must_use]
    pub fn of(answer: Response<Body>) -> Self {
        // An answer without messages may have its status among the headers.
        let status = Status::from_header_map(answer.headers());
        Self { body: answer.into_body(), arrived: BytesMut::new(), status }
    }

    fn ready(&mut self) -> Option<Bytes> {
        let length = usize::try_from(u32::from_be_bytes(self.arrived.get(1..HEAD)?.try_into().ok()?)).ok()?;
        if self.arrived.len() < HEAD + length {
            return None;
        }
        self.arrived.advance(HEAD);
        Some(self.arrived.split_to(length).freeze())
    }

    /// The next message; `None` when the call has ended well.
    ///
    /// # Errors
    /// The status with which the call has ended.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.ready() {
                return Ok(Some(message));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.arrived.extend_from_slice(&data),
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            self.status = Status::from_header_map(&trailers).or(self.status.take());
                        }
                    }
                },
                Some(Err(status)) => return Err(status),
                None => {
                    let ended = self.status.take();
                    let ended = ended.unwrap_or_else(|| Status::internal("the call ended without a status"));
                    return if ended.code() == Code::Ok { Ok(None) } else { Err(ended) };
                }
            }
        }
    }
}

/// The status of an answer; its messages are left out.
///
/// # Errors
/// The status with which the call has ended.
pub async fn status_of(answer: Response<Body>) -> Result<(), Status> {
    let mut frames = Frames::of(answer);
    while frames.next().await?.is_some() {}
    Ok(())
}
