//! What a call says of its caller: a token, or the certificate of its connection.

use std::sync::Arc;

use http::{Extensions, HeaderMap};
use kindred_transport::ConnectionInfo;
use kindred_transport::grpc::header;
use tonic::Request;

/// The names of the metadata with a token, that of etcd's clients first (`rpctypes.TokenFieldNameGRPC`). The JSON gateway
/// passes on the other one.
pub const TOKEN: [&str; 2] = ["token", "authorization"];

/// What a call says of its caller. Nothing of it is checked yet.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// A token that cannot be read is empty, which no good one is.
    pub token: Option<String>,
    /// The common name in the certificate that the listener has verified.
    pub common_name: Option<Arc<str>>,
}

/// Shows no token.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (token, common_name) = (self.token.is_some(), &self.common_name);
        f.debug_struct("Credentials").field("token", &token).field("common_name", common_name).finish()
    }
}

impl Credentials {
    /// Those of a call.
    #[must_use]
    pub fn of<T>(request: &Request<T>) -> Self {
        Self::in_parts(request.metadata().as_ref(), request.extensions())
    }

    /// Those in the parts of a call.
    #[must_use]
    pub fn in_parts(headers: &HeaderMap, extensions: &Extensions) -> Self {
        let common_name = ConnectionInfo::of(extensions).and_then(ConnectionInfo::common_name);
        Self { token: token_in(headers), common_name: common_name.map(Arc::from) }
    }

    /// With the certificate of a connection that is known otherwise.
    #[must_use]
    pub fn or_of_connection(mut self, common_name: Option<&Arc<str>>) -> Self {
        self.common_name = self.common_name.or_else(|| common_name.cloned());
        self
    }
}

fn token_in(headers: &HeaderMap) -> Option<String> {
    let value = TOKEN.iter().find_map(|name| header(headers, name))?;
    let text = value.to_str().unwrap_or_default();
    Some(text.strip_prefix("Bearer ").unwrap_or(text).to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn token(headers: &[(&'static str, &[u8])]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        token_in(&map)
    }

    #[test]
    fn a_token_is_found_as_etcd_finds_it() {
        assert_eq!(token(&[("other", b"x")]), None);
        assert_eq!(token(&[("token", b"x")]).as_deref(), Some("x"));
        assert_eq!(token(&[("authorization", b"Bearer x")]).as_deref(), Some("x"));
        assert_eq!(token(&[("authorization", b"y"), ("token", b"x")]).as_deref(), Some("x"));
        assert_eq!(token(&[("token", b"x"), ("token", b"y")]).as_deref(), Some("x"));
        assert_eq!(token(&[("token", b"")]).as_deref(), Some(""), "it is there, so no certificate counts");
        assert_eq!(token(&[("token", b"\xff")]).as_deref(), Some(""));
    }
}
