//! Why a tree cannot be opened, in words that name the fix. Operations answer with [`rustix::io::Errno`] alone: it is what
//! every client of a tree speaks.

use rustix::io::Errno;
use std::path::PathBuf;

/// What an operation on a tree answers.
pub type Result<T> = std::result::Result<T, Errno>;

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum OpenError {
    /// cannot open {path:?}: {source}; name an existing directory that the daemon may enter
    Root {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: Errno,
    },
    /// {path:?} is neither a directory nor a regular file; name a directory
    Kind {
        /// What was named.
        path: PathBuf,
    },
    /// cannot open /proc/self/fd to serve {path:?}: {source}; mount procfs on /proc
    Proc {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: Errno,
    },
    /// {path:?} cannot be served by file handles: {source}; give the daemon CAP_DAC_READ_SEARCH, or let file handles be `prefer` or `never`
    FileHandles {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: Errno,
    },
    /// {path:?} cannot be migrated by file handles: {source}; give the daemon CAP_DAC_READ_SEARCH, or let migration_mode be `find-paths`
    MigrationHandles {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: Errno,
    },
    /// {path:?} has no extended attributes of users, where mapped-xattr keeps owners and permissions; use mapped-file
    MappedXattr {
        /// The directory.
        path: PathBuf,
    },
    /// {path:?} is a file, and mapped-file keeps owners and permissions beside the names in a directory; serve its directory
    MappedFile {
        /// The file.
        path: PathBuf,
    },
    /// no nodes, no descriptors or no open files are allowed for {path:?}; set nodes_max, descriptors_max and open_files_max to 1 or more
    Limits {
        /// The directory.
        path: PathBuf,
    },
}
