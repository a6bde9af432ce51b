//! What POSIX says of file systems, by the pjdfstest suite, of a directory by 9p.

use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer};
use tests::lab::Lab;
use tests::p9_guest::{self, KERNEL};
use tests::posix_suite::{self, Known};

const LIMIT: Duration = Duration::from_secs(300);

/// Without fallocate(2), for which 9P2000.L has no message.
const FEATURES: &[&str] = &["rename_ctime = {}", "utime_now = {}", "utimensat = {}"];

/// What Linux does by itself between the program and the protocol. It is explained in `docs/9p.md`, "Where it differs".
const DIFFERENCES: &[Known] =
    &[("utimensat::subsecond", "Linux's client keeps whole seconds of the times that a program sets")];

/// Without a cache, so that every question is a message.
#[test]
fn suite_passes_but_for_what_linux_has_no_message_for() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let mut server = DirectoryServer::start(&lab, &Directory::p9(shared.path()))?;
    let guest = p9_guest::boot(&lab, KERNEL, &server, "cache=none", &posix_suite::body(FEATURES))?;
    posix_suite::judge_guest(guest, DIFFERENCES, LIMIT)?;
    server.check_alive()
}
