//! The protocol's numbers, against the kernel's.

use crate::fs::vectors::{FLAGS, INIT_FLAGS, OPCODES};
use device::fs::spec::{
    attr_flag, extension, flags, fsync_flag, getattr_flag, ioctl_flag, lock_flag, open_flags, open_request, poll_flag,
    read_flag, release_flag, setattr_valid, setxattr_flag, write_flag,
};
use device::fs::{Opcode, ROOT_ID};

#[test]
fn operations_have_the_kernel_s_numbers_and_names() {
    let ours: Vec<(String, u64)> =
        Opcode::ALL.iter().map(|op| (format!("FUSE_{}", op.name().to_uppercase()), op.number() as u64)).collect();
    let theirs: Vec<(String, u64)> = OPCODES.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect();
    assert_eq!(ours, theirs);
    for number in 0..=100 {
        let known = theirs.iter().any(|(_, theirs)| *theirs == u64::from(number));
        assert_eq!(Opcode::from_raw(number).map(Opcode::number), known.then_some(number as usize));
    }
    assert!(Opcode::ALL.iter().all(|op| op.number() < Opcode::NUMBERS));
    // CUSE_INIT, and FUSE_INIT with its bytes the other way around.
    assert_eq!([4096, 436_207_616, u32::MAX].map(Opcode::from_raw), [None; 3]);
}

#[test]
fn flags_of_init_have_the_kernel_s_numbers() {
    let ours = [
        ("FUSE_ASYNC_READ", flags::ASYNC_READ),
        ("FUSE_POSIX_LOCKS", flags::POSIX_LOCKS),
        ("FUSE_FILE_OPS", flags::FILE_OPS),
        ("FUSE_ATOMIC_O_TRUNC", flags::ATOMIC_O_TRUNC),
        ("FUSE_EXPORT_SUPPORT", flags::EXPORT_SUPPORT),
        ("FUSE_BIG_WRITES", flags::BIG_WRITES),
        ("FUSE_DONT_MASK", flags::DONT_MASK),
        ("FUSE_SPLICE_WRITE", flags::SPLICE_WRITE),
        ("FUSE_SPLICE_MOVE", flags::SPLICE_MOVE),
        ("FUSE_SPLICE_READ", flags::SPLICE_READ),
        ("FUSE_FLOCK_LOCKS", flags::FLOCK_LOCKS),
        ("FUSE_HAS_IOCTL_DIR", flags::HAS_IOCTL_DIR),
        ("FUSE_AUTO_INVAL_DATA", flags::AUTO_INVAL_DATA),
        ("FUSE_DO_READDIRPLUS", flags::DO_READDIRPLUS),
        ("FUSE_READDIRPLUS_AUTO", flags::READDIRPLUS_AUTO),
        ("FUSE_ASYNC_DIO", flags::ASYNC_DIO),
        ("FUSE_WRITEBACK_CACHE", flags::WRITEBACK_CACHE),
        ("FUSE_NO_OPEN_SUPPORT", flags::NO_OPEN_SUPPORT),
        ("FUSE_PARALLEL_DIROPS", flags::PARALLEL_DIROPS),
        ("FUSE_HANDLE_KILLPRIV", flags::HANDLE_KILLPRIV),
        ("FUSE_POSIX_ACL", flags::POSIX_ACL),
        ("FUSE_ABORT_ERROR", flags::ABORT_ERROR),
        ("FUSE_MAX_PAGES", flags::MAX_PAGES),
        ("FUSE_CACHE_SYMLINKS", flags::CACHE_SYMLINKS),
        ("FUSE_NO_OPENDIR_SUPPORT", flags::NO_OPENDIR_SUPPORT),
        ("FUSE_EXPLICIT_INVAL_DATA", flags::EXPLICIT_INVAL_DATA),
        ("FUSE_MAP_ALIGNMENT", flags::MAP_ALIGNMENT),
        ("FUSE_SUBMOUNTS", flags::SUBMOUNTS),
        ("FUSE_HANDLE_KILLPRIV_V2", flags::HANDLE_KILLPRIV_V2),
        ("FUSE_SETXATTR_EXT", flags::SETXATTR_EXT),
        ("FUSE_INIT_EXT", flags::INIT_EXT),
        ("FUSE_INIT_RESERVED", flags::INIT_RESERVED),
        ("FUSE_SECURITY_CTX", flags::SECURITY_CTX),
        ("FUSE_HAS_INODE_DAX", flags::HAS_INODE_DAX),
        ("FUSE_CREATE_SUPP_GROUP", flags::CREATE_SUPP_GROUP),
        ("FUSE_HAS_EXPIRE_ONLY", flags::HAS_EXPIRE_ONLY),
        ("FUSE_DIRECT_IO_ALLOW_MMAP", flags::DIRECT_IO_ALLOW_MMAP),
        ("FUSE_PASSTHROUGH", flags::PASSTHROUGH),
        ("FUSE_NO_EXPORT_SUPPORT", flags::NO_EXPORT_SUPPORT),
        ("FUSE_HAS_RESEND", flags::HAS_RESEND),
        ("FUSE_ALLOW_IDMAP", flags::ALLOW_IDMAP),
        ("FUSE_OVER_IO_URING", flags::OVER_IO_URING),
        ("FUSE_REQUEST_TIMEOUT", flags::REQUEST_TIMEOUT),
    ];
    assert_eq!(ours, INIT_FLAGS);
    assert_eq!(flags::ALL | flags::INIT_RESERVED, INIT_FLAGS.iter().fold(0, |all, (_, flag)| all | flag));
}

