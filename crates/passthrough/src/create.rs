//! New names: files, directories, links and special files, made as their caller.

use crate::creds::{Caller, Refused, as_caller, with_umask};
use crate::error::Result;
use crate::file::Opened;
use crate::lookup::Entry;
use crate::mapped::In;
use crate::node::{Inode, Pin};
use crate::security::Security;
use crate::stat::{Key, Kind, component, open_anew, stat};
use crate::table::Hold;
use crate::tree::{Node, Tree};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, makedev};
use rustix::io::Errno;
use rustix::path::DecInt;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most supplementary groups a caller may bring.
pub(crate) const GROUPS_MAX: usize = 32;

/// How often a create that may find a file tries again while somebody removes and makes it.
pub(crate) const TRIES: usize = 8;

/// A label that a new file has before its creation is answered: an extended attribute, in the client's words.
#[derive(Clone, Copy, Debug)]
pub struct SecurityContext<'a> {
    /// Its name, "security.selinux" for one.
    pub name: &'a CStr,
    /// Its value.
    pub value: &'a [u8],
}

/// Permissions of a new file.
#[derive(Clone, Copy, Debug)]
struct Permissions {
    mode: Mode,
    umask: u32,
}

impl Tree {
    /// With POSIX ACLs the kernel masks, because a default ACL takes the place of the umask; otherwise it is done here.
    fn permissions(&self, mode: u32, umask: u32) -> Permissions {
        let (mode, umask) = if self.options.posix_acl { (mode, umask) } else { (mode & !umask, 0) };
        Permissions { mode: Mode::from_bits_retain(mode & 0o7777), umask }
    }

    /// The permissions of what is no directory, without what it may not have.
    pub(crate) fn file_mode(&self, mode: u32) -> u32 {
        if self.options.nosuid { mode & !(libc::S_ISUID | libc::S_ISGID) } else { mode }
    }

    /// Makes one system call that creates, as the caller.
    fn make<T>(&self, who: Caller<'_>, umask: u32, call: impl FnMut() -> Result<T>) -> Result<T> {
        let uid = self.options.uid_map.to_host(who.uid)?;
        let gid = self.options.gid_map.to_host(who.gid)?;
        if who.groups.len() > GROUPS_MAX {
            return Err(Errno::INVAL);
        }
        let refused = if self.options.security == Security::None { Refused::AsSelf } else { Refused::Fails };
        if self.options.gid_map.is_identity() {
            return with_umask(umask, || as_caller(Caller { uid, gid, groups: who.groups }, refused, call));
        }
        let mut groups = [0; GROUPS_MAX];
        let groups = groups.get_mut(..who.groups.len()).ok_or(Errno::INVAL)?;
        for (group, &asked) in groups.iter_mut().zip(who.groups) {
            *group = self.options.gid_map.to_host(asked)?;
        }
        with_umask(umask, || as_caller(Caller { uid, gid, groups }, refused, call))
    }

    /// A directory in which a name may be made or removed.
    pub(crate) fn directory(&self, node: Node, name: &CStr) -> Result<(Arc<Inode>, Pin)> {
        component(name)?;
        self.writable_directory(node)
    }

    fn writable_directory(&self, node: Node) -> Result<(Arc<Inode>, Pin)> {
        self.pause();
        self.writable()?;
        let dir = self.table.get(node)?;
        let pin = self.table.pin(&dir)?;
        Ok((dir, pin))
    }

    /// What was just made under this name, labelled. When it cannot be labelled or given a number it is removed again: the
    /// client is told that there is nothing.
    fn made(
        &self,
        dir: &Inode,
        pin: &Pin,
        name: &CStr,
        remove: AtFlags,
        security: Option<SecurityContext<'_>>,
    ) -> Result<Entry> {
        // It is new: where only a descriptor can hold it there is no use in a look before.
        let look_up = if dir.mount.has_handles() { Tree::look_up } else { Tree::look_up_by_path };
        let made = look_up(self, pin.as_fd(), &dir.mount, name).and_then(|(inode, stat)| {
            let labelled = security.map_or(Ok(()), |label| self.label(&self.table.pin(&inode)?, label));
            if labelled.is_err() {
                self.forget(inode.node, 1);
            }
            labelled.map(|()| self.entry(&inode, &stat, &dir.mount))
        });
        if made.is_err() {
            undo(pin, name, remove);
        }
        made
    }

    /// Makes a symbolic link to `target`, whatever that is.
    ///
    /// # Errors
    /// `EROFS` on a read-only tree, `EINVAL` for a name that is none, `EPERM` for ids that may not be used, as
    /// [`Tree::lookup`], and the kernel's.
    pub fn symlink(
        &self,
        who: Caller<'_>,
        parent: Node,
        name: &CStr,
        target: &CStr,
        security: Option<SecurityContext<'_>>,
    ) -> Result<Entry> {
        let (dir, pin) = self.directory(parent, name)?;
        if let Some(mapped) = &self.mapped {
            return self.symlink_mapped(mapped, In { dir: &dir, pin: &pin }, who, name, target, security);
        }
        self.make(who, 0, || rustix::fs::symlinkat(target, &pin, name))?;
        self.made(&dir, &pin, name, AtFlags::empty(), security)
    }

