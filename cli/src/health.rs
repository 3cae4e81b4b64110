//! `kindred health`: for container health checks, where no curl is at hand.

use std::{
    io::{Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;

/// `kindred health`.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// The admin port, as `http://HOST:PORT`.
    #[arg(long, env = "KINDRED_ADMIN", default_value = "http://127.0.0.1:2381")]
    pub admin: String,
}

const TIMEOUT: Duration = Duration::from_secs(2);

/// Asks `/readyz` and prints the answer.
pub fn run(args: &HealthArgs) -> anyhow::Result<()> {
    let authority = args.admin.strip_prefix("http://").unwrap_or(&args.admin).trim_end_matches('/');
    let address = authority
        .to_socket_addrs()
        .with_context(|| format!("--admin {}: expected http://HOST:PORT", args.admin))?
        .next()
        .with_context(|| format!("--admin {}: the host has no address", args.admin))?;
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)
        .with_context(|| format!("connecting to {authority}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET /readyz?verbose HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("reading the answer")?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if !head.starts_with("HTTP/1.1 200") {
        bail!("not ready: {}\n{body}", head.lines().next().unwrap_or(""));
    }
    #[allow(clippy::print_stdout)]
    {
        println!("{}", body.trim());
    }
    Ok(())
}
