//! Extended attributes of nodes, in the client's words.

use crate::creds::without_fsetid;
use crate::xattr::CAPABILITY;
use crate::{Node, Result, Security, SecurityContext, Tree};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::CStr;
use std::os::fd::AsFd;

/// The most bytes of a value, and of a list of names: `XATTR_SIZE_MAX` and `XATTR_LIST_MAX` of `linux/limits.h`.
const BYTES_MAX: usize = 65_536;

/// The names under which POSIX ACLs are read and written.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

impl Tree {
    /// The host's name of an attribute that the client may use.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without extended attributes, and for ACLs without POSIX ACLs; what the map of names says; `hidden` for
    /// the names under which the tree keeps records of its own.
    fn host_name<'a>(&self, name: &'a CStr, hidden: Errno) -> Result<Cow<'a, CStr>> {
        if !self.options.xattr || !self.shows(name.to_bytes()) {
            return Err(Errno::OPNOTSUPP);
        }
        self.translated(name, hidden)
    }

    fn translated<'a>(&self, name: &'a CStr, hidden: Errno) -> Result<Cow<'a, CStr>> {
        let name = self.options.xattr_map.to_host(name)?;
        match &self.mapped {
            None => Ok(name),
            Some(mapped) => mapped.xattr_to_host(name, hidden),
        }
    }

    /// A client that does not know ACLs must not copy them about: it would change permissions unawares.
    fn shows(&self, name: &[u8]) -> bool {
        self.shows_acls() || !name.starts_with(ACL_PREFIX)
    }

    fn shows_acls(&self) -> bool {
        self.options.posix_acl && self.options.security != Security::None
    }

    /// Reads an attribute into `out`, which is cleared before, and answers its length in bytes. A `size` of 0 asks for the
    /// length alone; values have at most 65,536 bytes.
    ///
    /// # Errors
    /// `ERANGE` when the value has more than `size` bytes, `ENODATA` when there is none, `EOPNOTSUPP` for attributes that
    /// are not offered, `ESTALE` for a node that is unknown or gone, and the kernel's.
    pub fn get_xattr(&self, node: Node, name: &CStr, out: &mut Vec<u8>, size: usize) -> Result<usize> {
        self.pause();
        let name = self.host_name(name, Errno::NODATA)?;
        let pin = self.table.pin(&self.table.get(node)?)?;
        fill(out, size, |out| self.place(&pin).get(&name, out))
    }

    /// Reads the names of all attributes into `out`, each with a NUL behind it, as [`Tree::get_xattr`] reads a value.
    ///
    /// # Errors
    /// As [`Tree::get_xattr`].
    pub fn list_xattr(&self, node: Node, out: &mut Vec<u8>, size: usize) -> Result<usize> {
        self.pause();
        if !self.options.xattr {
            return Err(Errno::OPNOTSUPP);
        }
        let pin = self.table.pin(&self.table.get(node)?)?;
        let map = &self.options.xattr_map;
        if self.shows_acls() && map.is_identity() && self.mapped.is_none() {
            return fill(out, size, |out| self.place(&pin).list(out));
        }
        // What the client sees is known only when all was read.
        let mut names = Vec::new();
        fill(&mut names, BYTES_MAX, |out| self.place(&pin).list(out))?;
        out.clear();
        for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            let known = match &self.mapped {
                None => Some(name),
                Some(mapped) => mapped.xattr_to_client(name),
            };
            if let Some(name) = known.and_then(|name| map.to_guest(name)).filter(|name| self.shows(name)) {
                out.extend_from_slice(name);
                out.push(0);
            }
        }
        let len = out.len();
        if size == 0 {
            out.clear();
        } else if len > size {
            out.clear();
            return Err(Errno::RANGE);
        }
        Ok(len)
    }

    /// Writes an attribute. `flags` are `XATTR_*` of `linux/xattr.h`; `acl_kill_sgid` drops the set-group-id bit with the
    /// ACL as for a caller outside of the file's group.
    ///
    /// # Errors
    /// `EROFS` on a read-only tree, as [`Tree::get_xattr`], and the kernel's.
    pub fn set_xattr(&self, node: Node, name: &CStr, value: &[u8], flags: u32, acl_kill_sgid: bool) -> Result<()> {
        self.pause();
        let name = self.host_name(name, Errno::ACCESS)?;
        self.writable()?;
        self.check_capability(&name)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let pin = self.table.pin(&self.table.get(node)?)?;
        let set = || self.place(&pin).set(&name, value, flags);
        if acl_kill_sgid { without_fsetid(set) } else { set() }
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// As [`Tree::set_xattr`].
    pub fn remove_xattr(&self, node: Node, name: &CStr) -> Result<()> {
        self.pause();
        let is_acl = name.to_bytes().starts_with(ACL_PREFIX);
        let name = self.host_name(name, Errno::ACCESS)?;
        self.writable()?;
        let pin = self.table.pin(&self.table.get(node)?)?;
        match self.place(&pin).remove(&name) {
            // The kernel takes an ACL away that is not there, wherever it would be kept.
            Err(Errno::NODATA) if is_acl && self.mapped.is_some() => Ok(()),
            answer => answer,
        }
    }

    /// Refuses what would give a file of the host more rights than its caller has.
    fn check_capability(&self, host_name: &CStr) -> Result<()> {
        if self.options.nosuid && host_name == CAPABILITY { Err(Errno::PERM) } else { Ok(()) }
    }

    /// Labels a file that was just made.
    pub(crate) fn label(&self, fd: &impl AsFd, label: SecurityContext<'_>) -> Result<()> {
        let name = self.translated(label.name, Errno::ACCESS)?;
        self.check_capability(&name)?;
        self.place(fd).set(&name, label.value, XattrFlags::empty())
    }
}

/// Lets `read` write up to `size` bytes to `out`, or say how many there are when that is 0.
fn fill(out: &mut Vec<u8>, size: usize, read: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<usize> {
    out.clear();
    out.resize(size.min(BYTES_MAX), 0);
    let answer = read(out);
    let written = if size == 0 { 0 } else { *answer.as_ref().unwrap_or(&0) };
    out.truncate(written);
    answer
}
