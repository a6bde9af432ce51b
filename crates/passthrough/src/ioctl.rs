//! Inode flags and the extended flags of project quotas: the four ioctls of `linux/fs.h` that a client may ask for.

use rustix::fs::IFlags;
use rustix::io::Errno;
use rustix::ioctl::{self, Getter, Setter, opcode};
use std::os::fd::BorrowedFd;

/// `struct fsxattr` of `linux/fs.h`: extended flags, extent size hints and the project of an inode.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsXattr {
    /// `FS_XFLAG_*`.
    pub xflags: u32,
    /// Extent size hint in bytes.
    pub extent_size: u32,
    /// How many extents the data has. Only the kernel sets this.
    pub extents: u32,
    /// Project of the project quota.
    pub project: u32,
    /// Extent size hint of copies on write, in bytes.
    pub cow_extent_size: u32,
    /// The kernel's padding, 0.
    pub padding: [u8; 8],
}

/// `_IOR('X', 31, struct fsxattr)`
const FS_IOC_FSGETXATTR: ioctl::Opcode = opcode::read::<FsXattr>(b'X', 31);
/// `_IOW('X', 32, struct fsxattr)`
const FS_IOC_FSSETXATTR: ioctl::Opcode = opcode::write::<FsXattr>(b'X', 32);

/// `FS_IOC_GETFLAGS`: the `FS_*_FL` flags.
///
/// # Errors
/// The kernel's, `ENOTTY` on a file system without flags.
pub(crate) fn get_flags(file: BorrowedFd<'_>) -> Result<u32, Errno> {
    rustix::fs::ioctl_getflags(file).map(|flags| flags.bits())
}

/// `FS_IOC_SETFLAGS`. Bits that this program has no name for are the kernel's to judge.
///
/// # Errors
/// The kernel's: `EPERM` for the immutable and append-only bits without `CAP_LINUX_IMMUTABLE`, `EOPNOTSUPP` for flags that
/// the file system does not know.
pub(crate) fn set_flags(file: BorrowedFd<'_>, flags: u32) -> Result<(), Errno> {
    rustix::fs::ioctl_setflags(file, IFlags::from_bits_retain(flags))
}

/// `FS_IOC_FSGETXATTR`.
///
/// # Errors
/// The kernel's, `ENOTTY` on a file system without them.
pub(crate) fn get_fsxattr(file: BorrowedFd<'_>) -> Result<FsXattr, Errno> {
    // SAFETY: this ioctl writes one `struct fsxattr`, which `FsXattr` mirrors, and reads nothing.
    unsafe { ioctl::ioctl(file, Getter::<FS_IOC_FSGETXATTR, FsXattr>::new()) }
}

/// `FS_IOC_FSSETXATTR`.
///
/// # Errors
/// The kernel's: `EPERM`, `EINVAL` or `EOPNOTSUPP` as for the flags.
pub(crate) fn set_fsxattr(file: BorrowedFd<'_>, attributes: FsXattr) -> Result<(), Errno> {
    // SAFETY: this ioctl reads one `struct fsxattr`, which `FsXattr` mirrors, and writes nothing.
    unsafe { ioctl::ioctl(file, Setter::<FS_IOC_FSSETXATTR, FsXattr>::new(attributes)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// `FS_NODUMP_FL`, which every owner may set on the file systems that have flags.
    const NODUMP: u32 = 0x40;
    /// `FS_XFLAG_NODUMP`
    const XFLAG_NODUMP: u32 = 0x80;

    #[test]
    fn flags_are_what_was_set() {
        // A file system without them says so, which is all that this can see there.
        for directory in [std::env::temp_dir(), "/var/tmp".into(), "/dev/shm".into()] {
            let Ok(file) = tempfile::tempfile_in(directory) else { continue };
            let file = file.as_fd();
            match get_flags(file) {
                Ok(flags) => {
                    set_flags(file, flags | NODUMP).unwrap();
                    assert_eq!(get_flags(file), Ok(flags | NODUMP));
                    set_flags(file, flags).unwrap();
                    assert_eq!(get_flags(file), Ok(flags));
                }
                Err(error) => assert_eq!(error, Errno::NOTTY),
            }
            match get_fsxattr(file) {
                Ok(before) => {
                    let change = FsXattr { xflags: before.xflags | XFLAG_NODUMP, ..before };
                    set_fsxattr(file, change).unwrap();
                    assert_eq!(get_fsxattr(file), Ok(change));
                    assert_eq!(get_flags(file).map(|flags| flags & NODUMP), Ok(NODUMP));
                }
                Err(error) => assert!(matches!(error, Errno::NOTTY | Errno::OPNOTSUPP), "{error}"),
            }
        }
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!((FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR), (0x801c_581f, 0x401c_5820));
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(get_fsxattr(reader.as_fd()), Err(Errno::NOTTY));
    }
}
