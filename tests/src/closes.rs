//! A file system in memory (FUSE) whose files count how often they are closed, and may hang at that.
//!
//! The kernel asks (FLUSH) at each close of a descriptor of a file, and not only at the last, and whoever closes waits for the answer in a
//! way that nothing ends, like the file systems of networks do.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

/// How long the kernel may believe what it was told. The file system changes by its requests alone.
const BELIEVED: Duration = Duration::from_secs(3600);
/// Inodes are numbered from behind the root's on.
const FIRST: u64 = 2;

/// A mounted one. It is unmounted when it is dropped.
pub struct Closes {
    session: Option<BackgroundSession>,
    files: Arc<Mutex<Files>>,
    place: TempDir,
}

#[derive(Default)]
struct Files {
    all: Vec<File>,
    /// Names of those that were closed.
    closed: Vec<OsString>,
    hangs: bool,
    /// Closes that hang.
    waiting: Vec<ReplyEmpty>,
}

struct File {
    /// None of one that has been removed.
    name: Option<OsString>,
    data: Vec<u8>,
}

struct Served(Arc<Mutex<Files>>);

fn lock(files: &Mutex<Files>) -> MutexGuard<'_, Files> {
    files.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Closes {
    /// Mounts one without files. Takes root.
    pub fn mount() -> Result<Closes> {
        let place = TempDir::with_prefix("vringd-closes-")?;
        let files = Arc::new(Mutex::new(Files::default()));
        let session = fuser::spawn_mount(Served(files.clone()), place.path(), &Config::default());
        let session = session.context("cannot mount: it takes root, /dev/fuse and a kernel that has FUSE")?;
        Ok(Closes { session: Some(session), files, place })
    }

    /// Where it is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Its root.
    pub fn root(&self) -> &Path {
        self.place.path()
    }

    /// The names of files that were closed since this was asked last, one for each descriptor.
    pub fn closed(&self) -> Vec<OsString> {
        std::mem::take(&mut lock(&self.files).closed)
    }

    /// Closes hang from now on, until what is returned is dropped: then they are answered.
    #[must_use]
    pub fn hang(&self) -> Hangs {
        lock(&self.files).hangs = true;
        Hangs(self.files.clone())
    }
}

/// Closes hang as long as this lives.
pub struct Hangs(Arc<Mutex<Files>>);

impl Drop for Hangs {
    fn drop(&mut self) {
        let waiting = {
            let mut files = lock(&self.0);
            files.hangs = false;
            std::mem::take(&mut files.waiting)
        };
        waiting.into_iter().for_each(ReplyEmpty::ok);
    }
}

impl Drop for Closes {
    fn drop(&mut self) {
        // Whoever has files here still has them; nothing hangs any more.
        let _ = unmount(self.place.path(), UnmountFlags::DETACH);
        drop(self.session.take());
    }
}

impl Files {
    fn named(&self, name: &OsStr) -> Option<usize> {
        self.all.iter().position(|file| file.name.as_deref() == Some(name))
    }

    fn at(&mut self, ino: INodeNo) -> Option<&mut File> {
        self.all.get_mut(usize::try_from(ino.0.checked_sub(FIRST)?).ok()?)
    }

    fn attributes(&mut self, ino: INodeNo) -> Option<FileAttr> {
        if ino == INodeNo::ROOT {
            return Some(attributes(ino, FileType::Directory, 0, 1));
        }
        let file = self.at(ino)?;
        Some(attributes(ino, FileType::RegularFile, file.data.len() as u64, u32::from(file.name.is_some())))
    }
}

fn number(index: usize) -> INodeNo {
    INodeNo(index as u64 + FIRST)
}

fn attributes(ino: INodeNo, kind: FileType, size: u64, nlink: u32) -> FileAttr {
    FileAttr {
        ino,
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o700,
        nlink,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut files = lock(&self.0);
        match files.named(name).and_then(|index| files.attributes(number(index))) {
            Some(found) => reply.entry(&BELIEVED, &found, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match lock(&self.0).attributes(ino) {
            Some(found) => reply.attr(&BELIEVED, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut files = lock(&self.0);
        if let (Some(size), Some(file)) = (size, files.at(ino)) {
            file.data.resize(size as usize, 0);
        }
        match files.attributes(ino) {
            Some(found) => reply.attr(&BELIEVED, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mut files = lock(&self.0);
        let index = files.named(name).unwrap_or_else(|| {
            files.all.push(File { name: Some(name.to_owned()), data: Vec::new() });
            files.all.len() - 1
        });
        match files.attributes(number(index)) {
            Some(made) => reply.created(&BELIEVED, &made, Generation(0), FileHandle(0), FopenFlags::empty()),
            None => reply.error(Errno::EIO),
        }
    }

    fn unlink(&self, _: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut files = lock(&self.0);
        match files.named(name) {
            Some(index) => {
                files.all[index].name = None;
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn rename(
        &self,
        _: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _new_parent: INodeNo,
        new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut files = lock(&self.0);
        let Some(index) = files.named(name) else { return reply.error(Errno::ENOENT) };
        if let Some(replaced) = files.named(new_name) {
            files.all[replaced].name = None;
        }
        files.all[index].name = Some(new_name.to_owned());
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut files = lock(&self.0);
        let Some(file) = files.at(ino) else { return reply.error(Errno::ENOENT) };
        let start = file.data.len().min(offset as usize);
        let end = file.data.len().min(start + size as usize);
        reply.data(&file.data[start..end]);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut files = lock(&self.0);
        let Some(file) = files.at(ino) else { return reply.error(Errno::ENOENT) };
        let (start, end) = (offset as usize, offset as usize + data.len());
        if file.data.len() < end {
            file.data.resize(end, 0);
        }
        file.data[start..end].copy_from_slice(data);
        reply.written(data.len() as u32);
    }

    fn flush(&self, _: &Request, ino: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let mut files = lock(&self.0);
        let name = files.at(ino).and_then(|file| file.name.clone()).unwrap_or_default();
        files.closed.push(name);
        if files.hangs { files.waiting.push(reply) } else { reply.ok() }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let files = lock(&self.0);
        for (index, file) in files.all.iter().enumerate().skip(offset as usize) {
            if let Some(name) = &file.name
                && reply.add(number(index), index as u64 + 1, FileType::RegularFile, name)
            {
                break;
            }
        }
        reply.ok();
    }
}
