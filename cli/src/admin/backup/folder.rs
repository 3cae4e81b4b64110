//! A backup's folder: it is written under a temporary name, synced, and renamed when it is complete.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufWriter};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use kindred_transport::private;

use super::manifest::{DATA, Manifest};
use crate::admin::failure::Failure;

/// A backup that is being written. Dropping it before [`Unfinished::finish`] removes it.
#[derive(Debug)]
pub struct Unfinished {
    target: PathBuf,
    path: PathBuf,
    finished: bool,
}

impl Unfinished {
    /// Begins a backup that will become `target`.
    ///
    /// # Errors
    /// When there is something at `target` or at its temporary name, or no folder can be created there.
    pub fn begin(target: &Path) -> Result<Self, Failure> {
        let shown = target.display();
        let name = target.file_name().ok_or_else(|| {
            Failure::Usage(format!(
                "--to {shown}: name a folder that is to be made, such as {shown}/backup-1"
            ))
        })?;
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        fs::create_dir_all(&parent).map_err(|error| written(&parent, &error))?;
        match fs::read_dir(target) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(Failure::Refused(format!(
                        "--to {shown}: it is not empty; a backup goes to a folder of its own: name one that is not there yet"
                    )));
                }
                let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
                if device(target) != device(&parent) {
                    return Err(Failure::Refused(format!(
                        "--to {shown}: a disk is mounted there; name a folder on it, such as {shown}/backup-1"
                    )));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::Refused(format!("--to {shown}: {error}"))),
        }
        let mut temporary = name.to_owned();
        temporary.push(".unfinished");
        let path = parent.join(temporary);
        // Private, because a backup contains the cluster's secrets.
        match DirBuilder::new().mode(private::FOLDER).create(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Failure::Refused(format!(
                    "{}: a backup to {shown} was interrupted, or is being written now; if none is, remove that folder",
                    path.display()
                )));
            }
            Err(error) => return Err(written(&path, &error)),
        }
        let unfinished = Self { target: target.to_owned(), path, finished: false };
        let data = unfinished.path.join(DATA);
        private::make(&data).map_err(|error| written(&data, &error))?;
        Ok(unfinished)
    }

    /// Creates a file in the backup.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(&self, file: &str) -> io::Result<BufWriter<File>> {
        Ok(BufWriter::with_capacity(1 << 20, private::create_new(&self.path.join(file))?))
    }

    /// The temporary path of the backup.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the manifest and renames the folder to its target.
    ///
    /// # Errors
    /// When it cannot be written. The backup is removed then.
    pub fn finish(mut self, manifest: &Manifest) -> Result<(), Failure> {
        let sync = |path: &Path| File::open(path).and_then(|folder| folder.sync_all());
        let all = || {
            manifest.write(&self.path)?;
            sync(&self.path.join(DATA))?;
            sync(&self.path)?;
            fs::rename(&self.path, &self.target)
        };
        all().map_err(|error| written(&self.path, &error))?;
        self.finished = true;
        let parent = self.target.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync(parent.unwrap_or(Path::new("."))).map_err(|error| written(&self.target, &error))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.finished {
            // If the removal fails, the missing manifest shows that this is not a backup.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Explains to the user why a file could not be written.
#[must_use]
pub fn written(path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    Failure::Refused(match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!(
            "{shown}: the disk is full; the unfinished backup was removed: free space, or name a folder on another disk by --to, \
             and run it again"
        ),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("{shown}: {error}; name a folder that can be written by --to")
        }
        _ => format!("{shown}: {error}"),
    })
}
