//! What may take a device's time, or seconds, and must not be done on a worker.

use super::fids::{Fid, Use};
use super::place::{Name, Place};
use super::session::Session;
use device::p9::{Request, open_flag, open_mode, unlink_flag};
use passthrough::{Changing, FEW_OWNERS, Node, Subject};
use rustix::io::Errno;
use std::ffi::CStr;

impl Session {
    /// Whether a request may take long. What frees space does when there is much, see [`passthrough::Tree::removal_is_long`], and what
    /// needs a file that such a call is changing, see [`passthrough::Tree::is_changing`].
    pub(crate) fn is_long(&self, request: &Request<'_>) -> bool {
        let look = match *request {
            // It may once have been large: all of that is looked at.
            Request::UnlinkAt { flags: unlink_flag::REMOVEDIR, .. } => Ok(true),
            Request::UnlinkAt { dfid, name, .. } => self.with_place(dfid, |dir| self.removal_is_long(dir, name)),
            Request::Remove { fid } => self.with_place(fid, |place| Ok(self.is_removed_slowly(place))),
            Request::Rename { fid, dfid, name } => self.with_place(fid, |moved| {
                let (from, old_name) = moved.reached_by()?;
                self.with_place(dfid, |to| self.rename_is_long((&from, &old_name), (to, name)))
            }),
            Request::RenameAt(ref rename) => self.with_place(rename.olddirfid, |from| {
                let old_name = Name::new(rename.oldname)?;
                let moved = (from, old_name.as_c_str());
                self.with_place(rename.newdirfid, |to| self.rename_is_long(moved, (to, rename.newname)))
            }),
            Request::SetAttr(ref set) => match set.size {
                Some(size) => self.truncation_is_long(set.fid, size),
                None => Ok(self.is_changing(set.fid) || self.tree().records_are_changing()),
            },
            // It may also change the name, which may be another file's, or make the file durable.
            Request::WriteStat { fid, ref stat } if stat.name.is_empty() && stat.length != u64::MAX => {
                self.truncation_is_long(fid, stat.length)
            }
            Request::WriteStat { .. } => Ok(true),
            // Who has more than one name goes through directories that he does not name himself.
            Request::Attach(ref attach) => Ok(!attach.aname.is_empty() && self.tree().changes_any()),
            Request::Walk { ref names, .. } if names.len() > 1 => Ok(self.tree().changes_any()),
            Request::Walk { fid, ref names, .. } if names.len() == 1 => Ok(self.names_are_changing(fid)),
            Request::Mkdir(ref new) => Ok(self.names_are_changing(new.dfid)),
            Request::Mknod(ref new) => Ok(self.names_are_changing(new.dfid)),
            Request::Symlink(ref new) => Ok(self.names_are_changing(new.fid)),
            Request::Create(ref new) => Ok(self.names_are_changing(new.fid)),
            Request::ReadDir { fid, .. } => self.listing_is_long(fid),
            Request::Lopen { fid, flags } if flags & open_flag::TRUNC != 0 => self.truncation_is_long(fid, 0),
            Request::Open { fid, mode } if mode & open_mode::TRUNC != 0 => self.truncation_is_long(fid, 0),
            Request::Lcreate(ref new) if new.flags & open_flag::TRUNC != 0 => {
                self.with_place(new.fid, |dir| self.removal_is_long(dir, new.name))
            }
            Request::Lcreate(ref new) => Ok(self.names_are_changing(new.fid)),
            Request::Clunk { fid } => self.clunk_is_long(fid),
            Request::Read { fid, .. } if self.is_open_directory(fid) => self.listing_is_long(fid),
            Request::Read { fid, .. } => Ok(self.is_changing(fid)),
            Request::Write { fid, .. } => Ok(self.is_changing(fid) || self.write_is_long(fid)),
            Request::Link { fid, dfid, .. } => Ok(self.is_changing(fid) || self.names_are_changing(dfid)),
            // Of what io_uring does not take, or has enough of.
            Request::Fsync { .. } => Ok(true),
            _ => Ok(self.tree().records_are_changing()),
        };
        // What is no fid, or no name, is an error soon.
        look.unwrap_or(false)
    }

