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
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    let status = line(&mut stream).await?;
    let code = status.split(' ').nth(1).context("a status line")?.parse()?;
    let (mut content, mut chunked, mut length) = (String::new(), false, None);
    loop {
        let header = line(&mut stream).await?;
        let Some((name, value)) = header.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-type" => content = value.trim().to_owned(),
            "transfer-encoding" => chunked = value.contains("chunked"),
            "content-length" => length = Some(value.trim().parse::<usize>()?),
            _ => {}
        }
    }
    let mut bytes = Vec::new();
    if chunked {
        while bytes.iter().filter(|byte| **byte == b'\n').count() < lines_max {
            let size = usize::from_str_radix(&line(&mut stream).await?, 16)?;
            let mut chunk = vec![0; size];
            stream.read_exact(&mut chunk).await?;
            line(&mut stream).await?;
            if size == 0 {
                break;
            }
            bytes.extend(chunk);
        }
    } else if let Some(length) = length {
        bytes.resize(length, 0);
        stream.read_exact(&mut bytes).await?;
    } else {
        stream.read_to_end(&mut bytes).await?;
    }
    Ok(Answer { code, content, body: String::from_utf8(bytes)? })
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
