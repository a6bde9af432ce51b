//! Operations of the protocol (`enum fuse_opcode`).

/// Defines the enum, its table and its names together, so that none of them can miss one.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// An operation; the discriminant is its number on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Opcode {
            /// Every operation, in the order of the numbers.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$variant,)*];

            /// The operation of a number; `None` for one that this protocol does not have.
            #[inline]
            pub const fn from_raw(number: u32) -> Option<Opcode> {
                match number {
                    $($number => Some(Opcode::$variant),)*
                    _ => None,
                }
            }

            /// The operation's name as the header file spells it, in lower case; for figures and logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Opcode::$variant => $name,)*
                }
            }
        }
    };
}

opcodes! {
    /// Find a name in a directory; counts one reference.
    Lookup = 1, "lookup";
    /// Drop references of a node. Has no reply.
    Forget = 2, "forget";
    /// Read attributes.
    GetAttr = 3, "getattr";
    /// Change attributes.
    SetAttr = 4, "setattr";
    /// Read a symbolic link.
    ReadLink = 5, "readlink";
    /// Make a symbolic link.
    Symlink = 6, "symlink";
    /// Make a file of any type.
    Mknod = 8, "mknod";
    /// Make a directory.
    Mkdir = 9, "mkdir";
    /// Remove a name.
    Unlink = 10, "unlink";
    /// Remove a directory.
    Rmdir = 11, "rmdir";
    /// Rename.
    Rename = 12, "rename";
    /// Make a hard link.
    Link = 13, "link";
    /// Open a file.
    Open = 14, "open";
    /// Read from a file.
    Read = 15, "read";
    /// Write to a file.
    Write = 16, "write";
    /// Read the file system's figures.
    StatFs = 17, "statfs";
    /// Forget an open file.
    Release = 18, "release";
    /// Make a file durable.
    Fsync = 20, "fsync";
    /// Set an extended attribute.
    SetXattr = 21, "setxattr";
    /// Read an extended attribute.
    GetXattr = 22, "getxattr";
    /// List extended attributes.
    ListXattr = 23, "listxattr";
    /// Remove an extended attribute.
    RemoveXattr = 24, "removexattr";
    /// A descriptor of the file was closed.
    Flush = 25, "flush";
    /// Begin: versions and flags.
    Init = 26, "init";
    /// Open a directory.
    OpenDir = 27, "opendir";
    /// Read a directory's entries.
    ReadDir = 28, "readdir";
    /// Forget an open directory.
    ReleaseDir = 29, "releasedir";
    /// Make a directory durable.
    FsyncDir = 30, "fsyncdir";
    /// Ask for a lock in the way.
    GetLk = 31, "getlk";
    /// Set a lock or fail.
    SetLk = 32, "setlk";
    /// Set a lock, waiting for it.
    SetLkw = 33, "setlkw";
    /// Check permissions.
    Access = 34, "access";
    /// Make and open a file.
    Create = 35, "create";
    /// Interrupt a request. Has no reply.
    Interrupt = 36, "interrupt";
    /// Map a block of a file to one of the device.
    Bmap = 37, "bmap";
    /// End.
    Destroy = 38, "destroy";
    /// Device control.
    Ioctl = 39, "ioctl";
    /// Ask whether a file is ready.
    Poll = 40, "poll";
    /// The guest answers a notification.
    NotifyReply = 41, "notify_reply";
    /// Drop references of many nodes. Has no reply.
    BatchForget = 42, "batch_forget";
    /// Allocate or free space of a file.
    Fallocate = 43, "fallocate";
    /// Read a directory's entries and look them up.
    ReadDirPlus = 44, "readdirplus";
    /// Rename, with flags.
    Rename2 = 45, "rename2";
    /// Find data or a hole.
    Lseek = 46, "lseek";
    /// Copy between files; the reply counts in 32 bits.
    CopyFileRange = 47, "copy_file_range";
    /// Map a file into the DAX window.
    SetupMapping = 48, "setupmapping";
    /// Take mappings out of the DAX window.
    RemoveMapping = 49, "removemapping";
    /// Make a file system durable (7.34).
    SyncFs = 50, "syncfs";
    /// Make a file without a name (7.37).
    TmpFile = 51, "tmpfile";
    /// Read extended attributes of statx(2) (7.39).
    Statx = 52, "statx";
    /// Copy between files; the reply counts in 64 bits (7.45).
    CopyFileRange64 = 53, "copy_file_range_64";
}

impl Opcode {
    /// One more than the largest number: the length of a table indexed by [`Opcode::number`].
    pub const NUMBERS: usize = 54;

    /// The number on the wire, below [`Opcode::NUMBERS`].
    #[inline]
    pub const fn number(self) -> usize {
        self as usize
    }

    /// Whether the guest expects a reply. An operation without one has no writable buffer either, whatever went wrong with it.
    #[inline]
    pub const fn has_reply(self) -> bool {
        !matches!(self, Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply)
    }
}
