//! What a process sees and does in each sandbox, and how it ends.

use crate::fixture::{Fixture, signal_of_child};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// SIGTERM
const TERM: i32 = 15;

#[test]
fn a_namespace_of_root_shows_the_shared_directory_alone() {
    let Some(fixture) = Fixture::of_root() else { return };
    symlink("/etc/passwd", fixture.shared().join("link")).unwrap();
    let words =
        ["ids", "groups", "pid", "list", "read", "file", "above", "interfaces", "path", "/file", "path", "/proc"];
    let seen = fixture.inside("namespace", "", &words);
    assert_eq!(seen, ["0 0", "0", "1", "file,link only", "content", "nothing", "1", "true", "false"]);
    assert_eq!(fixture.inside("namespace", "", &["own", "made", "4242"]), ["4242 4242"]);
    assert_eq!(fs::metadata(fixture.shared().join("made")).unwrap().uid(), 4242);
}

#[test]
fn a_namespace_of_anybody_shows_the_shared_directory_alone() {
    let fixture = Fixture::of_user();
    let user = fixture.user();
    let words =
        ["ids", "groups", "pid", "list", "read", "file", "above", "interfaces", "path", "/file", "path", "/proc"];
    let seen = fixture.inside("namespace", "", &words);
    let ids = format!("{user} {user}");
    assert_eq!(seen[1..], ["0", "1", "file only", "content", "nothing", "1", "true", "false"][..]);
    assert_eq!(seen[0], ids, "without a map everybody stays who they are");
    assert_eq!(fixture.inside("namespace", "", &["own", "made", &user.to_string()]), [ids]);
    assert_eq!(fs::metadata(fixture.shared().join("made")).unwrap().uid(), user);
}

#[test]
fn the_own_id_may_be_root_inside() {
    let fixture = Fixture::of_user();
    let seen = fixture.inside("namespace", &format!("/0/{}/1/", fixture.user()), &["ids", "own", "made", "0"]);
    assert_eq!(seen, ["0 0", "0 0"]);
    assert_eq!(fs::metadata(fixture.shared().join("made")).unwrap().uid(), fixture.user());
}

#[test]
fn ranges_of_ids_need_somebody_who_gives_them() {
    let fixture = Fixture::of_user();
    let shared = fixture.shared();
    let enter = ["enter", "namespace", shared.to_str().unwrap(), ":0:4000000000:1000:", ""];
    // Whether the programs are installed or not: nobody owns these.
    let (lines, status) = fixture.run(&enter);
    assert_eq!(status.code(), Some(1));
    assert!(lines[0].contains("newuidmap") && lines[0].contains("/etc/subuid"), "{lines:?}");
    let output = fixture.command(&enter).env("PATH", "/nowhere").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("newuidmap: No such file"), "{text}");
}

#[test]
fn the_whole_tree_can_be_shared() {
    let Some(fixture) = Fixture::of_root() else { return };
    let (lines, status) = fixture.run(&["enter", "namespace", "/", "", "", "list", "above", "path", "/proc/self"]);
    assert!(status.success(), "{lines:?}");
    assert!(lines[1].contains("etc") && lines[1].ends_with(" only"), "{lines:?}");
    assert_eq!(lines[2], "nothing");
}

#[test]
fn a_chroot_shows_the_shared_directory_alone() {
    let Some(fixture) = Fixture::of_root() else { return };
    let seen = fixture.inside("chroot", "", &["list", "read", "file", "above", "path", "/file", "path", "/proc"]);
    assert_eq!(seen, ["file only", "content", "nothing", "true", "false"]);
}

#[test]
fn without_a_sandbox_everything_is_there() {
    let fixture = Fixture::of_user();
    assert_eq!(
        fixture.inside("none", "", &["list", "read", "file", "path", "/etc"]),
        ["file and more", "content", "true"]
    );
}

