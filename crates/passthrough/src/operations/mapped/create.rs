//! What is made beneath a mapped model: regular files and directories of the daemon's, and a record each.

use crate::creds::with_umask;
use crate::mapped::{Mapped, Record, attrs, files};
use crate::node::Inode;
use crate::operations::naming::{GROUPS_MAX, In, TRIES, undo};
use crate::stat::stat;
use crate::{Caller, Entry, Opened, Result, SecurityContext, Tree};
use rustix::fs::{AtFlags, OFlags, makedev};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The longest target of a symbolic link: `PATH_MAX` of `linux/limits.h`, less the NUL.
const TARGET_BYTES_MAX: usize = 4095;

/// A new file that carries nothing but its record, and perhaps some bytes.
const BARE: OFlags = OFlags::WRONLY;

impl Tree {
    /// The record of what `who` makes in a directory: the group and the bits that a set-group-id directory hands down are
    /// what the kernel would hand down (`inode_init_owner`, `mode_strip_sgid` in Linux's `fs/inode.c`).
    fn new_record(&self, mapped: &Mapped, at: In<'_>, who: Caller<'_>, mode: u32) -> Result<Record> {
        let uid = self.options.uid_map.to_host(who.uid)?;
        let mut gid = self.options.gid_map.to_host(who.gid)?;
        if uid == u32::MAX || gid == u32::MAX {
            return Err(Errno::PERM);
        }
        if who.groups.len() > GROUPS_MAX {
            return Err(Errno::INVAL);
        }
        let mut mode = mode;
        let (above, group) = self.directory_in_view(mapped, at.dir, at.pin.as_fd())?;
        if above & libc::S_ISGID != 0 {
            let power = libc::S_ISGID | libc::S_IXGRP;
            if mode & libc::S_IFMT == libc::S_IFDIR {
                mode |= libc::S_ISGID;
            } else if mode & power == power && uid != 0 && gid != group {
                let mut member = false;
                for &other in who.groups {
                    member |= self.options.gid_map.to_host(other)? == group;
                }
                if !member {
                    mode &= !libc::S_ISGID;
                }
            }
            gid = group;
        }
        Ok(Record { uid: Some(uid), gid: Some(gid), mode: Some(mode), rdev: None })
    }

    /// Writes the first record of what is called `name` and open as `fd`.
    fn record_new(&self, mapped: &Mapped, at: In<'_>, name: &CStr, fd: &impl AsFd, record: Record) -> Result<()> {
        match &mapped.files {
            None => attrs::store(&self.place(fd), &record),
            Some(_) => {
                if files::is_record(at.pin.as_fd(), &stat(fd.as_fd(), c"")?)? {
                    return Err(Errno::INVAL);
                }
                files::replace(at.pin.as_fd(), name, record)
            }
        }
    }

