//! The log of a shard and whoever reads it.

use std::{
    io::{self, Read as _, Write as _},
    sync::mpsc,
    thread,
};

use crate::common::{process::ShardProcess, *};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// What a pipe holds.
const PIPE_BYTES: usize = 64 << 10;

async fn dropped_lines(admin: &str) -> u64 {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("kindred_log_lines_dropped_total "));
    line.expect("the metric").parse().unwrap()
}

#[tokio::test]
async fn a_log_that_nobody_reads_stops_no_shard() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_owned();
    let (unread, mut log) = io::pipe().unwrap();
    log.write_all(&[b'.'; PIPE_BYTES]).unwrap();
    let (tell, started) = mpsc::channel();
    thread::spawn(move || tell.send(ShardProcess::logging_to(log, &data, &["--log-level=trace"])));
    let Ok(shard) = started.recv_timeout(PATIENCE) else {
        // Without a reader its writes fail, so that it starts and can be ended.
        drop(unread);
        drop(started.recv());
        panic!("it waits for a reader of its log");
    };
    let client = shard.client().await;
    let serves = async {
        while dropped_lines(&shard.admin).await == 0 {
            client.put("/registry/pods/a", "served").await;
        }
    };
    tokio::time::timeout(PATIENCE, serves).await.expect("it serves");
    // Its client must be able to leave meanwhile.
    tokio::task::spawn_blocking(|| shard.stop()).await.unwrap();
    drop(unread);
}

#[test]
fn the_last_lines_of_a_log_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let (mut lines, log) = io::pipe().unwrap();
    ShardProcess::logging_to(log, directory.path(), &[]).stop();
    let mut text = String::new();
    lines.read_to_string(&mut text).unwrap();
    let last = text.lines().last().unwrap_or_default();
    assert!(last.contains("kindred_shard::server: stopped"), "{text}");
}
