//! Extended attributes of nodes, in the client's words.

use crate::create::SecurityContext;
use crate::creds::{with_umask, without_fsetid};
use crate::error::Result;
use crate::file::OpenFile;
use crate::handle::last_error;
use crate::mapped::Mapped;
use crate::options::Options;
use crate::security::Security;
use crate::tree::{Node, Tree};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::path::DecInt;
use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The most bytes of a value, and of a list of names: `XATTR_SIZE_MAX` and `XATTR_LIST_MAX` of `linux/limits.h`.
const BYTES_MAX: usize = 65_536;

/// File capabilities. The kernel drops them when a file changes.
const CAPABILITY: &CStr = c"security.capability";

/// The names under which POSIX ACLs are read and written.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

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

impl Place<'_> {
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
    fn list(&self, out: &mut [u8]) -> Result<usize> {
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

    fn remove(&self, name: &CStr) -> Result<()> {
        let new = |dir: BorrowedFd<'_>, path: &CStr| {
            // SAFETY: both strings end with NUL and live as long as the call.
            let answer = unsafe { libc::syscall(SYS_REMOVEXATTRAT, dir.as_raw_fd(), path.as_ptr(), 0, name.as_ptr()) };
            if answer == 0 { Ok(()) } else { Err(last_error()) }
        };
        self.call(new, |path| rustix::fs::removexattr(path, name))
    }
}

