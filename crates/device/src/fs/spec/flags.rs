//! Flags of INIT (`FUSE_*`), as one 64-bit number: `flags` is the low half, `flags2` the high one.
//!
//! The guest says which it knows, the reply which are on. "Kernel" is the guest's.

/// Several reads of one file may be under way at once.
pub const ASYNC_READ: u64 = 1 << 0;
/// POSIX locks are the server's (GETLK, SETLK, SETLKW); otherwise they hold in one guest alone.
pub const POSIX_LOCKS: u64 = 1 << 1;
/// Unused by every kernel.
pub const FILE_OPS: u64 = 1 << 2;
/// OPEN carries `O_TRUNC`, instead of a SETATTR that follows it.
pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
/// The server looks "." and ".." up, so that the guest can export the file system by NFS.
pub const EXPORT_SUPPORT: u64 = 1 << 4;
/// Writes may be longer than 4 KiB.
pub const BIG_WRITES: u64 = 1 << 5;
/// The kernel does not apply the umask to new files; the server does, or an ACL.
pub const DONT_MASK: u64 = 1 << 6;
/// The kernel can splice replies out of `/dev/fuse`; meaningless over virtio.
pub const SPLICE_WRITE: u64 = 1 << 7;
/// The kernel can move pages when it splices; meaningless over virtio.
pub const SPLICE_MOVE: u64 = 1 << 8;
/// The kernel can splice requests into `/dev/fuse`; meaningless over virtio.
pub const SPLICE_READ: u64 = 1 << 9;
/// flock(2) locks are the server's.
pub const FLOCK_LOCKS: u64 = 1 << 10;
/// Directories have ioctls, too.
pub const HAS_IOCTL_DIR: u64 = 1 << 11;
/// Cached pages go when size or modification time of the file changed.
pub const AUTO_INVAL_DATA: u64 = 1 << 12;
/// READDIRPLUS is used.
pub const DO_READDIRPLUS: u64 = 1 << 13;
/// READDIRPLUS is used where the entries are probably looked up next, READDIR otherwise. Needs [`DO_READDIRPLUS`].
pub const READDIRPLUS_AUTO: u64 = 1 << 14;
/// Direct I/O is sent off without waiting for each part.
pub const ASYNC_DIO: u64 = 1 << 15;
/// The kernel caches writes, sizes and times, and writes back later.
pub const WRITEBACK_CACHE: u64 = 1 << 16;
/// ENOSYS to OPEN means that files need not be opened at all.
pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
/// Look-ups and reads of one directory may be under way at once.
pub const PARALLEL_DIROPS: u64 = 1 << 18;
/// The server takes set-id bits and capabilities away at write, truncate and chown. See [`HANDLE_KILLPRIV_V2`].
pub const HANDLE_KILLPRIV: u64 = 1 << 19;
/// The kernel enforces POSIX ACLs that the server stores; implies [`DONT_MASK`] where a default ACL exists.
pub const POSIX_ACL: u64 = 1 << 20;
/// Reading `/dev/fuse` after an abort says so; meaningless over virtio.
pub const ABORT_ERROR: u64 = 1 << 21;
/// `max_pages` of the reply holds the most pages of a request.
pub const MAX_PAGES: u64 = 1 << 22;
/// Targets of symbolic links are cached.
pub const CACHE_SYMLINKS: u64 = 1 << 23;
/// ENOSYS to OPENDIR means that directories need not be opened at all.
pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
/// Cached pages go only when the server says so; excludes [`AUTO_INVAL_DATA`].
pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
/// `map_alignment` of the reply holds the alignment of DAX mappings.
pub const MAP_ALIGNMENT: u64 = 1 << 26;
/// The kernel mounts the root of a sub-mount apart when the attributes say so.
pub const SUBMOUNTS: u64 = 1 << 27;
/// The server takes set-id bits and capabilities away, and the request says when (the writer lacks `CAP_FSETID`).
pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
/// SETXATTR has the long form of its structure, with flags of its own.
pub const SETXATTR_EXT: u64 = 1 << 29;
/// INIT has the long form of its structures, with the upper 32 flags.
pub const INIT_EXT: u64 = 1 << 30;
/// Reserved, never to be used.
pub const INIT_RESERVED: u64 = 1 << 31;
/// Requests that make files carry the new file's security label.
pub const SECURITY_CTX: u64 = 1 << 32;
/// The server says for each file whether it is accessed through DAX.
pub const HAS_INODE_DAX: u64 = 1 << 33;
/// Requests that make files carry the supplementary group that owns the directory, when the caller is in it.
pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
/// A notification may expire a directory entry instead of dropping it.
pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
/// Files opened with [`DIRECT_IO`](super::open_flags::DIRECT_IO) can be mapped shared.
pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
/// Files can be read and written in the kernel, without the server; meaningless over virtio.
pub const PASSTHROUGH: u64 = 1 << 37;
/// The file system cannot be exported by NFS at all.
pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
/// Requests can be sent again after the server restarted; meaningless over virtio.
pub const HAS_RESEND: u64 = 1 << 39;
/// Mounts with mapped ids may be made; requests that make files then carry mapped ids, others may carry none.
pub const ALLOW_IDMAP: u64 = 1 << 40;
/// Requests travel through io_uring; meaningless over virtio.
pub const OVER_IO_URING: u64 = 1 << 41;
/// `request_timeout` of the reply holds how long the kernel waits for an answer.
pub const REQUEST_TIMEOUT: u64 = 1 << 42;

/// Every flag of protocol 7.45.
pub const ALL: u64 = ((1 << 43) - 1) & !INIT_RESERVED;

/// Flags that make sense only for a server that reads `/dev/fuse` on the guest's own kernel. They are never granted.
pub const NEVER: u64 = FILE_OPS
    | SPLICE_WRITE
    | SPLICE_MOVE
    | SPLICE_READ
    | ABORT_ERROR
    | INIT_RESERVED
    | PASSTHROUGH
    | HAS_RESEND
    | OVER_IO_URING;