#[test]
fn other_flags_have_the_kernel_s_numbers() {
    let ours = [
        ("FATTR_MODE", setattr_valid::MODE),
        ("FATTR_UID", setattr_valid::UID),
        ("FATTR_GID", setattr_valid::GID),
        ("FATTR_SIZE", setattr_valid::SIZE),
        ("FATTR_ATIME", setattr_valid::ATIME),
        ("FATTR_MTIME", setattr_valid::MTIME),
        ("FATTR_FH", setattr_valid::FH),
        ("FATTR_ATIME_NOW", setattr_valid::ATIME_NOW),
        ("FATTR_MTIME_NOW", setattr_valid::MTIME_NOW),
        ("FATTR_LOCKOWNER", setattr_valid::LOCKOWNER),
        ("FATTR_CTIME", setattr_valid::CTIME),
        ("FATTR_KILL_SUIDGID", setattr_valid::KILL_SUIDGID),
        ("FOPEN_DIRECT_IO", open_flags::DIRECT_IO),
        ("FOPEN_KEEP_CACHE", open_flags::KEEP_CACHE),
        ("FOPEN_NONSEEKABLE", open_flags::NONSEEKABLE),
        ("FOPEN_CACHE_DIR", open_flags::CACHE_DIR),
        ("FOPEN_STREAM", open_flags::STREAM),
        ("FOPEN_NOFLUSH", open_flags::NOFLUSH),
        ("FOPEN_PARALLEL_DIRECT_WRITES", open_flags::PARALLEL_DIRECT_WRITES),
        ("FOPEN_PASSTHROUGH", open_flags::PASSTHROUGH),
        ("FUSE_OPEN_KILL_SUIDGID", open_request::KILL_SUIDGID),
        ("FUSE_RELEASE_FLUSH", release_flag::FLUSH),
        ("FUSE_RELEASE_FLOCK_UNLOCK", release_flag::FLOCK_UNLOCK),
        ("FUSE_GETATTR_FH", getattr_flag::FH),
        ("FUSE_LK_FLOCK", lock_flag::FLOCK),
        ("FUSE_WRITE_CACHE", write_flag::CACHE),
        ("FUSE_WRITE_LOCKOWNER", write_flag::LOCKOWNER),
        ("FUSE_WRITE_KILL_SUIDGID", write_flag::KILL_SUIDGID),
        ("FUSE_READ_LOCKOWNER", read_flag::LOCKOWNER),
        ("FUSE_IOCTL_COMPAT", ioctl_flag::COMPAT),
        ("FUSE_IOCTL_UNRESTRICTED", ioctl_flag::UNRESTRICTED),
        ("FUSE_IOCTL_RETRY", ioctl_flag::RETRY),
        ("FUSE_IOCTL_32BIT", ioctl_flag::BITS_32),
        ("FUSE_IOCTL_DIR", ioctl_flag::DIR),
        ("FUSE_IOCTL_COMPAT_X32", ioctl_flag::COMPAT_X32),
        ("FUSE_POLL_SCHEDULE_NOTIFY", poll_flag::SCHEDULE_NOTIFY),
        ("FUSE_FSYNC_FDATASYNC", fsync_flag::FDATASYNC),
        ("FUSE_ATTR_SUBMOUNT", attr_flag::SUBMOUNT),
        ("FUSE_ATTR_DAX", attr_flag::DAX),
        ("FUSE_SETXATTR_ACL_KILL_SGID", setxattr_flag::ACL_KILL_SGID),
        ("FUSE_MAX_NR_SECCTX", extension::SECURITY_CONTEXTS_MAX),
        ("FUSE_EXT_GROUPS", extension::GROUPS),
    ]
    .map(|(name, number)| (name, u64::from(number)));
    assert_eq!([&ours[..], &[("FUSE_ROOT_ID", ROOT_ID)]].concat(), FLAGS);
}
