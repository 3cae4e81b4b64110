//! The admin API of a router: requests as `curl` sends them, and moves.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use kindred_transport::{
    connect::Connector,
    tls::{ClientTls, ClientTlsSettings},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::scenario::wait_for;

const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// What is in the chunks of a body.
fn whole(mut chunks: &str) -> anyhow::Result<String> {
    let mut body = String::new();
    loop {
        let (length, rest) = chunks.split_once("\r\n").context("a chunk's length")?;
        let length = usize::from_str_radix(length, 16)?;
        if length == 0 {
            return Ok(body);
        }
        body += rest.get(..length).context("a whole chunk")?;
        chunks = rest[length..].strip_prefix("\r\n").context("the end of a chunk")?;
    }
}

/// A client of the admin port of a router.
#[derive(Debug, Clone)]
pub struct Admin {
    address: String,
    tls: Option<ClientTls>,
}

impl Admin {
    /// For an admin port at `host:port`, without TLS.
    #[must_use]
    pub fn at(address: &str) -> Self {
        Self { address: address.to_owned(), tls: None }
    }

    /// `host:port` of the admin port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// For an admin port at `host:port`, with TLS.
    ///
    /// # Errors
    /// If a file of the settings cannot be used.
    pub fn over_tls(address: &str, tls: ClientTlsSettings) -> anyhow::Result<Self> {
        Ok(Self { address: address.to_owned(), tls: Some(ClientTls::load(tls)?) })
    }

    /// Sends a request as curl does, and returns the status and the body.
    ///
    /// # Errors
    /// If there is no answer in time, or the answer is not HTTP.
    pub async fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
        self.ask_for(method, path, "*/*", body).await
    }

    /// The same, for an answer of this media type.
    ///
    /// # Errors
    /// If there is no answer in time, or the answer is not HTTP.
    pub async fn ask_for(
        &self,
        method: &str,
        path: &str,
        accept: &str,
        body: &str,
    ) -> anyhow::Result<(u16, String)> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = format!("{scheme}://{}", self.address).parse()?;
        let mut stream = Connector::with_tls(self.tls.clone()).connect(&endpoint).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAccept: {accept}\r\n",
            self.address
        );
        stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
        let mut answer = String::new();
        tokio::time::timeout(ANSWER_LIMIT, stream.read_to_string(&mut answer)).await??;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer with a head")?;
        let code = head.split(' ').nth(1).context("a status line")?.parse()?;
        let chunked = head.to_lowercase().contains("\r\ntransfer-encoding: chunked");
        Ok((code, if chunked { whole(body)? } else { body.to_owned() }))
    }

    /// Sends a request that must succeed, and returns its answer.
    ///
    /// # Errors
    /// If the request is refused.
    pub async fn ok(&self, method: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        let (code, answer) = self.ask(method, path, &body.to_string()).await?;
        ensure!((200..300).contains(&code), "{method} {path} {body}: {code} {answer}");
        serde_json::from_str(&answer).with_context(|| format!("{method} {path}: {answer}"))
    }

    /// Makes a change by a verb (`move`, `split`, `merge`, `drain`, `apply`). Returns the numbers of the moves that it
    /// began.
    ///
    /// # Errors
    /// If the change is refused.
    pub async fn change(&self, verb: &str, body: &Value) -> anyhow::Result<Vec<u64>> {
        let made = self.ok("POST", &format!("/api/v1/{verb}"), body).await?;
        let moves = made["moves"].as_array().with_context(|| format!("the moves of {made}"))?;
        Ok(moves.iter().filter_map(Value::as_u64).collect())
    }

    /// The answer about a move; null if this router does not know the move yet.
    ///
    /// # Errors
    /// If the request fails otherwise.
    pub async fn shown(&self, id: u64) -> anyhow::Result<Value> {
        let (code, answer) = self.ask("GET", &format!("/api/v1/moves/{id}"), "").await?;
        match code {
            404 => Ok(Value::Null),
            200 => Ok(serde_json::from_str(&answer)?),
            _ => bail!("move {id}: {code} {answer}"),
        }
    }

    /// Sends a request about a move: `abort`, `reverse` or `complete`.
    ///
    /// # Errors
    /// If the request is refused.
    pub async fn request(&self, id: u64, what: &str) -> anyhow::Result<()> {
        self.ok("POST", &format!("/api/v1/moves/{id}/{what}"), &json!({})).await.map(drop)
    }

    /// Waits until `wanted` is true of a move.
    ///
    /// # Errors
    /// If the move is over before, or the limit is reached.
    pub async fn until(
        &self,
        id: u64,
        limit: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        let what = format!("move {id}");
        let reached = wait_for(&what, limit, || async {
            let shown = self.shown(id).await?;
            if !shown.is_null() && wanted(&shown) {
                return Ok(Some(shown));
            }
            ensure!(shown["over"] != true, "move {id} is over: {shown}");
            Ok(None)
        });
        let reached = reached.await;
        match reached {
            Ok(shown) => Ok(shown),
            Err(error) => Err(error.context(format!("{}", self.shown(id).await?))),
        }
    }
}
