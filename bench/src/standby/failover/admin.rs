//! The admin API of a router.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The longest time for a router's answer; a handover takes a few seconds at most.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A client of the admin API at this address.
#[derive(Clone)]
pub struct Admin(pub String);

impl Admin {
    /// Sends a request that must succeed, and returns its answer.
    pub async fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
        let answer = tokio::time::timeout(ANSWER_MAX, self.exchange(method, path, body)).await;
        let answer = answer.with_context(|| format!("{method} {path}: no answer in time"))??;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a head")?;
        let code = head.split(' ').nth(1).context("an answer without a status")?;
        ensure!(code.starts_with('2'), "{method} {path}: {code} {body}");
        serde_json::from_str(body).with_context(|| format!("{method} {path}: {body}"))
    }

    async fn exchange(&self, method: &str, path: &str, body: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.0).await?;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.0);
        stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}
