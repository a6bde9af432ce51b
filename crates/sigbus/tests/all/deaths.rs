//! What is not ours is handed on: faults elsewhere end the process, and other handlers still get theirs.

use sigbus::Guard;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr;

/// How the test of this name, which is ignored otherwise, ends in a process of its own.
fn end_of(name: &str) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", &format!("deaths::{name}"), "--ignored", "--test-threads=1", "--nocapture"]);
    child.output().unwrap().status
}

/// Nobody wants a core file of a death that was meant.
fn leave_no_core() {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).unwrap();
}

/// Whether guarded reads still end with an error.
fn guarded_reads_work(guard: Guard) -> bool {
    // SAFETY: no process has memory there.
    unsafe { guard.byte(ptr::without_provenance(16)) }.is_err()
}

#[test]
#[ignore = "ends its process"]
fn child_touches_nothing() {
    leave_no_core();
    assert!(guarded_reads_work(Guard::install().unwrap()));
    // SAFETY: it is none. The fault is what this process is for.
    unsafe { ptr::without_provenance::<u8>(16).read_volatile() };
}

#[test]
#[ignore = "ends its process"]
fn child_touches_nothing_by_default() {
    leave_no_core();
    // SAFETY: the default action in the place of the runtime's handler.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    assert!(guarded_reads_work(Guard::install().unwrap()));
    // SAFETY: as above.
    unsafe { ptr::without_provenance::<u8>(16).read_volatile() };
}

#[test]
#[ignore = "ends its process"]
fn child_is_sent_a_signal() {
    leave_no_core();
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    assert!(guarded_reads_work(Guard::install().unwrap()));
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(libc::SIGBUS) };
}

#[test]
#[ignore = "ends its process"]
fn child_ignores_what_is_sent() {
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_IGN) };
    let guard = Guard::install().unwrap();
    // SAFETY: as above.
    unsafe { libc::raise(libc::SIGBUS) };
    assert!(guarded_reads_work(guard));
    std::process::exit(43);
}

extern "C" fn leave(_signal: libc::c_int) {
    // SAFETY: ends the process at once, as a handler may.
    unsafe { libc::_exit(42) };
}

#[test]
#[ignore = "ends its process"]
fn child_has_a_handler_of_its_own() {
    // SAFETY: the handler does what handlers may.
    unsafe { libc::signal(libc::SIGSEGV, leave as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    assert!(guarded_reads_work(Guard::install().unwrap()));
    // SAFETY: as above.
    unsafe { ptr::without_provenance::<u8>(16).read_volatile() };
}

#[test]
fn faults_elsewhere_end_the_process() {
    assert_eq!(end_of("child_touches_nothing").signal(), Some(libc::SIGSEGV));
    assert_eq!(end_of("child_touches_nothing_by_default").signal(), Some(libc::SIGSEGV));
}

#[test]
fn signals_that_are_sent_do_what_they_did() {
    assert_eq!(end_of("child_is_sent_a_signal").signal(), Some(libc::SIGBUS));
    assert_eq!(end_of("child_ignores_what_is_sent").code(), Some(43));
}

#[test]
fn handlers_that_were_there_are_called() {
    assert_eq!(end_of("child_has_a_handler_of_its_own").code(), Some(42));
}
