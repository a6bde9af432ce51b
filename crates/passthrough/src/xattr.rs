//! The calls for extended attributes of whatever a descriptor stands for.

use crate::creds::with_umask;
use crate::error::Result;
use crate::handle::last_error;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::path::DecInt;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// File capabilities. The kernel drops them when a file changes.
pub(crate) const CAPABILITY: &CStr = c"security.capability";

/// A label that a new file has before its creation is answered: an extended attribute, in the client's words.
#[derive(Clone, Copy, Debug)]
pub struct SecurityContext<'a> {
    /// Its name, "security.selinux" for one.
    pub name: &'a CStr,
    /// Its value.
    pub value: &'a [u8],
}

/// The numbers of system calls that the C library's headers know on some architectures only; they are the same on all that
/// came after Linux 5.1 (`asm-generic/unistd.h`).
const SYS_SETXATTRAT: libc::c_long = 463;
const SYS_GETXATTRAT: libc::c_long = 464;
const SYS_LISTXATTRAT: libc::c_long = 465;
const SYS_REMOVEXATTRAT: libc::c_long = 466;

/// The kernel has no `*xattrat` calls (Linux 6.13).
static WITHOUT_AT: AtomicBool = AtomicBool::new(false);

/// `struct xattr_args` of `linux/xattr.h`.
#[repr(C)]
struct Arguments {
    value: u64,
    size: u32,
    flags: u32,
}

/// A descriptor of the node, and the directory in which its number is its name. The attribute calls on descriptors take
/// none that was opened with `O_PATH`, and opening special files anew is out of the question.
pub(crate) struct Place<'a> {
    proc_self_fd: BorrowedFd<'a>,
    number: DecInt,
}

impl<'a> Place<'a> {
    /// What `fd` is; `proc_self_fd` is `/proc/self/fd` of this process.
    pub(crate) fn new(proc_self_fd: BorrowedFd<'a>, fd: impl AsFd) -> Place<'a> {
        Place { proc_self_fd, number: DecInt::from_fd(fd) }
    }

    /// Makes `new`, which takes a directory and a name in it, or on older kernels `old`, which takes a name alone, with the
    /// thread in that directory. The thread stays there: its working directory is its own and means nothing to it.
    fn call<T>(
        &self,
        new: impl FnOnce(BorrowedFd<'_>, &CStr) -> Result<T>,
        old: impl FnOnce(&CStr) -> Result<T>,
    ) -> Result<T> {
        let number = self.number.as_c_str();
        if !WITHOUT_AT.load(Ordering::Relaxed) {
            match new(self.proc_self_fd, number) {
                Err(Errno::NOSYS) => WITHOUT_AT.store(true, Ordering::Relaxed),
                answer => return answer,
            }
        }
        with_umask(0, || {
            rustix::process::fchdir(self.proc_self_fd)?;
            old(number)
        })
    }

    /// The length of the value, of which as much as fits was written to `out`; an empty `out` asks for the length alone.
    pub(crate) fn get(&self, name: &CStr, out: &mut [u8]) -> Result<usize> {
        let size = out.len() as u32;
        let value = out.as_mut_ptr();
        let new = |dir: BorrowedFd<'_>, path: &CStr| {
            let arguments = Arguments { value: value as u64, size, flags: 0 };
            // SAFETY: both strings end with NUL, the structure has the size that is told and names a buffer of the size it
            // tells; all live as long as the call.
            let answer = unsafe {
                libc::syscall(
                    SYS_GETXATTRAT,
                    dir.as_raw_fd(),
                    path.as_ptr(),
                    0,
                    name.as_ptr(),
                    &raw const arguments,
                    size_of::<Arguments>(),
                )
            };
            usize::try_from(answer).map_err(|_| last_error())
        };
        let old = |path: &CStr| {
            // SAFETY: both strings end with NUL, and the buffer has the size that is told.
            let answer = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.cast(), size as usize) };
            usize::try_from(answer).map_err(|_| last_error())
        };
        self.call(new, old)
    }

    /// As [`Place::get`], for the names of all attributes, each with a NUL behind it.
    pub(crate) fn list(&self, out: &mut [u8]) -> Result<usize> {
        let (list, size) = (out.as_mut_ptr(), out.len());
        let new = |dir: BorrowedFd<'_>, path: &CStr| {
            // SAFETY: the string ends with NUL, and the buffer has the size that is told.
            let answer = unsafe { libc::syscall(SYS_LISTXATTRAT, dir.as_raw_fd(), path.as_ptr(), 0, list, size) };
            usize::try_from(answer).map_err(|_| last_error())
        };
        let old = |path: &CStr| {
            // SAFETY: the string ends with NUL, and the buffer has the size that is told.
            let answer = unsafe { libc::listxattr(path.as_ptr(), list.cast(), size) };
            usize::try_from(answer).map_err(|_| last_error())
        };
        self.call(new, old)
    }

    pub(crate) fn set(&self, name: &CStr, value: &[u8], flags: XattrFlags) -> Result<()> {
        let new = |dir: BorrowedFd<'_>, path: &CStr| {
            let size = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
            let arguments = Arguments { value: value.as_ptr() as u64, size, flags: flags.bits() };
            // SAFETY: as for reading; the kernel only reads the value.
            let answer = unsafe {
                libc::syscall(
                    SYS_SETXATTRAT,
                    dir.as_raw_fd(),
                    path.as_ptr(),
                    0,
                    name.as_ptr(),
                    &raw const arguments,
                    size_of::<Arguments>(),
                )
            };
            if answer == 0 { Ok(()) } else { Err(last_error()) }
        };
        self.call(new, |path| rustix::fs::setxattr(path, name, value, flags))
    }

    pub(crate) fn remove(&self, name: &CStr) -> Result<()> {
        let new = |dir: BorrowedFd<'_>, path: &CStr| {
            // SAFETY: both strings end with NUL and live as long as the call.
            let answer = unsafe { libc::syscall(SYS_REMOVEXATTRAT, dir.as_raw_fd(), path.as_ptr(), 0, name.as_ptr()) };
            if answer == 0 { Ok(()) } else { Err(last_error()) }
        };
        self.call(new, |path| rustix::fs::removexattr(path, name))
    }
}