    /// Makes a directory. `mode` and `umask` are permissions, 0o7777.
    ///
    /// # Errors
    /// As [`Tree::symlink`].
    pub fn mkdir(
        &self,
        who: Caller<'_>,
        parent: Node,
        name: &CStr,
        mode: u32,
        umask: u32,
        security: Option<SecurityContext<'_>>,
    ) -> Result<Entry> {
        let (dir, pin) = self.directory(parent, name)?;
        if let Some(mapped) = &self.mapped {
            return self.mkdir_mapped(mapped, In { dir: &dir, pin: &pin }, who, name, mode & !umask, security);
        }
        let Permissions { mode, umask } = self.permissions(mode, umask);
        self.make(who, umask, || rustix::fs::mkdirat(&pin, name, mode))?;
        self.made(&dir, &pin, name, AtFlags::REMOVEDIR, security)
    }

    /// Makes a file of the type in `mode` (`S_IFMT`): regular, fifo, socket or device. `rdev` is a device's major and minor.
    ///
    /// # Errors
    /// As [`Tree::symlink`]; `EPERM` for a device without `CAP_MKNOD`, or where there may be none; `EINVAL` for another type.
    #[expect(clippy::too_many_arguments, reason = "they are what mknod(2) takes, and who asks")]
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
        let (dir, pin) = self.directory(parent, name)?;
        let kind = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => FileType::RegularFile,
            libc::S_IFIFO => FileType::Fifo,
            libc::S_IFSOCK => FileType::Socket,
            libc::S_IFCHR => FileType::CharacterDevice,
            libc::S_IFBLK => FileType::BlockDevice,
            _ => return Err(Errno::INVAL),
        };
        let whiteout = kind == FileType::CharacterDevice && rdev == (0, 0);
        let device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        if self.options.nodev && device && !whiteout {
            return Err(Errno::PERM);
        }
        let mode = self.file_mode(mode);
        if let Some(mapped) = &self.mapped {
            let mode = kind.as_raw_mode() | mode & !umask & 0o7777;
            return self.mknod_mapped(mapped, In { dir: &dir, pin: &pin }, who, name, mode, rdev, security);
        }
        let Permissions { mode, umask } = self.permissions(mode, umask);
        let device = makedev(rdev.0, rdev.1);
        self.make(who, umask, || rustix::fs::mknodat(&pin, name, kind, mode, device))?;
        self.made(&dir, &pin, name, AtFlags::empty(), security)
    }

    /// Makes and opens a regular file. Without `O_EXCL` in `flags`, a regular file that is there already is opened instead,
    /// where `kill_priv` means what it means for [`Tree::open`]. Three system calls for a new file.
    ///
    /// # Errors
    /// As [`Tree::symlink`] and [`Tree::open`]; `EEXIST`.
    #[expect(clippy::too_many_arguments, reason = "they are what open(2) takes, and who asks")]
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
        let (dir, pin) = self.directory(parent, name)?;
        let exclusive = flags & libc::O_EXCL != 0;
        let (host_flags, mode) = (self.host_flags(flags)?, self.file_mode(mode));
        if let Some(mapped) = &self.mapped {
            let (at, how, mode) = (In { dir: &dir, pin: &pin }, (host_flags, exclusive), mode & !umask & 0o7777);
            return self.create_mapped(mapped, at, who, name, how, mode, kill_priv, security);
        }
        let Permissions { mode, umask } = self.permissions(mode, umask);
        for _ in 0..TRIES {
            let new = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let room = self.room()?;
            match self.make(who, umask, || rustix::fs::openat(&pin, name, host_flags | new, mode)) {
                Ok(fd) => {
                    let adopted = self.adopt(&dir, &fd, security);
                    if adopted.is_err() {
                        undo(&pin, name, AtFlags::empty());
                    }
                    let (inode, entry) = adopted?;
                    return Ok((entry, self.add_file(&inode, fd, host_flags, room)));
                }
                Err(Errno::EXIST) if !exclusive => drop(room),
                Err(error) => return Err(error),
            }
            match self.open_existing(&dir, &pin, name, host_flags, kill_priv) {
                // Removed between the two: the name is free again.
                Err(Errno::NOENT) => {}
                answer => return answer,
            }
        }
        Err(Errno::EXIST)
    }

    /// Opens a regular file that somebody else has made.
    ///
    /// # Errors
    /// As [`Tree::lookup`] and [`Tree::open`]; `ENOENT` is the name's alone.
    pub(crate) fn open_existing(
        &self,
        dir: &Arc<Inode>,
        pin: &Pin,
        name: &CStr,
        flags: OFlags,
        kill_priv: bool,
    ) -> Result<(Entry, Opened)> {
        let inode = match &self.mapped {
            None => self.look_up(pin.as_fd(), &dir.mount, name)?.0,
            Some(mapped) => self.lookup_mapped(mapped, dir, pin.as_fd(), name)?.0,
        };
        let opened = self.open_file(&inode, flags, kill_priv).and_then(|opened| {
            // Opening may have changed the size.
            let file = self.files.get(opened.handle)?;
            let stat = stat(file.as_fd(), c"")?;
            let attributes = self.view(inode.node, file.as_fd(), &stat)?;
            Ok((Entry { attributes, ..self.entry(&inode, &stat, &dir.mount) }, opened))
        });
        if opened.is_err() {
            self.forget(inode.node, 1);
        }
        opened
    }

    /// Makes and opens a file without a name in the directory `parent`. [`Tree::link`] can give it one.
    ///
    /// # Errors
    /// As [`Tree::create`]; `EOPNOTSUPP` where the file system cannot, `EINVAL` when `flags` do not ask for writing.
    pub fn tmpfile(
        &self,
        who: Caller<'_>,
        parent: Node,
        flags: i32,
        mode: u32,
        umask: u32,
        security: Option<SecurityContext<'_>>,
    ) -> Result<(Entry, Opened)> {
        let (dir, pin) = self.writable_directory(parent)?;
        let (host_flags, mode) = (self.host_flags(flags)?, self.file_mode(mode));
        if let Some(mapped) = &self.mapped {
            let at = In { dir: &dir, pin: &pin };
            return self.tmpfile_mapped(mapped, at, who, host_flags, mode & !umask & 0o7777, security);
        }
        let Permissions { mode, umask } = self.permissions(mode, umask);
        let new = OFlags::TMPFILE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let room = self.room()?;
        let fd = self.make(who, umask, || rustix::fs::openat(&pin, c".", host_flags | new, mode))?;
        let (inode, entry) = self.adopt(&dir, &fd, security)?;
        Ok((entry, self.add_file(&inode, fd, host_flags, room)))
    }

    /// Labels and references a file that was just made and opened in `dir`.
    pub(crate) fn adopt(
        &self,
        dir: &Inode,
        fd: &OwnedFd,
        security: Option<SecurityContext<'_>>,
    ) -> Result<(Arc<Inode>, Entry)> {
        if let Some(label) = security {
            self.label(fd, label)?;
        }
        let stat = stat(fd.as_fd(), c"")?;
        let (mount, handle) = self.hold_of(&dir.mount, fd.as_fd(), &stat)?;
        // With a handle the open file is descriptor enough for as long as it is open.
        let path = match handle {
            Some(_) => None,
            None => Some(open_anew(self.proc_self_fd.as_fd(), fd.as_fd(), OFlags::PATH)?),
        };
        let hold = Hold { path, handle, verified: true };
        let inode = self.table.intern(Key::of(&stat), Kind::of(&stat), &mount, hold)?;
        let entry = self.entry(&inode, &stat, &dir.mount);
        Ok((inode, entry))
    }

    /// Gives a node one more name.
    ///
    /// # Errors
    /// `EROFS` on a read-only tree, `EINVAL` for a name that is none, `ESTALE` for nodes that are unknown or gone, and the
    /// kernel's.
    pub fn link(&self, node: Node, new_parent: Node, new_name: &CStr) -> Result<Entry> {
        let (dir, dir_pin) = self.directory(new_parent, new_name)?;
        let inode = self.table.get(node)?;
        let pin = self.table.pin(&inode)?;
        // By its name in /proc: an empty path needs a capability that not every daemon has.
        let link = || {
            let name = DecInt::from_fd(&pin);
            rustix::fs::linkat(&self.proc_self_fd, name, &dir_pin, new_name, AtFlags::SYMLINK_FOLLOW)?;
            // It may never have had one.
            inode.gone.store(false, Ordering::Relaxed);
            Ok(())
        };
        if let Some(mapped) = &self.mapped
            && mapped.is_beside_names()
        {
            return self.link_mapped(mapped, (&inode, &pin), In { dir: &dir, pin: &dir_pin }, new_name, link);
        }
        link()?;
        self.table.reference_again(&inode)?;
        let entry = stat(pin.as_fd(), c"").and_then(|stat| {
            let attributes = self.view(node, pin.as_fd(), &stat)?;
            Ok(Entry { attributes, ..self.entry(&inode, &stat, &dir.mount) })
        });
        entry.inspect_err(|_| self.forget(node, 1))
    }
}

/// Removes what was just made. The first error is the one to report.
pub(crate) fn undo(dir: &Pin, name: &CStr, flags: AtFlags) {
    if let Err(error) = rustix::fs::unlinkat(dir, name, flags) {
        tracing::debug!(%error, ?name, "a new file that could not be given out could not be removed either");
    }
}
