//! What can go wrong, in words that name the fix.

use crate::Execution;
use crate::lock::Holders;
use std::io;
use std::path::PathBuf;

/// What a storage was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, displaydoc::Display)]
pub enum Action {
    /// read
    Read,
    /// write
    Write,
    /// flush
    Flush,
    /// discard
    Discard,
    /// write zeroes
    WriteZeroes,
    /// look for holes
    Look,
}

/// Why an operation, or a change of a running storage, failed.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum StorageError {
    /// {action}: {source}
    Io {
        /// What was being done.
        action: Action,
        /// The kernel's answer.
        source: io::Error,
    },
    /// {action}: the disk has failed: {reason}; look into the daemon's log, then remove the export and add it again
    Failed {
        /// What was being done.
        action: Action,
        /// Why.
        reason: String,
    },
    /// {0}: an injected error
    Injected(Action),
    /// {0}: the storage is read-only
    ReadOnly(Action),
    /// {0}: the operation does not lie inside the storage
    OutOfRange(Action),
    /// {action}: is of a part of a block, and blocks have {block_bytes} bytes
    Partial {
        /// What was to be done.
        action: Action,
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// {0}: the storage cannot do this
    Unsupported(Action),
    /// a size of {0} bytes is not a multiple of 512
    Unaligned(u64),
    /// {target} has {present_bytes} bytes and does not shrink to {asked_bytes}: a guest may still use the end; stop the export, use `vringd image resize --shrink`, and export it again
    Shrink {
        /// Path or name.
        target: String,
        /// Size now.
        present_bytes: u64,
        /// Size asked for.
        asked_bytes: u64,
    },
    /// {target} cannot grow to {asked_bytes} bytes: {reason}
    Grow {
        /// Path or name.
        target: String,
        /// Size asked for.
        asked_bytes: u64,
        /// What stands against it and what to do.
        reason: String,
    },
    /// execution `{execution}` is not possible for {kind}: use `auto`
    Execution {
        /// What was asked for.
        execution: Execution,
        /// Kind of the storage.
        kind: &'static str,
    },
    /// execution `{execution}`: {source}
    Pool {
        /// What was asked for.
        execution: Execution,
        /// Why the threads do not start.
        source: engine::PoolError,
    },
}

impl StorageError {
    /// The kernel's answer by its number.
    pub fn errno(action: Action, errno: i32) -> StorageError {
        StorageError::Io { action, source: io::Error::from_raw_os_error(errno) }
    }

    /// The kernel's number for it, EIO for what has none.
    pub fn raw_errno(&self) -> i32 {
        match self {
            StorageError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EIO,
        }
    }

    /// Whether there was no room: that lasts until somebody makes some.
    pub fn is_full(&self) -> bool {
        matches!(self.raw_errno(), libc::ENOSPC | libc::EDQUOT)
    }

    /// Whether it has not ended in time: it may yet. Where the kernel says that it took too long, it has ended.
    pub fn is_timeout(&self) -> bool {
        let StorageError::Io { source, .. } = self else { return false };
        source.kind() == std::io::ErrorKind::TimedOut && source.raw_os_error().is_none()
    }
}

