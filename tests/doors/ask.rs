//! Asks a port as somebody, and tells whether that was refused.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use kindred_transport::{
    Connector, Endpoint,
    tls::{ClientTls, ClientTlsSettings},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::{Code, Status, body::Body, transport::Channel};
use tower::ServiceExt as _;

use crate::doors::calls::{Call, Class};

const LIMIT: Duration = Duration::from_secs(20);
/// A message that no method understands: what is admitted is not executed.
const NONSENSE: &[u8] = b"\0\0\0\0\x01\xff";

/// Somebody who asks.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    pub name: &'static str,
    /// What is shown where TLS is spoken.
    pub tls: Option<ClientTlsSettings>,
    pub headers: Vec<(&'static str, String)>,
    /// It is a browser, which does what a page of somebody else says.
    pub page: bool,
}

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Admitted,
    Refused,
    /// There is no such thing at this port.
    NotThere,
}

/// The classes of calls that somebody may make at a port.
///
/// # Errors
/// If only a part of a class is admitted.
pub async fn may(url: &str, who: &Identity, calls: &[(Class, Call)]) -> anyhow::Result<Vec<Class>> {
    let endpoint: Endpoint = url.parse()?;
    let connector = Connector::with_tls(who.tls.clone().map(ClientTls::load).transpose()?);
    let channel = connector.channel_any(std::slice::from_ref(&endpoint))?;
    let mut outcomes: BTreeMap<Class, Vec<(Outcome, &Call)>> = BTreeMap::new();
    for (class, call) in calls {
        let outcome = match call {
            // A browser sends it as it sends a form.
            Call::Grpc(path) if who.page => http(&connector, &endpoint, who, "POST", path).await,
            Call::Grpc(path) => grpc(&channel, who, path).await?,
            Call::Http(method, path) => http(&connector, &endpoint, who, method, path).await,
        };
        outcomes.entry(*class).or_default().push((outcome, call));
    }
    let mut admitted = Vec::new();
    for (class, outcomes) in outcomes {
        let of = |wanted| outcomes.iter().find(|(outcome, _)| *outcome == wanted).map(|(_, call)| *call);
        match (of(Outcome::Admitted), of(Outcome::Refused)) {
            (Some(one), Some(other)) => {
                anyhow::bail!("{url}: {} may call {one:?} and not {other:?}, of {class:?}", who.name)
            }
            (Some(_), None) => admitted.push(class),
            _ => {}
        }
    }
    Ok(admitted)
}

/// What became of a call of gRPC.
///
/// It is asked again where nothing comes of it: hyper loses a request that it gets while the connection ends on another thread, as
/// here when a certificate is refused (hyperium/hyper#4122). Servers of kindred have their connections on the thread that asks.
async fn grpc(channel: &Channel, who: &Identity, path: &str) -> anyhow::Result<Outcome> {
    for _ in 0..2 {
        match tokio::time::timeout(LIMIT, code(channel, who, path)).await {
            Ok(None | Some(Code::PermissionDenied | Code::Unauthenticated)) => return Ok(Outcome::Refused),
            Ok(Some(Code::Unimplemented)) => return Ok(Outcome::NotThere),
            Ok(Some(_)) => return Ok(Outcome::Admitted),
            Err(_) => {}
        }
    }
    anyhow::bail!("{path}, called by {}: no answer within {LIMIT:?}, twice", who.name)
}

async fn code(channel: &Channel, who: &Identity, path: &str) -> Option<Code> {
    let mut request =
        http::Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
    for (name, value) in &who.headers {
        request = request.header(*name, value);
    }
    let request = request.body(Body::new(Full::new(Bytes::from_static(NONSENSE)))).expect("a request");
    let answer = channel.clone().oneshot(request).await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    if let Some(status) = Status::from_header_map(answer.headers()) {
        return Some(status.code());
    }
    let trailers = answer.into_body().collect().await.ok()?.trailers().cloned()?;
    Status::from_header_map(&trailers).map(|status| status.code())
}

async fn http(
    connector: &Connector,
    endpoint: &Endpoint,
    who: &Identity,
    method: &str,
    path: &str,
) -> Outcome {
    let body = if method == "GET" { "" } else { "{}" };
    let content = if who.page { "text/plain" } else { "application/json" };
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content}\r\nContent-Length: {}\r\n",
        body.len()
    );
    if who.page {
        head += "Origin: https://elsewhere.example\r\nSec-Fetch-Site: cross-site\r\n";
    }
    for (name, value) in &who.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let asked = async {
        let mut stream = connector.connect(endpoint).await.ok()?;
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
        let mut answer = Vec::new();
        while !answer.contains(&b'\n') {
            let mut some = [0; 512];
            let count = stream.read(&mut some).await.ok().filter(|count| *count > 0)?;
            answer.extend_from_slice(&some[..count]);
        }
        let line = String::from_utf8_lossy(&answer).into_owned();
        line.split(' ').nth(1)?.parse::<u16>().ok()
    };
    match tokio::time::timeout(LIMIT, asked).await {
        Ok(None | Some(401 | 403 | 415)) => Outcome::Refused,
        // An object of the admin API that is not there is another matter.
        Ok(Some(404)) if !path.starts_with("/api/") => Outcome::NotThere,
        Ok(Some(_)) | Err(_) => Outcome::Admitted,
    }
}
