//! The messages in the body of a gRPC answer.

use bytes::{Buf as _, Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt as _;
use kindred_transport::unary::message::PREFIX_BYTES;
use tonic::body::Body;
use tonic::{Code, Status};

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
        let length =
            usize::try_from(u32::from_be_bytes(self.arrived.get(1..PREFIX_BYTES)?.try_into().ok()?)).ok()?;
        if self.arrived.len() < PREFIX_BYTES + length {
            return None;
        }
        self.arrived.advance(PREFIX_BYTES);
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
