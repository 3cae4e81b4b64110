//! Generates `proto/src/gen/` from the `.proto` files. It parses them with protox, so the machine needs no
//! `protoc`. `--check` writes nothing and fails if the checked-in code is stale; `make verify` runs it.
//!
//! KV, Watch, Feeds and Batches are generated twice: as typed messages by prost, and as *raw* services whose
//! requests and answers stay protobuf bytes, because neither the router nor the shard's hot path needs decoded
//! values.

use std::{fs, path::Path};

use anyhow::{Context, bail};
use tonic_build::manual::{Method, Service};

/// The method's name in Rust and on the wire, whether the client streams, and whether the server streams.
type RawMethod = (&'static str, &'static str, bool, bool);

/// The services with raw payloads: package, service, methods.
const RAW: [(&str, &str, &[RawMethod]); 4] = [
    (
        "etcdserverpb",
        "KV",
        &[
            ("range", "Range", false, false),
            ("range_stream", "RangeStream", false, true),
            ("put", "Put", false, false),
            ("delete_range", "DeleteRange", false, false),
            ("txn", "Txn", false, false),
            ("compact", "Compact", false, false),
        ],
    ),
    ("etcdserverpb", "Watch", &[("watch", "Watch", true, true)]),
    ("kindred.shard.v1", "Feeds", &[("feed", "Feed", true, true)]),
    ("kindred.shard.v1", "Batches", &[("run", "Run", true, true)]),
];

/// etcd's API.
const ETCD: [&str; 3] = ["etcd/rpc.proto", "etcd/lock.proto", "etcd/election.proto"];

/// The description of etcd's API, from which the JSON gateway reads and writes messages.
const DESCRIPTORS: &str = "etcd.binpb";

fn generate(proto_dir: &Path, out: &Path) -> anyhow::Result<()> {
    let mut etcd = protox::Compiler::new([proto_dir])?;
    etcd.include_imports(true).include_source_info(false).open_files(ETCD)?;
    fs::write(out.join(DESCRIPTORS), etcd.encode_file_descriptor_set())?;
    let fds = protox::compile(ETCD.into_iter().chain(["kindred/shard.v1.proto"]), [proto_dir])
        .map_err(|e| anyhow::anyhow!("{e:?}"))?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]).format(true);
    tonic_prost_build::configure()
        .build_transport(false)
        .out_dir(out)
        .compile_fds_with_config(fds, config)
        .context("generating messages and typed services")?;

    let raw: Vec<Service> = RAW
        .iter()
        .map(|(package, name, methods)| {
            methods
                .iter()
                .fold(Service::builder().package(*package).name(*name), |service, m| {
                    let mut method = Method::builder()
                        .name(m.0)
                        .route_name(m.1)
                        .input_type("bytes::Bytes")
                        .output_type("bytes::Bytes")
                        .codec_path("crate::raw::RawCodec");
                    if m.2 {
                        method = method.client_streaming();
                    }
                    if m.3 {
                        method = method.server_streaming();
                    }
                    service.method(method.build())
                })
                .build()
        })
        .collect();
    let raw_dir = out.join("raw");
    fs::create_dir_all(&raw_dir)?;
    tonic_build::manual::Builder::new().build_transport(false).out_dir(&raw_dir).compile(&raw);
    Ok(())
}

/// Every generated file below `dir` as (name, contents), sorted.
fn files(dir: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for sub in ["", "raw"] {
        let at = dir.join(sub);
        if !at.exists() {
            continue;
        }
        for entry in fs::read_dir(&at)? {
            let path = entry?.path();
            if path.is_file() {
                let name = Path::new(sub).join(path.file_name().context("file name")?);
                found.push((name.display().to_string(), fs::read(&path)?));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn main() -> anyhow::Result<()> {
    let proto_dir = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("proto/")?;
    let checked_in = proto_dir.join("src/gen");
    let fresh = std::env::temp_dir().join(format!("kindred-proto-gen-{}", std::process::id()));
    fs::create_dir_all(&fresh)?;
    generate(proto_dir, &fresh)?;
    let new = files(&fresh)?;
    fs::remove_dir_all(&fresh)?;
    if std::env::args().any(|a| a == "--check") {
        if files(&checked_in)? != new {
            bail!("proto/src/gen is stale: run `cargo run -p kindred-proto-gen` and commit what it writes");
        }
        return Ok(());
    }
    if checked_in.exists() {
        fs::remove_dir_all(&checked_in)?;
    }
    fs::create_dir_all(checked_in.join("raw"))?;
    for (name, contents) in new {
        fs::write(checked_in.join(name), contents)?;
    }
    Ok(())
}
