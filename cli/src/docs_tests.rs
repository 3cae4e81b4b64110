//! The generated pages of `docs/` say what the code says: `docs/cli.md` is made of clap's definitions,
//! `docs/config-reference.md` of the doc comments of the configuration's model, and `docs/metrics.md` of the definitions of
//! metrics. With `KINDRED_DOCS=write` (`make docs`) the pages are written, else a page that differs fails its test.

use std::{env, fs, path::PathBuf};

mod commands;
mod fields;
mod metrics;

/// Writes the page, or compares it with the one that is there.
fn check(page: &str, wanted: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    if env::var("KINDRED_DOCS").is_ok_and(|what| what == "write") {
        fs::write(&path, wanted).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return;
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    if there == wanted {
        return;
    }
    let (mut before, mut after) = (there.lines(), wanted.lines());
    let mut line = 1;
    let (before, after) = loop {
        match (before.next(), after.next()) {
            (Some(one), Some(other)) if one == other => line += 1,
            differ => break differ,
        }
    };
    let said = |line: Option<&str>| line.unwrap_or("(the end of the page)").to_owned();
    panic!(
        "docs/{page} is not what the code says; run `make docs` and commit it. First difference in line {line}:\n\
         the page: {}\nthe code: {}",
        said(before),
        said(after)
    );
}

#[test]
fn the_command_reference_is_what_the_flags_say() {
    check("cli.md", &commands::page());
}

#[test]
fn the_configuration_reference_is_what_the_model_says() {
    check("config-reference.md", &fields::page());
}

#[test]
fn the_metrics_are_what_the_definitions_say() {
    check("metrics.md", &metrics::page());
}