#[test]
fn a_symbolic_link_to_the_shared_directory_will_do() {
    let fixture = Fixture::of_user();
    let link = tempfile::tempdir().unwrap();
    let link = link.path().join("link");
    fs::set_permissions(link.parent().unwrap(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    symlink(fixture.shared(), &link).unwrap();
    let (lines, _) = fixture.run(&["enter", "namespace", link.to_str().unwrap(), "", "", "list"]);
    assert_eq!(lines, ["entered", "file only"]);
}

#[test]
fn refusals_name_the_fix() {
    let fixture = Fixture::of_user();
    let shared = fixture.shared();
    let shared = shared.to_str().unwrap();
    let refused = |fixture: &Fixture, words: &[&str], part: &str| {
        let (lines, status) = fixture.run(words);
        let last = lines.last().unwrap();
        assert!(status.code() == Some(1) && last.starts_with("error: ") && last.contains(part), "{lines:?}");
    };
    refused(&fixture, &["enter", "chroot", shared, "", ""], "use --sandbox=namespace");
    refused(&fixture, &["enter", "none", shared, ":0:1:1:", ""], "leave them away");
    refused(&fixture, &["enter", "none", shared, "", ":0:1:1:"], "leave them away");
    refused(&fixture, &["enter", "namespace", "/nowhere", "", ""], "/nowhere: No such file");
    refused(&fixture, &["enter", "namespace", &format!("{shared}/file"), "", ""], "Not a directory");
    refused(&fixture, &["threads", "enter", "none", shared, "", ""], "has 2: enter it first");
    if let Some(fixture) = Fixture::of_root() {
        refused(&fixture, &["enter", "namespace", shared, ":0:1:1:", ""], "--translate-uid");
    }
}

#[test]
fn the_one_outside_ends_as_the_one_inside() {
    let fixture = Fixture::of_user();
    let shared = fixture.shared();
    let (_, status) = fixture.run(&["enter", "namespace", shared.to_str().unwrap(), "", "", "exit", "42"]);
    assert_eq!(status.code(), Some(42));
}

#[test]
fn who_ignores_children_can_start_a_daemon() {
    let fixture = Fixture::of_user();
    let shared = fixture.shared();
    let probe = fixture.command(&["enter", "namespace", shared.to_str().unwrap(), "", "", "exit", "42"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' CHLD; exec \"$@\"", "sh"]).arg(probe.get_program()).args(probe.get_args());
    if rustix::process::geteuid().is_root() {
        shell.uid(fixture.user()).gid(fixture.user());
    }
    assert_eq!(shell.status().unwrap().code(), Some(42));
}

/// The numbers of a process's open files; none if this process may not ask.
fn files_of(pid: rustix::process::Pid) -> Vec<String> {
    fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()))
        .map(|files| files.filter_map(|file| file.ok()?.file_name().into_string().ok()).collect())
        .unwrap_or_default()
}

#[test]
fn a_signal_to_the_one_outside_reaches_the_one_inside() {
    let fixture = Fixture::of_user();
    let shared = fixture.shared();
    let mut command = fixture.command(&["enter", "namespace", shared.to_str().unwrap(), "", "", "wait"]);
    let mut outside = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(outside.stdout.take().unwrap());
    let mut line = String::new();
    while line.trim() != "waiting" {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the probe waits");
    }
    let pid = rustix::process::Pid::from_child(&outside);
    // The one inside may be waiting before the one outside has closed what it does not need.
    let mut files = files_of(pid);
    for _ in 0..10_000 {
        if files.iter().all(|file| ["0", "1", "2"].contains(&file.as_str())) {
            break;
        }
        thread::sleep(Duration::from_millis(1));
        files = files_of(pid);
    }
    assert!(files.iter().all(|file| ["0", "1", "2"].contains(&file.as_str())), "kept: {files:?}");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(signal_of_child(outside.wait().unwrap()), Some(TERM));
    assert_eq!(output.read_to_string(&mut line).unwrap(), 0);
}

#[test]
fn the_one_inside_does_not_outlive_the_one_outside() {
    let fixture = Fixture::of_user();
    let shared = fixture.shared();
    let mut command = fixture.command(&["enter", "namespace", shared.to_str().unwrap(), "", "", "wait"]);
    let mut outside = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(outside.stdout.take().unwrap());
    let mut line = String::new();
    while line.trim() != "waiting" {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "the probe waits");
    }
    outside.kill().unwrap();
    outside.wait().unwrap();
    // The output ends when nobody can write to it any more.
    assert_eq!(output.read_to_string(&mut line).unwrap(), 0);
}