/// Why a storage cannot be opened.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum OpenError {
    /// {path}: cannot {what}: {source}{hint}
    Path {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
        /// What may help, starting with a separator; empty when there is nothing to add.
        hint: &'static str,
    },
    /// {path}: is a {what}; a disk needs a regular file or a block device
    Kind {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// {path}: has {size_bytes} bytes, less than one 512-byte sector: create it with `truncate -s SIZE`
    Empty {
        /// The file.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
    },
    /// {path}: is in use, another process holds {held}: {holders}; `lock = false` (`--no-lock`) opens it all the same
    Locked {
        /// The file.
        path: PathBuf,
        /// What the other holder may do with the image, or does not let others do.
        held: &'static str,
        /// Who has locks on it, as far as can be seen.
        holders: Holders,
    },
    /// {path}: was waited for until its export ended
    Unwanted {
        /// The file.
        path: PathBuf,
    },
    /// {path}: is still in use after {seconds} s, another process holds {held}: {holders}; it gives the image up when its guest stops
    Kept {
        /// The file.
        path: PathBuf,
        /// What the other holder may do with the image, or does not let others do.
        held: &'static str,
        /// Who has locks on it, as far as can be seen.
        holders: Holders,
        /// How long it was waited for.
        seconds: u64,
    },
    /// {path}: is still being closed after {seconds} s, by this daemon, whose guest has stopped: look at its device, and try again
    Closing {
        /// The file.
        path: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// {path}: was lost to its guest ({why}), and may have been another's since: `vringd ctl disk reopen` has it opened as it is, by the next guest to run
    Lost {
        /// The image.
        path: PathBuf,
        /// Why it was lost.
        why: String,
    },
    /// {path}: has {present_bytes} bytes, and had {before_bytes} when it was looked at: add the disk again
    Shrunk {
        /// The file.
        path: PathBuf,
        /// Its size.
        present_bytes: u64,
        /// Its size before.
        before_bytes: u64,
    },
    /// {path}: the device is mounted, part of a RAID or volume group, or served already: release it, or use `lock = false` (`--no-lock`)
    Busy {
        /// The device.
        path: PathBuf,
    },
    /// {path}: cannot lock the image: {source}; `lock = false` (`--no-lock`) does without
    Lock {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// {path}: a server that was killed still has I/O under way on it after {seconds} seconds, which would spoil what comes later: see to its device, then try again
    Late {
        /// The file.
        path: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// {path}: a server that was killed still has I/O under way on it, and {others} other images are waited for already: try again later
    LateToo {
        /// The file.
        path: PathBuf,
        /// How many.
        others: usize,
    },
    /// {path}: was replaced while it was being opened: try again
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// {path}: is not on tmpfs, ramfs or hugetlbfs: use storage `file`, or move it to /dev/shm
    NotMemory {
        /// The file.
        path: PathBuf,
    },
    /// {path}: has {present_bytes} bytes, more than the size of {asked_bytes}: leave the size out or shrink the file
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its size.
        present_bytes: u64,
        /// Size asked for.
        asked_bytes: u64,
    },
    /// {path}: has {present_bytes} bytes, less than the size of {asked_bytes}, and read-only it does not grow: leave the size out
    TooShort {
        /// The file.
        path: PathBuf,
        /// Its size.
        present_bytes: u64,
        /// Size asked for.
        asked_bytes: u64,
    },
    /// what the program before this one kept open is missing or not what it should be: stop the export and add it again
    NothingHanded,
    /// cannot map {size_bytes} bytes: {source}{hint}
    Map {
        /// Size asked for.
        size_bytes: u64,
        /// The kernel's answer.
        source: io::Error,
        /// What may help.
        hint: String,
    },
    /// size: {size_bytes} bytes is out of range: use 512 to 2^62, a multiple of 512
    Size {
        /// What was asked for.
        size_bytes: u64,
    },
    /// {field}: {message}
    Field {
        /// Name in the configuration.
        field: &'static str,
        /// What is wrong and what would be right.
        message: String,
    },
    /// {0}
    Storage(#[from] StorageError),
    /// {0}
    Other(Box<dyn std::error::Error + Send + Sync>),
    // What the description names does not answer, and may later: the description is not at fault.
    /// {0}
    Away(Box<dyn std::error::Error + Send + Sync>),
}

/// Checks the size of storage that is made, not found.
///
/// # Errors
/// It is out of range, or no multiple of 512.
pub fn check_size(size_bytes: u64) -> Result<(), OpenError> {
    if !(512..=1 << 62).contains(&size_bytes) || !size_bytes.is_multiple_of(512) {
        return Err(OpenError::Size { size_bytes });
    }
    Ok(())
}
