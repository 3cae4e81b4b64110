//! Implements the subset of `protoc` that prost's build scripts call: `-o FILE`, `-I DIR`, `--include_imports`,
//! `--include_source_info` and the files. A test peer (the etcd-client crate) requires a `protoc`; this saves the
//! installation.

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let (mut out, mut includes, mut inputs) = (None, Vec::new(), Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "-o" => out = args.next(),
            "-I" => includes.extend(args.next()),
            "--version" => {
                #[allow(clippy::print_stdout)]
                {
                    println!("libprotoc 33.0");
                }
                return Ok(());
            }
            _ if arg.starts_with("-I") => includes.push(arg[2..].to_owned()),
            _ if arg.starts_with("--descriptor_set_out=") => {
                out = arg.split_once('=').map(|(_, f)| f.to_owned())
            }
            _ if arg.starts_with('-') => {}
            _ => inputs.push(arg),
        }
    }
    let compiled = protox::Compiler::new(&includes)?
        .include_imports(true)
        .include_source_info(true)
        .open_files(inputs)
        .map_err(|e| anyhow::anyhow!("{e:?}"))?
        .encode_file_descriptor_set();
    std::fs::write(out.context("protoc: -o FILE is missing")?, compiled)?;
    Ok(())
}
