//! What POSIX says of file systems, by the pjdfstest suite.

use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;
use tests::directory_server::{Cache, Directory, DirectoryServer};
use tests::lab::Lab;
use tests::uml::Kernel;
use tests::{fs_guest, posix_suite};

const LIMIT: Duration = Duration::from_secs(300);

/// All that the suite can ask of Linux.
const FEATURES: &[&str] = &["posix_fallocate = {}", "rename_ctime = {}", "utime_now = {}", "utimensat = {}"];

fn suite(cache: Cache) -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let mut server = DirectoryServer::start(&lab, &Directory::new(shared.path()).cache(cache))?;
    let guest = fs_guest::boot(&lab, Kernel::Debian, &server, &posix_suite::body(FEATURES))?;
    posix_suite::judge_guest(guest, &[], LIMIT)?;
    server.check_alive()
}

#[test]
fn suite_passes_with_cache_auto() -> Result<()> {
    suite(Cache::Auto)
}

#[test]
fn suite_passes_with_cache_never() -> Result<()> {
    suite(Cache::Never)
}
