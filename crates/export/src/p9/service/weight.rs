//! What may take a device's time, or seconds, and must not be done on a worker.

use super::fids::Use;
use super::place::{Name, Place};
use super::session::Session;
use device::p9::{Request, open_flag, open_mode};
use passthrough::{Changing, FEW_OWNERS, Node};
use rustix::io::Errno;

impl Session {
    /// Whether a request may take long. What frees space does when there is much, see [`passthrough::Tree::removal_is_long`], and what
    /// needs a file that such a call is changing, see [`passthrough::Tree::is_changing`].
    pub(crate) fn is_long(&self, request: &Request<'_>) -> bool {
        let look = match *request {
            Request::UnlinkAt { dfid, name, .. } => self.with_place(dfid, |dir| self.removal_is_long(dir, name)),
            Request::Remove { fid } => self.with_place(fid, |place| Ok(self.is_heavy(place))),
            Request::Rename { fid, dfid, name } => {
                self.with_place(dfid, |dir| self.removal_is_long(dir, name)).map(|long| long || self.is_changing(fid))
            }
            Request::RenameAt(ref rename) => {
                let moved =
                    |dir: &Place| Ok(self.tree().name_is_changing(dir.node(), Name::new(rename.oldname)?.as_c_str()));
                self.with_place(rename.newdirfid, |dir| self.removal_is_long(dir, rename.newname))
                    .and_then(|long| Ok(long || self.with_place(rename.olddirfid, moved)?))
            }
            Request::SetAttr(ref set) => match set.size {
                Some(size) => self.truncation_is_long(set.fid, size),
                None => Ok(self.is_changing(set.fid)),
            },
            // It may also change the name, or make the file durable.
            Request::WriteStat { fid, ref stat } => match stat.length {
                u64::MAX => Ok(true),
                size => self.truncation_is_long(fid, size),
            },
            Request::Lopen { fid, flags } if flags & open_flag::TRUNC != 0 => self.truncation_is_long(fid, 0),
            Request::Open { fid, mode } if mode & open_mode::TRUNC != 0 => self.truncation_is_long(fid, 0),
            Request::Lcreate(ref new) if new.flags & open_flag::TRUNC != 0 => {
                self.with_place(new.fid, |dir| self.removal_is_long(dir, new.name))
            }
            Request::Clunk { fid } => self.clunk_is_long(fid),
            Request::Read { fid, .. } | Request::Write { fid, .. } | Request::Link { fid, .. } => {
                Ok(self.is_changing(fid))
            }
            // Of what io_uring does not take.
            Request::Fsync { .. } => Ok(true),
            _ => Ok(false),
        };
        // What is no fid, or no name, is an error soon.
        look.unwrap_or(false)
    }

    /// What a request that takes long is going to change.
    pub(crate) fn changes(&self, request: &Request<'_>) -> Option<Changing> {
        let node = match *request {
            Request::SetAttr(ref set) if set.size.is_some() => self.node_of(set.fid),
            Request::WriteStat { fid, ref stat } if stat.length != u64::MAX => self.node_of(fid),
            Request::Lopen { fid, flags } if flags & open_flag::TRUNC != 0 => self.node_of(fid),
            Request::Open { fid, mode } if mode & open_mode::TRUNC != 0 => self.node_of(fid),
            Request::Lcreate(ref new) if new.flags & open_flag::TRUNC != 0 => {
                let (dir, name) = (self.node_of(new.fid)?, Name::new(new.name).ok()?);
                self.tree().node_by_name(dir, name.as_c_str())
            }
            _ => None,
        };
        Some(self.tree().change(vec![node?]))
    }

    fn node_of(&self, fid: u32) -> Option<Node> {
        self.fids.with(fid, |fid| Ok(fid.place.node())).ok()
    }

    fn is_changing(&self, fid: u32) -> bool {
        let tree = self.tree();
        tree.changes_any() && self.node_of(fid).is_some_and(|node| tree.is_changing(node))
    }

    fn with_place(&self, fid: u32, look: impl FnOnce(&Place) -> Result<bool, Errno>) -> Result<bool, Errno> {
        look(self.fids.get(fid)?.place()?)
    }

    fn removal_is_long(&self, dir: &Place, name: &[u8]) -> Result<bool, Errno> {
        Ok(self.tree().removal_is_long(dir.node(), Name::new(name)?.as_c_str()))
    }

    fn is_heavy(&self, place: &Place) -> bool {
        self.tree().truncation_is_long(place.node(), None, 0)
    }

    fn truncation_is_long(&self, fid: u32, size: u64) -> Result<bool, Errno> {
        let fid = self.fids.get(fid)?;
        Ok(self.tree().truncation_is_long(fid.place()?.node(), fid.handle(), size))
    }

    fn clunk_is_long(&self, fid: u32) -> Result<bool, Errno> {
        let fid = self.fids.get(fid)?;
        Ok(match &fid.used {
            Use::Open(open) if open.remove_on_clunk => self.is_heavy(&fid.place),
            // Each owner's locks are dropped on their own.
            Use::Open(open) if open.owners() > FEW_OWNERS => true,
            Use::Open(open) if !open.directory => self.tree().release_is_long(open.handle),
            // It sets the attribute.
            Use::NewValue(_) => self.tree().is_changing(fid.place.node()),
            _ => false,
        })
    }
}
