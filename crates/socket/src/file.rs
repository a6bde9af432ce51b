//! The file of a socket, by its directory and its inode.

use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The file that a socket was bound to, so that no other one is ever removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where it was made.
    pub path: PathBuf,
    /// Number of its file system (st_dev).
    pub device: u64,
    /// Number of its inode.
    pub inode: u64,
}

impl File {
    /// Removes the file, unless the path names another one by now or its directory is out of sight.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self) -> io::Result<()> {
        let Ok(place) = Place::of(&self.path) else { return Ok(()) };
        let ours = place.stat().is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (self.device, self.inode));
        if ours {
            place.remove()?;
        }
        Ok(())
    }
}

/// A name in a directory, which stays the same directory whatever becomes of the path to it.
pub(crate) struct Place {
    directory: OwnedFd,
    name: OsString,
}

impl Place {
    /// # Errors
    /// `EISDIR` for a path that has no name at its end, and the kernel's.
    pub(crate) fn of(path: &Path) -> Result<Place, Errno> {
        let name = path.file_name().ok_or(Errno::ISDIR)?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Place { directory: rustix::fs::open(parent, flags, Mode::empty())?, name })
    }

    fn name(&self) -> &OsStr {
        &self.name
    }

    fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.directory, self.name(), AtFlags::SYMLINK_NOFOLLOW)
    }

    pub(crate) fn remove(&self) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.directory, self.name(), AtFlags::empty())
    }

    /// Whether files can be made in the directory, and removed from it.
    pub(crate) fn may_be_changed(&self) -> Result<(), Errno> {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(&self.directory, ".", access, AtFlags::EACCESS)
    }

    /// Whether this user may connect to the socket that has that name.
    pub(crate) fn may_be_connected(&self) -> Result<(), Errno> {
        rustix::fs::accessat(&self.directory, self.name(), Access::WRITE_OK, AtFlags::EACCESS)
    }

    /// What has that name now: a link itself, not what it names.
    pub(crate) fn look(&self) -> Result<Seen, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = rustix::fs::openat(&self.directory, self.name(), flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&held)?;
        Ok(Seen { held, stat })
    }
}

/// A file that was found at a place, held by a descriptor: another one may have its name since.
pub(crate) struct Seen {
    pub(crate) held: OwnedFd,
    pub(crate) stat: Stat,
}

/// What a socket's file answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Somebody listens, or receives datagrams.
    Live,
    /// Nobody does.
    Refused,
}

impl Seen {
    pub(crate) fn is_socket(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Socket
    }

    /// By its name in /proc, which leads to this very file.
    pub(crate) fn name(&self) -> String {
        format!("/proc/self/fd/{}", self.held.as_fd().as_raw_fd())
    }

    /// Whether anybody listens on the socket of this file.
    pub(crate) fn probe(&self) -> Result<Answer, Errno> {
        let address = SocketAddrUnix::new(self.name())?;
        match rustix::net::connect(&new_socket()?, &address) {
            Err(Errno::CONNREFUSED) => Ok(Answer::Refused),
            // A full backlog (AGAIN) also means that somebody listens, and so does a datagram socket (PROTOTYPE).
            Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(Answer::Live),
            Err(error) => Err(error),
        }
    }
}

pub(crate) fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}