    /// Makes and opens a file that the host sees as a regular one. `fill` gives it its content. The caller holds the lock
    /// of the directory's names.
    #[expect(clippy::too_many_arguments, reason = "they are what makes a file, and what it gets")]
    fn make_file(
        &self,
        mapped: &Mapped,
        at: In<'_>,
        name: &CStr,
        flags: OFlags,
        record: Record,
        security: Option<SecurityContext<'_>>,
        fill: impl FnOnce(BorrowedFd<'_>) -> Result<()>,
    ) -> Result<(OwnedFd, Arc<Inode>, Entry)> {
        let new = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = with_umask(0, || rustix::fs::openat(at.pin, name, flags | new, mapped.fmode))?;
        let made = fill(fd.as_fd())
            .and_then(|()| self.record_new(mapped, at, name, &fd, record))
            .and_then(|()| self.adopt(at.dir, &fd, security));
        let (inode, mut entry) = made.inspect_err(|_| self.undo_mapped(mapped, at, name, AtFlags::empty()))?;
        self.remember(mapped, &inode, Some((at.dir, name)), record);
        record.cover(&self.options, &mut entry.attributes);
        Ok((fd, inode, entry))
    }

    fn undo_mapped(&self, mapped: &Mapped, at: In<'_>, name: &CStr, flags: AtFlags) {
        undo(at.pin, name, flags);
        if mapped.files.is_some()
            && let Err(error) = files::remove(at.pin.as_fd(), name)
        {
            tracing::debug!(%error, ?name, "the record of a file that could not be given out stays");
        }
    }

    /// As [`Tree::symlink`].
    pub(crate) fn symlink_mapped(
        &self,
        mapped: &Mapped,
        at: In<'_>,
        who: Caller<'_>,
        name: &CStr,
        target: &CStr,
        security: Option<SecurityContext<'_>>,
    ) -> Result<Entry> {
        mapped.new_name(name)?;
        let target = target.to_bytes();
        match target.len() {
            0 => return Err(Errno::NOENT),
            1..=TARGET_BYTES_MAX => {}
            _ => return Err(Errno::NAMETOOLONG),
        }
        let _names = mapped.locks.change_names(at.dir);
        let record = self.new_record(mapped, at, who, libc::S_IFLNK | 0o777)?;
        let (_, _, entry) =
            self.make_file(mapped, at, name, BARE, record, security, |file| match rustix::io::write(file, target) {
                Ok(written) if written == target.len() => Ok(()),
                Ok(_) => Err(Errno::NOSPC),
                Err(error) => Err(error),
            })?;
        Ok(entry)
    }

    /// As [`Tree::mknod`]. `mode` has a type.
    #[expect(clippy::too_many_arguments, reason = "they are what mknod(2) takes, and who asks")]
    pub(crate) fn mknod_mapped(
        &self,
        mapped: &Mapped,
        at: In<'_>,
        who: Caller<'_>,
        name: &CStr,
        mode: u32,
        rdev: (u32, u32),
        security: Option<SecurityContext<'_>>,
    ) -> Result<Entry> {
        mapped.new_name(name)?;
        let rdev = makedev(rdev.0, rdev.1);
        // The kernel's numbers have 32 bits, and so have those in metadata files, of which one means that there is none.
        if u32::try_from(rdev).map_or(true, |rdev| rdev == u32::MAX) {
            return Err(Errno::INVAL);
        }
        let _names = mapped.locks.change_names(at.dir);
        let record = self.new_record(mapped, at, who, mode)?;
        let record = Record { rdev: Some(rdev), ..record };
        let (_, _, entry) = self.make_file(mapped, at, name, BARE, record, security, |_| Ok(()))?;
        Ok(entry)
    }

    /// As [`Tree::mkdir`]. `mode` is masked.
    pub(crate) fn mkdir_mapped(
        &self,
        mapped: &Mapped,
        at: In<'_>,
        who: Caller<'_>,
        name: &CStr,
        mode: u32,
        security: Option<SecurityContext<'_>>,
    ) -> Result<Entry> {
        mapped.new_name(name)?;
        let _names = mapped.locks.change_names(at.dir);
        // As of mkdir(2), which takes no set-id bits.
        let record = self.new_record(mapped, at, who, libc::S_IFDIR | mode & 0o1777)?;
        with_umask(0, || rustix::fs::mkdirat(at.pin, name, mapped.dmode))?;
        let made = self.look_up_by_path(at.pin.as_fd(), &at.dir.mount, name).and_then(|(inode, stat)| {
            let given = self.give_record(mapped, at, name, &inode, record, security);
            given.inspect_err(|_| self.forget(inode.node, 1)).map(|()| (inode, stat))
        });
        let (inode, stat) = made.inspect_err(|_| self.undo_mapped(mapped, at, name, AtFlags::REMOVEDIR))?;
        self.remember(mapped, &inode, Some((at.dir, name)), record);
        let mut entry = self.entry(&inode, &stat, &at.dir.mount);
        record.cover(&self.options, &mut entry.attributes);
        Ok(entry)
    }

    /// Gives a new directory its record and its label.
    fn give_record(
        &self,
        mapped: &Mapped,
        at: In<'_>,
        name: &CStr,
        inode: &Arc<Inode>,
        record: Record,
        security: Option<SecurityContext<'_>>,
    ) -> Result<()> {
        if !inode.kind.is_directory() {
            // Another program was faster than the look.
            return Err(Errno::STALE);
        }
        let pin = self.table.pin(inode)?;
        self.record_new(mapped, at, name, &pin, record)?;
        security.map_or(Ok(()), |label| self.label(&pin, label))
    }

    /// As [`Tree::create`]. `mode` is masked, and `flags` are the host's.
    #[expect(clippy::too_many_arguments, reason = "they are what open(2) takes, and who asks")]
    pub(crate) fn create_mapped(
        &self,
        mapped: &Mapped,
        at: In<'_>,
        who: Caller<'_>,
        name: &CStr,
        (flags, exclusive): (OFlags, bool),
        mode: u32,
        kill_priv: bool,
        security: Option<SecurityContext<'_>>,
    ) -> Result<(Entry, Opened)> {
        mapped.new_name(name)?;
        for _ in 0..TRIES {
            let room = self.room()?;
            let made = {
                let _names = mapped.locks.change_names(at.dir);
                let record = self.new_record(mapped, at, who, libc::S_IFREG | mode)?;
                self.make_file(mapped, at, name, flags, record, security, |_| Ok(()))
            };
            match made {
                Ok((fd, inode, entry)) => return Ok((entry, self.add_file(&inode, fd, flags, room))),
                Err(Errno::EXIST) if !exclusive => drop(room),
                Err(error) => return Err(error),
            }
            match self.open_existing(at.dir, at.pin, name, flags, kill_priv) {
                // Removed between the two: the name is free again.
                Err(Errno::NOENT) => {}
                answer => return answer,
            }
        }
        Err(Errno::EXIST)
    }

    /// As [`Tree::tmpfile`]. `mode` is masked, and `flags` are the host's.
    pub(crate) fn tmpfile_mapped(
        &self,
        mapped: &Mapped,
        at: In<'_>,
        who: Caller<'_>,
        flags: OFlags,
        mode: u32,
        security: Option<SecurityContext<'_>>,
    ) -> Result<(Entry, Opened)> {
        let new = OFlags::TMPFILE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let room = self.room()?;
        let record = self.new_record(mapped, at, who, libc::S_IFREG | mode)?;
        let fd = with_umask(0, || rustix::fs::openat(at.pin, c".", flags | new, mapped.fmode))?;
        if mapped.files.is_none() {
            attrs::store(&self.place(&fd), &record)?;
        }
        let (inode, mut entry) = self.adopt(at.dir, &fd, security)?;
        // Its record is written when it gets a name.
        self.remember(mapped, &inode, None, record);
        record.cover(&self.options, &mut entry.attributes);
        Ok((entry, self.add_file(&inode, fd, flags, room)))
    }
}
