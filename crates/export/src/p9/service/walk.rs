//! Attaching and walking: how a client gets to its places.

use super::fids::{Fid, Use};
use super::place::{Name, Place};
use super::session::Session;
use crate::calls::{Answer, Outcome};
use device::p9::{Attach, NOFID, Names, Qid, WALK_NAMES_MAX};
use passthrough::Entry;
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::Arc;

impl Session {
    /// The root of the tree, or what a path of names beneath it leads to, becomes a fid.
    pub(super) fn attach(&self, attach: &Attach<'_>, reply: &mut Vec<u8>) -> Outcome {
        if attach.afid != NOFID {
            return Err(Errno::BADF);
        }
        self.fids.check_new(attach.fid)?;
        let born = self.fids.generation();
        let mut place = Arc::clone(&self.root);
        let mut found = None;
        for name in attach.aname.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            let (next, qid) = self.step(&self.root, &place, name)?;
            (place, found) = (next, Some(qid));
        }
        let qid = found.map_or_else(|| self.qid_of(&place), Ok)?;
        // Nobody is the daemon itself, as 0 is.
        let uid = attach.uid().unwrap_or(0);
        let fid = Fid { uid, root: Arc::clone(&place), place, used: Use::Place, born };
        self.fids.insert(attach.fid, Arc::new(fid))?;
        device::p9::qid_out(reply, qid);
        Ok(Answer::Reply)
    }

    /// One name after the other, from a fid to another or the same. When not all of them are there, those that are get their
    /// qids and no fid.
    pub(super) fn walk(&self, fid: u32, newfid: u32, names: &Names<'_>, reply: &mut Vec<u8>) -> Outcome {
        let from = self.fids.get(fid)?;
        let mut place = if fid == newfid {
            from.unopened()?.clone()
        } else {
            self.fids.check_new(newfid)?;
            from.place()?.clone()
        };
        let mut qids = [Qid::default(); WALK_NAMES_MAX];
        let mut count = 0;
        for (name, found) in names.iter().zip(&mut qids) {
            match self.step(&from.root, &place, name) {
                Ok((next, qid)) => (place, *found) = (next, qid),
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
            count += 1;
        }
        if count == names.len() {
            let new = from.at(place, Use::Place);
            if fid == newfid {
                self.fids.replace(fid, &from, new)?;
            } else {
                self.fids.insert(newfid, new)?;
            }
        }
        device::p9::walk_out(reply, qids.get(..count).unwrap_or_default());
        Ok(Answer::Reply)
    }

    /// What `name` is, seen from a place. `..` goes back by the way that the client came, and not beyond `root`.
    pub(super) fn step(&self, root: &Arc<Place>, from: &Arc<Place>, name: &[u8]) -> Result<(Arc<Place>, Qid), Errno> {
        if name == b"." || name == b".." {
            if !from.is_directory() {
                return Err(Errno::NOTDIR);
            }
            let back = if name == b"." { None } else { back(root, from) };
            let place = back.unwrap_or_else(|| Arc::clone(from));
            let qid = self.qid_of(&place)?;
            return Ok((place, qid));
        }
        let name = Name::new(name)?;
        let entry = self.tree().lookup(from.node(), name.as_c_str())?;
        self.adopt(from, name.as_c_str(), &entry)
    }

    /// The place of what was just found or made in another one. Its reference becomes the place's, or is given back.
    pub(super) fn adopt(&self, parent: &Arc<Place>, name: &CStr, entry: &Entry) -> Result<(Arc<Place>, Qid), Errno> {
        match self.qids().of(&entry.attributes) {
            Ok(qid) => Ok((parent.child(name, entry.node, (qid.kind, qid.path))?, qid)),
            Err(error) => {
                self.tree().forget(entry.node, 1);
                Err(error)
            }
        }
    }

    fn qid_of(&self, place: &Place) -> Result<Qid, Errno> {
        self.qids().of(&self.tree().attributes(place.node(), None)?)
    }
}

/// Where `..` leads from a place, if that is not where the client attached.
pub(super) fn back(root: &Arc<Place>, from: &Arc<Place>) -> Option<Arc<Place>> {
    if Arc::ptr_eq(root, from) { None } else { from.parent() }
}
