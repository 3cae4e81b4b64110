//! The scripts of `deploy/`: the certificates, and the files of the image.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use kindred_tests::process::our_binary;

use crate::deploy::render::deploy;

fn run(program: &Path, args: &[&str]) -> Output {
    Command::new(program).args(args).output().expect("the program runs")
}

/// Makes certificates in a folder.
pub fn certificates(folder: &Path, names: &[&str]) {
    let args = [&[folder.to_str().expect("a path of letters")], names].concat();
    let made = run(&deploy("certificates"), &args);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn certificates_are_made_once_and_are_of_the_right_authority() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("pki");
    certificates(&folder, &["pods", "*.kindred-pods.kindred.svc.cluster.local", "10.0.0.7", "fd00::1"]);
    let verified = |authority: &str, file: &str| {
        let args = ["verify", "-CAfile", authority, file].map(|arg| {
            if arg.ends_with(".crt") { folder.join(arg).display().to_string() } else { arg.to_owned() }
        });
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        run(Path::new("openssl"), &args).status.success()
    };
    // By f83 no certificate for admin ports was to be one of the stores' authority.
    for (file, of) in [
        ("server", "clients-ca"),
        ("apiserver-client", "clients-ca"),
        ("shard", "ca"),
        ("router", "ca"),
        ("admin", "admin-ca"),
        ("metrics", "admin-ca"),
    ] {
        for authority in ["clients-ca", "ca", "admin-ca"] {
            let (authority_file, file) = (format!("{authority}.crt"), format!("{file}.crt"));
            assert_eq!(verified(&authority_file, &file), authority == of, "{authority} {file}");
        }
    }
    let shown = run(
        Path::new("openssl"),
        &["x509", "-noout", "-ext", "subjectAltName", "-in", folder.join("shard.crt").to_str().unwrap()],
    );
    let shown = String::from_utf8(shown.stdout).unwrap();
    for name in ["DNS:pods", "DNS:*.kindred-pods.kindred.svc.cluster.local", "IP Address:10.0.0.7", "FD00:"] {
        assert!(shown.contains(name), "{shown}");
    }
    for entry in fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        let name = entry.file_name().into_string().unwrap();
        let wanted = match name.as_str() {
            name if name.ends_with("ca.key") => 0o600,
            name if name.ends_with(".key") => 0o640,
            _ => 0o644,
        };
        assert_eq!(mode, wanted, "{name}");
    }
    // A second run changes nothing but what is missing, and does not make another authority where the key is elsewhere.
    let before = fs::read(folder.join("router.crt")).unwrap();
    fs::remove_file(folder.join("metrics.crt")).unwrap();
    certificates(&folder, &[]);
    assert_eq!(fs::read(folder.join("router.crt")).unwrap(), before);
    assert!(folder.join("metrics.crt").exists());
    fs::remove_file(folder.join("admin-ca.key")).unwrap();
    fs::remove_file(folder.join("metrics.crt")).unwrap();
    let refused = run(&deploy("certificates"), &[folder.to_str().unwrap()]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("metrics.crt cannot be signed"), "{said}");
}

/// What is in the image is enough for the programs, and there is nothing else in it.
#[test]
fn the_files_of_the_image_are_enough() {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().join("image");
    let program = our_binary("kindred").unwrap();
    let made = run(&deploy("image-root"), &[root.to_str().unwrap(), program.to_str().unwrap()]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let programs: Vec<_> = fs::read_dir(root.join("usr/local/bin")).unwrap().collect();
    assert_eq!(programs.len(), 1);
    assert!(!root.join("bin/sh").exists());
    // Only root may change its root folder.
    if !is_root() {
        println!("NOT RUN: the program in the files of the image, as this user may not call chroot");
        return;
    }
    for folder in [scratch.path(), &root] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let user = "--userspec=2379:2379";
    let root = root.to_str().unwrap();
    let ran = run(Path::new("chroot"), &[user, root, "/usr/local/bin/kindred", "--version"]);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(said.contains(env!("CARGO_PKG_VERSION")), "{said}{}", String::from_utf8_lossy(&ran.stderr));
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:\t0\t0"))
}
