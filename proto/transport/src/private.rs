//! Folders and files that only their owner may read: whatever a store keeps holds the cluster's secrets.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// The mode of a folder.
pub const FOLDER: u32 = 0o700;
/// The mode of a file.
pub const FILE: u32 = 0o600;
/// What others than the owner may do.
const OTHERS: u32 = 0o077;
/// A folder that many write to, such as `/tmp`.
const STICKY: u32 = 0o1000;

/// Makes a folder and those above it that are missing, for the owner alone. One that was there keeps its mode.
///
/// # Errors
/// When it cannot be made.
pub fn make(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(FOLDER).create(folder)
}

/// Makes a data folder, or takes one that is there: that is closed to others when it is evidently ours, because it is empty or
/// has an entry of one of these names, and belongs to this user. Another one, say `/tmp`, keeps its mode, and it is said
/// when others can read it.
///
/// # Errors
/// When it cannot be made or read.
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

/// A new, empty file for the owner alone; one of that name is emptied and closed to others.
///
/// # Errors
/// When it cannot be made.
pub fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE).open(path)?;
    // One that was there has kept its mode.
    if file.metadata()?.mode() & OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(FILE))?;
    }
    Ok(file)
}

/// A file for the owner alone, at a name that nothing has yet.
///
/// # Errors
/// When something is there, or it cannot be made.
pub fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE).open(path)
}

/// Writes a file for the owner alone, by way of a file beside it with `.new` behind its name: after a crash there is the old one
/// or the new one, whole.
///
/// # Errors
/// When the file system refuses.
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
        // One of an earlier version.
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