    /// What a request that takes long is going to change.
    pub(crate) fn changes(&self, request: &Request<'_>) -> Option<Changing> {
        let subjects = match *request {
            Request::SetAttr(ref set) if set.size.is_some() => vec![self.subject(set.fid)],
            Request::Lopen { fid, flags } if flags & open_flag::TRUNC != 0 => vec![self.subject(fid)],
            Request::Open { fid, mode } if mode & open_mode::TRUNC != 0 => vec![self.subject(fid)],
            Request::Lcreate(ref new) if new.flags & open_flag::TRUNC != 0 => vec![self.subject_in(new.fid, new.name)],
            Request::Link { fid, .. } => vec![self.subject(fid)],
            // The locks of the directories are held while the kernel looks at what is there.
            Request::UnlinkAt { dfid, name, flags: unlink_flag::REMOVEDIR } => {
                vec![self.subject(dfid), self.subject_in(dfid, name)]
            }
            Request::Remove { fid } | Request::Clunk { fid } if self.removes_directory(fid, request) => {
                vec![self.subject(fid), self.subject_above(fid)]
            }
            Request::Rename { fid, dfid, name } => {
                vec![self.subject(fid), self.subject_above(fid), self.subject(dfid), self.subject_in(dfid, name)]
            }
            Request::RenameAt(ref rename) => {
                let (from, to) = (rename.olddirfid, rename.newdirfid);
                let names = [self.subject_in(from, rename.oldname), self.subject_in(to, rename.newname)];
                [&[self.subject(from), self.subject(to)], &names[..]].concat()
            }
            // It may be for a name, a length, or both.
            Request::WriteStat { fid, ref stat } if stat.name.is_empty() => vec![self.subject(fid)],
            Request::WriteStat { fid, ref stat } => {
                vec![self.subject(fid), self.subject_above(fid), self.subject_beside(fid, stat.name)]
            }
            _ => return None,
        };
        Some(self.tree().change(subjects.into_iter().flatten().collect()))
    }

    /// What the removal of a place changes: what a directory is in, and itself. A file is waited for by who removes it.
    pub(super) fn changed_by_removal(&self, place: &Place) -> Changing {
        let both = place.is_directory().then(|| [Some(place.node()), place.parent().map(|parent| parent.node())]);
        let nodes = both.into_iter().flatten().flatten();
        self.tree().change(nodes.filter_map(|node| self.tree().subject(node)).collect())
    }

    /// Whether a request takes a directory out of another.
    fn removes_directory(&self, fid: u32, request: &Request<'_>) -> bool {
        let removes = |fid: &Fid| match *request {
            Request::Remove { .. } => Ok(true),
            _ => Ok(fid.open()?.remove_on_clunk),
        };
        self.fids.with(fid, |fid| Ok(fid.place.is_directory() && removes(fid)?)).unwrap_or(false)
    }

    fn subject(&self, fid: u32) -> Option<Subject> {
        self.tree().subject(self.node_of(fid)?)
    }

    /// What is called `name` in the directory of a fid.
    fn subject_in(&self, fid: u32, name: &[u8]) -> Option<Subject> {
        self.tree().subject_by_name(self.node_of(fid)?, Name::new(name).ok()?.as_c_str())
    }

    /// The directory that has what a fid stands for.
    fn subject_above(&self, fid: u32) -> Option<Subject> {
        self.tree().subject(self.parent_of(fid)?)
    }

    /// What is called `name` there.
    fn subject_beside(&self, fid: u32, name: &[u8]) -> Option<Subject> {
        self.tree().subject_by_name(self.parent_of(fid)?, Name::new(name).ok()?.as_c_str())
    }

    fn parent_of(&self, fid: u32) -> Option<Node> {
        let parent = self.fids.with(fid, |fid| Ok(fid.place.parent())).ok()??;
        Some(parent.node())
    }

    fn names_are_changing(&self, fid: u32) -> bool {
        let tree = self.tree();
        tree.changes_any() && self.node_of(fid).is_some_and(|node| tree.names_are_changing(node))
    }

    fn is_open_directory(&self, fid: u32) -> bool {
        self.fids.with(fid, |fid| Ok(fid.open()?.directory)).unwrap_or(false)
    }

    fn listing_is_long(&self, fid: u32) -> Result<bool, Errno> {
        let handle = self.fids.with(fid, |fid| Ok(fid.open()?.handle))?;
        Ok(self.tree().listing_is_long(handle))
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

    fn rename_is_long(&self, (from, old_name): (&Place, &CStr), (to, name): (&Place, &[u8])) -> Result<bool, Errno> {
        let name = Name::new(name)?;
        Ok(self.tree().rename_is_long((from.node(), old_name), (to.node(), name.as_c_str()), 0))
    }

    /// As [`passthrough::Tree::removal_is_long`]. Its name is looked up for it.
    pub(super) fn is_removed_slowly(&self, place: &Place) -> bool {
        let tree = self.tree();
        place.is_directory()
            || place.parent().is_some_and(|parent| tree.names_are_changing(parent.node()))
            || tree.truncation_is_long(place.node(), None, 0)
    }

    fn truncation_is_long(&self, fid: u32, size: u64) -> Result<bool, Errno> {
        let fid = self.fids.get(fid)?;
        Ok(self.tree().truncation_is_long(fid.place()?.node(), fid.handle(), size))
    }

    fn clunk_is_long(&self, fid: u32) -> Result<bool, Errno> {
        let fid = self.fids.get(fid)?;
        Ok(match &fid.used {
            Use::Open(open) if open.remove_on_clunk => self.is_removed_slowly(&fid.place),
            // Each owner's locks are dropped on their own.
            Use::Open(open) if open.owners() > FEW_OWNERS => true,
            Use::Open(open) if !open.directory => self.tree().release_is_long(open.handle),
            // It sets the attribute.
            Use::NewValue(_) => self.tree().is_changing(fid.place.node()),
            _ => false,
        })
    }
}
