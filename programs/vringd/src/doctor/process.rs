//! Who listens at a unix socket, as the kernel tells. A connection would tell as well, and whoever listens would take it for a client.

use super::file_system;
use super::unix_sockets::{self, Bound};
use procfs::net::UnixState;
use procfs::process::{FDTarget, all_processes};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) name: String,
}

/// A socket that somebody listens at, in this network namespace.
pub(super) type Listener = Bound;

/// All that listen at a path.
pub(super) fn listeners() -> Vec<Listener> {
    unix_sockets::bound().unwrap_or_else(|_| by_name())
}

/// As /proc/net/unix has them: by the names that they were given, and with those that do not listen.
fn by_name() -> Vec<Listener> {
    let sockets = procfs::net::unix().unwrap_or_default();
    // Whoever is connected has the path of the one that listens.
    let unconnected = sockets.into_iter().filter(|socket| socket.state == UnixState::UNCONNECTED);
    let with_path = unconnected.filter_map(|socket| {
        let path = socket.path.filter(|path| path.is_absolute())?;
        Some(Bound { path, socket: socket.inode, file: None })
    });
    with_path.collect()
}

/// File systems that tell programs other numbers of a file than the kernel goes by.
const OTHER_NUMBERS: [&str; 2] = ["btrfs", "overlay"];

/// The one at a path, by whatever name it was made.
pub(super) fn listener<'a>(listeners: &'a [Listener], path: &Path) -> Option<&'a Listener> {
    let real = path.canonicalize().ok()?;
    let about = real.metadata().ok()?;
    let file = (about.ino() as u32, device(about.dev()));
    let has_other_numbers = file_system::of(&real).is_some_and(|kind| OTHER_NUMBERS.contains(&kind.as_str()));
    let leads_there = |listener: &&Listener| match listener.file {
        Some(other) if !has_other_numbers => other == file,
        _ => {
            listener.path == real
                || listener.path.file_name() == real.file_name()
                    && listener.path.canonicalize().is_ok_and(|other| other == real)
        }
    };
    listeners.iter().find(leads_there)
}

/// A device's number as the kernel has it (`MKDEV`, include/linux/kdev_t.h).
fn device(number: u64) -> u32 {
    rustix::fs::major(number) << 20 | rustix::fs::minor(number)
}

impl Bound {
    /// The process that has it. `None`: this user may not see.
    pub(super) fn process(&self) -> Option<Process> {
        let has = |process: &procfs::process::Process| {
            let fds = process.fd().into_iter().flatten().flatten();
            fds.into_iter().any(|fd| fd.target == FDTarget::Socket(self.socket))
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
        let [path, link, moved] = ["socket", "link", "moved"].map(|name| directory.path().join(name));
        let listening = UnixListener::bind(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let found = |name| listener(&listeners(), name).map(|it| it.process().unwrap().pid);
        for name in [&path, &link] {
            assert_eq!(found(name), Some(std::process::id()));
            assert!(listener(&by_name(), name).is_some(), "by name as well");
        }
        if unix_sockets::bound().is_ok() {
            std::fs::rename(&path, &moved).unwrap();
            assert_eq!(found(&moved), Some(std::process::id()));
            // Another file of the name that it was given.
            drop(UnixListener::bind(&path).unwrap());
            assert_eq!(found(&path), None);
        }
        drop(listening);
        assert_eq!((found(&path), found(&moved)), (None, None), "it is stale");
    }
}
