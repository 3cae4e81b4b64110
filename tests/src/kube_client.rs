//! A client of kube-apiserver. It sends JSON over one HTTP/2 connection, and reads watches as streams of events.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use kindred_transport::{connect::Connector, tls::ClientTls};
use serde_json::{Value, json};
use tonic::{body::Body, transport::Channel};
use tower::ServiceExt as _;

/// Longer than an apiserver's own limit, which is a minute.
const REQUEST_LIMIT: Duration = Duration::from_secs(70);

/// How often client-go asks again, and after which time, which the apiserver names.
const ASKED_AGAIN: usize = 10;
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

const MERGE_PATCH: &str = "application/merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json";

/// One connection to an apiserver. Clones share it. It connects again when it was lost.
#[derive(Debug, Clone)]
pub struct KubeClient {
    channel: Channel,
    token: String,
}

/// The apiserver's answer to one request.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    /// An answer that is not JSON, such as that of `/readyz`, becomes a JSON string.
    pub body: Value,
}

impl Answer {
    /// The body of the answer to a request that must have succeeded.
    ///
    /// # Errors
    /// If the request failed.
    pub fn ok(self) -> anyhow::Result<Value> {
        ensure!((200..300).contains(&self.status), "the apiserver answered {}: {}", self.status, self.body);
        Ok(self.body)
    }

    /// The reason in the answer to a request that must have failed with this status.
    ///
    /// # Errors
    /// If the answer has another status.
    pub fn refused(self, status: u16) -> anyhow::Result<String> {
        ensure!(self.status == status, "the apiserver answered {}, not {status}: {}", self.status, self.body);
        Ok(self.body["reason"].as_str().unwrap_or_default().to_owned())
    }
}

impl KubeClient {
    /// For an apiserver at `host:port`.
    ///
    /// # Errors
    /// If the address or the TLS settings cannot be used.
    pub fn new(address: &str, tls: ClientTls, token: &str) -> anyhow::Result<Self> {
        let endpoint = format!("https://{address}").parse()?;
        let channel = Connector::with_tls(Some(tls)).channel(&endpoint)?;
        Ok(Self { channel, token: token.to_owned() })
    }

