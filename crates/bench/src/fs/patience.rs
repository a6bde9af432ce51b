//! How long a server may take over a request, and how it is seen that it has gone.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use guest::usage;

/// How long the server may take over a request.
const REPLY_TIME_MAX: Duration = Duration::from_secs(30);
/// How often it is looked whether the server still lives.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// ENOENT, ENOSYS and EOPNOTSUPP.
pub(crate) const NO_ENTRY: i32 = rustix::io::Errno::NOENT.raw_os_error();
pub(crate) const NOT_IMPLEMENTED: i32 = rustix::io::Errno::NOSYS.raw_os_error();
pub(crate) const NOT_SUPPORTED: i32 = rustix::io::Errno::OPNOTSUPP.raw_os_error();

/// An errno in words.
pub(crate) fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Calls `sleep` until it says that there is a reply; it sleeps for as long as it is told, at most.
///
/// # Errors
/// The server died, or takes longer than a server may.
pub(crate) fn wait_for(
    server_pid: Option<u32>,
    in_flight: usize,
    mut sleep: impl FnMut(Duration) -> Result<bool>,
) -> Result<()> {
    let started = Instant::now();
    while !sleep(LOOK_INTERVAL)? {
        if let Some(pid) = server_pid.filter(|pid| !usage::is_alive(*pid)) {
            bail!("the server (pid {pid}) ended with {in_flight} requests in flight");
        }
        if started.elapsed() > REPLY_TIME_MAX {
            let seconds = REPLY_TIME_MAX.as_secs();
            bail!("the server answered nothing for {seconds} s with {in_flight} requests in flight");
        }
    }
    Ok(())
}
