//! A test in a process of its own, whose limits are nobody else's, whatever else is tested.

use std::process::Command;

/// Told from the ends of a program that runs no test of this name, or one that fails.
const IS_DONE: i32 = 43;

/// Runs an ignored test of this program by its whole name, to its [`end`].
pub fn run(test: &str) {
    // A signal that is ignored stays so: a write beyond RLIMIT_FSIZE is an error.
    let mut child = Command::new("sh");
    child.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]).arg(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--ignored", "--test-threads=1", "--nocapture"]);
    let ended = child.output().unwrap();
    assert_eq!(ended.status.code(), Some(IS_DONE), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// Where such a test says that it has come to its end.
pub fn end() -> ! {
    std::process::exit(IS_DONE)
}
