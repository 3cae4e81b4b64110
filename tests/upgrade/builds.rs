//! The programs of two builds: the previous one, which `tests/upgrade/install` makes, and that of this work tree.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use kindred_tests::process::our_binary;

/// One of the two builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    Previous,
    Current,
}

impl Build {
    pub const BOTH: [Self; 2] = [Self::Previous, Self::Current];

    pub fn other(self) -> Self {
        match self {
            Self::Previous => Self::Current,
            Self::Current => Self::Previous,
        }
    }
}

/// Where the programs of both builds are.
#[derive(Debug, Clone)]
pub struct Builds {
    previous: PathBuf,
}

impl Builds {
    /// Both builds. Without the previous one there is nothing to test, which standard error is told.
    ///
    /// # Errors
    /// If the file that names the previous build has no commit.
    pub fn find() -> anyhow::Result<Option<Self>> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let named = fs::read_to_string(here.join("upgrade/PREVIOUS"))?;
        let commit = named.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
        let commit = commit.context("tests/upgrade/PREVIOUS has no commit")?;
        let root = here.parent().context("the workspace")?;
        let previous = root.join("target/previous").join(commit);
        if previous.join("kindred-router").is_file() {
            return Ok(Some(Self { previous }));
        }
        let said = format!(
            "upgrade: the previous build is not in {}: nothing ran beside another version; tests/upgrade/install makes it\n",
            previous.display()
        );
        // The test runner captures `eprintln!`, and shows it of no test that passes.
        std::io::stderr().write_all(said.as_bytes())?;
        Ok(None)
    }

    /// A program of a build.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn program(&self, build: Build, name: &str) -> anyhow::Result<PathBuf> {
        let path = match build {
            Build::Previous => self.previous.join(name),
            Build::Current => our_binary(name)?,
        };
        ensure!(path.is_file(), "{} does not exist", path.display());
        // The name of a running program, with which this is compared, has no links in it.
        Ok(fs::canonicalize(path)?)
    }
}
