//! What may take a device's time, or seconds, and must not be done on a worker.

use super::fids::Use;
use super::place::{Name, Place};
use super::session::Session;
use device::p9::{Request, open_flag, open_mode};
use rustix::io::Errno;
use tree::FEW_OWNERS;

impl Session {
    /// Whether a request may take long. What frees space does when there is much; see [`tree::Tree::removal_is_long`].
    pub(crate) fn is_long(&self, request: &Request<'_>) -> bool {
        let look = match *request {
            Request::UnlinkAt { dfid, name, .. } => self.with_place(dfid, |dir| self.removal_is_long(dir, name)),
            Request::Remove { fid } => self.with_place(fid, |place| Ok(self.is_heavy(place))),
            Request::Rename { dfid, name, .. } => self.with_place(dfid, |dir| self.removal_is_long(dir, name)),
            Request::RenameAt(ref rename) => {
                self.with_place(rename.newdirfid, |dir| self.removal_is_long(dir, rename.newname))
            }
            Request::SetAttr(ref set) => set.size.map_or(Ok(false), |size| self.truncation_is_long(set.fid, size)),
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
            // Of what io_uring does not take.
            Request::Fsync { .. } => Ok(true),
            _ => Ok(false),
        };
        // What is no fid, or no name, is an error soon.
        look.unwrap_or(false)
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
            Use::Place => self.tree().forgetting_is_long(fid.place.node(), 1),
            _ => false,
        })
    }
}
