//! How a tree is opened: what it allows, and how much of the host's resources it may hold.

use crate::{IdMap, Security, XattrMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;
pub use values::{FileHandles, MigrationMode, MigrationOnError};

/// What a tree allows and holds. The default is a writable tree with extended attributes of any name switched off.
#[derive(Clone, Debug)]
pub struct Options {
    /// Every modifying operation, and every open for writing, is `EROFS`.
    pub read_only: bool,
    /// No file is given a set-id bit or capabilities: bits are left out, capabilities are `EPERM`. Directories keep theirs.
    pub nosuid: bool,
    /// A device node is `EPERM`. A whiteout, which is a character device of number 0:0, is none.
    pub nodev: bool,
    /// Where owners, permissions and types are kept.
    pub security: Security,
    /// How nodes are held.
    pub file_handles: FileHandles,
    /// The most nodes, the root included, at least 1; a look-up beyond it is `ENFILE`. A node takes some 250 bytes, twice that
    /// with [`Security::MappedFile`], until the client forgets it, which a hostile one does not.
    pub nodes_max: usize,
    /// The most `O_PATH` descriptors held for nodes, at least 1. With file handles the least recently used are closed
    /// beyond it and opened again when needed; with [`FileHandles::Never`] a look-up beyond it is `ENFILE`. Whatever this says, and
    /// open files and locks with it, a tree leaves some of the process's limit to others (`RLIMIT_NOFILE`). A node whose
    /// record is kept beside its name ([`Security::MappedFile`]) holds its directory, too, and counts twice.
    pub descriptors_max: usize,
    /// The most open files and directories; an open beyond it is `ENFILE`.
    pub open_files_max: usize,
    /// Extended attributes. Without them every such call is `EOPNOTSUPP`.
    pub xattr: bool,
    /// Which attribute of the host stands for which of the client.
    pub xattr_map: XattrMap,
    /// The client knows POSIX ACLs: it sends modes unmasked with the caller's umask, which the kernel applies unless a
    /// default ACL says otherwise, and `system.posix_acl_*` may be read and written. For this a thread that creates files
    /// has a umask of its own, and with it a working directory of its own. Beneath a mapped model no ACL is applied to
    /// modes and to new files: it is for clients that do so themselves, as those of 9p do.
    pub posix_acl: bool,
    /// [`crate::Entry::submount`] tells where another mount begins.
    pub announce_submounts: bool,
    /// The client's user ids and the host's.
    pub uid_map: IdMap,
    /// The client's group ids and the host's.
    pub gid_map: IdMap,
    /// The client caches writes: it appends by itself, so `O_APPEND` is dropped when a file is opened, and reads what it
    /// writes, so `O_WRONLY` becomes `O_RDWR`.
    pub writeback: bool,
    /// `O_DIRECT` of the client is kept when a file is opened.
    pub allow_direct_io: bool,
    /// `O_NOATIME` of the client is kept when a file is opened.
    pub preserve_noatime: bool,
    /// Files that are read often in small pieces are mapped, so that such a read is no system call: on ext4, btrfs and
    /// tmpfs, within bounds, and where a copy survives that a file shrinks under it.
    pub read_windows: bool,
    /// How the tree goes along when its client is migrated.
    pub migration: Migration,
    /// For experiments: every operation first sleeps this long. Zero for none.
    pub delay: Duration,
}

/// How a tree and what its client knows of it go to another host, or come from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    /// What inodes are found by over there. A tree that is found by paths takes no file handles from anybody.
    pub mode: MigrationMode,
    /// What becomes of a migration that comes in, when something of it is not found here.
    pub on_error: MigrationOnError,
    /// File handles go along with paths, and what is found by a path has to have the same.
    pub verify_handles: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            nosuid: false,
            nodev: false,
            security: Security::default(),
            file_handles: FileHandles::default(),
            nodes_max: 1 << 24,
            descriptors_max: 4096,
            open_files_max: 65_536,
            xattr: false,
            xattr_map: XattrMap::default(),
            posix_acl: false,
            announce_submounts: true,
            uid_map: IdMap::default(),
            gid_map: IdMap::default(),
            writeback: false,
            allow_direct_io: false,
            preserve_noatime: false,
            read_windows: true,
            migration: Migration::default(),
            delay: Duration::ZERO,
        }
    }
}

/// Where a tree begins.
#[derive(Debug)]
pub enum Source {
    /// A directory by its name, with `/proc` mounted where it belongs.
    Path(PathBuf),
    /// A directory that was opened before the process entered a sandbox in which names mean something else.
    Opened {
        /// The directory, opened with `O_PATH` or for reading.
        root: OwnedFd,
        /// `/proc/self/fd` of this process, opened with `O_PATH`.
        proc_self_fd: OwnedFd,
        /// What to call it when speaking to people.
        label: PathBuf,
    },
}
