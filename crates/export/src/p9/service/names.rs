//! Names that come, move and go.

use super::fids::{Fid, Use};
use super::place::{Name, Place};
use super::session::Session;
use crate::calls::{Answer, Outcome};
use device::p9::{Lcreate, Mkdir, Mknod, RenameAt, Symlink, open_flag, unlink_flag};
use passthrough::{Caller, Entry};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::sync::Arc;

impl Fid {
    /// Who makes something through this fid. A group of nobody's number is the daemon's own.
    pub(super) fn caller(&self, gid: u32) -> Caller<'static> {
        Caller { uid: self.uid, gid: if gid == u32::MAX { 0 } else { gid }, groups: &[] }
    }
}

impl Place {
    /// Removes it from its directory.
    ///
    /// # Errors
    /// As [`Place::still_named`], and the tree's.
    pub(super) fn remove(&self) -> Result<(), Errno> {
        let (parent, name) = self.still_named()?;
        parent.remove_name(&name, self.is_directory())
    }

    fn remove_name(&self, name: &CStr, directory: bool) -> Result<(), Errno> {
        let (tree, node) = (&self.ground().tree, self.node());
        if directory {
            tree.rmdir(node, name)?;
        } else {
            tree.unlink(node, name)?;
        }
        self.removed(name);
        Ok(())
    }

    /// The directory and the name of a place, which is still there by that name.
    ///
    /// # Errors
    /// `ENOENT` when somebody has put another file there.
    fn still_named(&self) -> Result<(Arc<Place>, Arc<CStr>), Errno> {
        let (parent, name) = self.reached_by()?;
        let tree = &self.ground().tree;
        let entry = tree.lookup(parent.node(), &name)?;
        tree.forget(entry.node, 1);
        if entry.node == self.node() { Ok((parent, name)) } else { Err(Errno::NOENT) }
    }
}

impl Session {
    /// What was made is told by its qid alone: the client walks to it when it wants it.
    fn answer_made(&self, entry: &Entry, reply: &mut Vec<u8>) -> Outcome {
        self.tree().forget(entry.node, 1);
        device::p9::qid_out(reply, self.qids().of(&entry.attributes)?);
        Ok(Answer::Reply)
    }

    pub(super) fn mkdir(&self, new: &Mkdir<'_>, reply: &mut Vec<u8>) -> Outcome {
        let dir = self.fids.get(new.dfid)?;
        let (node, name) = (dir.place()?.node(), Name::new(new.name)?);
        let entry = self.tree().mkdir(dir.caller(new.gid), node, name.as_c_str(), new.mode, 0, None)?;
        self.answer_made(&entry, reply)
    }

    pub(super) fn symlink(&self, new: &Symlink<'_>, reply: &mut Vec<u8>) -> Outcome {
        let dir = self.fids.get(new.fid)?;
        let (node, name) = (dir.place()?.node(), Name::new(new.name)?);
        let target = CString::new(new.target).map_err(|_| Errno::INVAL)?;
        let entry = self.tree().symlink(dir.caller(new.gid), node, name.as_c_str(), &target, None)?;
        self.answer_made(&entry, reply)
    }

    pub(super) fn mknod(&self, new: &Mknod<'_>, reply: &mut Vec<u8>) -> Outcome {
        let dir = self.fids.get(new.dfid)?;
        let (node, name) = (dir.place()?.node(), Name::new(new.name)?);
        let rdev = (new.major, new.minor);
        let entry = self.tree().mknod(dir.caller(new.gid), node, name.as_c_str(), new.mode, rdev, 0, None)?;
        self.answer_made(&entry, reply)
    }

    /// The fid of a directory becomes that of a file in it, open.
    pub(super) fn lcreate(&self, new: &Lcreate<'_>, reply: &mut Vec<u8>) -> Outcome {
        let flags = super::files::open_flags(new.flags);
        let exclusive = if new.flags & open_flag::EXCL == 0 { 0 } else { libc::O_EXCL };
        self.create_open(new.fid, new.name, flags | exclusive, (new.mode, new.gid), false, reply)
    }

    /// Makes and opens a file: `flags` are the host's, `mode` and `gid` what it gets.
    pub(super) fn create_open(
        &self,
        fid: u32,
        name: &[u8],
        flags: i32,
        (mode, gid): (u32, u32),
        remove_on_clunk: bool,
        reply: &mut Vec<u8>,
    ) -> Outcome {
        let dir = self.fids.get(fid)?;
        let parent = dir.unopened()?;
        let name = Name::new(name)?;
        let name = name.as_c_str();
        let kill = dir.uid != 0;
        let counted = self.files.room()?;
        let (entry, opened) = self.tree().create(dir.caller(gid), parent.node(), name, flags, mode, 0, kill, None)?;
        let (place, qid) = match self.adopt(parent, name, &entry) {
            Ok(found) => found,
            Err(error) => {
                self.tree().release(opened.handle, None);
                return Err(error);
            }
        };
        let open = self.opened(&dir, &place, (opened.handle, counted), &entry.attributes, remove_on_clunk)?;
        self.fids.replace(fid, &dir, dir.at(place, Use::Open(Box::new(open))))?;
        device::p9::open_out(reply, qid, self.iounit());
        Ok(Answer::Reply)
    }

    /// One more name for a file.
    pub(super) fn link(&self, dfid: u32, fid: u32, name: &[u8]) -> Result<(), Errno> {
        let (dir, file) = (self.fids.get(dfid)?, self.fids.get(fid)?);
        let name = Name::new(name)?;
        let entry = self.tree().link(file.place()?.node(), dir.place()?.node(), name.as_c_str())?;
        self.tree().forget(entry.node, 1);
        Ok(())
    }

    pub(super) fn unlink_at(&self, dfid: u32, name: &[u8], flags: u32) -> Result<(), Errno> {
        let directory = match flags {
            0 => false,
            unlink_flag::REMOVEDIR => true,
            _ => return Err(Errno::INVAL),
        };
        let dir = self.fids.get(dfid)?;
        dir.place()?.remove_name(Name::new(name)?.as_c_str(), directory)
    }

    /// Removes what a fid stands for. The fid is gone in any case.
    pub(super) fn remove(&self, fid: u32) -> Result<(), Errno> {
        let fid = self.fids.remove(fid)?;
        fid.place()?.remove()
    }

    /// Gives what a fid stands for another name.
    pub(super) fn rename(&self, fid: u32, dfid: u32, name: &[u8]) -> Result<(), Errno> {
        let (fid, dir) = (self.fids.get(fid)?, self.fids.get(dfid)?);
        self.rename_place(fid.place()?, dir.place()?, name)
    }

    pub(super) fn rename_place(&self, place: &Place, to: &Arc<Place>, name: &[u8]) -> Result<(), Errno> {
        let (parent, old_name) = place.still_named()?;
        self.rename_name((&parent, &old_name), (to, Name::new(name)?.as_c_str()))
    }

    pub(super) fn rename_at(&self, rename: &RenameAt<'_>) -> Result<(), Errno> {
        let (from, to) = (self.fids.get(rename.olddirfid)?, self.fids.get(rename.newdirfid)?);
        let (old_name, new_name) = (Name::new(rename.oldname)?, Name::new(rename.newname)?);
        self.rename_name((from.place()?, old_name.as_c_str()), (to.place()?, new_name.as_c_str()))
    }

    fn rename_name(&self, (from, name): (&Place, &CStr), (to, new_name): (&Arc<Place>, &CStr)) -> Result<(), Errno> {
        self.tree().rename(from.node(), name, to.node(), new_name, 0)?;
        from.renamed(name, to, new_name);
        Ok(())
    }
}
