//! Requests as curl makes them, and answers without what differs between two servers.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

const LIMIT: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub code: u16,
    pub content: String,
    pub body: String,
}

impl Answer {
    /// The body, whose lines are values.
    pub fn values(&self) -> anyhow::Result<Vec<Value>> {
        let lines = self.body.lines().filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    }
}

/// Makes a request of HTTP/1.1. Of an answer that does not end, reads so many lines.
pub async fn ask(
    address: &str,
    method: &str,
    path: &str,
    body: &str,
    lines_max: usize,
) -> anyhow::Result<Answer> {
    let asked = asked(address, method, path, body, lines_max);
    tokio::time::timeout(LIMIT, asked).await.with_context(|| format!("{method} {path} {body}"))?
}

async fn asked(
    address: &str,
    method: &str,
    path: &str,
    body: &str,
    lines_max: usize,
) -> anyhow::Result<Answer> {
    let mut answering = Answering::to(address, method, path, body).await?;
    while answering.lines() < lines_max && answering.more().await? {}
    let Answering { code, content, bytes, .. } = answering;
    Ok(Answer { code, content, body: String::from_utf8(bytes)? })
}

/// An answer that comes.
pub struct Answering {
    stream: BufReader<TcpStream>,
    code: u16,
    content: String,
    chunked: bool,
    length: Option<usize>,
    bytes: Vec<u8>,
}

impl Answering {
    /// Makes a request, and reads the head of its answer.
    pub async fn to(address: &str, method: &str, path: &str, body: &str) -> anyhow::Result<Self> {
        let mut stream = BufReader::new(TcpStream::connect(address).await?);
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
        stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
        let status = line(&mut stream).await?;
        let code = status.split(' ').nth(1).context("a status line")?.parse()?;
        let (mut content, mut chunked, mut length) = (String::new(), false, None);
        while let Some((name, value)) = line(&mut stream).await?.split_once(':') {
            match name.to_ascii_lowercase().as_str() {
                "content-type" => value.trim().clone_into(&mut content),
                "transfer-encoding" => chunked = value.contains("chunked"),
                "content-length" => length = Some(value.trim().parse::<usize>()?),
                _ => {}
            }
        }
        Ok(Self { stream, code, content, chunked, length, bytes: Vec::new() })
    }

    fn lines(&self) -> usize {
        self.bytes.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Reads on. Returns whether there may be more.
    async fn more(&mut self) -> anyhow::Result<bool> {
        if self.chunked {
            let size = usize::from_str_radix(&line(&mut self.stream).await?, 16)?;
            let mut chunk = vec![0; size];
            self.stream.read_exact(&mut chunk).await?;
            line(&mut self.stream).await?;
            self.bytes.extend(chunk);
            return Ok(size > 0);
        }
        match self.length {
            Some(length) => {
                self.bytes.resize(length, 0);
                self.stream.read_exact(&mut self.bytes).await?;
            }
            None => {
                self.stream.read_to_end(&mut self.bytes).await?;
            }
        }
        Ok(false)
    }

    /// The next line of a stream, as a value.
    pub async fn next(&mut self) -> anyhow::Result<Value> {
        let read = async {
            while self.lines() == 0 {
                ensure!(self.more().await?, "the stream has ended");
            }
            let end = self.bytes.iter().position(|byte| *byte == b'\n').context("a line")?;
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            Ok(serde_json::from_slice(&line)?)
        };
        tokio::time::timeout(LIMIT, read).await?
    }
}

async fn line(stream: &mut BufReader<TcpStream>) -> anyhow::Result<String> {
    let mut line = String::new();
    ensure!(stream.read_line(&mut line).await? > 0, "the connection was closed");
    Ok(line.trim_end().to_owned())
}

/// The fields that are revisions.
const REVISIONS: [&str; 6] =
    ["revision", "create_revision", "mod_revision", "compact_revision", "start_revision", "rev"];

/// What servers may say differently, whatever was asked: who they are, and how much memory or disk they use.
const OWN: [&str; 14] = [
    "cluster_id",
    "member_id",
    "raft_term",
    "raftTerm",
    "leader",
    "raftIndex",
    "raftAppliedIndex",
    "dbSize",
    "dbSizeInUse",
    "dbSizeQuota",
    "version",
    "downgradeInfo",
    "clientURLs",
    "peerURLs",
];

/// Puts a fixed text in the place of all that servers may say differently. Revisions stay with `revisions`.
pub fn normal(value: &Value, revisions: bool) -> Value {
    match value {
        Value::Object(fields) => {
            let one = |(name, value): (&String, &Value)| {
                let value = match name.as_str() {
                    // A version of a key is a number of its own.
                    "version" if value.as_str().is_some_and(|text| text.contains('.')) => "own".into(),
                    "version" => value.clone(),
                    // A second may have passed at one of them.
                    "TTL" if value.as_str().is_some_and(|left| !left.starts_with('-')) => "left".into(),
                    own if OWN.contains(&own) => "own".into(),
                    revision if REVISIONS.contains(&revision) && !revisions => "revision".into(),
                    _ => normal(value, revisions),
                };
                (name.clone(), value)
            };
            // A router's headers have no revision where it asked no store.
            let shown = fields.iter().filter(|(name, _)| revisions || name.as_str() != "revision");
            Value::Object(shown.map(one).collect())
        }
        Value::Array(values) => values.iter().map(|value| normal(value, revisions)).collect(),
        other => other.clone(),
    }
}

/// Fails unless all fields of etcd's answer are in ours with the same values, and no others.
pub fn same(what: &str, etcd: &Value, ours: &Value) -> anyhow::Result<()> {
    if etcd == ours {
        return Ok(());
    }
    let names = |value: &Value| -> BTreeSet<String> {
        value.as_object().into_iter().flat_map(|fields| fields.keys().cloned()).collect()
    };
    bail!("{what}: etcd says\n{etcd}\nand kindred\n{ours}\n(fields {:?} and {:?})", names(etcd), names(ours))
}
