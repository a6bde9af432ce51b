//! Directories.

use super::session::Session;
use super::walk::back;
use crate::calls::{Answer, LISTING_BYTES_MAX, Outcome, Scene};
use device::p9::{DirWriter, Qid, READ_HEAD_BYTES, qid_type};
use passthrough::DirEntry;
use rustix::io::Errno;

impl Session {
    /// The entries are as getdents(2) has them, and nobody looks at the files: the number in an entry's qid is the file's own,
    /// but for a mount point, of which it is that of the directory underneath.
    pub(super) fn read_dir(&self, fid: u32, offset: u64, count: u32, scene: &mut Scene<'_>) -> Outcome {
        let fid = self.fids.get(fid)?;
        let open = fid.open()?;
        if !open.directory {
            return Err(Errno::NOTDIR);
        }
        let count = count.min(self.msize().saturating_sub(READ_HEAD_BYTES as u32)).min(LISTING_BYTES_MAX);
        let room = scene.room(READ_HEAD_BYTES, count) as u32;
        let mut writer = DirWriter::new(scene.reply, room);
        let mut all_fit = true;
        let read = self.tree().read_dir(open.handle, offset, &mut |entry: DirEntry<'_>| {
            let path = match entry.name {
                b"." => fid.place.qid().1,
                // What is above the root is nobody's business.
                b".." => back(&fid.root, &fid.place).map_or_else(|| fid.place.qid().1, |parent| parent.qid().1),
                // A number that nobody has for it yet, and cannot get: the name is worth more than that.
                _ => self.qids().path(open.device, entry.ino).unwrap_or(entry.ino),
            };
            let qid = Qid { kind: kind(entry.kind), version: 0, path };
            all_fit = writer.add(qid, entry.offset, entry.kind, entry.name);
            all_fit
        });
        if writer.count() == 0 {
            read?;
            if !all_fit {
                // Nothing would mean the end.
                return Err(Errno::INVAL);
            }
        }
        Ok(Answer::Reply)
    }
}

/// The type of a qid: from a `DT_*` of `dirent.h`.
fn kind(kind: u8) -> u8 {
    match kind {
        libc::DT_DIR => qid_type::DIR,
        libc::DT_LNK => qid_type::SYMLINK,
        _ => qid_type::FILE,
    }
}
