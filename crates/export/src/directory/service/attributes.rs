//! Attributes, extended attributes, and the ioctls that are attributes by another name.

use super::{Answer, Outcome, Scene, Service};
use device::fs::{StatFs, StatxAttr};
use passthrough::{Attributes, Change, FsXattr};
use rustix::io::Errno;
use std::ffi::CStr;

/// `_IOR('f', 1, long)`: FS_IOC_GETFLAGS (linux/fs.h).
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
/// `_IOW('f', 2, long)`: FS_IOC_SETFLAGS.
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// `_IOR('f', 1, int)`: FS_IOC32_GETFLAGS, of 32-bit programs.
const FS_IOC32_GETFLAGS: u32 = 0x8004_6601;
/// `_IOW('f', 2, int)`: FS_IOC32_SETFLAGS.
const FS_IOC32_SETFLAGS: u32 = 0x4004_6602;
/// `_IOR('X', 31, struct fsxattr)`: FS_IOC_FSGETXATTR.
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
/// `_IOW('X', 32, struct fsxattr)`: FS_IOC_FSSETXATTR.
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
/// Bytes of struct fsxattr.
const FSXATTR_BYTES: usize = 28;

/// Whether an ioctl changes inode flags.
pub(super) fn changes_flags(command: u32) -> bool {
    matches!(command, FS_IOC_SETFLAGS | FS_IOC32_SETFLAGS | FS_IOC_FSSETXATTR)
}

impl Service {
    pub(super) fn get_attributes(&self, node: u64, handle: Option<u64>, reply: &mut Vec<u8>) -> Outcome {
        let attributes = self.tree.attributes(node, handle)?;
        self.answer_attributes(node, &attributes, reply)
    }

    /// `mask` and `flags` of the request ask for more or less work; the host's answer has everything anyway.
    pub(super) fn statx(&self, node: u64, handle: Option<u64>, reply: &mut Vec<u8>) -> Outcome {
        let attributes = self.tree.attributes(node, handle)?;
        device::fs::statx_out(
            reply,
            self.believed(&attributes),
            self.dax_flags(node, &attributes),
            &statx_attr(&attributes),
        );
        Ok(Answer::Reply)
    }

    pub(super) fn statfs(&self, node: u64, reply: &mut Vec<u8>) -> Outcome {
        let found = self.tree.statfs(node)?;
        let figures = StatFs {
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            block_size: found.f_bsize as u32,
            name_bytes_max: found.f_namemax as u32,
            fragment_size: found.f_frsize as u32,
        };
        device::fs::statfs_out(reply, &figures);
        Ok(Answer::Reply)
    }

    pub(super) fn set_attributes(
        &self,
        node: u64,
        handle: Option<u64>,
        change: &Change,
        reply: &mut Vec<u8>,
    ) -> Outcome {
        let attributes = self.tree.set_attributes(node, handle, change)?;
        self.answer_attributes(node, &attributes, reply)
    }

    pub(super) fn get_xattr(&self, node: u64, name: &CStr, size: u32, scene: &mut Scene<'_>) -> Outcome {
        self.need_xattr()?;
        let size = scene.room(device::fs::OUT_HEADER_BYTES, size);
        let length = self.tree.get_xattr(node, name, scene.reply, size)?;
        if size == 0 {
            device::fs::getxattr_out(scene.reply, length as u32);
        }
        Ok(Answer::Reply)
    }

    pub(super) fn list_xattr(&self, node: u64, size: u32, scene: &mut Scene<'_>) -> Outcome {
        self.need_xattr()?;
        let size = scene.room(device::fs::OUT_HEADER_BYTES, size);
        let length = self.tree.list_xattr(node, scene.reply, size)?;
        if size == 0 {
            device::fs::getxattr_out(scene.reply, length as u32);
        }
        Ok(Answer::Reply)
    }

    /// ENOSYS tells the guest once and for all, so that it stops asking.
    pub(super) fn need_xattr(&self) -> Result<(), Errno> {
        if self.policy.xattr { Ok(()) } else { Err(Errno::NOSYS) }
    }

    pub(super) fn ioctl(
        &self,
        handle: u64,
        command: u32,
        input: &[u8],
        out_size: u32,
        scene: &mut Scene<'_>,
    ) -> Outcome {
        let mut output = [0; FSXATTR_BYTES];
        let length = match command {
            FS_IOC_GETFLAGS | FS_IOC32_GETFLAGS => {
                output[..4].copy_from_slice(&self.tree.get_flags(handle)?.to_le_bytes());
                4
            }
            FS_IOC_SETFLAGS | FS_IOC32_SETFLAGS => {
                self.tree.set_flags(handle, word(input, 0)?)?;
                0
            }
            FS_IOC_FSGETXATTR => {
                let found = self.tree.get_fsxattr(handle)?;
                let words = [found.xflags, found.extent_size, found.extents, found.project, found.cow_extent_size];
                for (place, word) in output.chunks_exact_mut(4).zip(words) {
                    place.copy_from_slice(&word.to_le_bytes());
                }
                FSXATTR_BYTES
            }
            FS_IOC_FSSETXATTR => {
                let wanted = FsXattr {
                    xflags: word(input, 0)?,
                    extent_size: word(input, 4)?,
                    extents: word(input, 8)?,
                    project: word(input, 12)?,
                    cow_extent_size: word(input, 16)?,
                    padding: [0; 8],
                };
                self.tree.set_fsxattr(handle, wanted)?;
                0
            }
            _ => return Err(Errno::NOTTY),
        };
        if length > out_size as usize {
            return Err(Errno::INVAL);
        }
        device::fs::ioctl_out(scene.reply, 0, &output[..length]);
        Ok(Answer::Reply)
    }
}

fn statx_attr(attributes: &Attributes) -> StatxAttr {
    let time = |time: passthrough::Time| (time.seconds, time.nanoseconds);
    StatxAttr {
        mask: attributes.mask,
        blksize: attributes.block_size,
        attributes: attributes.flags,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        mode: attributes.mode as u16,
        ino: attributes.ino,
        size: attributes.size,
        blocks: attributes.blocks,
        // Which others the host's file system could have is not known here.
        attributes_mask: attributes.flags,
        atime: time(attributes.atime),
        btime: time(attributes.btime),
        ctime: time(attributes.ctime),
        mtime: time(attributes.mtime),
        rdev: attributes.rdev,
        dev: attributes.device,
    }
}

/// The little-endian word at `at`.
fn word(input: &[u8], at: usize) -> Result<u32, Errno> {
    let bytes = input.get(at..at + 4).ok_or(Errno::INVAL)?;
    bytes.try_into().map(u32::from_le_bytes).map_err(|_| Errno::INVAL)
}
