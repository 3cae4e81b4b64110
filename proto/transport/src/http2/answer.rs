//! Heads and trailers of answers, as HTTP/2 sends them.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use kindred_http2::{Block, Trailers};
use tonic::Status;

/// The fields of a map. A name or a value that HTTP/2 does not allow is left out.
fn fields(mut block: Block, headers: &HeaderMap, skip: impl Fn(&str) -> bool) -> Block {
    for (name, value) in headers.iter().filter(|(name, _)| !skip(name.as_str())) {
        if let Err(error) = block.add(name.as_str(), value.as_bytes()) {
            tracing::debug!(%name, %error, "a header field is not sent");
        }
    }
    block
}

/// The head of an answer.
pub(super) enum Head {
    /// One of gRPC, with these fields beside.
    Grpc(Block),
    /// Any other.
    Other(Block),
}

/// The head of an answer with this status and these headers.
pub(super) fn head(status: StatusCode, headers: &HeaderMap) -> Head {
    let grpc = headers.get(CONTENT_TYPE).is_some_and(|content| content == "application/grpc");
    if status == StatusCode::OK && grpc {
        Head::Grpc(fields(Block::new(), headers, |name| name == "content-type"))
    } else {
        // HTTP/2 has no such fields (RFC 9113, 8.2.2).
        let of_connection =
            |name: &str| matches!(name, "connection" | "keep-alive" | "transfer-encoding" | "upgrade");
        Head::Other(fields(Block::http(status.as_u16()), headers, of_connection))
    }
}

/// The trailers of an answer that has its status in its head, and no body.
pub(super) fn trailers_only(headers: &HeaderMap) -> Trailers {
    fields(Block::new(), headers, |name| name == "content-type").into()
}

/// The trailers of an answer.
pub(super) fn trailers(headers: &HeaderMap) -> Trailers {
    match headers.get(Status::GRPC_STATUS) {
        Some(status) if headers.len() == 1 && status == "0" => Trailers::Ok,
        _ => fields(Block::new(), headers, |_| false).into(),
    }
}

/// The trailers of a call that failed.
pub(super) fn refusal(status: &Status) -> Trailers {
    let mut headers = HeaderMap::new();
    match status.add_header(&mut headers) {
        Ok(()) => trailers(&headers),
        Err(_) => Block::status(status.code() as u32, "").into(),
    }
}
