//! What a daemon of disks, or of many exports, can still reach and do.

use crate::fixture::{Fixture, USER};
use std::os::unix::process::ExitStatusExt;

/// SIGSYS
const SYS: i32 = 31;

/// Whether this kernel has all of Landlock that is asked of it; without, there is less to see.
fn has_landlock(fixture: &Fixture) -> bool {
    let (lines, _) = fixture.run(&["reach", ""]);
    lines == ["held"]
}

#[test]
fn only_named_paths_are_within_reach() {
    let mut fixtures = vec![Fixture::of_user()];
    fixtures.extend(Fixture::of_root());
    for fixture in fixtures.iter().filter(|fixture| has_landlock(fixture)) {
        let shared = fixture.shared();
        let at = |name: &str| shared.join(name).to_str().unwrap().to_owned();
        std::fs::write(at("other"), "other").unwrap();
        std::fs::create_dir(at("sockets")).unwrap();
        if rustix::process::geteuid().is_root() {
            for name in ["other", "sockets", "file"] {
                std::os::unix::fs::chown(at(name), Some(fixture.user()), Some(fixture.user())).unwrap();
            }
        }
        let rules = format!("{}=image,{}=sockets", at("file"), at("sockets"));
        let run = |words: &[&str]| {
            let (lines, status) = fixture.run(&[&["reach", &rules], words].concat());
            assert!(status.success(), "{lines:?}");
            assert_eq!(lines[0], "held");
            lines[1..].to_vec()
        };
        let (file, other, socket) = (at("file"), at("other"), at("sockets/a.sock"));
        let denied = "permission denied";
        assert_eq!(run(&["open", "read", &file, "open", "write", &file]), ["done", "done"]);
        assert_eq!(run(&["open", "read", &other, "open", "write", &other]), [denied, denied]);
        assert_eq!(run(&["open", "make", &at("new"), "open", "remove", &other]), [denied, denied]);
        assert_eq!(run(&["open", "list", shared.to_str().unwrap(), "open", "list", "/"]), [denied, denied]);
        assert_eq!(run(&["open", "bind", &socket, "open", "remove", &socket]), ["done", "done"]);
        assert_eq!(run(&["open", "make", &at("sockets/file")]), [denied]);
        assert_eq!(run(&["open", "read", "/etc/passwd", "open", "list", "/proc", "program"]), ["done"; 3]);
        // A directory of everything is one rule.
        let (lines, _) = fixture.run(&["reach", &format!("{}=all", shared.display()), "open", "write", &other]);
        assert_eq!(lines, ["held", "done"]);
    }
}

#[test]
fn what_holds_holds_for_programs_and_threads_too() {
    let fixture = Fixture::of_user();
    if !has_landlock(&fixture) {
        return;
    }
    let (lines, _) = fixture.run(&["reach", "", "tcp", "unix", "thread", "program"]);
    assert_eq!(lines, ["held", "permission denied", "done", "ran", "done"]);
    let (lines, status) = fixture.run(&["reach", "/nonexistent/image=image"]);
    assert_eq!(status.code(), Some(1));
    assert!(lines[0].contains("/nonexistent/image") && lines[0].contains("--landlock=off"), "{lines:?}");
}

#[test]
fn daemons_start_programs_and_no_namespaces() {
    for fixture in [Some(Fixture::of_user()), Fixture::of_root()].into_iter().flatten() {
        for list in ["seccomp-of-disks", "seccomp-of-daemon"] {
            let words = [list, "kill", "thread", "program", "unix", "tcp", "user-namespace", "state"];
            let (lines, status) = fixture.run(&words);
            assert!(status.success(), "{list}: {status}: {lines:?}");
            let denied = "permission denied";
            assert_eq!(lines[..6], ["installed", "ran", "done", "done", denied, denied], "{list}");
            assert!(lines[6].starts_with("true true "), "{list}: {lines:?}");
        }
    }
}

#[test]
fn a_daemon_of_a_directory_makes_no_namespaces() {
    for fixture in [Some(Fixture::of_user()), Fixture::of_root()].into_iter().flatten() {
        let (lines, status) = fixture.run(&["seccomp", "kill", "thread", "user-namespace", "thread"]);
        assert!(status.success(), "{status}: {lines:?}");
        assert_eq!(lines, ["installed", "ran", "permission denied", "ran"]);
    }
}

#[test]
fn ports_that_were_named_can_still_be_bound() {
    let fixture = Fixture::of_user();
    let denied = "permission denied";
    // Port 0 stands for any that is free, in the rule as in the call.
    let words = ["seccomp-of-streams", "kill", "bind", "0", "udp", "unix", "thread", "program"];
    let (lines, status) = fixture.run(&words);
    assert!(status.success(), "{lines:?}");
    assert_eq!(lines, ["installed", "done", denied, "done", "ran", "done"]);
    let (lines, _) = fixture.run(&["seccomp-of-daemon", "kill", "bind", "0"]);
    assert_eq!(lines, ["installed", denied]);
    if has_landlock(&fixture) {
        let (lines, _) =
            fixture.run(&["reach", "0=port", "bind", "0", "tcp", "seccomp-of-streams", "kill", "bind", "0"]);
        assert_eq!(lines, ["held", "done", denied, "installed", "done"]);
        let (lines, _) = fixture.run(&["reach", "", "bind", "0"]);
        assert_eq!(lines, ["held", denied]);
    }
}

#[test]
fn forbidden_calls_end_daemons_as_asked() {
    let fixture = Fixture::of_user();
    for list in ["seccomp-of-disks", "seccomp-of-daemon"] {
        for answer in ["kill", "trap"] {
            let (lines, status) = fixture.run(&[list, answer, "forbidden"]);
            assert_eq!((lines.len(), status.signal()), (1, Some(SYS)), "{list} {answer}: {lines:?}");
        }
        let (lines, status) = fixture.run(&[list, "log", "forbidden", "thread", "tcp"]);
        assert!(status.success(), "{list}: {lines:?}");
        assert_eq!(lines[..3], ["installed", "answered true", "ran"], "{list}");
        assert_eq!(lines[3], "connection refused", "{list}: what is logged is not refused");
    }
}

#[test]
fn root_becomes_somebody_without_rights() {
    let Some(fixture) = Fixture::of_root() else { return };
    let user = USER.to_string();
    let (lines, _) = fixture.run(&["become", &user, &user, "no-new-privileges", "state"]);
    let seen = [format!("{user} {user} [{user}]"), "given up".into(), format!("true false {user}:{user} []")];
    assert_eq!(lines, seen);
    let (lines, status) = fixture.run(&["become", &user, &user, "become", "0", "0"]);
    assert_eq!(status.code(), Some(1));
    assert!(lines[1].contains("start the daemon as root"), "{lines:?}");
}

#[test]
fn nobody_stays_who_they_are() {
    let fixture = Fixture::of_user();
    let user = fixture.user().to_string();
    let (lines, status) = fixture.run(&["become", &user, &user]);
    assert!(status.success() && lines[0].starts_with(&format!("{user} {user} ")), "{lines:?}");
    let (lines, status) = fixture.run(&["become", "0", "0"]);
    assert_eq!(status.code(), Some(1));
    assert!(lines[0].contains("leave --user out"), "{lines:?}");
}
