//! Backup folders: writing, damage and verification.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kindred_proto::mvccpb::KeyValue;
use proptest::prelude::*;
use serde_json::json;

use super::folder::{Unfinished, written};
use super::format::{self, FileWriter};
use super::manifest::{File, Lease, Manifest};
use super::records::Records;
use super::{select, verify};
use crate::admin::failure::Failure;

fn kv(key: &str, lease: i64) -> KeyValue {
    KeyValue {
        key: key.as_bytes().to_vec().into(),
        create_revision: 1,
        mod_revision: 9,
        version: 1,
        value: format!("value of {key}").into_bytes().into(),
        lease,
    }
}

const FILES: [(&str, Option<&str>, &[&str]); 3] = [
    ("nodes", Some("/registry/minions/"), &["/registry/minions/a"]),
    ("pods", Some("/registry/pods/"), &["/registry/pods/a/a", "/registry/pods/b/b"]),
    ("<other>", None, &["/registry/o", "compact_rev_key"]),
];

/// Writes a backup's data files, and returns its manifest.
fn begun(target: &Path) -> (Unfinished, Manifest) {
    let folder = Unfinished::begin(target).unwrap();
    let mut files = Vec::new();
    for (number, (kind, prefix, keys)) in FILES.into_iter().enumerate() {
        let file = format!("data/{number}.kbk");
        let mut writer = FileWriter::new(folder.create(&file).unwrap()).unwrap();
        keys.iter()
            .for_each(|key| writer.add(&kv(key, if *key == "/registry/o" { 0x2a } else { 0 })).unwrap());
        let (sum, _) = writer.finish().unwrap();
        let (kind, prefix) = (kind.to_owned(), prefix.map(str::to_owned));
        files.push(File { file, kind, prefix, keys: sum.keys, bytes: sum.bytes, xxh3: sum.xxh3 });
    }
    let manifest = Manifest {
        format_version: format::VERSION,
        written_by: "kindred".to_owned(),
        taken: "2026-01-01T00:00:00Z".to_owned(),
        finished: "2026-01-01T00:00:01Z".to_owned(),
        revision: "9".to_owned(),
        cluster_id: "0x1".to_owned(),
        etcd_prefix: "/registry".to_owned(),
        etcd_revisions: Vec::new(),
        stores: json!([]),
        state: json!({}),
        keys: files.iter().map(|file| file.keys).sum(),
        bytes: files.iter().map(|file| file.bytes).sum(),
        files,
        leases: vec![Lease { id: "000000000000002a".to_owned(), ttl: Some(60), remaining: Some(30) }],
    };
    (folder, manifest)
}

fn made(dir: &Path) -> (PathBuf, Manifest) {
    let target = dir.join("backup");
    let (folder, manifest) = begun(&target);
    folder.finish(&manifest).unwrap();
    (target, manifest)
}

fn whole(folder: &Path) -> Result<(), Failure> {
    let manifest = Manifest::read(folder)?;
    match verify::problems(folder, &manifest, |_| true) {
        problems if problems.is_empty() => Ok(()),
        problems => Err(Failure::Refused(problems.join("\n"))),
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries =
        |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let mut files = entries(folder);
    files.extend(entries(&folder.join("data")));
    files.retain(|path| path.is_file());
    files.sort();
    files
}

#[test]
fn f34_a_backup_is_its_owners_alone() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (backup, _) = made(dir.path());
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&backup), mode(&backup.join("data"))), (0o700, 0o700));
    for file in files(&backup) {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

/// A flip in any byte of any file, or a shorter file, is detected.
#[test]
fn every_flipped_byte_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (backup, manifest) = made(dir.path());
    whole(&backup).unwrap();
    assert_eq!(Manifest::read(&backup).unwrap(), manifest);
    let files = files(&backup);
    assert_eq!(files.len(), 5);
    let mut flips = 0;
    for path in files {
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&path, &damaged).unwrap();
            let refused = whole(&backup).expect_err(&format!("byte {at} of {}", path.display())).to_string();
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(refused.contains(name), "{refused}: {name}");
            fs::write(&path, &bytes[..at]).unwrap();
            assert!(whole(&backup).is_err(), "{} cut at {at}", path.display());
            flips += 1;
        }
        fs::remove_file(&path).unwrap();
        assert!(whole(&backup).is_err(), "without {}", path.display());
        fs::write(&path, &bytes).unwrap();
    }
    whole(&backup).unwrap();
    assert!(flips > 1_000, "{flips}");
}

