//! Folders and files that only their owner may read, because a store's data includes the cluster's secrets.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// The mode of private folders.
pub const FOLDER: u32 = 0o700;
/// The mode of private files.
pub const FILE: u32 = 0o600;
/// The permission bits of group and others.
const OTHERS: u32 = 0o077;
/// The sticky bit, which shared folders such as `/tmp` have.
const STICKY: u32 = 0o1000;

/// Creates a private folder and its missing parents. An existing folder keeps its mode.
///
/// # Errors
/// When it cannot be created.
pub fn make(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(FOLDER).create(folder)
}

/// Creates a data folder, or accepts an existing one. An existing folder is made private if it evidently is a data
/// folder: it belongs to this user, and is empty or has an entry named in `ours`. Any other folder, such as `/tmp`,
/// keeps its mode, and a warning is logged if others can read it.
///
/// # Errors
/// When it cannot be created or read.
pub fn take(folder: &Path, ours: &[&str]) -> io::Result<()> {
    make(folder)?;
    let found = fs::metadata(folder)?;
    let mode = found.mode();
    if mode & OTHERS == 0 {
        return Ok(());
    }
    let own = found.uid() == rustix::process::geteuid().as_raw() && mode & STICKY == 0;
    let evidently =
        ours.iter().any(|name| folder.join(name).exists()) || fs::read_dir(folder)?.next().is_none();
    if own && evidently {
        fs::set_permissions(folder, Permissions::from_mode(FOLDER))?;
        tracing::info!(folder = %folder.display(), was = format!("{:o}", mode & 0o7777), "closed the data folder to other users");
    } else if mode & 0o007 != 0 {
        tracing::warn!(
            folder = %folder.display(),
            mode = format!("{:o}", mode & 0o7777),
            "other users can look into the data folder; what is written into it is closed to them: chmod 700"
        );
    }
    Ok(())
}

/// Creates an empty private file. An existing file is emptied and made private.
///
/// # Errors
/// When it cannot be created.
pub fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE).open(path)?;
    // An existing file keeps its mode at `open`.
    if file.metadata()?.mode() & OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(FILE))?;
    }
    Ok(file)
}

/// Creates a private file at an unused path.
///
/// # Errors
/// When the path exists, or the file cannot be created.
pub fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE).open(path)
}

/// Writes a private file atomically, through a temporary file with the suffix `.new`: after a crash the old or the
/// new content is there, complete.
///
/// # Errors
/// When the file system fails.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let mut file = create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn open_to_all(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn f34_what_is_made_is_the_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("a/b");
        take(&data, &[]).unwrap();
        assert_eq!((mode(&data), mode(data.parent().unwrap())), (0o700, 0o700));
        let file = data.join("f");
        drop(create_new(&file).unwrap());
        assert_eq!(mode(&file), 0o600);
        // An earlier version created this file.
        open_to_all(&file, 0o644);
        drop(create(&file).unwrap());
        assert_eq!(mode(&file), 0o600);
        open_to_all(&file, 0o644);
        write(&file, b"x").unwrap();
        assert_eq!((mode(&file), fs::read(&file).unwrap()), (0o600, b"x".to_vec()));
        assert_eq!(fs::read_dir(&data).unwrap().count(), 1);
    }

    #[test]
    fn f34_a_folder_that_is_ours_is_closed_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        make(&data).unwrap();
        open_to_all(&data, 0o755);
        take(&data, &["wal"]).unwrap();
        assert_eq!(mode(&data), 0o700, "it was empty");
        open_to_all(&data, 0o755);
        fs::write(data.join("other"), "").unwrap();
        take(&data, &["wal"]).unwrap();
        assert_eq!(mode(&data), 0o755, "it may be anybody's");
        make(&data.join("wal")).unwrap();
        take(&data, &["wal"]).unwrap();
        assert_eq!(mode(&data), 0o700);
        open_to_all(&data, 0o1777);
        take(&data, &["wal"]).unwrap();
        assert_eq!(mode(&data), 0o1777);
    }
}
