//! The bytes of an image, and what is said when they cannot be had.

use crate::FormatError;
use crate::header::Header;
use crate::uses::Source;
use rustix::fs::{FileType, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use storage::target::TargetError;
use storage::{OpenError, StorageError};

/// Why a tool did not do what it was asked.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum ToolError {
    /// {path}: cannot {what}: {source}
    Io {
        /// The image.
        path: PathBuf,
        /// What was done.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// {path}: {source}
    Format {
        /// The image.
        path: PathBuf,
        /// What is wrong, and where.
        source: FormatError,
    },
    /// {0}
    Open(#[from] OpenError),
    /// {0}
    Target(#[from] TargetError),
    /// {path}: {source}
    Storage {
        /// The image.
        path: PathBuf,
        /// What failed.
        source: StorageError,
    },
    /// {path}: {reason}
    Refused {
        /// The image.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
}

impl ToolError {
    pub(super) fn io(path: &Path, what: &'static str) -> impl Fn(io::Error) -> ToolError {
        move |source| ToolError::Io { path: path.to_owned(), what, source }
    }

    pub(super) fn storage(path: &Path) -> impl Fn(StorageError) -> ToolError {
        move |source| ToolError::Storage { path: path.to_owned(), source }
    }

    pub(super) fn refused(path: &Path, reason: impl Into<String>) -> ToolError {
        ToolError::Refused { path: path.to_owned(), reason: reason.into() }
    }
}

/// An image, or what may be one.
pub(super) struct Image {
    pub(super) path: PathBuf,
    pub(super) file: File,
    len_bytes: u64,
}

impl Image {
    /// Opens a regular file or block device, and waits for nobody.
    pub(super) fn open(path: &Path, write: bool) -> Result<Image, ToolError> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).write(write).custom_flags(flags).open(path);
        let file = file.map_err(ToolError::io(path, "open"))?;
        let kind = rustix::fs::fstat(&file).map(|about| FileType::from_raw_mode(about.st_mode));
        let kind = kind.map_err(|errno| ToolError::io(path, "measure")(errno.into()))?;
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            return Err(ToolError::refused(path, "is no regular file and no block device"));
        }
        let mut image = Image { path: path.to_owned(), file, len_bytes: 0 };
        image.measure()?;
        Ok(image)
    }

    /// Its length is what it is now.
    pub(super) fn measure(&mut self) -> Result<(), ToolError> {
        let len = io::Seek::seek(&mut &self.file, io::SeekFrom::End(0));
        self.len_bytes = len.map_err(ToolError::io(&self.path, "measure"))?;
        Ok(())
    }

    pub(super) fn header(&mut self) -> Result<Header, ToolError> {
        let mut first = vec![0; self.len_bytes.min(512) as usize];
        self.read(0, &mut first).map_err(ToolError::io(&self.path, "read"))?;
        let failed = |source| ToolError::Format { path: self.path.clone(), source };
        let bytes = Header::bytes_needed(&first).map_err(failed)?.min(self.len_bytes);
        let mut first = vec![0; bytes as usize];
        self.read(0, &mut first).map_err(ToolError::io(&self.path, "read"))?;
        Header::parse(&first).map_err(|source| ToolError::Format { path: self.path.clone(), source })
    }
}

impl Source for Image {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let there = self.len_bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        self.file.read_exact_at(&mut buf[..there], offset)?;
        buf[there..].fill(0);
        Ok(())
    }
}
