//! gRPC on bare HTTP/2, for clients that shall take as little CPU as they can from the servers that are measured beside
//! them: messages are cut out of the stream's bytes and looked at where they lie.

use anyhow::{Context, bail};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::{
    RecvStream, SendStream,
    client::{self, ResponseFuture, SendRequest},
};
use http::{HeaderMap, Request};
use prost::Message;
use tokio::net::TcpStream;

/// As the other clients of this bench have them.
const CONNECTION_WINDOW: u32 = 16 << 20;
const STREAM_WINDOW: u32 = 4 << 20;
/// A flag and a length stand before each message.
const HEAD: usize = 5;

/// A connection; ends with its last handle.
pub async fn connect(endpoint: &str) -> anyhow::Result<SendRequest<Bytes>> {
    let stream = TcpStream::connect(endpoint).await.context("connecting to the server under test")?;
    stream.set_nodelay(true)?;
    let mut settings = client::Builder::new();
    settings.initial_connection_window_size(CONNECTION_WINDOW).initial_window_size(STREAM_WINDOW);
    let (send, connection) = settings.handshake(stream).await?;
    tokio::spawn(connection);
    Ok(send)
}

/// A message with its head.
pub fn framed(message: &impl Message) -> anyhow::Result<Bytes> {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(HEAD + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length)?);
    message.encode(&mut bytes)?;
    Ok(bytes.freeze())
}

/// A call under way.
pub struct Call {
    /// Where its messages go.
    pub requests: SendStream<Bytes>,
    response: ResponseFuture,
}

/// Begins a call.
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
    /// The answer's messages, once it begins.
    pub async fn answers(self) -> anyhow::Result<(SendStream<Bytes>, Answers)> {
        let response = self.response.await?;
        is_ok(response.headers())?;
        let answers = Answers { body: response.into_body(), cut: Cut::default() };
        Ok((self.requests, answers))
    }
}

/// Fails by the status in some headers or trailers; one that is not there is not a failure.
fn is_ok(headers: &HeaderMap) -> anyhow::Result<()> {
    match headers.get("grpc-status").map(|status| status.as_bytes()) {
        None | Some(b"0") => Ok(()),
        Some(status) => {
            let text = headers.get("grpc-message").map(|text| String::from_utf8_lossy(text.as_bytes()));
            bail!("status {}: {}", String::from_utf8_lossy(status), text.unwrap_or_default())
        }
    }
}

/// The messages of an answer as they come.
pub struct Answers {
    body: RecvStream,
    cut: Cut,
}

impl Answers {
    /// Waits for more bytes and gives all messages that are whole then; false at the end of the answer.
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

    /// Waits for the end and gives the number of bytes that came, none of them kept.
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

/// Cuts messages out of pieces of bytes.
#[derive(Default)]
struct Cut {
    /// The beginning of a message that is not whole yet.
    rest: BytesMut,
}

impl Cut {
    fn push(
        &mut self,
        mut piece: Bytes,
        mut each: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        // What is whole in its piece is not copied.
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

/// The length of the first message, if all of it is there.
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
