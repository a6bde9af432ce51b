//! From results to the bytes of a reply, without the header. Each function appends one structure.

use super::attr::{Attr, EntryOut, StatFs, StatxAttr};
use super::spec::{ATTR_OUT_BYTES, ENTRY_OUT_BYTES, INIT_OUT_BYTES, OPEN_OUT_BYTES, STATFS_OUT_BYTES, STATX_OUT_BYTES};
use super::wire::put;
use std::time::Duration;

/// A device number as the kernel packs it into 32 bits (`new_encode_dev` of `linux/kdev_t.h`): 12 bits of major, 20 of minor.
#[inline]
pub const fn device_number(major: u32, minor: u32) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Major and minor of a packed device number (`new_decode_dev`).
#[inline]
pub const fn device_parts(number: u32) -> (u32, u32) {
    (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00)
}

/// `fuse_attr_out`: how long the attributes may be believed, and the attributes.
#[inline]
pub fn attr_out(out: &mut Vec<u8>, valid: Duration, attr: &Attr) {
    let mut bytes = [0; ATTR_OUT_BYTES];
    put::<0, _, _>(&mut bytes, valid.as_secs().to_le_bytes());
    put::<8, _, _>(&mut bytes, valid.subsec_nanos().to_le_bytes());
    put::<16, _, _>(&mut bytes, attr.encode());
    out.extend_from_slice(&bytes);
}

/// `fuse_entry_out`.
#[inline]
pub fn entry_out(out: &mut Vec<u8>, entry: &EntryOut) {
    out.extend_from_slice(&encode_entry(entry));
}

#[inline]
pub(super) fn encode_entry(entry: &EntryOut) -> [u8; ENTRY_OUT_BYTES] {
    let mut bytes = [0; ENTRY_OUT_BYTES];
    put::<0, _, _>(&mut bytes, entry.nodeid.to_le_bytes());
    put::<8, _, _>(&mut bytes, entry.generation.to_le_bytes());
    put::<16, _, _>(&mut bytes, entry.entry_valid.as_secs().to_le_bytes());
    put::<24, _, _>(&mut bytes, entry.attr_valid.as_secs().to_le_bytes());
    put::<32, _, _>(&mut bytes, entry.entry_valid.subsec_nanos().to_le_bytes());
    put::<36, _, _>(&mut bytes, entry.attr_valid.subsec_nanos().to_le_bytes());
    put::<40, _, _>(&mut bytes, entry.attr.encode());
    bytes
}

