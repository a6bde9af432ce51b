//! Whose word counts about owners, permissions, types and devices: the host's inodes', or that of records the tree keeps for
//! its client.

/// Where the client's owners, permissions, file types and device numbers are kept. The names and the forms on disk are
/// those of QEMU's `security_model` (`hw/9pfs/9p-local.c`), so that either program serves what the other has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// In the host's inodes. Only a privileged daemon can give a file to whoever asks for it.
    #[default]
    Passthrough,
    /// In the host's inodes, and an owner that the daemon may not give is no error: the file is the daemon's then. Access
    /// control lists are not offered.
    None,
    /// In extended attributes `user.virtfs.uid`, `.gid`, `.mode` and `.rdev`, little-endian. Everything that the client
    /// makes is a regular file or a directory of the daemon's, which needs no privilege at all. Access control lists are
    /// kept in `user.virtfs.system.posix_acl_access` and `_default`, and are the client's to apply.
    MappedXattr {
        /// Permissions of files on the host, 0o777.
        fmode: u32,
        /// Permissions of directories on the host, 0o777.
        dmode: u32,
    },
    /// As [`Security::MappedXattr`], in a file `.virtfs_metadata/NAME` beside each name, and in `.virtfs_metadata_root` for
    /// the root. The client neither sees these names nor can use them. Access control lists are the host's.
    MappedFile {
        /// Permissions of files on the host, 0o777.
        fmode: u32,
        /// Permissions of directories on the host, 0o777.
        dmode: u32,
    },
}

impl Security {
    /// Permissions of files on the host beneath a mapped model, unless told otherwise: `rw-------`.
    pub const FMODE: u32 = 0o600;
    /// Permissions of directories on the host beneath a mapped model, unless told otherwise: `rwx------`.
    pub const DMODE: u32 = 0o700;

    /// What people call it: QEMU's names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Security::Passthrough => "passthrough",
            Security::None => "none",
            Security::MappedXattr { .. } => "mapped-xattr",
            Security::MappedFile { .. } => "mapped-file",
        }
    }

    /// Owners, permissions and types are records of the tree's.
    #[must_use]
    pub fn is_mapped(self) -> bool {
        matches!(self, Security::MappedXattr { .. } | Security::MappedFile { .. })
    }
}
