//! Kinds of FUSE requests, as figures tell them apart: by opcode.

use device::fs::Malformed;

/// The kind of requests that could not be read.
const MALFORMED: usize = 0;
/// The kind of requests that nobody here knows.
const UNSUPPORTED: usize = NAMES.len() - 1;

/// Names of the kinds: `enum fuse_opcode` of linux/fuse.h, without FUSE_ and in small letters, at the place of the opcode.
/// Numbers that no opcode has are empty and never counted.
pub(crate) const NAMES: [&str; 55] = [
    "malformed",
    "lookup",
    "forget",
    "getattr",
    "setattr",
    "readlink",
    "symlink",
    "",
    "mknod",
    "mkdir",
    "unlink",
    "rmdir",
    "rename",
    "link",
    "open",
    "read",
    "write",
    "statfs",
    "release",
    "",
    "fsync",
    "setxattr",
    "getxattr",
    "listxattr",
    "removexattr",
    "flush",
    "init",
    "opendir",
    "readdir",
    "releasedir",
    "fsyncdir",
    "getlk",
    "setlk",
    "setlkw",
    "access",
    "create",
    "interrupt",
    "bmap",
    "destroy",
    "ioctl",
    "poll",
    "notify_reply",
    "batch_forget",
    "fallocate",
    "readdirplus",
    "rename2",
    "lseek",
    "copy_file_range",
    "setupmapping",
    "removemapping",
    "syncfs",
    "tmpfile",
    "statx",
    "copy_file_range_64",
    "unsupported",
];

/// The kind of a request with this opcode.
#[inline]
pub(crate) fn of(opcode: u32) -> usize {
    match opcode as usize {
        known @ 1..UNSUPPORTED if !NAMES[known].is_empty() => known,
        _ => UNSUPPORTED,
    }
}

/// The kind of a request that could not be read.
pub(crate) fn of_malformed(malformed: &Malformed) -> usize {
    if malformed.reason == device::fs::Reason::UnknownOpcode { UNSUPPORTED } else { MALFORMED }
}
