//! From a path to a socket that listens there.

use crate::File;
use crate::file::{Answer, Place, Seen, new_socket};
use displaydoc::Display;
use rustix::fs::{AtFlags, Gid, Mode, Uid};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Who may connect to the socket file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Permission bits of the socket file, such as `0o660`. `None`: what the umask leaves.
    pub mode: Option<u32>,
    /// User id that owns the socket file. `None`: the process's own.
    pub owner: Option<u32>,
    /// Group id of the socket file. `None`: the process's own.
    pub group: Option<u32>,
}

impl Options {
    /// With this umask the file has to be changed after it was made.
    fn change_file(&self, umask_left: u32) -> bool {
        self.owner.is_some() || self.group.is_some() || self.mode.is_some_and(|mode| mode != umask_left)
    }
}

/// Why there is no socket to listen on.
#[derive(Debug, Display, Error)]
pub enum BindError {
    /// socket {path:?}: the path is too long or contains a NUL byte; a socket path has at most 107 bytes, use a shorter directory
    Path {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// socket {path:?}: another process listens there; stop it or choose another path
    InUse {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// socket {path:?}: a file that is not a socket is in the way; remove it or choose another path
    NotASocket {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// socket {path:?}: another file took its name while it was made; choose a directory that no other user may write to
    Swapped {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// socket {path:?}: cannot {action}: {error}; its directory must exist, and this user must be allowed to
    System {
        /// The path that was asked for.
        path: PathBuf,
        /// What failed.
        action: &'static str,
        /// How it failed.
        error: io::Error,
    },
}

impl BindError {
    /// Where the socket was to be.
    pub fn path(&self) -> &Path {
        match self {
            BindError::Path { path }
            | BindError::InUse { path }
            | BindError::NotASocket { path }
            | BindError::Swapped { path }
            | BindError::System { path, .. } => path,
        }
    }
}

/// Listens at `path`, without waiting (`O_NONBLOCK`); `backlog` connections wait before the kernel refuses more.
///
/// A socket file that nobody listens on (left by a crash) is replaced. A live one is [`BindError::InUse`]; a file that
/// is no socket is never removed. Nobody can connect before mode and owner are set, and no other file is ever given
/// them, whoever may write to the directory: that takes /proc where an owner is asked for, or a mode that the umask
/// does not leave.
pub fn bind(path: &Path, options: &Options, backlog: i32) -> Result<(OwnedFd, File), BindError> {
    let fail = |action| move |error: Errno| BindError::System { path: path.to_owned(), action, error: error.into() };
    let address = SocketAddrUnix::new(path).map_err(|_| BindError::Path { path: path.to_owned() })?;
    let place = place(path)?;
    remove_stale(path, &place)?;
    let socket = new_socket().map_err(fail("create a socket"))?;
    if let Some(mode) = options.mode {
        // The file is made with the mode that the socket has, less the umask.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode & 0o7777)).map_err(fail("change its mode"))?;
    }
    rustix::net::bind(&socket, &address).map_err(|error| match error {
        Errno::ADDRINUSE => BindError::InUse { path: path.to_owned() },
        error => fail("bind it")(error),
    })?;
    let seen = match place.look() {
        Ok(seen) if seen.is_socket() => seen,
        Ok(_) | Err(Errno::NOENT) => return Err(BindError::Swapped { path: path.to_owned() }),
        Err(error) => return Err(fail("look at it")(error)),
    };
    let file = File { path: path.to_owned(), device: seen.stat.st_dev, inode: seen.stat.st_ino };
    let listening =
        finish(path, &seen, options).and_then(|()| rustix::net::listen(&socket, backlog).map_err(fail("listen")));
    match listening {
        Ok(()) => Ok((socket, file)),
        Err(error) => {
            if !matches!(error, BindError::Swapped { .. })
                && let Err(error) = file.remove()
            {
                tracing::warn!(%error, path = %path.display(), "cannot remove a socket that could not be used");
            }
            Err(error)
        }
    }
}

/// What is where a socket is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// The file of a socket. Whether anybody listens there only a connection would tell, which whoever listens would take for a client.
    Socket,
}

/// Looks at what [`bind`] would find at `path`. Nothing is changed, and whoever listens there does not hear of it.
///
/// # Errors
/// Those of [`bind`] that can be foreseen.
pub fn look(path: &Path) -> Result<Found, BindError> {
    let fail = |action| move |error: Errno| BindError::System { path: path.to_owned(), action, error: error.into() };
    SocketAddrUnix::new(path).map_err(|_| BindError::Path { path: path.to_owned() })?;
    let place = place(path)?;
    let found = match place.look() {
        Ok(seen) if seen.is_socket() => Found::Socket,
        Ok(_) => return Err(BindError::NotASocket { path: path.to_owned() }),
        Err(Errno::NOENT) => Found::Nothing,
        Err(error) => return Err(fail("look at it")(error)),
    };
    if let Found::Socket = found {
        // Whoever may not write to it may not connect to find out.
        place.may_be_connected().map_err(fail("find out whether another process listens there"))?;
    }
    place.may_be_changed().map_err(fail(match found {
        Found::Nothing => "bind it",
        Found::Socket => "remove the stale socket",
    }))?;
    Ok(found)
}

fn place(path: &Path) -> Result<Place, BindError> {
    Place::of(path).map_err(|error| match error {
        Errno::ISDIR => BindError::NotASocket { path: path.to_owned() },
        error => BindError::System { path: path.to_owned(), action: "bind it", error: error.into() },
    })
}

/// Gives the socket's file its owner, and what the umask took of its mode.
fn finish(path: &Path, seen: &Seen, options: &Options) -> Result<(), BindError> {
    let fail = |action| move |error: Errno| BindError::System { path: path.to_owned(), action, error: error.into() };
    if !options.change_file(seen.stat.st_mode & 0o7777) {
        return Ok(());
    }
    // What was found may be another socket that was given the name meanwhile. Ours does not listen yet, and a socket of
    // ours that nobody listens on is ours, or a dead one whose owner gains nothing by it.
    let answer = seen.probe().map_err(fail("connect to it by /proc"))?;
    if answer != Answer::Refused || seen.stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(BindError::Swapped { path: path.to_owned() });
    }
    if options.owner.is_some() || options.group.is_some() {
        let (owner, group) = (options.owner.map(Uid::from_raw), options.group.map(Gid::from_raw));
        rustix::fs::chownat(&seen.held, "", owner, group, AtFlags::EMPTY_PATH).map_err(fail("change its owner"))?;
    }
    if let Some(mode) = options.mode {
        rustix::fs::chmod(seen.name(), Mode::from_raw_mode(mode & 0o7777)).map_err(fail("change its mode"))?;
    }
    Ok(())
}

/// Removes a socket file that nobody listens on.
fn remove_stale(path: &Path, place: &Place) -> Result<(), BindError> {
    let fail = |action| move |error: Errno| BindError::System { path: path.to_owned(), action, error: error.into() };
    let seen = match place.look() {
        Ok(seen) => seen,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(fail("look at it")(error)),
    };
    if !seen.is_socket() {
        return Err(BindError::NotASocket { path: path.to_owned() });
    }
    match seen.probe() {
        Ok(Answer::Live) => Err(BindError::InUse { path: path.to_owned() }),
        Ok(Answer::Refused) => match place.remove() {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(fail("remove the stale socket")(error)),
        },
        Err(error) => Err(fail("find out whether another process listens there")(error)),
    }
}
