//! `creates`: how long a server takes to create many watches on one stream, and to open many streams with one watch
//! each; etcd, then a router with its shard.

use std::{path::Path, time::Instant};

use anyhow::Context;
use kindred_proto::etcdserverpb::{
    WatchCreateRequest, WatchRequest, WatchResponse, watch_client::WatchClient, watch_request::RequestUnion,
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

use crate::{
    cpu,
    load::{self, Shape},
    servers::{self, Server},
};

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Numbers of watches on one stream.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 30_000, 100_000])]
    watches: Vec<usize>,
    /// Numbers of streams with one watch each.
    #[arg(long, value_delimiter = ',', default_values_t = [5_000, 20_000])]
    streams: Vec<usize>,
    /// Connections that carry the streams.
    #[arg(long, default_value_t = 20)]
    connections: usize,
}

/// Creates that may wait for the connection.
const QUEUE: usize = 1024;

/// The time and the CPU that a load took.
struct Took {
    seconds: f64,
    /// The CPU of all processes of the server.
    cpu_seconds: f64,
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: Options, etcd: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(options.connections > 0, "--connections: at least one");
    println!("| load | server | seconds | CPU seconds | CPU us a watch |");
    println!("| --- | --- | --- | --- | --- |");
    for watches in &options.watches {
        for server in servers(etcd)? {
            let took = timed(&server, || one_stream(&server, *watches)).await?;
            print(&format!("{watches} watches on one stream"), &server, &took, *watches);
        }
    }
    for streams in &options.streams {
        for server in servers(etcd)? {
            let took = timed(&server, || many_streams(&server, *streams, options.connections)).await?;
            let load = format!("{streams} streams on {} connections", options.connections);
            print(&load, &server, &took, *streams);
        }
    }
    Ok(())
}

/// Fresh ones for each load.
fn servers(etcd: &Path) -> anyhow::Result<[Server; 2]> {
    Ok([servers::etcd(etcd)?, servers::routed()?])
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
fn print(load: &str, server: &Server, took: &Took, watches: usize) {
    let each = took.cpu_seconds * 1e6 / watches as f64;
    println!("| {load} | {} | {:.2} | {:.2} | {each:.0} |", server.name, took.seconds, took.cpu_seconds);
}

async fn timed<F: Future<Output = anyhow::Result<()>>>(
    server: &Server,
    load: impl FnOnce() -> F,
) -> anyhow::Result<Took> {
    let used = || -> anyhow::Result<u64> {
        server.pids.iter().map(|(_, pid)| cpu::process_nanos(*pid)).sum::<anyhow::Result<u64>>()
    };
    let (before, began) = (used()?, Instant::now());
    load().await.with_context(|| server.name)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Took { seconds, cpu_seconds: (used()? - before) as f64 / 1e9 })
}

fn create(number: usize) -> WatchRequest {
    let create =
        WatchCreateRequest { key: format!("/registry/pods/n/{number:07}").into(), ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

async fn created(answers: &mut Streaming<WatchResponse>) -> anyhow::Result<()> {
    let answer = answers.message().await?.context("the stream ended")?;
    anyhow::ensure!(answer.created && !answer.canceled, "a watch was refused: {answer:?}");
    Ok(())
}

async fn channels(server: &Server, connections: usize) -> anyhow::Result<Vec<Channel>> {
    load::connect(&server.endpoint, Shape { connections, in_flight: 1, keys: 0, value_bytes: 0 }).await
}

async fn one_stream(server: &Server, watches: usize) -> anyhow::Result<()> {
    let channel = channels(server, 1).await?.remove(0);
    let (to, requests) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        for number in 0..watches {
            // The stream may have ended, which its reader reports.
            if to.send(create(number)).await.is_err() {
                return;
            }
        }
        // It stays open until the answers have come.
        to.closed().await;
    });
    let mut answers = WatchClient::new(channel).watch(ReceiverStream::new(requests)).await?.into_inner();
    for _ in 0..watches {
        created(&mut answers).await?;
    }
    Ok(())
}

async fn many_streams(server: &Server, streams: usize, connections: usize) -> anyhow::Result<()> {
    let channels = channels(server, connections).await?;
    let mut opening = JoinSet::new();
    for number in 0..streams {
        let channel = channels[number % connections].clone();
        opening.spawn(async move {
            let (to, requests) = mpsc::channel(1);
            to.send(create(number)).await?;
            let mut answers =
                WatchClient::new(channel).watch(ReceiverStream::new(requests)).await?.into_inner();
            created(&mut answers).await?;
            anyhow::Ok((to, answers))
        });
    }
    // All of them stay open.
    let mut open = Vec::with_capacity(streams);
    while let Some(opened) = opening.join_next().await {
        open.push(opened??);
    }
    Ok(())
}
