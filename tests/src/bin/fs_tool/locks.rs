//! Locks between guests: POSIX byte ranges (fcntl(2)) and whole files (flock(2)).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, flock};

/// The status of an attempt that found the lock taken.
const TAKEN: i32 = 3;
/// The byte range that POSIX locks are put on: somewhere inside, so that ranges matter.
const RANGE: (i64, i64) = (100, 50);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Which locks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Posix,
    Flock,
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "posix" => Ok(Self::Posix),
            "flock" => Ok(Self::Flock),
            _ => bail!("a lock is `posix` or `flock`, not `{text}`"),
        }
    }
}

/// How a lock is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    Shared,
    Exclusive,
}

impl FromStr for Access {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "shared" => Ok(Self::Shared),
            "exclusive" => Ok(Self::Exclusive),
            _ => bail!("a lock is taken `shared` or `exclusive`, not `{text}`"),
        }
    }
}

/// Adds to a number in `file`, `rounds` times, each under the lock. What two guests add is lost
/// if the lock does not hold.
pub(crate) fn count(kind: Kind, file: &Path, rounds: u64) -> Result<()> {
    let file = open(file)?;
    for _ in 0..rounds {
        lock(&file, kind, Access::Exclusive, true)?;
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).context("the number cannot be read")?;
        let number = u64::from_le_bytes(bytes);
        // A lock that two hold shows only if the other comes in between.
        thread::yield_now();
        file.write_all_at(&(number + 1).to_le_bytes(), 0)?;
        unlock(&file, kind)?;
    }
    Ok(())
}

/// Takes a lock, says so by creating `said`, and holds it until there is `told`.
pub(crate) fn hold(kind: Kind, file: &Path, access: Access, said: &Path, told: &Path) -> Result<()> {
    let file = open(file)?;
    lock(&file, kind, access, true)?;
    fs::write(said, "")?;
    while !told.exists() {
        thread::sleep(LOOK_AGAIN_AFTER);
    }
    Ok(())
}

/// Takes a lock without waiting. The status says whether it was free.
pub(crate) fn attempt(kind: Kind, file: &Path, access: Access) -> Result<()> {
    let file = open(file)?;
    match lock(&file, kind, access, false) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::process::exit(TAKEN),
        other => Ok(other?),
    }
}

/// Waits for a lock.
pub(crate) fn wait(kind: Kind, file: &Path, access: Access) -> Result<()> {
    Ok(lock(&open(file)?, kind, access, true)?)
}

/// Prints which POSIX lock stands in the way of an exclusive one: `none`, `shared` or `exclusive`,
/// and its first byte and length.
pub(crate) fn holder(file: &Path) -> Result<()> {
    let mut wanted = record(libc::F_WRLCK);
    fcntl(open(file)?, FcntlArg::F_GETLK(&mut wanted))?;
    match i32::from(wanted.l_type) {
        libc::F_UNLCK => println!("none"),
        libc::F_RDLCK => println!("shared {} {}", wanted.l_start, wanted.l_len),
        libc::F_WRLCK => println!("exclusive {} {}", wanted.l_start, wanted.l_len),
        other => bail!("a lock of type {other}"),
    }
    ensure!(i32::from(wanted.l_whence) == libc::SEEK_SET, "a lock is reported from the start");
    Ok(())
}

fn open(file: &Path) -> Result<File> {
    File::options().read(true).write(true).open(file).with_context(|| format!("cannot open {}", file.display()))
}

fn record(kind: i32) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: RANGE.0, l_len: RANGE.1, l_pid: 0 }
}

fn lock(file: &File, kind: Kind, access: Access, wait: bool) -> io::Result<()> {
    match kind {
        Kind::Posix => {
            let record = record(match access {
                Access::Shared => libc::F_RDLCK,
                Access::Exclusive => libc::F_WRLCK,
            });
            let operation = if wait { FcntlArg::F_SETLKW(&record) } else { FcntlArg::F_SETLK(&record) };
            match fcntl(file, operation) {
                // Both are allowed by fcntl(2).
                Err(Errno::EAGAIN | Errno::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
                other => other.map(drop).map_err(io::Error::from),
            }
        }
        Kind::Flock => Ok(flock(
            file,
            match (access, wait) {
                (Access::Shared, true) => FlockOperation::LockShared,
                (Access::Shared, false) => FlockOperation::NonBlockingLockShared,
                (Access::Exclusive, true) => FlockOperation::LockExclusive,
                (Access::Exclusive, false) => FlockOperation::NonBlockingLockExclusive,
            },
        )?),
    }
}

fn unlock(file: &File, kind: Kind) -> Result<()> {
    match kind {
        Kind::Posix => drop(fcntl(file, FcntlArg::F_SETLK(&record(libc::F_UNLCK)))?),
        Kind::Flock => flock(file, FlockOperation::Unlock)?,
    }
    Ok(())
}
