//! Records that change: permissions and owners that the client sets, and set-id bits that go.

use crate::mapped::files::Of;
use crate::mapped::{Known, Mapped, Record, attrs, without_set_ids};
use crate::node::Inode;
use crate::stat::{Key, stat};
use crate::{OpenFile, ROOT, Result, Tree};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use rustix::path::DecInt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// How often a change looks again under which name a file is that is being renamed.
const TRIES: usize = 8;

impl Tree {
    /// Takes set-id bits from a file that is about to change, as the kernel does when a user without privileges writes.
    pub(crate) fn drop_set_ids(&self, mapped: &Mapped, inode: &Arc<Inode>, fd: BorrowedFd<'_>) -> Result<()> {
        let mode = self.mode_in_view(mapped, inode, fd)?;
        if without_set_ids(mode) == mode {
            return Ok(());
        }
        self.change_record(mapped, inode, fd, |present| {
            let mode = Some(without_set_ids(present)).filter(|&mode| mode != present);
            Ok(Record { mode, ..Record::default() })
        })
    }

    /// The same for an open file.
    pub(crate) fn drop_set_ids_of(&self, mapped: &Mapped, file: &OpenFile) -> Result<()> {
        self.drop_set_ids(mapped, &self.table.get(file.node())?, file.as_fd())
    }

    /// The same for a file that is opened in order to be written anew.
    pub(crate) fn drop_set_ids_before_truncation(&self, mapped: &Mapped, inode: &Arc<Inode>) -> Result<()> {
        let pin = self.table.pin(inode)?;
        self.is_plain(mapped, inode, pin.as_fd())?;
        self.drop_set_ids(mapped, inode, pin.as_fd())
    }

    /// Records what `change` makes of the present type and permissions.
    pub(crate) fn change_record(
        &self,
        mapped: &Mapped,
        inode: &Arc<Inode>,
        fd: BorrowedFd<'_>,
        change: impl Fn(u32) -> Result<Record>,
    ) -> Result<()> {
        let host = stat(fd, c"")?;
        let host_mode = u32::from(host.stx_mode);
        let changed = |now: &Record| change(now.mode_of(host_mode));
        let Some(known) = &mapped.files else {
            let _record = mapped.locks.change_record(inode);
            let place = self.place(fd);
            let change = changed(&attrs::load(&place)?)?;
            return attrs::store(&place, &change);
        };
        if inode.node == ROOT {
            let _record = mapped.locks.change_record(inode);
            let of = Of::Root(fd);
            of.update(changed(&of.load()?.unwrap_or_default())?)?;
        } else {
            self.change_file(mapped, known, inode, fd, &changed)?;
        }
        // The inode is as it was; that it has changed shows in its time of change.
        let mode = Mode::from_bits_retain(host_mode & 0o7777);
        if !inode.kind.is_link() {
            let touched = rustix::fs::chmodat(&self.proc_self_fd, DecInt::from_fd(fd), mode, AtFlags::empty());
            touched.unwrap_or_else(|error| tracing::debug!(%error, "a file changes without a new time of change"));
        }
        Ok(())
    }

    /// Changes the record beside one of the inode's names.
    fn change_file(
        &self,
        mapped: &Mapped,
        known: &Known,
        inode: &Inode,
        fd: BorrowedFd<'_>,
        changed: &impl Fn(&Record) -> Result<Record>,
    ) -> Result<()> {
        for _ in 0..TRIES {
            let names = known.names(inode.node);
            if names.is_empty() {
                break;
            }
            for name in names {
                let _names = mapped.locks.change_names(&name.dir);
                let there = self.table.pin(&name.dir).and_then(|dir| {
                    let stat = stat(dir.as_fd(), &name.name)?;
                    Ok((dir, Key::of(&stat)))
                });
                let dir = match there {
                    Ok((dir, key)) if key == inode.key => dir,
                    Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => {
                        // Somebody else has removed or renamed it, or another thread has and has told where it is.
                        known.lost(inode.node, &name.dir, &name.name);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let _record = mapped.locks.change_record(inode);
                let of = Of::Name(dir.as_fd(), &name.name);
                let now = of.load()?.unwrap_or_default();
                let change = changed(&now)?;
                of.update(change)?;
                known.changed(inode.node, change.or(now));
                return Ok(());
            }
        }
        if stat(fd, c"")?.stx_nlink > 0 {
            // It has a name, which the client has to look up.
            return Err(Errno::STALE);
        }
        let _record = mapped.locks.change_record(inode);
        let now = known.record(inode.node);
        known.changed(inode.node, changed(&now)?.or(now));
        Ok(())
    }
}
