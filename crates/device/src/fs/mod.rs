//! virtio-fs (virtio 1.3, section 5.11) and the FUSE protocol that it carries: configuration space, request decoding, and the
//! bytes of an answer.
//!
//! A chain is a request in the readable part and room for its answer in the writable one; operations without an answer have no
//! writable part. The caller copies the request's front out of guest memory, as much as [`bytes_wanted`] says, and decodes it: a
//! WRITE's data, which comes last, stays where it is. The answer is [`out_header`], and behind it what an encoder appended or the
//! bytes that were read.

mod attr;
mod config;
mod decode;
mod dialect;
mod dirent;
mod extensions;
mod forgets;
mod header;
mod init;
mod malformed;
mod mapping;
mod reply;
mod request;
pub mod spec;
mod time;
mod wire;

pub use attr::{Attr, EntryOut, StatFs, StatxAttr};
pub use config::{CONFIG_READ_MAX, Config, ConfigError};
pub use decode::{REQUEST_BYTES_MAX, WRITE_HEAD_BYTES, bytes_wanted, decode};
pub use dialect::Dialect;
pub use dirent::DirWriter;
pub use extensions::{Extensions, Groups, SecurityContext, SecurityContexts};
pub use forgets::Forgets;
pub use header::{InHeader, out_header};
pub use init::{Agreement, NotSpoken, Offer, TooOld, may_speak, negotiate};
pub use malformed::{Malformed, Reason};
pub use mapping::{RemoveMappings, SetupMapping};
pub use reply::{
    attr_out, copy_file_range_out, create_out, device_number, device_parts, entry_out, getxattr_out, ioctl_out, lk_out,
    lseek_out, open_out, poll_out, statfs_out, statx_out, write_out,
};
pub use request::{
    CopyFileRange, Create, Fallocate, Fsync, Init, Ioctl, LkRequest, Lseek, Mkdir, Mknod, Open, Poll, Read, ReadDir,
    Release, Rename, Request, SetAttr, SetXattr, Statx, Symlink, Write,
};
pub use spec::{
    GROUPS_MAX, IN_HEADER_BYTES, MINOR_MAX, MINOR_MIN, OUT_HEADER_BYTES, Opcode, ROOT_ID, attr_flag, flags, lock_type,
    open_flags,
};
pub use time::{SetTime, Time};
