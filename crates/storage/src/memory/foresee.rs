//! What opening memory would meet: for whoever only looks.

use super::open::{MemoryOptions, failed, file_size, open_anonymous, unit};
use crate::OpenError;
use crate::error::check_size;
use crate::file::{check_kind, file_system_memory};
use crate::lock::ImageLock;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, StatVfs};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// What is said of a file that cannot be opened, or of the directory of one that cannot be made.
pub(super) const OPEN_HINT: &str = "; a file that does not exist is created when a size is given, through no link";
/// And of a file system that is full.
pub(super) const ROOM_HINT: &str =
    "; its space is allocated in full: make room in its file system, or export it with storage `file`";
pub(super) const SPARSE_HINT: &str = "; `fallocate -l SIZE` fills it, or export it with storage `file`";

impl MemoryOptions {
    /// Looks at the file, or for the place of one that would be made; and whether anonymous memory can be mapped, of which nothing is taken.
    /// Huge pages would be taken, and are not looked at.
    ///
    /// # Errors
    /// Of those of opening it.
    pub fn foresee(&self) -> Result<(), OpenError> {
        let Some(path) = &self.path else {
            return if self.hugepages { Ok(()) } else { open_anonymous(self).map(drop) };
        };
        if self.size_bytes() > 0 {
            check_size(self.size_bytes())?;
        }
        if self.makes(path) { self.foresee_made(path) } else { self.foresee_found(path) }
    }

    /// A file would be made there: nothing has that name, not even a link.
    fn makes(&self, path: &Path) -> bool {
        self.size_bytes() > 0 && !self.read_only && rustix::fs::lstat(path).err() == Some(Errno::NOENT)
    }

    fn foresee_made(&self, path: &Path) -> Result<(), OpenError> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let access = Access::WRITE_OK | Access::EXEC_OK;
        let failed_open = failed(path, "open", OPEN_HINT);
        rustix::fs::accessat(CWD, directory, access, AtFlags::EACCESS).map_err(&failed_open)?;
        let directory = open(directory, OFlags::DIRECTORY).map_err(&failed_open)?;
        is_memory(path, &directory)?;
        let unit = unit(&directory).map_err(failed(path, "inspect", ""))?;
        has_room(path, &directory, self.size_bytes().next_multiple_of(unit))
    }

    fn foresee_found(&self, path: &Path) -> Result<(), OpenError> {
        let access = if self.read_only { Access::READ_OK } else { Access::READ_OK | Access::WRITE_OK };
        rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS).map_err(failed(path, "open", OPEN_HINT))?;
        ImageLock::check(path, !self.read_only)?;
        let file = open(path, OFlags::NONBLOCK).map_err(failed(path, "open", OPEN_HINT))?;
        check_kind(path, &file)?;
        is_memory(path, &file)?;
        let about = rustix::fs::fstat(&file).map_err(failed(path, "inspect", ""))?;
        let unit = unit(&file).map_err(failed(path, "inspect", ""))?;
        let size_bytes = file_size(self, path, u64::try_from(about.st_size).unwrap_or(0), unit)?;
        let allocated_bytes = u64::try_from(about.st_blocks).unwrap_or(0).saturating_mul(512);
        let is_huge = unit > 512;
        if self.read_only {
            let is_sparse = !is_huge && allocated_bytes < size_bytes / 512 * 512;
            return if is_sparse {
                Err(failed(path, "map a sparse file for reading", SPARSE_HINT)(Errno::NOSPC))
            } else {
                Ok(())
            };
        }
        has_room(path, &file, size_bytes.next_multiple_of(unit).saturating_sub(allocated_bytes))
    }
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn is_memory(path: &Path, fd: impl AsFd) -> Result<(), OpenError> {
    if file_system_memory(fd).unwrap_or(false) { Ok(()) } else { Err(OpenError::NotMemory { path: path.to_owned() }) }
}

/// One without a limit says that it has no blocks.
fn has_room(path: &Path, fd: impl AsFd, bytes: u64) -> Result<(), OpenError> {
    let StatVfs { f_blocks, f_bavail, f_frsize, .. } = rustix::fs::fstatvfs(fd).map_err(failed(path, "inspect", ""))?;
    if f_blocks > 0 && f_bavail.saturating_mul(f_frsize) < bytes {
        return Err(failed(path, "allocate its space", ROOM_HINT)(Errno::NOSPC));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStorage;
    use std::path::PathBuf;
    use values::ByteSize;

    fn options(path: PathBuf, size_bytes: Option<u64>, read_only: bool) -> MemoryOptions {
        MemoryOptions { path: Some(path), size: size_bytes.map(ByteSize), read_only, ..MemoryOptions::default() }
    }

    #[test]
    fn what_is_foreseen_is_what_an_opening_meets() {
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let on_disk = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| shared.path().join(name);
        for name in ["empty", "sparse", "full"] {
            std::fs::write(at(name), vec![1; if name == "full" { 4096 } else { 0 }]).unwrap();
        }
        std::fs::File::options().write(true).open(at("sparse")).unwrap().set_len(8192).unwrap();
        std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
        let free = rustix::fs::statvfs("/dev/shm").unwrap();
        let too_much = (free.f_blocks > 0).then_some(free.f_blocks.saturating_mul(free.f_frsize) / 512 * 512 + 512);
        let all = [
            (at("none/file"), Some(4096), false),
            (at("new"), Some(4096), false),
            (at("none"), None, false),
            (at("link"), Some(4096), false),
            (at("empty"), None, false),
            (at("sparse"), None, true),
            (at("full"), None, true),
            (at("full"), Some(512), false),
            (at("full"), Some(8192), true),
            (at("full"), Some(8192), false),
            (on_disk.path().join("new"), Some(4096), false),
        ];
        let too_much = too_much.map(|bytes| (at("large"), Some(bytes), false));
        for (path, size, read_only) in all.into_iter().chain(too_much) {
            let options = options(path, size, read_only);
            let foreseen = options.foresee().map_err(|error| error.to_string());
            // Those that are made are not there before they are opened.
            let opened = MemoryStorage::open(&options).map(drop).map_err(|error| error.to_string());
            assert_eq!(foreseen, opened, "{options:?}");
        }
        let anonymous = |bytes| MemoryOptions { size: Some(ByteSize(bytes)), ..MemoryOptions::default() };
        for bytes in [1 << 20, 1 << 50] {
            let foreseen = anonymous(bytes).foresee().map_err(|error| error.to_string());
            let opened = MemoryStorage::open(&anonymous(bytes)).map(drop).map_err(|error| error.to_string());
            assert_eq!(foreseen, opened);
        }
    }
}
