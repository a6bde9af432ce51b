//! File handles of the kernel: what names an inode of a file system without holding a descriptor.

use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A file is made in microseconds, unless its file system waits for its journal.
const BUSY_INODE_TRIES: usize = 8;
const BUSY_INODE_PAUSE: std::time::Duration = std::time::Duration::from_micros(200);

/// The most bytes of a handle: `MAX_HANDLE_SZ` of `linux/exportfs.h`.
const BYTES_MAX: usize = 128;

/// Bytes that are kept without an allocation: enough for ext4, XFS, tmpfs and btrfs within one subvolume.
const INLINE_BYTES: usize = 22;

/// `struct file_handle` of `fcntl.h` with room for the longest handle.
#[repr(C)]
struct Raw {
    bytes: u32,
    kind: i32,
    data: [u8; BYTES_MAX],
}

/// A file handle. Only those that the kernel gave us exist: no client brings one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileHandle {
    kind: i32,
    data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Data {
    // The bytes behind the length are 0, so that equal handles are equal.
    Inline(u8, [u8; INLINE_BYTES]),
    Heap(Box<[u8]>),
}

impl Data {
    fn new(bytes: &[u8]) -> Data {
        let mut inline = [0; INLINE_BYTES];
        match (inline.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(front), Ok(len)) => {
                front.copy_from_slice(bytes);
                Data::Inline(len, inline)
            }
            _ => Data::Heap(bytes.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Data::Inline(len, bytes) => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Data::Heap(bytes) => bytes,
        }
    }
}

impl FileHandle {
    /// The handle of `name` in `dir`, or of `dir` itself when the name is empty. A symbolic link is not followed.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where the file system has no handles; the kernel's for the name.
    pub(crate) fn of(dir: BorrowedFd<'_>, name: &CStr) -> Result<FileHandle, Errno> {
        let mut raw = Raw { bytes: BYTES_MAX as u32, kind: 0, data: [0; BYTES_MAX] };
        let mut mount_id = 0;
        // SAFETY: `Raw` is a `struct file_handle` followed by as many bytes as it says; the name ends with NUL; all of them
        // live as long as the call, which keeps none.
        let answer = unsafe {
            libc::name_to_handle_at(
                dir.as_raw_fd(),
                name.as_ptr(),
                (&raw mut raw).cast(),
                &raw mut mount_id,
                libc::AT_EMPTY_PATH,
            )
        };
        if answer != 0 {
            return Err(last_error());
        }
        let data = raw.data.get(..raw.bytes as usize).ok_or(Errno::OVERFLOW)?;
        Ok(FileHandle { kind: raw.kind, data: Data::new(data) })
    }

    /// Opens the inode anew, on the mount of `mount`, which is any file there that is open for more than its path.
    ///
    /// # Errors
    /// `ESTALE` when the inode is gone; `EPERM` without `CAP_DAC_READ_SEARCH`; the kernel's.
    pub(crate) fn open(&self, mount: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        for _ in 0..BUSY_INODE_TRIES {
            match self.open_once(mount, flags) {
                // So the kernel calls an inode that is gone, whose number a file has that is being made right now (iget_locked of
                // fs/inode.c, for ext4 and others).
                Err(Errno::NOMEM) => std::thread::sleep(BUSY_INODE_PAUSE),
                opened => return opened,
            }
        }
        self.open_once(mount, flags)
    }

    fn open_once(&self, mount: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        let bytes = self.data.bytes();
        let mut raw = Raw { bytes: bytes.len() as u32, kind: self.kind, data: [0; BYTES_MAX] };
        raw.data.get_mut(..bytes.len()).ok_or(Errno::OVERFLOW)?.copy_from_slice(bytes);
        let flags = (flags | OFlags::CLOEXEC).bits().cast_signed();
        // SAFETY: `Raw` is a `struct file_handle` followed by as many bytes as it says, and lives as long as the call.
        let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut raw).cast(), flags) };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Its type and bytes, for [`FileHandle::again`].
    pub(crate) fn parts(&self) -> (i32, &[u8]) {
        (self.kind, self.data.bytes())
    }

    /// The same, to be written down.
    pub(crate) fn to_parts(&self) -> (i32, Vec<u8>) {
        (self.kind, self.data.bytes().to_vec())
    }

    /// The handle of these parts, which came from a handle.
    pub(crate) fn again(kind: i32, bytes: &[u8]) -> FileHandle {
        FileHandle { kind, data: Data::new(bytes) }
    }

    #[cfg(test)]
    pub(crate) fn made_up(bytes: &[u8]) -> FileHandle {
        FileHandle { kind: 1, data: Data::new(bytes) }
    }
}

/// What the last call of the C library on this thread failed with.
pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    proptest! {
        #[test]
        fn bytes_of_any_length_are_kept(bytes in proptest::collection::vec(any::<u8>(), 0..=BYTES_MAX)) {
            let data = Data::new(&bytes);
            prop_assert_eq!(data.bytes(), &bytes[..]);
            prop_assert_eq!(Data::new(&bytes), data);
        }
    }

    /// The number of an inode that is gone is given to the next file soon, and while that is made the kernel answers otherwise.
    #[test]
    fn what_is_gone_is_stale_also_while_others_make_files() {
        let directory = tempfile::tempdir().unwrap();
        let mount = File::open(directory.path()).unwrap();
        let ends = AtomicBool::new(false);
        let (directory_path, ends_now) = (directory.path(), &ends);
        let makes = |name: &str| {
            let paths: Vec<_> = (0..16).map(|at| directory_path.join(format!("{name}-{at}"))).collect();
            while !ends_now.load(Ordering::Relaxed) {
                paths.iter().for_each(|path| std::fs::write(path, "x").unwrap());
                paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
            }
        };
        std::thread::scope(|scope| {
            for name in ["one", "two", "three"] {
                let makes = &makes;
                scope.spawn(move || makes(name));
            }
            let path = directory.path().join("gone");
            let answers: Vec<_> = (0..4000)
                .map(|_| {
                    std::fs::write(&path, "").unwrap();
                    let handle = FileHandle::of(mount.as_fd(), c"gone").unwrap();
                    std::fs::remove_file(&path).unwrap();
                    handle.open(mount.as_fd(), OFlags::PATH).map(drop)
                })
                .collect();
            ends.store(true, Ordering::Relaxed);
            assert_eq!(answers.iter().find(|answer| **answer != Err(Errno::STALE)), None);
        });
    }
}