/// Removes an attribute if it is there. Looking costs less than trying: it needs no lock of the inode.
pub(crate) fn strip(place: &Place<'_>, name: &CStr) -> Result<()> {
    match place.get(name, &mut []) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        _ => match place.remove(name) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            answer => answer,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, OFlags};

    fn open(path: &CStr) -> std::os::fd::OwnedFd {
        rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn older_kernels_get_the_same() {
        let proc_self_fd = open(c"/proc/self/fd");
        let file = tempfile::NamedTempFile::new().unwrap();
        let fd = open(&std::ffi::CString::new(file.path().to_str().unwrap()).unwrap());
        let place = Place { proc_self_fd: proc_self_fd.as_fd(), number: DecInt::from_fd(&fd) };
        // Twice: with what the kernel has, and as if it had nothing new.
        for value in [b"new", b"old"] {
            place.set(c"user.name", value, XattrFlags::empty()).unwrap();
            let mut buffer = [0; 64];
            assert_eq!(place.get(c"user.name", &mut []), Ok(3));
            assert_eq!(place.get(c"user.name", &mut buffer), Ok(3));
            assert_eq!(&buffer[..3], value);
            let len = place.list(&mut buffer).unwrap();
            assert!(buffer[..len].split(|&byte| byte == 0).any(|name| name == b"user.name"));
            assert_eq!(place.get(c"user.name", &mut buffer[..2]), Err(Errno::RANGE));
            place.remove(c"user.name").unwrap();
            assert_eq!(place.remove(c"user.name"), Err(Errno::NODATA));
            WITHOUT_AT.store(true, Ordering::Relaxed);
        }
        WITHOUT_AT.store(false, Ordering::Relaxed);
    }
}
