//! Who listens at a unix socket, as /proc tells. A connection would tell as well, and whoever listens would take it for a client.

use procfs::net::UnixState;
use procfs::process::{FDTarget, all_processes};
use std::path::{Path, PathBuf};

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) name: String,
}

/// A socket that somebody listens at, in this network namespace.
#[derive(Clone, Debug)]
pub(super) struct Listener {
    path: PathBuf,
    inode: u64,
}

/// All that listen at a path.
pub(super) fn listeners() -> Vec<Listener> {
    let sockets = procfs::net::unix().unwrap_or_default();
    // Whoever is connected has the path of the one that listens.
    let unconnected = sockets.into_iter().filter(|socket| socket.state == UnixState::UNCONNECTED);
    let with_path = unconnected.filter_map(|socket| {
        let path = socket.path.filter(|path| path.is_absolute())?;
        Some(Listener { path, inode: socket.inode })
    });
    with_path.collect()
}

/// The one at a path, by whatever name it was made.
pub(super) fn listener<'a>(listeners: &'a [Listener], path: &Path) -> Option<&'a Listener> {
    let real = path.canonicalize().ok()?;
    let leads_there = |listener: &&Listener| {
        listener.path == real
            || listener.path.file_name() == real.file_name()
                && listener.path.canonicalize().is_ok_and(|other| other == real)
    };
    listeners.iter().find(leads_there)
}

impl Listener {
    /// The process that has it. `None`: this user may not see.
    pub(super) fn process(&self) -> Option<Process> {
        let has = |process: &procfs::process::Process| {
            let fds = process.fd().into_iter().flatten().flatten();
            fds.into_iter().any(|fd| fd.target == FDTarget::Socket(self.inode))
        };
        let process = all_processes().ok()?.flatten().find(has)?;
        let name = process.stat().map(|stat| stat.comm).unwrap_or_default();
        Some(Process { pid: process.pid.cast_unsigned(), name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn whoever_listens_is_found_by_any_name_of_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listening = UnixListener::bind(&path).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for name in [&path, &link] {
            let listeners = listeners();
            let process = listener(&listeners, name).unwrap().process().unwrap();
            assert_eq!(process.pid, std::process::id());
        }
        drop(listening);
        assert!(listener(&listeners(), &path).is_none(), "it is stale");
    }
}
