//! Names that go, and names that move.

use super::naming::{In, rename};
use crate::held::{Target, changes};
use crate::stat::{component, stat};
use crate::{Node, Result, Tree};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::AsFd;

/// What a client may ask of a rename.
const FLAGS: RenameFlags = RenameFlags::NOREPLACE.union(RenameFlags::EXCHANGE).union(RenameFlags::WHITEOUT);

impl Tree {
    /// Removes the name of a file. One system call; where there is time ([`crate::with_time`]), some more around it.
    ///
    /// # Errors
    /// `EROFS` on a read-only tree, `EINVAL` for a name that is none, `ESTALE` for a parent that is unknown or gone, and the
    /// kernel's.
    pub fn unlink(&self, parent: Node, name: &CStr) -> Result<()> {
        let (dir, pin) = self.directory(parent, name)?;
        let target = Target::hold_alone(&self.changes, &pin, name);
        match &self.mapped {
            Some(mapped) => self.unlink_mapped(mapped, In { dir: &dir, pin: &pin }, name)?,
            None => rustix::fs::unlinkat(pin, name, AtFlags::empty())?,
        }
        target.removed(&self.table);
        Ok(())
    }

    /// Removes an empty directory. One system call; where there is time, as for [`Tree::unlink`].
    ///
    /// # Errors
    /// As [`Tree::unlink`].
    pub fn rmdir(&self, parent: Node, name: &CStr) -> Result<()> {
        let (dir, pin) = self.directory(parent, name)?;
        let target = Target::hold(&self.changes, &pin, name);
        match &self.mapped {
            Some(mapped) => self.rmdir_mapped(mapped, In { dir: &dir, pin: &pin }, name)?,
            None => rustix::fs::unlinkat(pin, name, AtFlags::REMOVEDIR)?,
        }
        target.removed(&self.table);
        Ok(())
    }

    /// Moves a name. `flags` are `RENAME_*` of `linux/fs.h`. One system call; where there is time, as for [`Tree::unlink`].
    ///
    /// # Errors
    /// As [`Tree::unlink`]; `EINVAL` for flags that are unknown.
    pub fn rename(&self, parent: Node, name: &CStr, new_parent: Node, new_name: &CStr, flags: u32) -> Result<()> {
        let flags = RenameFlags::from_bits_retain(flags);
        if !FLAGS.contains(flags) {
            return Err(Errno::INVAL);
        }
        let (dir, pin) = self.directory(parent, name)?;
        component(new_name)?;
        let new_dir = self.table.get(new_parent)?;
        let new_pin = self.table.pin(&new_dir)?;
        let _moved = changes(&self.changes, || stat(pin.as_fd(), name));
        let target = Target::hold(&self.changes, &new_pin, new_name);
        match &self.mapped {
            Some(mapped) => {
                let (from, to) = (In { dir: &dir, pin: &pin }, In { dir: &new_dir, pin: &new_pin });
                self.rename_mapped(mapped, from, name, to, new_name, flags)?;
            }
            None => rename(&pin, name, &new_pin, new_name, flags)?,
        }
        target.removed(&self.table);
        Ok(())
    }
}
