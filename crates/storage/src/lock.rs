//! Image locks: two writers must never meet on one image, nor a writer and a reader that counts on what it reads.
//!
//! The scheme is QEMU's (`block/file-posix.c`), so that QEMU, its tools and this program refuse each other's images. A program
//! holds shared OFD locks on single bytes: byte 100 + n says "I use permission n", byte 200 + n says "I do not let others use
//! permission n". All locks are shared, so taking them never fails by conflict; whoever comes then looks whether somebody else
//! holds the opposite byte, and withdraws. Of two that come at the same moment both may withdraw; never both stay.

use crate::{Links, OpenError};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// QEMU's RAW_LOCK_PERM_BASE.
const USED_BASE: i64 = 100;
/// QEMU's RAW_LOCK_SHARED_BASE.
const UNSHARED_BASE: i64 = 200;

/// QEMU's BLK_PERM_CONSISTENT_READ, as a bit number.
const CONSISTENT_READ: i64 = 0;
/// QEMU's BLK_PERM_WRITE.
const WRITE: i64 = 1;
/// QEMU's BLK_PERM_RESIZE.
const RESIZE: i64 = 3;
/// What a reader uses, and a writer: a disk may be resized while it is served, so writers claim that as well.
const READER: &[i64] = &[CONSISTENT_READ];
const WRITER: &[i64] = &[CONSISTENT_READ, WRITE, RESIZE];
/// What either does not share.
const ALONE: &[i64] = &[WRITE, RESIZE];

/// A byte that nobody else looks at.
const NAMING: Range<i64> = 400..401;

/// Most holders that an error names.
const HOLDERS_MAX: usize = 3;

/// The locks of one open image, released when it is dropped. They sit on an open file description of their own: workers keep
/// the data descriptor registered for a while after its export is gone.
#[derive(Debug)]
pub struct ImageLock {
    fd: Arc<OwnedFd>,
    claim: bool,
}

impl ImageLock {
    /// Takes the locks of a writer or a reader of `path`, which is open as `data`.
    pub fn take(path: &Path, data: impl AsFd, write: bool) -> Result<ImageLock, OpenError> {
        ImageLock::take_by(Links::Follow, path, data, write)
    }

    /// As above, of a path that may have symbolic links or not.
    pub(crate) fn take_by(links: Links, path: &Path, data: impl AsFd, write: bool) -> Result<ImageLock, OpenError> {
        let failed = |source| OpenError::Lock { path: path.to_owned(), source };
        let about = rustix::fs::fstat(&data).map_err(|errno| failed(errno.into()))?;
        // Without O_CREAT, O_EXCL claims a device: not while it is mounted, or part of a RAID or of LVM. The claim must not sit
        // on the data descriptor either, or the device would stay busy after its export is gone.
        let claim = write && FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice;
        let access = if claim { OFlags::RDWR | OFlags::EXCL } else { OFlags::RDONLY };
        let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = links.open(path, flags).map_err(|errno| match errno {
            Errno::BUSY => OpenError::Busy { path: path.to_owned() },
            errno => failed(errno.into()),
        })?;
        let ours = rustix::fs::fstat(&fd).map_err(|errno| failed(errno.into()))?;
        if (ours.st_dev, ours.st_ino) != (about.st_dev, about.st_ino) {
            return Err(OpenError::Replaced { path: path.to_owned() });
        }
        let used = if write { WRITER } else { READER };
        let unshared = ALONE;
        for byte in used.iter().map(|p| USED_BASE + p).chain(unshared.iter().map(|p| UNSHARED_BASE + p)) {
            lock(&fd, byte..byte + 1).map_err(failed)?;
        }
        refuse_conflicts(path, &fd, used, unshared)?;
        Ok(ImageLock { fd: Arc::new(fd), claim })
    }

