//! What a process may no longer do.

use crate::fixture::{Fixture, signal_of_child};
use std::os::unix::process::ExitStatusExt;

/// SIGSYS
const SYS: i32 = 31;
/// The eight capabilities of a daemon without file handles, by the numbers of `linux/capability.h`.
const SERVING: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 27 | 1 << 31;
/// `CAP_DAC_READ_SEARCH`
const HANDLES: u64 = 1 << 2;

#[test]
fn only_needed_capabilities_stay() {
    let Some(fixture) = Fixture::of_root() else { return };
    for (changes, handles, expected) in [
        ("", "handles", SERVING | HANDLES),
        ("", "none", SERVING),
        ("-chown:+sys_admin", "none", SERVING & !1 | 1 << 21),
        ("+sys_admin:-SYS_ADMIN", "handles", SERVING | HANDLES),
    ] {
        let (lines, _) = fixture.run(&["capabilities", changes, handles]);
        assert_eq!(lines, [format!("{expected:x} 0")], "{changes}");
    }
}

#[test]
fn what_was_given_up_does_not_come_back() {
    let Some(fixture) = Fixture::of_root() else { return };
    let (lines, status) = fixture.run(&["capabilities", "", "none", "capabilities", "+sys_admin", "none"]);
    assert_eq!(status.code(), Some(1));
    assert!(lines[1].contains("asks for cap_sys_admin, which this process does not have"), "{lines:?}");
}

#[test]
fn a_user_namespace_has_capabilities_of_its_own() {
    let fixture = Fixture::of_user();
    let seen = fixture.inside("namespace", "", &["capabilities", "", "handles"]);
    assert_eq!(seen, [format!("{:x} 0", SERVING | HANDLES)]);
}

#[test]
fn who_has_no_capabilities_is_left_alone() {
    let (lines, status) = Fixture::of_user().run(&["capabilities", "", "handles"]);
    assert!(status.success(), "{lines:?}");
    assert_eq!(lines, ["0 0"]);
}

#[test]
fn forbidden_calls_end_as_asked() {
    let fixture = Fixture::of_user();
    for answer in ["kill", "trap"] {
        let (lines, status) = fixture.run(&["seccomp", answer, "forbidden"]);
        assert_eq!((lines.len(), status.signal()), (1, Some(SYS)), "{answer}: {lines:?}");
        let (lines, status) = fixture.run(&["seccomp-of-thread", answer]);
        assert_eq!((lines.len(), status.signal()), (1, Some(SYS)), "{answer}: {lines:?}");
    }
    for answer in ["log", "none"] {
        let (lines, status) = fixture.run(&["seccomp", answer, "forbidden"]);
        assert!(status.success() && lines == ["installed", "answered true"], "{answer}: {lines:?}");
    }
}

#[test]
fn the_work_goes_on_in_the_narrowest_place() {
    let mut fixtures = vec![Fixture::of_user()];
    fixtures.extend(Fixture::of_root());
    for fixture in fixtures {
        let words = ["capabilities", "", "handles", "seccomp", "kill", "work", "read", "file", "exit", "0"];
        assert_eq!(fixture.inside("namespace", "", &words)[2..], ["worked among 1", "content"]);
        let shared = fixture.shared();
        let enter = ["enter", "namespace", shared.to_str().unwrap(), "", "", "seccomp", "kill", "forbidden"];
        let (lines, status) = fixture.run(&enter);
        assert_eq!((lines.len(), signal_of_child(status)), (2, Some(SYS)), "{lines:?}");
    }
}

#[test]
fn open_files_are_limited_as_asked() {
    let fixture = Fixture::of_user();
    let limit = |words: &[&str]| fixture.run(words);
    let (lines, _) = limit(&["open-files", "100", "open-files", "0", "open-files", "default"]);
    assert_eq!(lines, ["100", "100", "100"], "nobody may have more again, and needs not");
    let (lines, status) = limit(&["open-files", "100", "open-files", "101"]);
    assert_eq!(status.code(), Some(1));
    assert!(lines[1].contains("use at most the hard limit, 100"), "{lines:?}");
    let (lines, _) = limit(&["open-files", "18446744073709551615"]);
    assert!(lines[0].contains("raise it with sysctl fs.nr_open"), "{lines:?}");
    // Root of a container often may not raise limits either.
    let own = rustix::thread::capabilities(None).unwrap().permitted;
    let raises = own.contains(rustix::thread::CapabilitySet::SYS_RESOURCE);
    if let Some(root) = Fixture::of_root() {
        let possible: u64 = std::fs::read_to_string("/proc/sys/fs/nr_open").unwrap().trim().parse().unwrap();
        let expected = if raises { possible.min(sandbox::OPEN_FILES_DEFAULT) } else { 100 };
        let (lines, _) = root.run(&["open-files", "100", "open-files", "default"]);
        assert_eq!(lines, ["100".to_owned(), expected.to_string()]);
    }
}
