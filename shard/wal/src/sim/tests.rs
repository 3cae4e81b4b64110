use super::*;

fn disk() -> SimDisk {
    let disk = SimDisk::new(1);
    disk.create_directory(Path::new("d")).unwrap();
    disk
}

#[test]
fn what_is_synced_survives_and_only_that_is_certain() {
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        let (directory, path) = (Path::new("d"), Path::new("d/a"));
        disk.create_directory(directory).unwrap();
        let mut file = disk.create(path).unwrap();
        file.write_at(0, &[1; 1000]).unwrap();
        file.sync().unwrap();
        disk.sync_directory(directory).unwrap();
        file.write_at(1000, &[2; 2000]).unwrap();
        disk.crash();
        assert!(file.length().is_err(), "an open file does not outlive the crash");
        let content = disk.content(path).unwrap();
        assert!(content.starts_with(&[1; 1000]));
        match content[1000..].iter().filter(|byte| **byte == 2).count() {
            0 => lost += 1,
            2000 => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(lost > 5 && kept > 5 && torn > 20, "{lost} {kept} {torn}");
}

#[test]
fn a_name_without_a_synced_directory_may_be_lost_but_in_order() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        disk.create_directory(Path::new("d")).unwrap();
        let mut file = disk.create(Path::new("d/a.new")).unwrap();
        file.write_at(0, b"x").unwrap();
        file.sync().unwrap();
        disk.rename(Path::new("d/a.new"), Path::new("d/a")).unwrap();
        disk.crash();
        seen.insert(disk.list(Path::new("d")).unwrap());
    }
    let all = [vec![], vec!["a".to_owned()], vec!["a.new".to_owned()]];
    assert_eq!(seen, BTreeSet::from(all));
}

/// A successful sync after a failed one does not make the earlier writes durable.
#[test]
fn a_failed_sync_forgets() {
    let lost = (0..50).filter(|seed| {
        let disk = SimDisk::new(*seed);
        disk.create_directory(Path::new("d")).unwrap();
        let mut file = disk.create(Path::new("d/a")).unwrap();
        disk.sync_directory(Path::new("d")).unwrap();
        disk.set_faults(Faults { fail_sync_in: Some(0), ..Faults::default() });
        file.write_at(0, &[1; 4096]).unwrap();
        file.sync().unwrap_err();
        file.sync().unwrap();
        assert_eq!(disk.content(Path::new("d/a")).unwrap(), [1; 4096], "still seen");
        disk.crash();
        disk.content(Path::new("d/a")).unwrap() != [1; 4096]
    });
    assert!(lost.count() > 25);
}

#[test]
fn faults_are_what_they_say() {
    let disk = disk();
    let path = Path::new("d/a");
    let mut file = disk.create(path).unwrap();
    disk.set_faults(Faults { space_left: Some(3), ..Faults::default() });
    assert_eq!(file.write_at(0, b"abcde").unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.content(path).unwrap(), b"abc");
    assert_eq!(disk.free_space(path).unwrap(), 0);
    disk.set_faults(Faults { read_only: true, ..Faults::default() });
    assert_eq!(file.write_at(0, b"x").unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(file.length().unwrap(), 3);
    disk.set_faults(Faults { stop_in: Some(1), ..Faults::default() });
    file.write_at(0, b"x").unwrap();
    file.write_at(0, b"y").unwrap_err();
    file.length().unwrap_err();
    disk.kill();
    assert_eq!(disk.content(path).unwrap(), b"xbc", "a kill loses nothing");
    disk.flip(path, 9);
    assert_eq!(disk.content(path).unwrap(), b"x`c");
}
