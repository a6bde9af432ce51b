//! Names that go, move and multiply, and the records that are kept beside them.

use crate::mapped::{Known, Mapped, files};
use crate::node::{Inode, Pin};
use crate::operations::naming::{In, rename, undo};
use crate::stat::{Key, Kind, stat};
use crate::{Entry, Result, Tree};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

impl Tree {
    /// As [`Tree::unlink`].
    pub(crate) fn unlink_mapped(&self, mapped: &Mapped, at: In<'_>, name: &CStr) -> Result<()> {
        let Some(known) = &mapped.files else {
            return rustix::fs::unlinkat(at.pin, name, AtFlags::empty());
        };
        mapped.existing(name)?;
        let _names = mapped.locks.change_names(at.dir);
        let seen = stat(at.pin.as_fd(), name)?;
        if files::is_record(at.pin.as_fd(), &seen)? {
            return Err(Errno::NOENT);
        }
        rustix::fs::unlinkat(at.pin, name, AtFlags::empty())?;
        self.name_is_gone(known, at, name, &Key::of(&seen));
        Ok(())
    }

    /// As [`Tree::rmdir`].
    pub(crate) fn rmdir_mapped(&self, mapped: &Mapped, at: In<'_>, name: &CStr) -> Result<()> {
        let Some(known) = &mapped.files else {
            return rustix::fs::unlinkat(at.pin, name, AtFlags::REMOVEDIR);
        };
        mapped.existing(name)?;
        // Nobody makes anything in the directory that goes.
        let _names = mapped.locks.change_all_names();
        let seen = stat(at.pin.as_fd(), name)?;
        if !Kind::of(&seen).is_directory() {
            return Err(Errno::NOTDIR);
        }
        if files::is_record(at.pin.as_fd(), &seen)? {
            return Err(Errno::NOENT);
        }
        files::clear(at.pin.as_fd(), name)?;
        rustix::fs::unlinkat(at.pin, name, AtFlags::REMOVEDIR)?;
        self.name_is_gone(known, at, name, &Key::of(&seen));
        Ok(())
    }

    /// Removes the record of a name that was removed: a record that stayed would be that of the next file of this name
    /// which another program makes.
    fn name_is_gone(&self, known: &Known, at: In<'_>, name: &CStr, key: &Key) {
        if let Err(error) = files::remove(at.pin.as_fd(), name) {
            tracing::debug!(%error, ?name, "the metadata file of a removed file stays");
        }
        if let Some(node) = self.table.node_of(key) {
            known.lost(node, at.dir, name);
        }
    }

    /// As [`Tree::rename`].
    pub(crate) fn rename_mapped(
        &self,
        mapped: &Mapped,
        from: In<'_>,
        name: &CStr,
        to: In<'_>,
        new_name: &CStr,
        flags: RenameFlags,
    ) -> Result<()> {
        // It would leave a device of the host.
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL);
        }
        let Some(known) = &mapped.files else {
            let _names = mapped.locks.names_of_both(from.dir, to.dir);
            return rename(from.pin, name, to.pin, new_name, flags);
        };
        mapped.existing(name)?;
        mapped.new_name(new_name)?;
        if !to.dir.kind.is_directory() {
            return Err(Errno::NOTDIR);
        }
        let _names = mapped.locks.change_all_names();
        let moved = stat(from.pin.as_fd(), name)?;
        let replaced = match stat(to.pin.as_fd(), new_name) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        let (dir, new_dir) = (from.pin.as_fd(), to.pin.as_fd());
        if files::is_record(dir, &moved)? {
            return Err(Errno::NOENT);
        }
        if replaced.as_ref().map_or(Ok(false), |stat| files::is_record(new_dir, stat))? {
            return Err(Errno::INVAL);
        }
        let (moved_key, replaced_key) = (Key::of(&moved), replaced.as_ref().map(Key::of));
        let onto_directory =
            Kind::of(&moved).is_directory() && replaced.as_ref().is_some_and(|stat| Kind::of(stat).is_directory());
        if flags.is_empty() && onto_directory && replaced_key != Some(moved_key) {
            match files::clear(to.pin.as_fd(), new_name) {
                // The kernel says so, unless something else stands against it first.
                Err(Errno::NOTEMPTY) => {}
                answer => answer?,
            }
        }
        rename(from.pin, name, to.pin, new_name, flags)?;
        if replaced_key == Some(moved_key) {
            // Two names of one inode: nothing has moved.
            return Ok(());
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let followed = files::is_record(new_dir, &moved).and_then(|is_record| match (is_record, exchange) {
            (true, _) => Err(Errno::INVAL),
            (false, true) => files::exchange(dir, name, new_dir, new_name),
            (false, false) => files::rename(dir, name, new_dir, new_name),
        });
        if let Err(error) = followed {
            if let Err(undone) = rename(to.pin, new_name, from.pin, name, flags) {
                tracing::debug!(error = %undone, ?new_name, "a file was renamed without its metadata file");
            }
            return Err(error);
        }
        if let Some(node) = replaced_key.and_then(|key| self.table.node_of(&key)) {
            if exchange {
                known.moved(node, (to.dir, new_name), (from.dir, name));
            } else {
                known.lost(node, to.dir, new_name);
            }
        }
        if let Some(node) = self.table.node_of(&moved_key) {
            known.moved(node, (from.dir, name), (to.dir, new_name));
        }
        Ok(())
    }

    /// As [`Tree::link`], with the node's inode and `pin`, where records are beside the names. `link` makes the name.
    pub(crate) fn link_mapped(
        &self,
        mapped: &Mapped,
        (inode, pin): (&Arc<Inode>, &Pin),
        to: In<'_>,
        new_name: &CStr,
        link: impl FnOnce() -> Result<()>,
    ) -> Result<Entry> {
        mapped.new_name(new_name)?;
        let Some(known) = &mapped.files else { return Err(Errno::INVAL) };
        let _names = mapped.locks.change_all_names();
        link()?;
        let linked = self.link_record(known, inode, to.pin.as_fd(), new_name).and_then(|()| {
            self.table.reference_again(inode)?;
            let seen = stat(pin.as_fd(), c"").and_then(|stat| {
                let attributes = self.found(mapped, to.dir, to.pin.as_fd(), new_name, inode, &stat)?;
                Ok(Entry { attributes, ..self.entry(inode, &stat, &to.dir.mount) })
            });
            seen.inspect_err(|_| self.forget(inode.node, 1))
        });
        linked.inspect_err(|_| {
            undo(to.pin, new_name, AtFlags::empty());
            if let Err(error) = files::remove(to.pin.as_fd(), new_name) {
                tracing::debug!(%error, ?new_name, "the metadata file of a name that was not given out stays");
            }
        })
    }

    /// Gives a new name of an inode its record: the one of another name, or a new one where none is known.
    fn link_record(&self, known: &Known, inode: &Inode, new_dir: BorrowedFd<'_>, new_name: &CStr) -> Result<()> {
        if files::is_record(new_dir, &stat(new_dir, new_name)?)? {
            return Err(Errno::INVAL);
        }
        for name in known.names(inode.node) {
            let Ok(dir) = self.table.pin(&name.dir) else { continue };
            let is_there = stat(dir.as_fd(), &name.name).is_ok_and(|stat| Key::of(&stat) == inode.key);
            if is_there && files::link(dir.as_fd(), &name.name, new_dir, new_name)? {
                return Ok(());
            }
        }
        let record = known.record(inode.node);
        if record.is_empty() { files::remove(new_dir, new_name) } else { files::replace(new_dir, new_name, record) }
    }
}
