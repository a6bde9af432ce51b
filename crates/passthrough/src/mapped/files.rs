//! Records in files beside the names: `.virtfs_metadata/NAME`, and `.virtfs_metadata_root` for the root.
//!
//! A file is written in place, because the records of an inode with several names are one file with as many.

use super::record::Record;
use crate::creds::with_umask;
use crate::error::Result;
use crate::stat::{Key, Kind, stat};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags, Statx};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const DIRECTORY: &CStr = c".virtfs_metadata";
const ROOT_FILE: &CStr = c".virtfs_metadata_root";

/// More than any record takes. What stands behind it in a file is passed over.
const BYTES_MAX: usize = 1024;

/// Names that no client sees, in any directory.
pub(crate) fn is_hidden(name: &[u8]) -> bool {
    name == DIRECTORY.to_bytes() || name == ROOT_FILE.to_bytes()
}

/// Whether what was found in `dir` keeps records there, under whatever name it was found: to some file systems several
/// spellings are one name, and some give a file a second, short one. One system call.
pub(crate) fn is_record(dir: BorrowedFd<'_>, found: &Statx) -> Result<bool> {
    let kind = Kind::of(found);
    let name = if kind.is_directory() { DIRECTORY } else { ROOT_FILE };
    match stat(dir, name) {
        Ok(record) => Ok(Key::of(&record) == Key::of(found)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whose record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of<'a> {
    /// The root's, which is this directory.
    Root(BorrowedFd<'a>),
    /// That of a name in this directory.
    Name(BorrowedFd<'a>, &'a CStr),
}

impl Of<'_> {
    /// Opens the file. Nothing on the way to it may be a symbolic link: whoever else writes to this directory could have
    /// made one, and the daemon would follow it anywhere.
    fn open(self, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match self {
            Of::Root(dir) => rustix::fs::openat2(dir, ROOT_FILE, flags, mode, resolve),
            Of::Name(dir, name) => {
                let path = [DIRECTORY.to_bytes(), name.to_bytes()].join(&b'/');
                let path = CString::new(path).map_err(|_| Errno::INVAL)?;
                rustix::fs::openat2(dir, path, flags, mode, resolve)
            }
        }
    }

    /// What is recorded, if anything is. Three system calls.
    pub(crate) fn load(self) -> Result<Option<Record>> {
        let file = match self.open(OFlags::RDONLY) {
            Ok(file) => file,
            // What is no file of ours holds no record, nor does one that the daemon may not read.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::ACCESS) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = [0; BYTES_MAX];
        match read(file.as_fd(), &mut text) {
            Ok(text) => Ok(Some(Record::parse(text))),
            Err(Errno::ISDIR | Errno::SPIPE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Records what `change` says, and leaves the rest.
    pub(crate) fn update(self, change: Record) -> Result<()> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = with_umask(0, || match (self.open(flags), self) {
            (Err(Errno::NOENT), Of::Name(dir, _)) => {
                make_directory(dir)?;
                self.open(flags)
            }
            (file, _) => file,
        })?;
        let mut text = [0; BYTES_MAX];
        let old = read(file.as_fd(), &mut text)?;
        let length = old.len();
        let mut text = change.or(Record::parse(old)).to_text();
        let needed = text.len();
        // Whoever reads this between the two calls, or after a crash, finds empty lines and no old ones.
        while text.len() < length {
            text.push('\n');
        }
        write(file.as_fd(), text.as_bytes())?;
        if needed < text.len() {
            rustix::fs::ftruncate(&file, needed as u64)?;
        }
        Ok(())
    }
}

/// The file's beginning.
fn read<'a>(file: BorrowedFd<'_>, text: &'a mut [u8; BYTES_MAX]) -> Result<&'a [u8]> {
    let length = rustix::io::pread(file, &mut text[..], 0)?;
    Ok(text.get(..length).unwrap_or_default())
}

fn write(file: BorrowedFd<'_>, text: &[u8]) -> Result<()> {
    match rustix::io::pwrite(file, text, 0) {
        Ok(written) if written == text.len() => Ok(()),
        Ok(_) => Err(Errno::NOSPC),
        Err(error) => Err(error),
    }
}

/// The directory of the records of `dir`.
fn directory(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, DIRECTORY, flags, Mode::empty())
}

/// Makes it. Only inside of [`with_umask`]: the umask of a client's may still be in force.
fn make_directory(dir: BorrowedFd<'_>) -> Result<()> {
    match rustix::fs::mkdirat(dir, DIRECTORY, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        answer => answer,
    }
}

fn directory_or_new(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    match directory(dir) {
        Err(Errno::NOENT) => {
            with_umask(0, || make_directory(dir))?;
            directory(dir)
        }
        answer => answer,
    }
}

/// What is there or is not.
fn unless_missing(answer: Result<()>) -> Result<()> {
    if answer == Err(Errno::NOENT) { Ok(()) } else { answer }
}

/// Records of a name that is new: what an older file of that name left goes, and is not written to, because it may be
/// another name's as well.
pub(crate) fn replace(dir: BorrowedFd<'_>, name: &CStr, record: Record) -> Result<()> {
    let records = directory_or_new(dir)?;
    unless_missing(rustix::fs::unlinkat(&records, name, AtFlags::empty()))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = with_umask(0, || rustix::fs::openat(&records, name, flags, Mode::RUSR | Mode::WUSR))?;
    write(file.as_fd(), record.to_text().as_bytes())
}

/// The name is gone, and its record goes.
pub(crate) fn remove(dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    match directory(dir) {
        Ok(records) => unless_missing(rustix::fs::unlinkat(records, name, AtFlags::empty())),
        Err(error) => unless_missing(Err(error)),
    }
}

/// The name has moved, and its record follows; without one it leaves none that an older file left there.
pub(crate) fn rename(dir: BorrowedFd<'_>, name: &CStr, new_dir: BorrowedFd<'_>, new_name: &CStr) -> Result<()> {
    let moved = directory(dir).and_then(|from| {
        rustix::fs::statat(&from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let to = directory_or_new(new_dir)?;
        rustix::fs::renameat(from, name, to, new_name)
    });
    if moved == Err(Errno::NOENT) { remove(new_dir, new_name) } else { moved }
}

/// Two names were exchanged.
pub(crate) fn exchange(dir: BorrowedFd<'_>, name: &CStr, other_dir: BorrowedFd<'_>, other: &CStr) -> Result<()> {
    let both = directory(dir)
        .and_then(|from| rustix::fs::renameat_with(from, name, directory(other_dir)?, other, RenameFlags::EXCHANGE));
    if both != Err(Errno::NOENT) {
        return both;
    }
    // One of them at most has a record.
    let is_there = directory(dir).and_then(|from| rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)).is_ok();
    if is_there { rename(dir, name, other_dir, other) } else { rename(other_dir, other, dir, name) }
}

/// The inode has one more name: its record gets one, too. `false` when there is none.
pub(crate) fn link(dir: BorrowedFd<'_>, name: &CStr, new_dir: BorrowedFd<'_>, new_name: &CStr) -> Result<bool> {
    let from = match directory(dir) {
        Err(Errno::NOENT) => return Ok(false),
        from => from?,
    };
    let to = directory_or_new(new_dir)?;
    unless_missing(rustix::fs::unlinkat(&to, new_name, AtFlags::empty()))?;
    match rustix::fs::linkat(from, name, to, new_name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(false),
        answer => answer.map(|()| true),
    }
}

/// Makes a directory that is empty for the client an empty one of the host: what is left of records goes.
///
/// # Errors
/// `ENOTEMPTY` when the client sees something in it, and nothing was done then.
pub(crate) fn clear(dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let going = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let mut hidden = 0;
    for entry in Dir::read_from(&going)? {
        match entry?.file_name().to_bytes() {
            b"." | b".." => {}
            name if is_hidden(name) => hidden += 1,
            _ => return Err(Errno::NOTEMPTY),
        }
    }
    if hidden == 0 {
        return Ok(());
    }
    unless_missing(rustix::fs::unlinkat(&going, ROOT_FILE, AtFlags::empty()))?;
    let records = match rustix::fs::openat(&going, DIRECTORY, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        records => records?,
    };
    // Records whose names went without this program. A directory among them is somebody else's, and stays.
    for entry in Dir::read_from(&records)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            match rustix::fs::unlinkat(&records, entry.file_name(), AtFlags::empty()) {
                Err(Errno::ISDIR | Errno::PERM) => return Err(Errno::NOTEMPTY),
                answer => unless_missing(answer)?,
            }
        }
    }
    unless_missing(rustix::fs::unlinkat(&going, DIRECTORY, AtFlags::REMOVEDIR))
}
