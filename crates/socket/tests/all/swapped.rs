//! Somebody else may write to the directory of the socket, and renames what lies there at the worst moments.

use rustix::process::getuid;
use socket::{BindError, File, Options};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

const BACKLOG: i32 = 1;

fn own(mode: u32) -> Options {
    Options { mode: Some(mode), owner: Some(getuid().as_raw()), group: None }
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

/// Binds again and again while `swap` does its worst with the socket that has just been made.
fn bind_while(path: &Path, options: &Options, swap: impl Fn() + Sync) -> (u32, u32) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()) {
                    swap();
                }
            }
        });
        let (mut made, mut noticed) = (0, 0);
        for _ in 0..2000 {
            match socket::bind(path, options, BACKLOG) {
                Ok(_) => made += 1,
                Err(BindError::Swapped { .. }) => noticed += 1,
                // What was put there before the name was free, or taken away when it was looked at.
                Err(_) => {}
            }
            let _ = fs::remove_file(path);
        }
        stop.store(true, Ordering::Relaxed);
        (made, noticed)
    })
}

#[test]
fn no_linked_file_is_given_mode_or_owner() {
    let dir = TempDir::new().unwrap();
    let (path, victim, link) = (dir.path().join("a.sock"), dir.path().join("victim"), dir.path().join("link"));
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, PermissionsExt::from_mode(0o600)).unwrap();
    let (made, noticed) = bind_while(&path, &own(0o666), || {
        let _ = symlink(&victim, &link);
        let _ = fs::rename(&link, &path);
    });
    assert!(made + noticed > 0);
    assert_eq!(mode(&victim), 0o600);
}

#[test]
fn no_other_live_socket_is_given_mode_or_owner() {
    let dir = TempDir::new().unwrap();
    let (path, live, link) = (dir.path().join("a.sock"), dir.path().join("live"), dir.path().join("link"));
    let _live = UnixListener::bind(&live).unwrap();
    fs::set_permissions(&live, PermissionsExt::from_mode(0o600)).unwrap();
    let (made, noticed) = bind_while(&path, &own(0o666), || {
        let _ = fs::hard_link(&live, &link);
        let _ = fs::rename(&link, &path);
    });
    assert!(made + noticed > 0);
    assert_eq!(mode(&live), 0o600);
}

/// The umask of the tests' process is as it is: what it takes of a mode is given back.
#[test]
fn a_socket_has_its_mode_whatever_the_umask() {
    let dir = TempDir::new().unwrap();
    for wanted in [0o000, 0o600, 0o622, 0o666, 0o777] {
        let path = dir.path().join(format!("{wanted:o}.sock"));
        let options = Options { mode: Some(wanted), ..Options::default() };
        let (_socket, file) = socket::bind(&path, &options, BACKLOG).unwrap();
        assert_eq!(mode(&path), wanted);
        let found = path.symlink_metadata().unwrap();
        assert_eq!((file.device, file.inode), (found.dev(), found.ino()));
    }
}

#[test]
fn a_file_is_removed_while_it_is_the_sockets() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.sock");
    let (_socket, file) = socket::bind(&path, &own(0o600), BACKLOG).unwrap();
    let other = File { inode: file.inode + 1, ..file.clone() };
    other.remove().unwrap();
    UnixStream::connect(&path).unwrap();
    file.remove().unwrap();
    assert!(!path.exists());
    // It is gone, and so may be its directory.
    file.remove().unwrap();
    File { path: dir.path().join("none/a.sock"), ..file }.remove().unwrap();
}

/// The path leads elsewhere by the time the socket is to be removed: what lies there has another inode.
#[test]
fn a_directory_that_took_the_place_of_the_sockets_keeps_its_files() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    fs::create_dir(&ours).unwrap();
    fs::create_dir(&theirs).unwrap();
    let (_socket, file) = socket::bind(&ours.join("a.sock"), &own(0o600), BACKLOG).unwrap();
    fs::write(theirs.join("a.sock"), "precious").unwrap();
    fs::rename(&ours, dir.path().join("moved")).unwrap();
    symlink(&theirs, &ours).unwrap();
    file.remove().unwrap();
    assert!(theirs.join("a.sock").exists());
}