#[test]
fn what_does_not_fit_together_is_found() {
    let dir = tempfile::tempdir().unwrap();
    for (number, (change, expected)) in [
        ((|manifest: &mut Manifest| manifest.files.swap(0, 1)) as fn(&mut Manifest), ""),
        (|manifest| manifest.keys += 1, "totals"),
        (|manifest| manifest.revision = "8".to_owned(), "the revisions of \"/registry/minions/a\""),
        (|manifest| manifest.leases.clear(), "\"/registry/o\" has a lease that the manifest does not know"),
        (|manifest| manifest.files[0].prefix = Some("/registry/pods/".to_owned()), "is not a key of nodes"),
        (|manifest| manifest.files[0].bytes -= 1, "totals"),
        (|manifest| manifest.files[0].xxh3.replace_range(0..1, "g"), "data/0.kbk: its checksum"),
    ]
    .into_iter()
    .enumerate()
    {
        let target = dir.path().join(number.to_string());
        let (folder, mut manifest) = begun(&target);
        change(&mut manifest);
        folder.finish(&manifest).unwrap();
        match (whole(&target), expected) {
            (Ok(()), "") => {}
            (Err(refused), expected) if !expected.is_empty() => {
                assert!(refused.to_string().contains(expected), "{refused}: {expected}");
            }
            (result, expected) => panic!("{result:?}: {expected}"),
        }
    }
}

#[test]
fn an_unfinished_backup_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("backup");
    let (folder, manifest) = begun(&target);
    let path = folder.path().to_owned();
    let refused = Manifest::read(&path).unwrap_err().to_string();
    assert!(refused.contains("backup.unfinished: this backup is unfinished"), "{refused}");
    let again = Unfinished::begin(&target).unwrap_err().to_string();
    assert!(again.contains("was interrupted, or is being written now"), "{again}");
    assert!(Manifest::read(&target).unwrap_err().to_string().contains("is no backup"));
    drop(folder);
    assert!(!path.exists() && !target.exists(), "it removes what it began");
    // A killed process removes nothing.
    std::mem::forget(begun(&target).0);
    assert!(Unfinished::begin(&target).is_err());
    fs::remove_dir_all(&path).unwrap();
    let (folder, _) = begun(&target);
    folder.finish(&manifest).unwrap();
    assert!(!path.exists());
    whole(&target).unwrap();
}

#[test]
fn where_no_backup_can_go() {
    let dir = tempfile::tempdir().unwrap();
    let full = dir.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("x"), "").unwrap();
    let refused = |path: &Path| Unfinished::begin(path).unwrap_err();
    assert!(refused(&full).to_string().contains("it is not empty"));
    assert_eq!(refused(Path::new("/")).code(), 2);
    assert!(refused(&full.join("x")).to_string().contains("Not a directory"));
    let disk = written(Path::new("/b"), &io::Error::from(io::ErrorKind::StorageFull)).to_string();
    assert!(
        disk.starts_with("/b: the disk is full; the unfinished backup was removed: free space"),
        "{disk}"
    );
    // An empty folder is accepted, and so is a path with a missing parent.
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let (folder, manifest) = begun(&empty);
    folder.finish(&manifest).unwrap();
    whole(&empty).unwrap();
    drop(Unfinished::begin(&dir.path().join("a/b/c")).unwrap());
}

#[test]
fn a_later_format_is_refused_by_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("backup");
    let (folder, mut manifest) = begun(&target);
    manifest.format_version = 2;
    folder.finish(&manifest).unwrap();
    let refused = whole(&target).unwrap_err().to_string();
    assert!(refused.contains("format version 2, this kindred reads 1"), "{refused}");
}

#[test]
fn keys_come_in_key_order_over_all_files() {
    let dir = tempfile::tempdir().unwrap();
    let (backup, manifest) = made(dir.path());
    let keys = |kind: Option<&str>, namespace: Option<&str>| {
        let selection = select::of(&manifest, kind, namespace).unwrap();
        let mut records = Records::open(&backup, &manifest, &selection).unwrap();
        let mut keys = Vec::new();
        while let Some(kv) = records.next().unwrap() {
            keys.push(String::from_utf8(kv.key.to_vec()).unwrap());
        }
        keys
    };
    let mut all: Vec<&str> = FILES.iter().flat_map(|(_, _, keys)| keys.iter().copied()).collect();
    all.sort_unstable();
    assert_eq!(keys(None, None), all);
    assert_eq!(keys(Some("pods"), None), FILES[1].2);
    assert_eq!(keys(None, Some("b")), ["/registry/pods/b/b"]);
}

proptest! {
    #[test]
    fn arbitrary_manifests_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("manifest.json"), &bytes).unwrap();
        fs::write(dir.path().join("manifest.xxh3"), format::sum_of(&bytes) + "\n").unwrap();
        prop_assert!(Manifest::read(dir.path()).is_err());
    }
}
