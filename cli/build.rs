//! Notes the commit of the source, the compiler and the platform for `kindred version`.
//!
//! A packager who builds without git sets `KINDRED_COMMIT`. Without either, the commit is `unknown`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=KINDRED_COMMIT");
    let named = std::env::var("KINDRED_COMMIT").ok();
    let commit = named.as_deref().and_then(word).or_else(head).unwrap_or_else(|| "unknown".to_owned());
    let rustc = std::env::var_os("RUSTC").and_then(|rustc| said(Command::new(rustc).arg("--version")));
    let target = std::env::var("TARGET").ok();
    for (name, value) in [("COMMIT", Some(commit)), ("RUSTC", rustc), ("TARGET", target)] {
        let value = value.unwrap_or_else(|| "unknown".to_owned());
        println!("cargo::rustc-env=KINDRED_BUILD_{name}={value}");
    }
}

/// The commit of the work tree that this package lies in. A package that was unpacked into another project's work tree has
/// none.
fn head() -> Option<String> {
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?.canonicalize().ok()?;
    if Path::new(&top).canonicalize().ok()? != above {
        return None;
    }
    // The log of HEAD changes with every commit and checkout. A file that is not there would run this at every build.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(words: &[&str]) -> Option<String> {
    said(Command::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(words))
}

/// The first line that a command prints, if it succeeds.
fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned)
}

/// The first word, because a directive to cargo is a line.
fn word(text: &str) -> Option<String> {
    text.split_whitespace().next().map(str::to_owned)
}