    /// Finds out whether a writer or a reader of `path` would be refused now, and takes no lock that anybody looks at. A device is claimed
    /// for a moment, and not opened for writing: udev looks at devices that a writer has closed.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn check(path: &Path, write: bool) -> Result<(), OpenError> {
        let failed = |source| OpenError::Lock { path: path.to_owned(), source };
        let fd = crate::file::open_to_look(path, OFlags::RDONLY)?;
        let about = rustix::fs::fstat(&fd).map_err(|errno| failed(errno.into()))?;
        if write && FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice {
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
            Links::Follow.open(path, flags).map_err(|errno| match errno {
                Errno::BUSY => OpenError::Busy { path: path.to_owned() },
                errno => failed(errno.into()),
            })?;
        }
        let refused = refuse_conflicts(path, &fd, if write { WRITER } else { READER }, ALONE);
        match refused {
            // The kernel says by what name the file is in /proc to whoever has a lock of it.
            Err(OpenError::Locked { path, held, .. }) if lock(&fd, NAMING).is_ok() => {
                Err(OpenError::Locked { path, held, holders: Holders::of(&fd) })
            }
            refused => refused,
        }
    }

    /// The locks that another program took through `fd`, which are this program's now. `write` and `device` are what
    /// they were taken for.
    pub fn adopt(fd: Arc<OwnedFd>, write: bool, device: bool) -> ImageLock {
        ImageLock { fd, claim: write && device }
    }

    /// Whoever has these locks as a writer only reads from now on. `fd`: what holds them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn give_up_writing(fd: impl AsFd) -> io::Result<()> {
        ALONE.iter().try_for_each(|p| unlock(&fd, USED_BASE + p..USED_BASE + p + 1))
    }

    /// Whoever has these locks as a reader of `path` writes from now on. `fd`: what holds them.
    ///
    /// # Errors
    /// Somebody else uses it: whoever asks goes on as a reader.
    pub fn take_up_writing(path: &Path, fd: impl AsFd) -> Result<(), OpenError> {
        let failed = |source| OpenError::Lock { path: path.to_owned(), source };
        let taken = (|| {
            ALONE.iter().try_for_each(|p| lock(&fd, USED_BASE + p..USED_BASE + p + 1)).map_err(failed)?;
            refuse_conflicts(path, &fd, WRITER, ALONE)
        })();
        if taken.is_err() {
            ImageLock::give_up_writing(&fd).map_err(failed)?;
        }
        taken
    }

    /// What holds the locks.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// The descriptor that claims a device. Discards and zeroed ranges must go through it: for others the device is busy.
    pub fn claim(&self) -> Option<Arc<OwnedFd>> {
        self.claim.then(|| self.fd.clone())
    }
}

/// Refuses who uses this, and does not share that, what somebody else uses and does not share.
fn refuse_conflicts(path: &Path, fd: impl AsFd, used: &[i64], unshared: &[i64]) -> Result<(), OpenError> {
    let failed = |source| OpenError::Lock { path: path.to_owned(), source };
    let conflicts = used
        .iter()
        .map(|p| (UNSHARED_BASE + p, unshared_words(*p)))
        .chain(unshared.iter().map(|p| (USED_BASE + p, used_words(*p))));
    for (byte, words) in conflicts {
        if held(&fd, byte..byte + 1).map_err(failed)?.is_some() {
            let holders = Holders::of(&fd);
            return Err(OpenError::Locked { path: path.to_owned(), held: words, holders });
        }
    }
    Ok(())
}

fn used_words(permission: i64) -> &'static str {
    match permission {
        WRITE => "it for writing",
        _ => "it for resizing",
    }
}

fn unshared_words(permission: i64) -> &'static str {
    match permission {
        CONSISTENT_READ => "it and lets nobody read",
        WRITE => "it and lets nobody write",
        _ => "it and lets nobody resize",
    }
}

fn flock_of(kind: i32, bytes: Range<i64>) -> libc::flock {
    // SAFETY: the structure is plain numbers; all zeroes is a valid one, and l_pid must be 0 for OFD locks.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as i16;
    range.l_whence = libc::SEEK_SET as i16;
    range.l_start = bytes.start;
    range.l_len = bytes.end - bytes.start;
    range
}

fn set(fd: impl AsFd, kind: i32, bytes: Range<i64>) -> io::Result<()> {
    let range = flock_of(kind, bytes);
    // SAFETY: the descriptor is open and the structure outlives the call. rustix has no OFD locks.
    match unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &range) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes a shared lock of the bytes, for all who have the description.
pub(crate) fn lock(fd: impl AsFd, bytes: Range<i64>) -> io::Result<()> {
    set(fd, libc::F_RDLCK, bytes)
}

/// Gives up what of the bytes is locked.
pub(crate) fn unlock(fd: impl AsFd, bytes: Range<i64>) -> io::Result<()> {
    set(fd, libc::F_UNLCK, bytes)
}

/// Bytes of these that another description has locked: those of any one lock.
pub(crate) fn held(fd: impl AsFd, bytes: Range<i64>) -> io::Result<Option<Range<i64>>> {
    let mut range = flock_of(libc::F_WRLCK, bytes.clone());
    // SAFETY: as above; the kernel writes the conflicting lock into the structure.
    match unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &mut range) } {
        0 if i32::from(range.l_type) == libc::F_UNLCK => Ok(None),
        0 => {
            // No length: all that follows.
            let end = if range.l_len == 0 { i64::MAX } else { range.l_start.saturating_add(range.l_len) };
            Ok(Some(range.l_start.max(bytes.start)..end.min(bytes.end)))
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Who keeps a file from others, as far as can be seen when it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holders {
    /// Those who have locks on it: OFD locks name no process, and /proc names the file like this.
    Locks(String),
    /// Nobody can tell.
    Unknown,
}

impl Holders {
    /// Of the file that is open as `fd`, on which it has locks of its own.
    fn of(fd: impl AsFd) -> Holders {
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd()));
        let file = about.ok().and_then(|about| locked_files(&about).next().map(str::to_owned));
        file.map_or(Holders::Unknown, Holders::Locks)
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = match self {
            Holders::Locks(file) => processes_with_locks(file),
            Holders::Unknown => Vec::new(),
        };
        if found.is_empty() {
            return f.write_str("look for it with `lslocks` or `fuser -v`");
        }
        let more = if found.len() > HOLDERS_MAX { ", …" } else { "" };
        write!(f, "open in {}{more}", found[..found.len().min(HOLDERS_MAX)].join(", "))
    }
}

