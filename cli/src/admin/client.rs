//! An HTTP client for admin ports: one connection for each request, everything with a deadline, errors in the API's
//! words.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kindred_transport::connect::ClientConnection;
use kindred_transport::{Connector, Endpoint};
use serde_json::Value;

use super::{context::Address, failure::Failure};

/// The deadline of a request. The router itself waits for its meta store and its stores, a few seconds each.
const DEADLINE: Duration = Duration::from_secs(30);
/// The same for a change: a router has 45 s for a failover by force (`router/src/standbys/failover.rs`), the longest of
/// them, and its answer says what became of it.
const CHANGE_DEADLINE: Duration = Duration::from_secs(60);
/// The maximum length of an answer.
const BODY_MAX: usize = 64 << 20;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Objects,
    /// A table, as `kubectl` requests it.
    Table,
}

/// A client of a cluster's admin ports.
#[derive(Debug)]
pub struct Client {
    endpoints: Vec<Endpoint>,
    connector: Connector,
    /// The Authorization header, if there is a token.
    authorization: Option<HeaderValue>,
}

impl Client {
    /// A client that connects at each request.
    ///
    /// # Errors
    /// When an address is invalid or a TLS file is unusable.
    pub fn new(address: &Address) -> Result<Self, Failure> {
        let usage = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
        let urls = address.urls.split(',').map(str::trim).filter(|url| !url.is_empty());
        let endpoints: Result<Vec<_>, _> = urls.map(|url| Endpoint::parse_field("--admin", url)).collect();
        let endpoints = endpoints.map_err(|error| usage(&error))?;
        if endpoints.is_empty() {
            return Err(Failure::Usage(
                "--admin: no address; give one such as http://127.0.0.1:2381".to_owned(),
            ));
        }
        let tls = address.tls.load().map_err(|error| usage(&error))?;
        let authorization = match address.token()? {
            None => None,
            Some(token) => {
                let value = HeaderValue::from_str(&format!("Bearer {token}"));
                let mut value =
                    value.map_err(|_| usage(&"--token-file: a token is one word of ASCII letters"))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self { endpoints, connector: Connector::with_tls(tls), authorization })
    }

    /// Sends a GET.
    ///
    /// # Errors
    /// When no router answers, or the answer is an error.
    pub async fn get(&self, path: &str, form: Form) -> Result<Value, Failure> {
        self.send(Method::GET, path, form, None).await
    }

    /// Sends a change.
    ///
    /// # Errors
    /// When no router answers, or the change is refused.
    pub async fn change(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        self.send(method, path, Form::Objects, body).await
    }

    /// The status and the text of an answer, even of an error.
    ///
    /// # Errors
    /// When no router answers.
    pub async fn text(&self, path: &str) -> Result<(StatusCode, String), Failure> {
        let (_, status, bytes) = self.exchange(Method::GET, path, Form::Objects, None).await?;
        Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Sends a request whose answer comes in pieces, and gives each to `take`, until the answer ends.
    ///
    /// # Errors
    /// When no router answers, the request is refused, the connection breaks, or `take` fails.
    pub async fn stream(
        &self,
        method: Method,
        path: &str,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (endpoint, connection) = self.connected().await?;
        let broken = |error: &dyn std::fmt::Display| lost(endpoint, &Method::GET, &error.to_string());
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(connection)).await.map_err(|error| broken(&error))?;
        let driven = tokio::spawn(connection);
        let request = request(endpoint, self.authorization.as_ref(), method, path, Form::Objects, None)
            .map_err(|error| broken(&error))?;
        let asked = tokio::time::timeout(DEADLINE, sender.send_request(request)).await;
        let answer = asked.map_err(|_| broken(&"no answer"))?.map_err(|error| broken(&error))?;
        let (status, mut body) = (answer.status(), answer.into_body());
        if !status.is_success() {
            let bytes = Limited::new(body, BODY_MAX).collect().await.map_err(|error| broken(&error))?;
            return understood(status, &bytes.to_bytes(), endpoint).map(drop);
        }
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| broken(&error))?;
            frame.data_ref().map_or(Ok(()), |data| take(data))?;
        }
        driven.abort();
        Ok(())
    }

    /// A connection to the first router that can be reached. No other one is tried later, because the first may have
    /// executed the request.
    async fn connected(&self) -> Result<(&Endpoint, ClientConnection), Failure> {
        let mut failed = String::new();
        for endpoint in &self.endpoints {
            match self.connector.connect(endpoint).await {
                Ok(connection) => return Ok((endpoint, connection)),
                Err(error) => failed = error.to_string(),
            }
        }
        Err(Failure::Unreachable(format!(
            "no router can be reached: {failed}; is it running, and is this its admin port? Give --admin or KINDRED_ADMIN"
        )))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        form: Form,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let (endpoint, status, bytes) = self.exchange(method, path, form, body).await?;
        understood(status, &bytes, endpoint)
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        form: Form,
        body: Option<&Value>,
    ) -> Result<(&Endpoint, StatusCode, Bytes), Failure> {
        let (endpoint, connection) = self.connected().await?;
        let asked =
            exchange(connection, endpoint, self.authorization.as_ref(), method.clone(), path, form, body);
        let deadline = deadline(&method);
        match tokio::time::timeout(deadline, asked).await {
            Ok(Ok((status, bytes))) => Ok((endpoint, status, bytes)),
            Ok(Err(error)) => Err(lost(endpoint, &method, &error.to_string())),
            Err(_) => Err(lost(endpoint, &method, &format!("no answer within {} s", deadline.as_secs()))),
        }
    }
}

