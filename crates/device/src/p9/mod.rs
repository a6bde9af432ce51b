//! 9P2000.L and 9P2000.u, over virtio (device 9) and over streams: configuration space, request decoding, and the bytes of an
//! answer.
//!
//! A message is a header, which has its size, and fields. The caller brings the request's front, as much as [`bytes_wanted`]
//! says, and decodes it: a write's data, which comes last, stays where it is. The answer is [`reply_header`] of
//! [`reply_kind`] or [`error_kind`], and behind it what an encoder appended or the bytes that were read. Over virtio, a chain is a
//! request in the readable part and room for its answer in the writable one.

mod attr;
mod config;
mod decode;
mod dialect;
mod dirent;
mod ename;
mod header;
mod malformed;
mod names;
mod reply;
mod request;
pub mod spec;
mod stat;
mod wire;

pub use crate::fs::{SetTime, Time, device_number, device_parts};
pub use attr::{Attr, Qid, StatFs};
pub use config::{CONFIG_READ_MAX, Config, ConfigError};
pub use decode::{REQUEST_BYTES_MAX, bytes_wanted, decode};
pub use dialect::Dialect;
pub use dirent::DirWriter;
pub use header::{Header, error_kind, reply_header, reply_kind};
pub use malformed::{Malformed, Reason};
pub use names::Names;
pub use reply::{
    error_out, getattr_out, getlock_out, lock_out, open_out, qid_out, read_count_out, readlink_out, stat_out,
    statfs_out, version_out, walk_out, write_out, xattrwalk_out,
};
pub use request::{
    Attach, Auth, Create, GetLock, Lcreate, LockKind, LockRequest, Mkdir, Mknod, RenameAt, Request, SetAttr, Symlink,
    XattrCreate,
};
pub use spec::{
    HEADER_BYTES, IO_HEADER_BYTES, Kind, MSIZE_MAX, MSIZE_MIN, NOFID, NONUNAME, NOTAG, READ_HEAD_BYTES, WALK_NAMES_MAX,
    WRITE_HEAD_BYTES, getattr_mask, lock_flag, lock_status, open_flag, open_mode, perm, qid_type, unlink_flag,
    xattr_flag,
};
pub use stat::Stat;
