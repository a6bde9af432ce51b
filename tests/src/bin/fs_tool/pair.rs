//! A mount of a 9p server whose client is one end of a socket pair.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, mount};

/// Starts `server`, which takes its connection as descriptor 3, and mounts what it serves on `point` with `options` beside the
/// two that name the descriptor. Prints the server's process id.
pub(crate) fn run(point: &Path, options: &str, server: &[&str]) -> Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new("sh")
        .args(["-c", "exec \"$@\" 3<&0 </dev/null", "sh"])
        .args(server)
        .stdin(OwnedFd::from(theirs))
        // Who reads the process id waits until nobody can write any more.
        .stdout(Stdio::null())
        .spawn()?;
    // The kernel keeps the socket for as long as the mount is there.
    let descriptor = ours.as_raw_fd();
    let options = format!("trans=fd,rfdno={descriptor},wfdno={descriptor},{options}");
    let options = std::ffi::CString::new(options)?;
    mount("none", point, "9p", MountFlags::empty(), Some(options.as_c_str()))
        .with_context(|| format!("mount {options:?}"))?;
    println!("{}", child.id());
    Ok(())
}
