//! The tree itself.
#![allow(unused_variables, dead_code, missing_docs, clippy::missing_errors_doc, clippy::needless_pass_by_value, clippy::ptr_arg)]

use crate::attributes::{Attributes, Change};
use crate::*;
use rustix::fs::StatVfs;
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// Names an inode to a client. Never used twice within a tree.
pub type Node = u64;
/// The directory that is served.
pub const ROOT: Node = 1;
/// Names an open file or directory. Never used twice within a tree, and never 0.
pub type Handle = u64;

/// What stands behind a name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub node: Node,
    pub attributes: Attributes,
    pub submount: bool,
}

/// A file or directory that was opened.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub handle: Handle,
}

/// A label that a new file gets before anybody sees it.
#[derive(Clone, Copy, Debug)]
pub struct SecurityContext<'a> {
    pub name: &'a CStr,
    pub value: &'a [u8],
}

/// One name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    pub ino: u64,
    pub offset: u64,
    pub kind: u8,
    pub name: &'a [u8],
}

#[derive(Debug)]
pub struct OpenFile {
    fd: OwnedFd,
    flags: i32,
    node: Node,
}

impl OpenFile {
    pub fn flags(&self) -> i32 {
        self.flags
    }
    pub fn node(&self) -> Node {
        self.node
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Where a hole or data is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    Data,
    Hole,
}

#[derive(Clone, Debug)]
pub struct Description {
    pub path: PathBuf,
    pub options: Options,
    pub nodes: usize,
    pub descriptors: usize,
    pub handles: usize,
}

#[derive(Debug)]
pub struct Tree(());

const NO: Errno = Errno::NOSYS;

impl Tree {
    pub fn new(source: Source, options: Options) -> std::result::Result<Tree, OpenError> {
        Err(OpenError::Limits { path: PathBuf::new() })
    }
    pub fn describe(&self) -> Description {
        Description { path: PathBuf::new(), options: Options::default(), nodes: 0, descriptors: 0, handles: 0 }
    }
    pub fn clear(&self) {}
    /// Runs a write so that the kernel drops set-id bits and file capabilities as for an unprivileged writer.
    pub fn killing_privileges<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        Err(NO)
    }
    pub fn lookup(&self, parent: Node, name: &CStr) -> Result<Entry> {
        Err(NO)
    }
    pub fn forget(&self, node: Node, count: u64) {}
    pub fn attributes(&self, node: Node, handle: Option<Handle>) -> Result<Attributes> {
        Err(NO)
    }
    pub fn set_attributes(&self, node: Node, handle: Option<Handle>, change: &Change) -> Result<Attributes> {
        Err(NO)
    }
    pub fn read_link(&self, node: Node, out: &mut Vec<u8>) -> Result<()> {
        Err(NO)
    }
    pub fn symlink(
        &self,
        who: Caller<'_>,
        parent: Node,
        name: &CStr,
        target: &CStr,
        security: Option<SecurityContext<'_>>,
    ) -> Result<Entry> {
        Err(NO)
    }
    pub fn mkdir(
        &self,
        who: Caller<'_>,
        parent: Node,
        name: &CStr,
        mode: u32,
        umask: u32,
        security: Option<SecurityContext<'_>>,
    ) -> Result<Entry> {
        Err(NO)
    }
    #[allow(clippy::too_many_arguments)]
    pub fn mknod(
        &self,
        who: Caller<'_>,
        parent: Node,
        name: &CStr,
        mode: u32,
        rdev: (u32, u32),
        umask: u32,
        security: Option<SecurityContext<'_>>,
    ) -> Result<Entry> {
        Err(NO)
    }
    #[allow(clippy::too_many_arguments)]
    pub fn create(
        &self,
        who: Caller<'_>,
        parent: Node,
        name: &CStr,
        flags: i32,
        mode: u32,
        umask: u32,
        kill_priv: bool,
        security: Option<SecurityContext<'_>>,
    ) -> Result<(Entry, Opened)> {
        Err(NO)
    }
    pub fn tmpfile(
        &self,
        who: Caller<'_>,
        parent: Node,
        flags: i32,
        mode: u32,
        umask: u32,
        security: Option<SecurityContext<'_>>,
    ) -> Result<(Entry, Opened)> {
        Err(NO)
    }
    pub fn link(&self, node: Node, new_parent: Node, new_name: &CStr) -> Result<Entry> {
        Err(NO)
    }
    pub fn unlink(&self, parent: Node, name: &CStr) -> Result<()> {
        Err(NO)
    }
    pub fn rmdir(&self, parent: Node, name: &CStr) -> Result<()> {
        Err(NO)
    }
    pub fn rename(&self, parent: Node, name: &CStr, new_parent: Node, new_name: &CStr, flags: u32) -> Result<()> {
        Err(NO)
    }
    pub fn open(&self, node: Node, flags: i32, kill_priv: bool) -> Result<Opened> {
        Err(NO)
    }
    /// `flock_unlock_owner`: the owner whose flock goes.
    pub fn release(&self, handle: Handle, flock_unlock_owner: Option<u64>) {}
    pub fn open_dir(&self, node: Node) -> Result<Opened> {
        Err(NO)
    }
    pub fn release_dir(&self, handle: Handle) {}
    pub fn file(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        Err(NO)
    }
    pub fn node_file(&self, node: Node) -> Result<Arc<OpenFile>> {
        Err(NO)
    }
    pub fn read_dir(&self, handle: Handle, offset: u64, each: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        Err(NO)
    }
    pub fn read_dir_entry(&self, handle: Handle, name: &CStr) -> Result<Entry> {
        Err(NO)
    }
    pub fn statfs(&self, node: Node) -> Result<StatVfs> {
        Err(NO)
    }
    pub fn sync_file(&self, handle: Handle, data_only: bool) -> Result<()> {
        Err(NO)
    }
    pub fn sync_dir(&self, handle: Handle, data_only: bool) -> Result<()> {
        Err(NO)
    }
    pub fn sync_fs(&self, node: Node) -> Result<()> {
        Err(NO)
    }
    pub fn flush(&self, node: Node, handle: Handle, owner: u64) -> Result<()> {
        Err(NO)
    }
    pub fn access(&self, who: Caller<'_>, node: Node, mask: u32) -> Result<()> {
        Err(NO)
    }
    pub fn fallocate(&self, handle: Handle, mode: u32, offset: u64, len: u64) -> Result<()> {
        Err(NO)
    }
    pub fn seek(&self, handle: Handle, offset: u64, whence: Whence) -> Result<u64> {
        Err(NO)
    }
    pub fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
        flags: u32,
    ) -> Result<u64> {
        Err(NO)
    }
    pub fn get_xattr(&self, node: Node, name: &CStr, out: &mut Vec<u8>, size: usize) -> Result<usize> {
        Err(NO)
    }
    pub fn list_xattr(&self, node: Node, out: &mut Vec<u8>, size: usize) -> Result<usize> {
        Err(NO)
    }
    pub fn set_xattr(&self, node: Node, name: &CStr, value: &[u8], flags: u32, acl_kill_sgid: bool) -> Result<()> {
        Err(NO)
    }
    pub fn remove_xattr(&self, node: Node, name: &CStr) -> Result<()> {
        Err(NO)
    }
    pub fn get_flags(&self, handle: Handle) -> Result<u32> {
        Err(NO)
    }
    pub fn set_flags(&self, handle: Handle, flags: u32) -> Result<()> {
        Err(NO)
    }
    pub fn get_fsxattr(&self, handle: Handle) -> Result<FsXattr> {
        Err(NO)
    }
    pub fn set_fsxattr(&self, handle: Handle, attributes: FsXattr) -> Result<()> {
        Err(NO)
    }
    pub fn get_lock(&self, node: Node, handle: Handle, owner: u64, lock: Lock) -> Result<Lock> {
        Err(NO)
    }
    pub fn set_lock(&self, node: Node, handle: Handle, owner: u64, lock: Lock) -> Result<()> {
        Err(NO)
    }
    pub fn wait_lock(
        self: &Arc<Self>,
        node: Node,
        handle: Handle,
        owner: u64,
        lock: Lock,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Wait {
        unreachable!("the first commit has the signatures alone")
    }
    pub fn flock(&self, handle: Handle, owner: u64, kind: LockKind) -> Result<()> {
        Err(NO)
    }
    pub fn wait_flock(
        self: &Arc<Self>,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Wait {
        unreachable!("the first commit has the signatures alone")
    }
}
