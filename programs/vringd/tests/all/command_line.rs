//! The program as others start it: its names, its exit statuses, what it prints.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

fn run(called: &str, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vringd"));
    command.arg0(called).args(words.split_whitespace()).env_remove("VRINGD_LOG").output().unwrap()
}

/// The one line that says why nothing was done.
fn refused(called: &str, words: &str) -> String {
    let output = run(called, words);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{words}: {line}");
    assert!(output.stdout.is_empty(), "{words}");
    line
}

#[test]
fn it_answers_to_the_name_of_virtiofsd() {
    for (called, words) in [
        ("/usr/libexec/virtiofsd", "--print-capabilities"),
        ("virtiofsd", "--print-capabilities"),
        ("vringd", "virtiofsd --print-capabilities"),
    ] {
        let output = run(called, words);
        assert!(output.status.success(), "{called} {words}");
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said["type"], "fs");
        assert!(said["features"].as_array().unwrap().contains(&"separate-options".into()), "{said}");
    }
    let version = String::from_utf8(run("virtiofsd", "--version").stdout).unwrap();
    assert!(version.starts_with("virtiofsd 1.14.0 (vringd "), "{version}");
    let version = String::from_utf8(run("vringd", "--version").stdout).unwrap();
    assert!(version.starts_with("vringd "), "{version}");
}

#[test]
fn a_flag_that_is_not_supported_is_refused_by_name() {
    let least = "--socket-path /nonexistent/fs.sock --shared-dir /nonexistent";
    for (words, named) in [
        ("--migration-mode=inodes", "'--migration-mode <MODE>': use find-paths or file-handles"),
        ("--migration-on-error=ignore", "'--migration-on-error <REACTION>': use abort or guest-error"),
        ("-o norace", "virtiofsd: -o norace: is not supported"),
        ("--posix-acl --translate-uid map:0:0:1", "virtiofsd: --translate-uid: excludes --posix-acl"),
        ("--colour=red", "unexpected argument '--colour'"),
        ("--log-level loud", "virtiofsd: --log-level: `loud` is not a level"),
    ] {
        let line = refused("virtiofsd", &format!("{least} {words}"));
        assert!(line.contains(named), "{words}: {line}");
    }
    assert!(refused("vringd", &format!("virtiofsd {least} -o norace")).starts_with("vringd: -o norace: "));
}

#[test]
fn a_directory_that_cannot_be_served_is_refused_before_a_socket_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("fs.sock");
    let serve = |words: &str| refused("vringd", &format!("dir --socket {} {words}", socket.display()));
    assert!(serve("--queues 65 /").starts_with("vringd: export dir: queues: must be 1 to 64, not 65"));
    assert!(serve("--tag 1234567890123456789012345678901234567 /").contains("directory.tag: "));
    assert!(serve("--no-xattr --posix-acl /").contains("--posix-acl"));
    assert!(serve("").contains("<DIR>"));
    assert!(!socket.exists());
}

#[test]
fn every_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    assert!(run("vringd", &format!("man {}", directory.path().display())).status.success());
    for page in [
        "vringd.1",
        "vringd-dir.1",
        "vringd-doctor.1",
        "vringd-virtiofsd.1",
        "vringd-ctl-export-add-dir.1",
        "vringd-ctl-disk-add.1",
    ] {
        let text = std::fs::read_to_string(directory.path().join(page)).unwrap();
        assert!(text.contains(".SH OPTIONS"), "{page}");
    }
}

/// 9p believes its clients who they are: a client of root's daemon is root.
#[test]
fn roots_daemon_lends_root_to_nobody_unasked() {
    if !rustix::process::geteuid().is_root() {
        // Others have nothing of root's to lend; `clients::tests` has the rules.
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (socket, shared) = (directory.path().join("9p.sock"), directory.path().display());
    for (listen, more, field) in [
        ("tcp:0".to_owned(), "", "listen: "),
        ("tcp:0.0.0.0:0".to_owned(), "--security-model none", "listen: "),
        ("vsock:564".to_owned(), "--client-cid 3", "listen: "),
        (format!("unix:{}", socket.display()), "--socket-mode 0666", "socket_mode: "),
        (format!("unix:{}", socket.display()), "--socket-owner 65534", "socket_owner: "),
    ] {
        let line = refused("vringd", &format!("dir --protocol 9p --listen {listen} {more} {shared}"));
        assert!(line.starts_with(&format!("vringd: {field}")), "{line}");
        for way_out in ["mapped-xattr", "another user", "clients_may_be_root"] {
            assert!(line.contains(way_out), "{line}");
        }
        assert_eq!(line.trim_end().lines().count(), 1, "{line}");
    }
    assert!(!socket.exists());
}
