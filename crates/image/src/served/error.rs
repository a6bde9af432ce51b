//! What can go wrong with an image that is served, or is to be.

use crate::FormatError;
use crate::reference::ReferenceError;
use std::path::PathBuf;
use storage::OpenError;
use uuid::Uuid;

/// Why an image cannot be opened.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum ImageError {
    /// {path}: {source}
    Format {
        /// The image.
        path: PathBuf,
        /// What is wrong with it.
        source: FormatError,
    },
    /// {path}: was not closed by the daemon that had intent log {log} in front of it, and lacks what only that has: serve it with that log (`log`, `--log`), or bring all of it into the image with `vringd image log replay`
    Logged {
        /// The image.
        path: PathBuf,
        /// Names the log.
        log: Uuid,
    },
    /// {path}: cannot be read: {source}
    Read {
        /// The image.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// {path}: its backing file: {source}
    Backing {
        /// The image.
        path: PathBuf,
        /// What is wrong with the name.
        source: ReferenceError,
    },
    /// {path}: says no format of its backing file, which must not be guessed: `vringd image rebase --unsafe --backing-format FORMAT --backing BACKING {path}` writes it down
    NoFormat {
        /// The image.
        path: PathBuf,
    },
    /// {path}: its backing file has the format `{format}`: `raw` and `qcow2` can be used
    BackingFormat {
        /// The image.
        path: PathBuf,
        /// What it says.
        format: String,
    },
    /// {path}: is in its own chain of backing files: correct that with `vringd image rebase --unsafe`
    Loop {
        /// The file that comes twice.
        path: PathBuf,
    },
    /// {path}: has more than {most} backing files behind one another: shorten the chain with `vringd image commit` or `vringd image rebase`
    Chain {
        /// The first image.
        path: PathBuf,
        /// How many there may be.
        most: usize,
    },
    /// {path}: {reason}
    Snapshot {
        /// The image.
        path: PathBuf,
        /// Why it does not have the snapshot that somebody wants.
        reason: String,
    },
    /// {path}: needs an external data file and does not name it: `qemu-img amend -o data_file=PATH` writes it down
    NoDataFile {
        /// The image.
        path: PathBuf,
    },
    /// {path}: its external data file: {source}
    DataFile {
        /// The image.
        path: PathBuf,
        /// What is wrong with the name.
        source: ReferenceError,
    },
    /// {image}: leads to {path}, which lies in another directory: if that may be, add {directory} to `allow` of the storage (`--allow-backing`)
    Outside {
        /// The image that was to be opened.
        image: PathBuf,
        /// Where the other file is, without symbolic links.
        path: PathBuf,
        /// Its directory.
        directory: PathBuf,
    },
    /// {image}: leads to the block device {path}: if that may be, add {path} to `allow` of the storage (`--allow-backing`)
    Device {
        /// The image that was to be opened.
        image: PathBuf,
        /// The device.
        path: PathBuf,
    },
    /// {image}: leads to {path}, which is no regular file
    NoFile {
        /// The image that was to be opened.
        image: PathBuf,
        /// What it leads to.
        path: PathBuf,
    },
    /// {image}: leads to {path}, which cannot be looked at: {source}
    Look {
        /// The image that was to be opened.
        image: PathBuf,
        /// As the image says it.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// {path}: is marked as corrupt: repair it with `qemu-img check -r all`, or use `read_only`
    Corrupt {
        /// The image.
        path: PathBuf,
    },
    /// {path}: is marked as corrupt, and lacks what its intent log has: `vringd image log forget {path}` lets `qemu-img check -r all` repair it, and `vringd image log replay --repaired` then brings the log into it
    CorruptBehindLog {
        /// The image.
        path: PathBuf,
    },
    /// {path}: was not closed and its refcounts may be wrong (dirty bit): repair it with `qemu-img check -r all`, or use `read_only`
    Dirty {
        /// The image.
        path: PathBuf,
    },
    /// {path}: has a size of {size_bytes} bytes, less than one 512-byte sector: `qemu-img resize` gives it another
    Size {
        /// The image.
        path: PathBuf,
        /// Its virtual size.
        size_bytes: u64,
    },
}

impl From<ImageError> for OpenError {
    fn from(error: ImageError) -> OpenError {
        OpenError::Other(Box::new(error))
    }
}

/// Why something could not be done while serving.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The kernel's answer.
    Errno(i32),
    /// Metadata of image number `.0` of the chain is wrong.
    Format(usize, FormatError),
    /// The kernel's answer to a write of metadata, of which the file may have a part: it is not what is in memory any more.
    Apart(i32),
    /// The disk has grown meanwhile: what was its end is not any more.
    Grown,
}

impl From<i32> for Trouble {
    fn from(errno: i32) -> Trouble {
        Trouble::Errno(errno)
    }
}