fn deadline(method: &Method) -> Duration {
    if *method == Method::GET { DEADLINE } else { CHANGE_DEADLINE }
}

fn request(
    endpoint: &Endpoint,
    authorization: Option<&HeaderValue>,
    method: Method,
    path: &str,
    form: Form,
    body: Option<&Value>,
) -> Result<Request<Full<Bytes>>, http::Error> {
    let accept = match form {
        Form::Objects => "application/json",
        Form::Table => "application/json;as=Table;v=v1;g=meta.k8s.io",
    };
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, endpoint.authority())
        .header(header::USER_AGENT, concat!("kindred/", env!("CARGO_PKG_VERSION")))
        .header(header::ACCEPT, accept)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body.map(|body| Bytes::from(body.to_string())).unwrap_or_default()))?;
    request.headers_mut().extend(authorization.map(|value| (header::AUTHORIZATION, value.clone())));
    Ok(request)
}

fn lost(endpoint: &Endpoint, method: &Method, why: &str) -> Failure {
    let then =
        if *method == Method::GET { "" } else { "; see whether the change was made before trying again" };
    Failure::Unreachable(format!("{endpoint}: {why}{then}"))
}

async fn exchange(
    connection: ClientConnection,
    endpoint: &Endpoint,
    authorization: Option<&HeaderValue>,
    method: Method,
    path: &str,
    form: Form,
    body: Option<&Value>,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(connection)).await?;
    let request = request(endpoint, authorization, method, path, form, body)?;
    // The connection task ends with the answer; its result does not matter.
    let driven = tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let bytes = Limited::new(answer.into_body(), BODY_MAX).collect().await?.to_bytes();
    driven.abort();
    Ok((status, bytes))
}

/// The object in an answer, or the error that it reports.
fn understood(status: StatusCode, bytes: &[u8], endpoint: &Endpoint) -> Result<Value, Failure> {
    let value: Option<Value> = serde_json::from_slice(bytes).ok();
    match (status.is_success(), value) {
        (true, Some(value)) => Ok(value),
        (false, Some(value)) if value["kind"] == "Status" => {
            let message = value["message"].as_str().unwrap_or("refused").to_owned();
            Err(match status {
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                    Failure::Unreachable(message)
                }
                _ => Failure::Refused(message),
            })
        }
        (_, _) => {
            let text = String::from_utf8_lossy(bytes);
            let first = text.lines().next().unwrap_or_default();
            let what = if status == StatusCode::NOT_FOUND {
                "it knows no such path; is this the admin port of a router of this version?"
            } else {
                first
            };
            Err(Failure::Refused(format!("{endpoint} answered {status}: {what}")))
        }
    }
}

/// Percent-encodes a name as a path segment.
#[must_use]
pub fn escaped(name: &str) -> String {
    use std::fmt::Write as _;
    let mut path = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(path, "%{byte:02X}");
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_one_part_of_a_path() {
        assert_eq!(escaped("pods-2"), "pods-2");
        assert_eq!(escaped("a/b?c é"), "a%2Fb%3Fc%20%C3%A9");
    }

    #[test]
    fn what_an_answer_means() {
        let endpoint: Endpoint = "http://127.0.0.1:2381".parse().unwrap();
        let status = |code: u16, body: &str| {
            understood(StatusCode::from_u16(code).unwrap(), body.as_bytes(), &endpoint)
        };
        assert_eq!(status(200, "{}"), Ok(serde_json::json!({})));
        let invalid = r#"{"kind":"Status","message":"kind: unknown"}"#;
        assert_eq!(status(422, invalid), Err(Failure::Refused("kind: unknown".to_owned())));
        assert_eq!(status(503, invalid).unwrap_err().code(), 3);
        assert!(status(404, "").unwrap_err().to_string().contains("no such path"));
    }
}