    async fn open(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<http::Response<Body>> {
        let body = match body {
            Some(value) => Body::new(Full::new(Bytes::from(serde_json::to_vec(value)?))),
            None => Body::empty(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", content_type)
            .header("accept", JSON)
            .body(body)?;
        Ok(self.channel.clone().oneshot(request).await?)
    }

    /// Sends any request.
    ///
    /// # Errors
    /// If there is no answer. A refusal is an answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Answer> {
        let shown = format!("{method} {path}");
        let answered = async {
            let response = self.open(method, path, content_type, body).await?;
            let status = response.status().as_u16();
            anyhow::Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        let (status, bytes) = tokio::time::timeout(REQUEST_LIMIT, answered)
            .await
            .with_context(|| format!("{shown}: no answer after {REQUEST_LIMIT:?}"))?
            .with_context(|| shown.clone())?;
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Ok(Answer { status, body })
    }

    /// Reads an object, a list or a text.
    ///
    /// # Errors
    /// As [`KubeClient::send`].
    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.send(Method::GET, path, JSON, None).await
    }

    /// Reads as client-go does: an apiserver that says 429, such as one that fills the watch cache of a Kind again, is
    /// asked again.
    ///
    /// # Errors
    /// If the request fails otherwise, or again and again.
    pub async fn read(&self, path: &str) -> anyhow::Result<Value> {
        let mut answer = self.get(path).await?;
        for _ in 0..ASKED_AGAIN {
            if answer.status != 429 {
                break;
            }
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
            answer = self.get(path).await?;
        }
        answer.ok()
    }

    /// Creates an object in a collection.
    ///
    /// # Errors
    /// As [`KubeClient::send`].
    pub async fn create(&self, collection: &str, object: &Value) -> anyhow::Result<Answer> {
        self.send(Method::POST, collection, JSON, Some(object)).await
    }

    /// Replaces an object. Its `resourceVersion` is an optimistic lock.
    ///
    /// # Errors
    /// As [`KubeClient::send`].
    pub async fn replace(&self, path: &str, object: &Value) -> anyhow::Result<Answer> {
        self.send(Method::PUT, path, JSON, Some(object)).await
    }

    /// Merges fields into an object.
    ///
    /// # Errors
    /// As [`KubeClient::send`].
    pub async fn merge(&self, path: &str, fields: &Value) -> anyhow::Result<Answer> {
        self.send(Method::PATCH, path, MERGE_PATCH, Some(fields)).await
    }

    /// Server-side apply by a field manager.
    ///
    /// # Errors
    /// As [`KubeClient::send`].
    pub async fn apply(
        &self,
        path: &str,
        manager: &str,
        force: bool,
        object: &Value,
    ) -> anyhow::Result<Answer> {
        let path = format!("{path}?fieldManager={manager}&force={force}");
        self.send(Method::PATCH, &path, APPLY_PATCH, Some(object)).await
    }

    /// Deletes an object or a collection.
    ///
    /// # Errors
    /// As [`KubeClient::send`].
    pub async fn delete(&self, path: &str) -> anyhow::Result<Answer> {
        self.send(Method::DELETE, path, JSON, None).await
    }

    /// Watches a collection from the revision after `after`. With `None` the watch begins with the existing objects.
    ///
    /// # Errors
    /// If there is no answer. A refusal is the watch's first event.
    pub async fn watch(&self, collection: &str, after: Option<u64>) -> anyhow::Result<Watch> {
        let mut path = format!("{collection}?watch=1");
        if let Some(after) = after {
            path.push_str(&format!("&resourceVersion={after}"));
        }
        let opened = tokio::time::timeout(REQUEST_LIMIT, self.open(Method::GET, &path, JSON, None)).await;
        let response = opened.with_context(|| format!("{path}: not open after {REQUEST_LIMIT:?}"))??;
        if response.status().is_success() {
            return Ok(Watch { body: response.into_body(), pending: Vec::new(), used: 0 });
        }
        let status: Value = serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
        let mut pending = serde_json::to_vec(&json!({"type": "ERROR", "object": status}))?;
        pending.push(b'\n');
        Ok(Watch { body: Body::empty(), pending, used: 0 })
    }
}

/// An open watch. It is read only by [`Watch::next`].
#[derive(Debug)]
pub struct Watch {
    body: Body,
    /// Received bytes. Those before `used` belong to events that were returned.
    pending: Vec<u8>,
    used: usize,
}

/// An event of a watch.
#[derive(Debug, Clone)]
pub struct Event {
    /// ADDED, MODIFIED, DELETED, BOOKMARK or ERROR.
    pub change: String,
    pub object: Value,
}

impl Watch {
    /// The next event; `None` when the apiserver has ended the watch.
    ///
    /// # Errors
    /// If nothing comes within `limit`, or what comes is no event.
    pub async fn next(&mut self, limit: Duration) -> anyhow::Result<Option<Event>> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            if let Some(length) = self.pending[self.used..].iter().position(|&byte| byte == b'\n') {
                let line = &self.pending[self.used..self.used + length];
                let mut event: Value = serde_json::from_slice(line)?;
                self.used += length + 1;
                let change = event["type"].as_str().context("an event without type")?.to_owned();
                return Ok(Some(Event { change, object: event["object"].take() }));
            }
            self.pending.drain(..self.used);
            self.used = 0;
            let frame = tokio::time::timeout_at(deadline, self.body.frame()).await;
            match frame.with_context(|| format!("no event within {limit:?}"))? {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.pending.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// The next event of a watch that must not end.
    ///
    /// # Errors
    /// As [`Watch::next`], and if the watch ends or the event is an error.
    pub async fn change(&mut self, limit: Duration) -> anyhow::Result<Event> {
        match self.next(limit).await? {
            None => bail!("the watch ended"),
            Some(event) if event.change == "ERROR" => bail!("the watch failed: {}", event.object),
            Some(event) => Ok(event),
        }
    }
}

/// `metadata.resourceVersion` of an object or a list.
///
/// # Errors
/// If it has none.
pub fn revision(object: &Value) -> anyhow::Result<u64> {
    let text = object["metadata"]["resourceVersion"].as_str();
    let text = text.with_context(|| format!("no resourceVersion in {object}"))?;
    text.parse().with_context(|| format!("resourceVersion {text:?}"))
}

/// `namespace/name` of an object, or its name if it has no namespace.
#[must_use]
pub fn full_name(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// The objects of a list.
///
/// # Errors
/// If `list` is not a list.
pub fn items(list: &Value) -> anyhow::Result<&Vec<Value>> {
    list["items"].as_array().with_context(|| format!("not a list: {list}"))
}
