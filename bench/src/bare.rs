//! A minimal gRPC client on bare HTTP/2, which takes little CPU from the servers measured beside it. Messages are
//! cut out of the stream's bytes and read in place.

use anyhow::{Context, bail};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::{
    RecvStream, SendStream,
    client::{self, ResponseFuture, SendRequest},
};
use http::{HeaderMap, Request};
use prost::Message;
use tokio::net::TcpStream;

/// The same windows as the other clients of this bench.
const CONNECTION_WINDOW: u32 = 16 << 20;
const STREAM_WINDOW: u32 = 4 << 20;
/// The length of a gRPC prefix: a flag and the message's length.
const HEAD: usize = 5;

/// Opens a connection, which closes when its last handle is dropped.
pub async fn connect(endpoint: &str) -> anyhow::Result<SendRequest<Bytes>> {
    let stream = TcpStream::connect(endpoint).await.context("connecting to the server under test")?;
    stream.set_nodelay(true)?;
    let mut settings = client::Builder::new();
    settings.initial_connection_window_size(CONNECTION_WINDOW).initial_window_size(STREAM_WINDOW);
    let (send, connection) = settings.handshake(stream).await?;
    tokio::spawn(connection);
    Ok(send)
}

/// Encodes a message with its prefix.
pub fn framed(message: &impl Message) -> anyhow::Result<Bytes> {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(HEAD + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length)?);
    message.encode(&mut bytes)?;
    Ok(bytes.freeze())
}

pub struct Call {
    /// The stream for its request messages.
    pub requests: SendStream<Bytes>,
    response: ResponseFuture,
}

pub async fn begin(connection: &SendRequest<Bytes>, endpoint: &str, path: &str) -> anyhow::Result<Call> {
    let request = Request::post(format!("http://{endpoint}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let mut connection = connection.clone().ready().await?;
    let (response, requests) = connection.send_request(request, false)?;
    Ok(Call { requests, response })
}

impl Call {
    /// Waits for the answer's headers, and returns its message stream.
    pub async fn answers(self) -> anyhow::Result<(SendStream<Bytes>, Answers)> {
        let response = self.response.await?;
        is_ok(response.headers())?;
        let answers = Answers { body: response.into_body(), cut: Cut::default() };
        Ok((self.requests, answers))
    }
}

/// Fails if the headers or trailers have an error status; a missing status is not an error.
fn is_ok(headers: &HeaderMap) -> anyhow::Result<()> {
    match headers.get("grpc-status").map(|status| status.as_bytes()) {
        None | Some(b"0") => Ok(()),
        Some(status) => {
            let text = headers.get("grpc-message").map(|text| String::from_utf8_lossy(text.as_bytes()));
            bail!("status {}: {}", String::from_utf8_lossy(status), text.unwrap_or_default())
        }
    }
}

/// The messages of an answer, as they arrive.
pub struct Answers {
    body: RecvStream,
    cut: Cut,
}

impl Answers {
    /// Waits for more bytes, and passes all complete messages to `each`; false at the end of the answer.
    pub async fn next(&mut self, each: impl FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<bool> {
        let Some(piece) = self.body.data().await else {
            if let Some(trailers) = self.body.trailers().await? {
                is_ok(&trailers)?;
            }
            return Ok(false);
        };
        let piece = piece?;
        self.body.flow_control().release_capacity(piece.len())?;
        self.cut.push(piece, each)?;
        Ok(true)
    }

    /// Waits for the end, and returns the number of bytes that arrived. Keeps none of them.
    pub async fn drain(mut self) -> anyhow::Result<u64> {
        let mut bytes = 0;
        while let Some(piece) = self.body.data().await {
            let piece = piece?;
            self.body.flow_control().release_capacity(piece.len())?;
            bytes += piece.len() as u64;
        }
        if let Some(trailers) = self.body.trailers().await? {
            is_ok(&trailers)?;
        }
        Ok(bytes)
    }
}

/// Cuts messages out of byte chunks.
#[derive(Default)]
struct Cut {
    /// The beginning of an incomplete message.
    rest: BytesMut,
}

impl Cut {
    fn push(
        &mut self,
        mut piece: Bytes,
        mut each: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        // Messages that are complete within a chunk are not copied.
        if !self.rest.is_empty() {
            self.rest.extend_from_slice(&piece);
            if whole(&self.rest).is_none() {
                return Ok(());
            }
            piece = self.rest.split().freeze();
        }
        while let Some(length) = whole(&piece) {
            each(&piece[HEAD..HEAD + length])?;
            piece.advance(HEAD + length);
        }
        self.rest.extend_from_slice(&piece);
        Ok(())
    }
}

/// The length of the first message, if it is complete.
fn whole(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(*bytes.get(1..HEAD)?.first_chunk()?);
    let length = usize::try_from(length).ok()?;
    (bytes.len() >= HEAD + length).then_some(length)
}

#[cfg(test)]
mod tests {
    use kindred_proto::etcdserverpb::PutRequest;

    use super::*;

    #[test]
    fn messages_are_whole_however_their_bytes_come() {
        let message =
            |value: usize| PutRequest { key: "k".into(), value: vec![7; value].into(), ..Default::default() };
        let all: Vec<PutRequest> = [0, 1, 300, 0, 70_000].map(message).into();
        let bytes: Vec<u8> = all.iter().flat_map(|message| framed(message).unwrap()).collect();
        for size in [1, 3, 5, 6, 16_384, bytes.len()] {
            let (mut cut, mut seen) = (Cut::default(), Vec::new());
            for piece in bytes.chunks(size) {
                let each = |message: &[u8]| {
                    seen.push(PutRequest::decode(message)?);
                    Ok(())
                };
                cut.push(Bytes::copy_from_slice(piece), each).unwrap();
            }
            assert_eq!(seen, all, "pieces of {size}");
            assert!(cut.rest.is_empty());
        }
    }

    #[test]
    fn a_status_that_is_not_zero_fails() {
        let headers = |status: &'static str| {
            HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                http::HeaderValue::from_static(status),
            )])
        };
        is_ok(&HeaderMap::new()).unwrap();
        is_ok(&headers("0")).unwrap();
        assert!(is_ok(&headers("14")).is_err());
    }
}
