//! The programs of two builds: the previous one, which `tests/peers/install previous` makes, and that of this work tree.

use std::{fs, io::Write as _, path::PathBuf};

use anyhow::ensure;
use kindred_tests::{
    peers::{PeerSet, listed},
    process::our_binary,
};

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
    /// If the previous build cannot be made.
    pub fn find() -> anyhow::Result<Option<Self>> {
        if let Some(previous) = listed(PeerSet::Previous)?.pop() {
            return Ok(Some(Self { previous: previous.path }));
        }
        // The test runner captures `eprintln!`, and shows it of no test that passes.
        let said = "NOT RUN: there is no previous build; tests/peers/install previous says why\n";
        std::io::stderr().write_all(said.as_bytes())?;
        Ok(None)
    }

    /// The program of a build.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn program(&self, build: Build) -> anyhow::Result<PathBuf> {
        let path = match build {
            Build::Previous => self.previous.clone(),
            Build::Current => our_binary("kindred")?,
        };
        ensure!(path.is_file(), "{} does not exist", path.display());
        // The name of a running program, with which this is compared, has no links in it.
        Ok(fs::canonicalize(path)?)
    }
}
