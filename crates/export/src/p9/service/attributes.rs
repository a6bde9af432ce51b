//! Attributes of files and file systems.

use super::session::Session;
use crate::calls::{Answer, Outcome};
use device::p9::{Attr, IO_HEADER_BYTES, SetAttr, StatFs, device_number, getattr_mask};
use passthrough::{Attributes, Change, SetTime, Time};
use rustix::io::Errno;

/// What Linux' statfs(2) says of its own 9p mounts: `V9FS_MAGIC` of `linux/magic.h`.
const V9FS_MAGIC: u32 = 0x0102_1997;

/// `STATX_BTIME` of `linux/stat.h`.
const STATX_BTIME: u32 = 0x800;

impl Session {
    pub(super) fn get_attributes(&self, fid: u32, mask: u64, reply: &mut Vec<u8>) -> Outcome {
        let fid = self.fids.get(fid)?;
        let attributes = self.tree().attributes(fid.place()?.node(), fid.handle())?;
        let attr = self.attr(&attributes, mask)?;
        device::p9::getattr_out(reply, &attr);
        Ok(Answer::Reply)
    }

    fn attr(&self, attributes: &Attributes, mask: u64) -> Result<Attr, Errno> {
        let time = |time: Time| (time.seconds, time.nanoseconds);
        let born = mask & getattr_mask::BTIME != 0 && attributes.mask & STATX_BTIME != 0;
        Ok(Attr {
            valid: getattr_mask::BASIC | if born { getattr_mask::BTIME } else { 0 },
            qid: self.qids().of(attributes)?,
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            nlink: attributes.links.into(),
            rdev: device_number(attributes.rdev.0, attributes.rdev.1).into(),
            size: attributes.size,
            blksize: self.block_size(attributes.block_size).into(),
            blocks: attributes.blocks,
            atime: time(attributes.atime),
            mtime: time(attributes.mtime),
            ctime: time(attributes.ctime),
            btime: if born { time(attributes.btime) } else { (0, 0) },
            generation: 0,
            data_version: 0,
        })
    }

    /// Programs ask for pieces of this size: one message each, of whole blocks of the host's.
    fn block_size(&self, host: u32) -> u32 {
        let most = self.msize().saturating_sub(IO_HEADER_BYTES);
        if host == 0 || most < host { host } else { most - most % host }
    }

    pub(super) fn set_attributes(&self, set: &SetAttr) -> Result<(), Errno> {
        let fid = self.fids.get(set.fid)?;
        let (node, handle) = (fid.place()?.node(), fid.handle());
        let mut change = Change {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(time),
            mtime: set.mtime.map(time),
            // A client that wants set-id bits dropped sends the mode without them.
            kill_suid_sgid: false,
        };
        if set.ctime && change == Change::default() {
            // Setting what is there already is the way to have nothing but this time change.
            change.mode = Some(self.tree().attributes(node, handle)?.mode);
        }
        self.tree().set_attributes(node, handle, &change).map(|_| ())
    }

    pub(super) fn read_link(&self, fid: u32, reply: &mut Vec<u8>) -> Outcome {
        let fid = self.fids.get(fid)?;
        let mut target = Vec::new();
        self.tree().read_link(fid.place()?.node(), &mut target)?;
        device::p9::readlink_out(reply, &target);
        Ok(Answer::Reply)
    }

    pub(super) fn statfs(&self, fid: u32, reply: &mut Vec<u8>) -> Outcome {
        let found = self.tree().statfs(self.fids.get(fid)?.place()?.node())?;
        let figures = StatFs {
            kind: V9FS_MAGIC,
            // The counts are in this unit, which statfs(2) tells apart from the size of I/O and the protocol does not.
            block_size: found.f_frsize as u32,
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            fsid: found.f_fsid,
            name_bytes_max: found.f_namemax as u32,
        };
        device::p9::statfs_out(reply, &figures);
        Ok(Answer::Reply)
    }
}

fn time(time: device::p9::SetTime) -> SetTime {
    match time {
        device::p9::SetTime::Now => SetTime::Now,
        device::p9::SetTime::At(at) => SetTime::At(Time { seconds: at.seconds, nanoseconds: at.nanoseconds }),
    }
}