/// `fuse_open_out`, also of OPENDIR. `flags` are [`open_flags`](super::open_flags).
#[inline]
pub fn open_out(out: &mut Vec<u8>, fh: u64, flags: u32) {
    let mut bytes = [0; OPEN_OUT_BYTES];
    put::<0, _, _>(&mut bytes, fh.to_le_bytes());
    put::<8, _, _>(&mut bytes, flags.to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// The answer to CREATE and TMPFILE: `fuse_entry_out` and `fuse_open_out`.
pub fn create_out(out: &mut Vec<u8>, entry: &EntryOut, fh: u64, flags: u32) {
    entry_out(out, entry);
    open_out(out, fh, flags);
}

/// `fuse_write_out`: bytes written, or copied by COPY_FILE_RANGE.
#[inline]
pub fn write_out(out: &mut Vec<u8>, size: u32) {
    pair(out, size, 0);
}

/// `fuse_copy_file_range_out`: bytes copied by COPY_FILE_RANGE_64.
pub fn copy_file_range_out(out: &mut Vec<u8>, bytes_copied: u64) {
    out.extend_from_slice(&bytes_copied.to_le_bytes());
}

/// `fuse_getxattr_out`: the length of a value or list that was asked for with size 0.
pub fn getxattr_out(out: &mut Vec<u8>, size: u32) {
    pair(out, size, 0);
}

/// `fuse_statfs_out`.
pub fn statfs_out(out: &mut Vec<u8>, statfs: &StatFs) {
    let mut bytes = [0; STATFS_OUT_BYTES];
    put::<0, _, _>(&mut bytes, statfs.blocks.to_le_bytes());
    put::<8, _, _>(&mut bytes, statfs.blocks_free.to_le_bytes());
    put::<16, _, _>(&mut bytes, statfs.blocks_available.to_le_bytes());
    put::<24, _, _>(&mut bytes, statfs.files.to_le_bytes());
    put::<32, _, _>(&mut bytes, statfs.files_free.to_le_bytes());
    put::<40, _, _>(&mut bytes, statfs.block_size.to_le_bytes());
    put::<44, _, _>(&mut bytes, statfs.name_bytes_max.to_le_bytes());
    put::<48, _, _>(&mut bytes, statfs.fragment_size.to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// `fuse_statx_out`: how long the attributes may be believed, [`attr_flag`](super::spec::attr_flag)s, and the attributes.
pub fn statx_out(out: &mut Vec<u8>, valid: Duration, flags: u32, attr: &StatxAttr) {
    let mut bytes = [0; STATX_OUT_BYTES];
    put::<0, _, _>(&mut bytes, valid.as_secs().to_le_bytes());
    put::<8, _, _>(&mut bytes, valid.subsec_nanos().to_le_bytes());
    put::<12, _, _>(&mut bytes, flags.to_le_bytes());
    put::<32, _, _>(&mut bytes, attr.encode());
    out.extend_from_slice(&bytes);
}

/// `fuse_lk_out`: the lock in the way, or one of type [`UNLOCK`](super::spec::lock_type::UNLOCK). `end` is the last byte,
/// `i64::MAX` = the end of the file; `kind` is a [`lock_type`](super::spec::lock_type).
pub fn lk_out(out: &mut Vec<u8>, start: u64, end: u64, kind: u32, pid: u32) {
    let mut bytes = [0; 24];
    put::<0, _, _>(&mut bytes, start.to_le_bytes());
    put::<8, _, _>(&mut bytes, end.to_le_bytes());
    put::<16, _, _>(&mut bytes, kind.to_le_bytes());
    put::<20, _, _>(&mut bytes, pid.to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// `fuse_lseek_out`.
pub fn lseek_out(out: &mut Vec<u8>, offset: u64) {
    out.extend_from_slice(&offset.to_le_bytes());
}

/// `fuse_ioctl_out` and what goes to the caller's memory. `result` is what ioctl(2) returns.
pub fn ioctl_out(out: &mut Vec<u8>, result: i32, output: &[u8]) {
    // No flags, no vectors: nothing here asks the guest to try again.
    let mut bytes = [0; 16];
    put::<0, _, _>(&mut bytes, result.to_le_bytes());
    out.extend_from_slice(&bytes);
    out.extend_from_slice(output);
}

/// `fuse_poll_out`: `POLL*` of poll(2) that are so.
pub fn poll_out(out: &mut Vec<u8>, revents: u32) {
    pair(out, revents, 0);
}

/// `fuse_init_out`, field by field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InitOut {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) max_readahead: u32,
    pub(super) flags: u64,
    pub(super) max_background: u16,
    pub(super) congestion_threshold: u16,
    pub(super) max_write: u32,
    pub(super) time_gran: u32,
    pub(super) max_pages: u16,
    pub(super) map_alignment: u16,
    pub(super) request_timeout: u16,
}

pub(super) fn init_out(out: &mut Vec<u8>, init: &InitOut) {
    let mut bytes = [0; INIT_OUT_BYTES];
    put::<0, _, _>(&mut bytes, init.major.to_le_bytes());
    put::<4, _, _>(&mut bytes, init.minor.to_le_bytes());
    put::<8, _, _>(&mut bytes, init.max_readahead.to_le_bytes());
    // The low half of the flags, here, and the high one.
    put::<12, _, _>(&mut bytes, (init.flags as u32).to_le_bytes());
    put::<16, _, _>(&mut bytes, init.max_background.to_le_bytes());
    put::<18, _, _>(&mut bytes, init.congestion_threshold.to_le_bytes());
    put::<20, _, _>(&mut bytes, init.max_write.to_le_bytes());
    put::<24, _, _>(&mut bytes, init.time_gran.to_le_bytes());
    put::<28, _, _>(&mut bytes, init.max_pages.to_le_bytes());
    put::<30, _, _>(&mut bytes, init.map_alignment.to_le_bytes());
    put::<32, _, _>(&mut bytes, ((init.flags >> 32) as u32).to_le_bytes());
    put::<40, _, _>(&mut bytes, init.request_timeout.to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// Two 32-bit fields.
#[inline]
fn pair(out: &mut Vec<u8>, first: u32, second: u32) {
    let mut bytes = [0; 8];
    put::<0, _, _>(&mut bytes, first.to_le_bytes());
    put::<4, _, _>(&mut bytes, second.to_le_bytes());
    out.extend_from_slice(&bytes);
}
