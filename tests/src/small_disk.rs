//! A small file system of its own for a server that is to meet a full disk.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use crate::scenario::report;

/// A file system in memory, which goes when this does.
#[derive(Debug)]
pub struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Mounts one of a size that `mount` understands. Only root can: otherwise there is none, and a line says so.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn mount(at: &Path, size: &str) -> anyhow::Result<Option<Self>> {
        fs::create_dir_all(at)?;
        let size = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output()?;
        if !mounted.status.success() {
            report(&format!("NOT RUN: a small disk cannot be mounted here, which needs root: {mounted:?}"));
            return Ok(None);
        }
        Ok(Some(Self { at: at.to_owned() }))
    }

    /// Takes all the room that is left, until [`SmallDisk::free`].
    ///
    /// # Errors
    /// If there is room for nothing at all.
    pub fn fill(&self) -> anyhow::Result<()> {
        let mut file = fs::File::create(self.filler()).context("a file on the small disk")?;
        let block = vec![7; 64 << 10];
        let mut blocks = 0;
        while file.write_all(&block).is_ok() {
            blocks += 1;
        }
        ensure!(blocks > 0, "it was full before");
        Ok(())
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// If it was not filled.
    pub fn free(&self) -> anyhow::Result<()> {
        fs::remove_file(self.filler()).context("it was not filled")
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Also while a process has files there.
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}
