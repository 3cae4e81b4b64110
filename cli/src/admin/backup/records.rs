//! Reads the keys of a backup in key order across its files.

use std::collections::VecDeque;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use kindred_proto::mvccpb::KeyValue;

use super::format::{FileReader, FormatError};
use super::manifest::{File, Manifest};
use super::select::Selection;
use super::verify;
use crate::admin::failure::Failure;

/// Several files, read in order.
struct Chain {
    folder: PathBuf,
    files: VecDeque<File>,
    open: Option<(File, FileReader<BufReader<fs::File>>)>,
    frame: VecDeque<KeyValue>,
}

impl Chain {
    fn peek(&mut self) -> Result<Option<&KeyValue>, Failure> {
        while self.frame.is_empty() {
            if let Some((file, reader)) = &mut self.open {
                let records = reader.next().map_err(|error| damaged(&self.folder, file, &error))?;
                if records.is_empty() {
                    self.open = None;
                } else {
                    self.frame = records.into();
                }
                continue;
            }
            let Some(file) = self.files.pop_front() else { return Ok(None) };
            let reader =
                verify::open(&self.folder, &file).map_err(|error| damaged(&self.folder, &file, &error))?;
            self.open = Some((file, reader));
        }
        Ok(self.frame.front())
    }
}

fn damaged(folder: &Path, file: &File, error: &FormatError) -> Failure {
    Failure::Refused(format!(
        "{}: {error}; it was whole when it was looked at first",
        folder.join(&file.file).display()
    ))
}

/// The selected keys of a backup.
pub struct Records {
    selection: Selection,
    /// The files of Kinds, and the file with keys of no Kind, which lie between those of Kinds.
    chains: [Chain; 2],
}

impl Records {
    /// Opens a backup.
    ///
    /// # Errors
    /// When a file is missing or is not a data file.
    pub fn open(folder: &Path, manifest: &Manifest, selection: &Selection) -> Result<Self, Failure> {
        let chain = |of_kinds: bool| {
            let files = manifest.files.iter().filter(|file| file.prefix.is_some() == of_kinds);
            let mut files: Vec<_> =
                files.filter(|file| selection.files.contains(&file.file)).cloned().collect();
            files.sort_by(|a, b| a.prefix.cmp(&b.prefix));
            Chain { folder: folder.to_owned(), files: files.into(), open: None, frame: VecDeque::new() }
        };
        Ok(Self { selection: selection.clone(), chains: [chain(true), chain(false)] })
    }

    /// The next selected key.
    ///
    /// # Errors
    /// When a file is damaged.
    pub fn next(&mut self) -> Result<Option<KeyValue>, Failure> {
        loop {
            let [kinds, other] = &mut self.chains;
            let first = match (kinds.peek()?, other.peek()?) {
                (Some(a), Some(b)) => {
                    if a.key <= b.key {
                        0
                    } else {
                        1
                    }
                }
                (None, Some(_)) => 1,
                _ => 0,
            };
            match self.chains[first].frame.pop_front() {
                Some(kv) if !self.selection.contains(&kv.key) => {}
                next => return Ok(next),
            }
        }
    }
}