/// The files of the locks that an open file description has, as fdinfo (proc_pid_fdinfo(5)) names them: device and inode. Nothing is
/// asked of the file itself, whose file system may hang.
fn locked_files(fdinfo: &str) -> impl Iterator<Item = &str> {
    let locks = fdinfo.lines().filter(|line| line.starts_with("lock:")).map(|line| line.split_whitespace());
    locks.filter_map(|mut words| words.nth(2).filter(|kind| *kind == "OFDLCK").and_then(|_| words.nth(3)))
}

/// Those that have locks on it, in words: more than [`HOLDERS_MAX`] are not looked for.
fn processes_with_locks(file: &str) -> Vec<String> {
    let read = |directory: PathBuf| std::fs::read_dir(directory).into_iter().flatten().flatten();
    let has_locks = |fd: std::fs::DirEntry| {
        std::fs::read_to_string(fd.path()).is_ok_and(|about| locked_files(&about).any(|other| other == file))
    };
    let words = |process: std::fs::DirEntry| {
        let pid = process.file_name().to_str()?.parse::<u32>().ok()?;
        if !read(process.path().join("fdinfo")).any(has_locks) {
            return None;
        }
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        Some(match pid == std::process::id() {
            true => "another export of this process".to_owned(),
            false => format!("{} (pid {pid})", name.trim_end()),
        })
    };
    read(PathBuf::from("/proc")).filter_map(words).take(HOLDERS_MAX + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(path: &Path, write: bool) -> Result<ImageLock, OpenError> {
        let file = std::fs::OpenOptions::new().read(true).write(write).open(path).unwrap();
        ImageLock::take(path, &file, write)
    }

    #[test]
    fn many_readers_or_one_writer() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let path = image.path();
        let writer = attempt(path, true).unwrap();
        for write in [true, false] {
            let error = attempt(path, write).unwrap_err();
            assert!(matches!(error, OpenError::Locked { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(path.to_str().unwrap()) && text.contains("--no-lock"), "{text}");
        }
        drop(writer);
        let readers = [attempt(path, false).unwrap(), attempt(path, false).unwrap()];
        assert!(attempt(path, true).is_err());
        drop(readers);
        attempt(path, true).unwrap();
    }

    #[test]
    fn a_check_refuses_what_would_be_refused_and_keeps_nobody_out() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let path = image.path();
        ImageLock::check(path, true).unwrap();
        let reader = attempt(path, false).unwrap();
        ImageLock::check(path, false).unwrap();
        let refused = ImageLock::check(path, true).unwrap_err();
        assert_eq!(refused.to_string(), attempt(path, true).unwrap_err().to_string());
        assert!(refused.to_string().contains("open in another export of this process"), "{refused}");
        drop(reader);
        attempt(path, true).unwrap();
    }

    #[test]
    fn who_has_locks_is_named_when_it_is_shown() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let writer = attempt(image.path(), true).unwrap();
        let refused = attempt(image.path(), false).unwrap_err();
        assert!(refused.to_string().contains("open in another export of this process;"), "{refused}");
        drop(writer);
        // Who has it open without a lock is not in the way.
        let _open = std::fs::File::open(image.path()).unwrap();
        assert!(refused.to_string().contains("look for it with"), "{refused}");
        let fdinfo = "pos:\t0\nflags:\t02\nlock:\t1: POSIX  ADVISORY  WRITE 7 fe:00:5 0 EOF\n\
                      lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:78 100 101\n";
        assert_eq!(locked_files(fdinfo).collect::<Vec<_>>(), ["fe:00:78"]);
    }

    #[test]
    fn a_refused_attempt_leaves_no_lock_behind() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let reader = attempt(image.path(), false).unwrap();
        assert!(attempt(image.path(), true).is_err());
        let second = attempt(image.path(), false).unwrap();
        drop((reader, second));
    }

    /// The bytes of QEMU's scheme, one by one: what another program may hold beside us.
    #[test]
    fn bytes_are_those_of_qemu() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let path = image.path();
        let beside = |byte, write| {
            let other = OwnedFd::from(std::fs::File::open(path).unwrap());
            lock(&other, byte..byte + 1).unwrap();
            attempt(path, write).is_ok()
        };
        // (byte, a reader may come, a writer may come)
        let cases = [
            (100, true, true),
            (101, false, false),
            (102, true, true),
            (103, false, false),
            (200, false, false),
            (201, true, false),
            (202, true, true),
            (203, true, false),
        ];
        for (byte, reader, writer) in cases {
            assert_eq!(beside(byte, false), reader, "a reader beside byte {byte}");
            assert_eq!(beside(byte, true), writer, "a writer beside byte {byte}");
        }
    }

    #[test]
    fn a_file_that_was_replaced_is_noticed() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        let refused = ImageLock::take(image.path(), other.as_file(), true);
        assert!(matches!(refused, Err(OpenError::Replaced { .. })));
    }
}
