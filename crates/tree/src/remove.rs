//! Names that go, and names that move.

use crate::error::Result;
use crate::stat::component;
use crate::tree::{Node, Tree};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::CStr;

/// What a client may ask of a rename.
const FLAGS: RenameFlags = RenameFlags::NOREPLACE.union(RenameFlags::EXCHANGE).union(RenameFlags::WHITEOUT);

impl Tree {
    /// Removes the name of a file. One system call.
    ///
    /// # Errors
    /// `EROFS` on a read-only tree, `EINVAL` for a name that is none, `ESTALE` for a parent that is unknown or gone, and the
    /// kernel's.
    pub fn unlink(&self, parent: Node, name: &CStr) -> Result<()> {
        let (_dir, pin) = self.directory(parent, name)?;
        rustix::fs::unlinkat(pin, name, AtFlags::empty())
    }

    /// Removes an empty directory. One system call.
    ///
    /// # Errors
    /// As [`Tree::unlink`].
    pub fn rmdir(&self, parent: Node, name: &CStr) -> Result<()> {
        let (_dir, pin) = self.directory(parent, name)?;
        rustix::fs::unlinkat(pin, name, AtFlags::REMOVEDIR)
    }

    /// Moves a name. `flags` are `RENAME_*` of `linux/fs.h`. One system call.
    ///
    /// # Errors
    /// As [`Tree::unlink`]; `EINVAL` for flags that are unknown.
    pub fn rename(&self, parent: Node, name: &CStr, new_parent: Node, new_name: &CStr, flags: u32) -> Result<()> {
        let flags = RenameFlags::from_bits_retain(flags);
        if !FLAGS.contains(flags) {
            return Err(Errno::INVAL);
        }
        let (_dir, pin) = self.directory(parent, name)?;
        component(new_name)?;
        let new_pin = self.table.pin(&self.table.get(new_parent)?)?;
        if flags.is_empty() {
            // Not every file system knows the call with flags.
            rustix::fs::renameat(pin, name, new_pin, new_name)
        } else {
            rustix::fs::renameat_with(pin, name, new_pin, new_name, flags)
        }
    }
}
