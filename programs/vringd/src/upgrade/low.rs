//! Low descriptors, kept from files.
//!
//! The thread that asks another program leaves the process's files behind without closing them, but for low ones, whose copies it
//! closes ([`sandbox::without_files`]). So no file gets a low descriptor.

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};
use sandbox::COPIED_BELOW;
use std::os::fd::{AsRawFd, OwnedFd};

/// Of what the process may have, at most this part is kept.
const PART: u64 = 64;

/// Descriptors of nothing, for as long as files are opened.
#[derive(Debug, Default)]
pub(crate) struct Low(#[expect(dead_code, reason = "open, and no more than that")] Vec<OwnedFd>);

impl Low {
    /// Takes those that are free. Where the process may have few, or none are left, files get them: then an upgrade closes copies of
    /// these before anybody pauses.
    pub(crate) fn keep() -> Low {
        if getrlimit(Resource::Nofile).current.is_some_and(|limit| limit / PART < COPIED_BELOW.unsigned_abs().into()) {
            return Low::default();
        }
        let mut kept = Vec::new();
        let mut next = eventfd(0, EventfdFlags::CLOEXEC).map_err(std::io::Error::from);
        while let Ok(fd) = next {
            if fd.as_raw_fd() >= COPIED_BELOW {
                break;
            }
            next = fd.try_clone();
            kept.push(fd);
        }
        Low(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn files_get_no_low_descriptors() {
        // More than the usual soft limit, where that is little.
        crate::run::raise_file_limit();
        let _low = Low::keep();
        assert!(File::open("/dev/null").unwrap().as_raw_fd() >= COPIED_BELOW);
    }
}
