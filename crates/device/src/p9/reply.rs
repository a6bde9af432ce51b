//! From results to the bytes of a reply, without the header. Each function appends one body.
//!
//! `Rflush`, `Rclunk`, `Rremove`, `Rrename`, `Rrenameat`, `Rsetattr`, `Rxattrcreate`, `Rfsync`, `Rlink`, `Runlinkat` and `Rwstat`
//! have none.

use super::attr::{Attr, Qid, StatFs};
use super::dialect::Dialect;
use super::ename::ename;
use super::request::GetLock;
use super::spec::QID_BYTES;
use super::stat::Stat;
use super::wire::put_string;
use crate::wire::put;

/// `Rversion`: the message size in bytes and the dialect; [`Dialect::Unknown`] refuses.
pub fn version_out(out: &mut Vec<u8>, msize: u32, dialect: Dialect) {
    out.extend_from_slice(&msize.to_le_bytes());
    put_string(out, dialect.version().as_bytes());
}

/// One qid: `Rattach`, and with it `Rsymlink`, `Rmknod` and `Rmkdir`.
#[inline]
pub fn qid_out(out: &mut Vec<u8>, qid: Qid) {
    out.extend_from_slice(&qid.encode());
}

/// `Rwalk`: a qid for each name that was found. A request has at most 16 names.
pub fn walk_out(out: &mut Vec<u8>, qids: &[Qid]) {
    let qids = qids.get(..super::WALK_NAMES_MAX).unwrap_or(qids);
    out.extend_from_slice(&(qids.len() as u16).to_le_bytes());
    qids.iter().for_each(|qid| qid_out(out, *qid));
}

/// `Rlopen`, `Rlcreate`, `Ropen` and `Rcreate`: the file and the most bytes of a read or a write that is done at once; 0 leaves
/// that to the message size.
#[inline]
pub fn open_out(out: &mut Vec<u8>, qid: Qid, iounit: u32) {
    let mut bytes = [0; QID_BYTES + 4];
    put::<0, _, _>(&mut bytes, qid.encode());
    put::<QID_BYTES, _, _>(&mut bytes, iounit.to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// `Rgetattr`.
#[inline]
pub fn getattr_out(out: &mut Vec<u8>, attr: &Attr) {
    out.extend_from_slice(&attr.encode());
}

/// `Rstatfs`.
pub fn statfs_out(out: &mut Vec<u8>, statfs: &StatFs) {
    out.extend_from_slice(&statfs.encode());
}

/// `Rreadlink`: where the link points to, at most 4095 bytes.
pub fn readlink_out(out: &mut Vec<u8>, target: &[u8]) {
    put_string(out, target);
}

/// `Rxattrwalk`: bytes of the value, or of the list of names.
pub fn xattrwalk_out(out: &mut Vec<u8>, size: u64) {
    out.extend_from_slice(&size.to_le_bytes());
}

/// `Rlock`: one of [`lock_status`](super::lock_status).
pub fn lock_out(out: &mut Vec<u8>, status: u8) {
    out.push(status);
}

/// `Rgetlock`.
pub fn getlock_out(out: &mut Vec<u8>, lock: &GetLock<'_>) {
    out.push(lock.kind as u8);
    out.extend_from_slice(&lock.start.to_le_bytes());
    out.extend_from_slice(&lock.length.to_le_bytes());
    out.extend_from_slice(&lock.proc_id.to_le_bytes());
    put_string(out, lock.client_id);
}

/// What stands before the data of an `Rread` and an `Rreaddir`: its length in bytes.
#[inline]
pub fn read_count_out(out: &mut Vec<u8>, count: u32) {
    out.extend_from_slice(&count.to_le_bytes());
}

/// `Rwrite`: bytes written.
#[inline]
pub fn write_out(out: &mut Vec<u8>, count: u32) {
    out.extend_from_slice(&count.to_le_bytes());
}

/// `Rstat` (9P2000.u): the attributes behind their length.
pub fn stat_out(out: &mut Vec<u8>, stat: &Stat<'_>) {
    // Strings are cut off before this could have more than 16 bits.
    out.extend_from_slice(&(stat.bytes() as u16).to_le_bytes());
    stat.encode(out);
}

/// The body of a reply that says why a request failed, of type [`error_kind`](super::error_kind). `errno` is positive. Until a
/// dialect is agreed on, that is a name alone, as of plain 9P2000.
pub fn error_out(out: &mut Vec<u8>, dialect: Dialect, errno: i32) {
    if dialect != Dialect::L {
        put_string(out, ename(errno).as_bytes());
    }
    if dialect != Dialect::Unknown {
        out.extend_from_slice(&errno.to_le_bytes());
    }
}
