//! New names: files, directories, links and special files, made as their caller.

use super::naming::{GROUPS_MAX, In, TRIES, undo};
use crate::creds::{Refused, as_caller, with_umask};
use crate::node::{Inode, Pin};
use crate::stat::stat;
use crate::{Caller, Entry, Node, Opened, Result, Security, SecurityContext, Tree};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, makedev};
use rustix::io::Errno;
use rustix::path::DecInt;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

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
            labelled.inspect_err(|_| self.forget(inode.node, 1)).map(|()| self.entry(&inode, &stat, &dir.mount))
        });
        made.inspect_err(|_| undo(pin, name, remove))
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
                    let (inode, entry) = adopted.inspect_err(|_| undo(&pin, name, AtFlags::empty()))?;
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
