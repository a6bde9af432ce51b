//! The bytes of an image, and what is said when they cannot be had.

use crate::header::Header;
use crate::rewrite::{self, Steps};
use crate::uses::{self, Source};
use crate::{FormatError, ImageError, features};
use rustix::fs::{FileType, OFlags};
use serde::{Serialize, Serializer};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use storage::target::TargetError;
use storage::{Action, Links, NullOptions, NullStorage, OpenError, StorageError};
use values::ByteSize;

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
    Open(OpenError),
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

/// Without the advice to whoever serves an image.
impl From<OpenError> for ToolError {
    fn from(error: OpenError) -> ToolError {
        match error {
            OpenError::Path { path, what, source, .. } => ToolError::Io { path, what, source },
            OpenError::Locked { path, held, holders } => {
                ToolError::Refused { path, reason: format!("is in use, another process holds {held}: {holders}") }
            }
            OpenError::Busy { path } => {
                let reason = "the device is mounted, part of a RAID or volume group, or served: release it";
                ToolError::refused(&path, reason)
            }
            error => ToolError::Open(error),
        }
    }
}

impl ToolError {
    pub(super) fn io(path: &Path, what: &'static str) -> impl Fn(io::Error) -> ToolError {
        move |source| ToolError::Io { path: path.to_owned(), what, source }
    }

    pub(super) fn storage(path: &Path) -> impl Fn(StorageError) -> ToolError {
        move |source| ToolError::Storage { path: path.to_owned(), source }
    }

    /// Of a copy from one image to another: whichever it was.
    pub(super) fn copy(from: &Path, to: &Path) -> impl Fn(StorageError) -> ToolError {
        move |source| {
            let reads = matches!(source, StorageError::Io { action: Action::Read | Action::Look, .. });
            ToolError::Storage { path: if reads { from } else { to }.to_owned(), source }
        }
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
        Image::open_by(path, write, Links::Follow)
    }

    pub(super) fn open_by(path: &Path, write: bool, links: Links) -> Result<Image, ToolError> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let file = links.open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC);
        let file = File::from(file.map_err(|errno| ToolError::io(path, "open")(errno.into()))?);
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

    /// Its header.
    ///
    /// # Errors
    /// It cannot be read or is none, or is of an image that lacks what its intent log has.
    pub(super) fn header(&mut self) -> Result<Header, ToolError> {
        let header = self.header_to_look()?;
        if let Some(mark) = header.log_mark() {
            return Err(OpenError::from(ImageError::Logged { path: self.path.clone(), log: mark.log }).into());
        }
        Ok(header)
    }

    /// What is written where, so that the header becomes another one, and a power cut leaves either.
    ///
    /// # Errors
    /// The header cannot be read; there is no room for that, for the reason `no_room`.
    pub(super) fn steps(&mut self, old: &Header, new: &Header, no_room: &str) -> Result<Steps, ToolError> {
        let mut before = vec![0; old.cluster_bytes().min(self.len_bytes) as usize];
        self.read(0, &mut before).map_err(ToolError::io(&self.path, "read"))?;
        let steps = rewrite::steps(old, new, &before);
        match rewrite::fits(&before, &steps) {
            true => Ok(steps),
            false => Err(ToolError::refused(&self.path, no_room)),
        }
    }

    /// Writes these, each behind a flush of the one before.
    pub(super) fn take_steps(&self, steps: &Steps) -> Result<(), ToolError> {
        for (at, bytes) in steps {
            self.file.write_all_at(bytes, *at as u64).map_err(ToolError::io(&self.path, "write"))?;
            self.file.sync_all().map_err(ToolError::io(&self.path, "flush"))?;
        }
        Ok(())
    }

    /// As [`header`](Self::header), of an image that only says something of itself, or is served with its log.
    pub(super) fn header_to_look(&mut self) -> Result<Header, ToolError> {
        let mut first = vec![0; self.len_bytes.min(512) as usize];
        self.read(0, &mut first).map_err(ToolError::io(&self.path, "read"))?;
        let failed = |source| ToolError::Format { path: self.path.clone(), source };
        let bytes = Header::bytes_needed(&first).map_err(failed)?.min(self.len_bytes);
        let mut first = vec![0; bytes as usize];
        self.read(0, &mut first).map_err(ToolError::io(&self.path, "read"))?;
        Header::parse(&first).map_err(|source| ToolError::Format { path: self.path.clone(), source })
    }
}

/// A path in JSON, which has no bytes: what is no UTF-8 is replaced, as where it is shown.
pub(super) fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// See [`as_text`].
pub(super) fn as_text_if<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.display().to_string()).serialize(serializer)
}

/// A disk that reads as zeroes.
pub(super) fn zeroes(size_bytes: u64) -> Result<NullStorage, OpenError> {
    NullStorage::open(&NullOptions { size: ByteSize(size_bytes), zeroes: true, ..NullOptions::default() })
}

/// Refuses an image that is damaged: who counts one use more or less of what is counted wrongly makes damage worse.
pub(super) fn refuse_damage(path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<(), ToolError> {
    let mut image = Image::open(path, false)?;
    let header = image.header()?;
    let found = uses::examine(&mut image, &header, progress).map_err(ToolError::io(path, "read"))?;
    if found.findings.problem_count == 0 {
        return Ok(());
    }
    let why = "is damaged: `vringd image check` says how, and `qemu-img check -r all` mends it";
    Err(ToolError::refused(path, why))
}

/// A name in a directory, where nobody can have put anything before.
pub(super) fn hidden(directory: &Path) -> PathBuf {
    directory.join(format!(".vringd-{:016x}", RandomState::new().hash_one(directory)))
}

/// What helps against dirty bitmaps of an image that nobody serves.
pub(super) const BITMAPS_OFFLINE: &str = "`qemu-img` keeps them, and `vringd image bitmap remove` removes them";

/// Refuses an image whose dirty bitmaps would not tell what a tool writes.
pub(super) fn refuse_bitmaps(path: &Path, header: &Header, advice: &str) -> Result<(), ToolError> {
    if header.autoclear & features::BITMAPS == 0 || header.extensions.bitmaps.is_none() {
        return Ok(());
    }
    Err(ToolError::refused(path, format!("has dirty bitmaps, which would be lost: {advice}")))
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
