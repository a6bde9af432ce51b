//! Look-ups, and what a guest is told of a name.

use super::files::open_flags_of;
use super::{Answer, Outcome, Service};
use device::fs::{Attr, EntryOut, device_number};
use passthrough::{Attributes, Entry, Opened};
use rustix::io::Errno;
use std::ffi::CStr;
use std::time::Duration;

impl Service {
    pub(super) fn lookup(&self, parent: u64, name: &CStr, reply: &mut Vec<u8>) -> Outcome {
        match self.tree.lookup(parent, name) {
            Ok(entry) => self.answer_entry(&entry, reply),
            // "Nowhere", with a time to believe it in: node 0 (fuse.h, fuse_entry_out).
            Err(Errno::NOENT) if !self.policy.negative_timeout.is_zero() => {
                let nowhere = EntryOut { entry_valid: self.policy.negative_timeout, ..EntryOut::default() };
                device::fs::entry_out(reply, &nowhere);
                Ok(Answer::Reply)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn answer_entry(&self, entry: &Entry, reply: &mut Vec<u8>) -> Outcome {
        device::fs::entry_out(reply, &self.entry_out(entry));
        Ok(Answer::Reply)
    }

    pub(super) fn answer_created(&self, entry: &Entry, opened: Opened, reply: &mut Vec<u8>) -> Outcome {
        device::fs::create_out(reply, &self.entry_out(entry), opened.handle, open_flags_of(&self.policy));
        Ok(Answer::Reply)
    }

    /// How long the guest may believe attributes. Set-id bits of a file go with a write, of which a guest that leaves them to
    /// the server thinks nothing: it would execute the file with the bits that it remembers. Nothing makes it forget but time.
    pub(super) fn believed(&self, attributes: &Attributes) -> Duration {
        let powerful = attributes.mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        if powerful && attributes.mode & libc::S_IFMT == libc::S_IFREG && self.policy.killpriv_v2 {
            return Duration::ZERO;
        }
        self.policy.attr_timeout
    }

    /// The answer to requests for attributes.
    pub(super) fn answer_attributes(&self, node: u64, attributes: &Attributes, reply: &mut Vec<u8>) -> Outcome {
        let attr = Attr { flags: self.dax_flags(node, attributes), ..attr_out(attributes) };
        device::fs::attr_out(reply, self.believed(attributes), &attr);
        Ok(Answer::Reply)
    }

    /// An entry as the guest may believe it.
    pub(super) fn entry_out(&self, entry: &Entry) -> EntryOut {
        let mut attr = attr_out(&entry.attributes);
        if entry.submount && self.policy.announce_submounts {
            attr.flags |= device::fs::spec::attr_flag::SUBMOUNT;
        }
        attr.flags |= self.dax_flags(entry.node, &entry.attributes);
        EntryOut {
            nodeid: entry.node,
            // Nodes are never used twice.
            generation: 0,
            entry_valid: self.policy.entry_timeout,
            attr_valid: self.believed(&entry.attributes),
            attr,
        }
    }
}

/// Attributes in the protocol's form.
fn attr_out(attributes: &Attributes) -> Attr {
    let time = |time: passthrough::Time| (time.seconds, time.nanoseconds);
    Attr {
        ino: attributes.ino,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: time(attributes.atime),
        mtime: time(attributes.mtime),
        ctime: time(attributes.ctime),
        mode: attributes.mode,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: device_number(attributes.rdev.0, attributes.rdev.1),
        blksize: attributes.block_size,
        flags: 0,
    }
}
