//! Directories.

use super::{Answer, Outcome, Scene, Service};
use crate::calls::LISTING_BYTES_MAX;
use device::fs::{Attr, DirWriter, EntryOut};
use passthrough::DirEntry;
use rustix::io::Errno;
use std::ffi::CString;

impl Service {
    pub(super) fn read_dir(&self, handle: u64, offset: u64, size: u32, scene: &mut Scene<'_>) -> Outcome {
        let room = scene.room(device::fs::OUT_HEADER_BYTES, size.min(LISTING_BYTES_MAX));
        let mut writer = DirWriter::new(scene.reply, room);
        self.tree.read_dir(handle, offset, &mut |entry: DirEntry<'_>| {
            writer.add(entry.ino, entry.offset, u32::from(entry.kind), entry.name)
        })?;
        Ok(Answer::Reply)
    }

    /// A listing with a look-up of each name. Every entry that is shown counts a reference, as a look-up does.
    pub(super) fn read_dir_plus(&self, handle: u64, offset: u64, size: u32, scene: &mut Scene<'_>) -> Outcome {
        let room = scene.room(device::fs::OUT_HEADER_BYTES, size.min(LISTING_BYTES_MAX));
        let mut writer = DirWriter::new(scene.reply, room);
        self.tree.read_dir(handle, offset, &mut |entry: DirEntry<'_>| {
            // What does not fit must not be looked up: its reference would never be given back.
            if !writer.would_fit(entry.name.len(), true) {
                return false;
            }
            let found = self.entry_of(handle, &entry);
            writer.add_plus(&found, entry.ino, entry.offset, u32::from(entry.kind), entry.name)
        })?;
        Ok(Answer::Reply)
    }

    /// What READDIRPLUS tells of one name. Node 0 tells nothing but the name: for `.` and `..`, which the guest knows, and
    /// for what was removed while the listing went on.
    fn entry_of(&self, handle: u64, entry: &DirEntry<'_>) -> EntryOut {
        let nothing = || EntryOut {
            attr: Attr { ino: entry.ino, mode: u32::from(entry.kind) << 12, ..Attr::default() },
            ..EntryOut::default()
        };
        if matches!(entry.name, b"." | b"..") {
            return nothing();
        }
        // A name without its terminator comes from the kernel and has no NUL inside.
        let found =
            CString::new(entry.name).map_err(|_| Errno::INVAL).and_then(|name| self.tree.read_dir_entry(handle, &name));
        found.map_or_else(|_| nothing(), |entry| self.entry_out(&entry))
    }
}
