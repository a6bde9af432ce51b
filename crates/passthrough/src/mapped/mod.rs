//! Owners, permissions, types and devices that are records of the tree's ([`crate::Security`]): what the client makes are
//! plain files and directories of the daemon's, with a record each.
//!
//! Records of the one kind belong to the inode (`attrs`), those of the other to its names (`files`), so that there names and
//! records change together (`known`). `locks` make the steps of an operation one to all who ask this tree; other programs
//! that change the same directory at the same time may see a file without its record for a moment.

pub(crate) mod attrs;
pub(crate) mod files;
mod handover;
mod known;
mod locks;
mod record;

pub(crate) use known::Known;
pub(crate) use record::{Record, without_set_ids};

use crate::dir::DirEntry;
use crate::error::Result;
use crate::ids::Node;
use crate::security::Security;
use locks::Locks;
use rustix::fs::Mode;
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::CStr;

/// `FS_CASEFOLD_FL` of `linux/fs.h`: names of a directory are equal in more than one spelling.
const CASEFOLD: u32 = 0x4000_0000;

/// A mapped security model.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// Permissions of files and of directories on the host.
    pub(crate) fmode: Mode,
    pub(crate) dmode: Mode,
    pub(crate) locks: Locks,
    /// Where records are files.
    pub(crate) files: Option<Known>,
}

impl Mapped {
    /// The model, unless it is none of these.
    pub(crate) fn new(security: Security) -> Option<Box<Mapped>> {
        let (fmode, dmode, files) = match security {
            Security::Passthrough | Security::None => return None,
            Security::MappedXattr { fmode, dmode } => (fmode, dmode, None),
            Security::MappedFile { fmode, dmode } => (fmode, dmode, Some(Known::default())),
        };
        let mode = |bits: u32| Mode::from_bits_retain(bits & 0o777);
        Some(Box::new(Mapped { fmode: mode(fmode), dmode: mode(dmode), locks: Locks::default(), files }))
    }

    /// The client has forgotten a node.
    pub(crate) fn forget(&self, node: Node) {
        if let Some(known) = &self.files {
            known.forget(node);
        }
    }

    /// The client is gone.
    pub(crate) fn clear(&self) {
        if let Some(known) = &self.files {
            known.clear();
        }
    }

    /// Records are kept beside the names, and change with them.
    pub(crate) fn is_beside_names(&self) -> bool {
        self.files.is_some()
    }

    fn hides(&self, name: &[u8]) -> bool {
        self.files.is_some() && files::is_hidden(name)
    }

    /// What the client is told of a name in a directory, if anything.
    pub(crate) fn shown<'a>(&self, entry: DirEntry<'a>) -> Option<DirEntry<'a>> {
        let kind = if entry.kind == libc::DT_REG { libc::DT_UNKNOWN } else { entry.kind };
        (!self.hides(entry.name)).then_some(DirEntry { kind, ..entry })
    }

    /// # Errors
    /// `ENOENT` for a name that the client does not see.
    pub(crate) fn existing(&self, name: &CStr) -> Result<()> {
        if self.hides(name.to_bytes()) { Err(Errno::NOENT) } else { Ok(()) }
    }

    /// # Errors
    /// `EINVAL` for a name that the client may not make.
    pub(crate) fn new_name(&self, name: &CStr) -> Result<()> {
        if self.hides(name.to_bytes()) { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// The host's name of an extended attribute.
    ///
    /// # Errors
    /// `hidden` for records, `EOPNOTSUPP` for everything but `user.*` and access control lists.
    pub(crate) fn xattr_to_host<'a>(&self, name: Cow<'a, CStr>, hidden: Errno) -> Result<Cow<'a, CStr>> {
        attrs::to_host(name, self.files.is_none(), hidden)
    }

    /// The client's name of an extended attribute of the host, if it sees it.
    pub(crate) fn xattr_to_client<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        attrs::to_client(name, self.files.is_none())
    }

    /// # Errors
    /// `EOPNOTSUPP` for inode flags with which the names of records would have other spellings.
    pub(crate) fn allows_flags(&self, flags: u32) -> Result<()> {
        if self.files.is_some() && flags & CASEFOLD != 0 { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }
}