impl Tree {
    pub(crate) fn place(&self, fd: impl AsFd) -> Place<'_> {
        Place { proc_self_fd: self.proc_self_fd.as_fd(), number: DecInt::from_fd(fd) }
    }

    /// The host's name of an attribute that the client may use.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without extended attributes, and for ACLs without POSIX ACLs; what the map of names says; `hidden` for
    /// the names under which the tree keeps records of its own.
    fn host_name<'a>(&self, name: &'a CStr, hidden: Errno) -> Result<Cow<'a, CStr>> {
        if !self.options.xattr || !self.shows(name.to_bytes()) {
            return Err(Errno::OPNOTSUPP);
        }
        self.translated(name, hidden)
    }

    fn translated<'a>(&self, name: &'a CStr, hidden: Errno) -> Result<Cow<'a, CStr>> {
        let name = self.options.xattr_map.to_host(name)?;
        match &self.mapped {
            None => Ok(name),
            Some(mapped) => mapped.xattr_to_host(name, hidden),
        }
    }

    /// Where the client's file capabilities are, if not where the kernel looks for its own. No system call.
    pub(crate) fn mapped_capability(options: &Options, mapped: Option<&Mapped>) -> Option<CString> {
        let name = options.xattr_map.to_host(CAPABILITY).ok()?;
        let name = match mapped {
            None => name,
            Some(mapped) => mapped.xattr_to_host(name, Errno::ACCESS).ok()?,
        };
        (*name != *CAPABILITY).then(|| name.into_owned())
    }

    /// A file is about to change its data: file capabilities that the kernel does not know for such go, as its own would,
    /// whoever writes. Costs nothing where no map renames them, one system call otherwise.
    ///
    /// # Errors
    /// The kernel's: the file must not change then.
    #[inline]
    pub fn before_write(&self, file: &OpenFile) -> Result<()> {
        self.strip_capability(file)
    }

    /// As [`Tree::before_write`], for any descriptor of the file.
    #[inline]
    pub(crate) fn strip_capability(&self, fd: impl AsFd) -> Result<()> {
        match &self.mapped_capability {
            None => Ok(()),
            Some(name) => strip(&self.place(fd), name),
        }
    }

    /// A client that does not know ACLs must not copy them about: it would change permissions unawares.
    fn shows(&self, name: &[u8]) -> bool {
        self.shows_acls() || !name.starts_with(ACL_PREFIX)
    }

    fn shows_acls(&self) -> bool {
        self.options.posix_acl && self.options.security != Security::None
    }

    /// Reads an attribute into `out`, which is cleared before, and answers its length in bytes. A `size` of 0 asks for the
    /// length alone; values have at most 65,536 bytes.
    ///
    /// # Errors
    /// `ERANGE` when the value has more than `size` bytes, `ENODATA` when there is none, `EOPNOTSUPP` for attributes that
    /// are not offered, `ESTALE` for a node that is unknown or gone, and the kernel's.
    pub fn get_xattr(&self, node: Node, name: &CStr, out: &mut Vec<u8>, size: usize) -> Result<usize> {
        self.pause();
        let name = self.host_name(name, Errno::NODATA)?;
        let pin = self.table.pin(&self.table.get(node)?)?;
        fill(out, size, |out| self.place(&pin).get(&name, out))
    }

    /// Reads the names of all attributes into `out`, each with a NUL behind it, as [`Tree::get_xattr`] reads a value.
    ///
    /// # Errors
    /// As [`Tree::get_xattr`].
    pub fn list_xattr(&self, node: Node, out: &mut Vec<u8>, size: usize) -> Result<usize> {
        self.pause();
        if !self.options.xattr {
            return Err(Errno::OPNOTSUPP);
        }
        let pin = self.table.pin(&self.table.get(node)?)?;
        let map = &self.options.xattr_map;
        if self.shows_acls() && map.is_identity() && self.mapped.is_none() {
            return fill(out, size, |out| self.place(&pin).list(out));
        }
        // What the client sees is known only when all was read.
        let mut names = Vec::new();
        fill(&mut names, BYTES_MAX, |out| self.place(&pin).list(out))?;
        out.clear();
        for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            let known = match &self.mapped {
                None => Some(name),
                Some(mapped) => mapped.xattr_to_client(name),
            };
            if let Some(name) = known.and_then(|name| map.to_guest(name)).filter(|name| self.shows(name)) {
                out.extend_from_slice(name);
                out.push(0);
            }
        }
        let len = out.len();
        if size == 0 {
            out.clear();
        } else if len > size {
            out.clear();
            return Err(Errno::RANGE);
        }
        Ok(len)
    }

    /// Writes an attribute. `flags` are `XATTR_*` of `linux/xattr.h`; `acl_kill_sgid` drops the set-group-id bit with the
    /// ACL as for a caller outside of the file's group.
    ///
    /// # Errors
    /// `EROFS` on a read-only tree, as [`Tree::get_xattr`], and the kernel's.
    pub fn set_xattr(&self, node: Node, name: &CStr, value: &[u8], flags: u32, acl_kill_sgid: bool) -> Result<()> {
        self.pause();
        let name = self.host_name(name, Errno::ACCESS)?;
        self.writable()?;
        self.check_capability(&name)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let pin = self.table.pin(&self.table.get(node)?)?;
        let set = || self.place(&pin).set(&name, value, flags);
        if acl_kill_sgid { without_fsetid(set) } else { set() }
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// As [`Tree::set_xattr`].
    pub fn remove_xattr(&self, node: Node, name: &CStr) -> Result<()> {
        self.pause();
        let is_acl = name.to_bytes().starts_with(ACL_PREFIX);
        let name = self.host_name(name, Errno::ACCESS)?;
        self.writable()?;
        let pin = self.table.pin(&self.table.get(node)?)?;
        match self.place(&pin).remove(&name) {
            // The kernel takes an ACL away that is not there, wherever it would be kept.
            Err(Errno::NODATA) if is_acl && self.mapped.is_some() => Ok(()),
            answer => answer,
        }
    }

    /// Refuses what would give a file of the host more rights than its caller has.
    fn check_capability(&self, host_name: &CStr) -> Result<()> {
        if self.options.nosuid && host_name == CAPABILITY { Err(Errno::PERM) } else { Ok(()) }
    }

    /// Labels a file that was just made.
    pub(crate) fn label(&self, fd: &impl AsFd, label: SecurityContext<'_>) -> Result<()> {
        let name = self.translated(label.name, Errno::ACCESS)?;
        self.check_capability(&name)?;
        self.place(fd).set(&name, label.value, XattrFlags::empty())
    }
}

/// Removes an attribute if it is there. Looking costs less than trying: it needs no lock of the inode.
fn strip(place: &Place<'_>, name: &CStr) -> Result<()> {
    match place.get(name, &mut []) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        _ => match place.remove(name) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            answer => answer,
        },
    }
}

/// Lets `read` write up to `size` bytes to `out`, or say how many there are when that is 0.
fn fill(out: &mut Vec<u8>, size: usize, read: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
    out.clear();
    out.resize(size.min(BYTES_MAX), 0);
    let answer = read(out);
    let written = if size == 0 { 0 } else { *answer.as_ref().unwrap_or(&0) };
    out.truncate(written);
    answer
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
