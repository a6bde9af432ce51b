//! What is done to a record's file, step by step.
//!
//! A loss of power comes between any two steps, and may take back what no sync has made certain. Whoever tests that looks on here: a
//! witness hears of each step before it is taken, can leave it out, and can have it fail. Nobody else has one.

use super::Written;
use rustix::fs::{Mode, OFlags};
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Something that is done to the file, or to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStep<'a> {
    /// The file is made, with nothing in it.
    Make,
    /// Its name is removed.
    Remove,
    /// Bytes are written to it.
    Write {
        /// Where the first of them goes.
        offset: u64,
        /// All of them.
        bytes: &'a [u8],
    },
    /// It gets another length, in bytes.
    SetLen(u64),
    /// What was written and its length become certain.
    Sync,
    /// Its name becomes certain.
    SyncName,
}

/// Looks on while a record is kept.
pub trait RecordWitness: fmt::Debug + Send + Sync {
    /// This step comes next. Whether it is taken; a file that has to be made is.
    ///
    /// # Errors
    /// It is not, and fails with that.
    fn sees(&self, step: RecordStep<'_>) -> io::Result<bool>;
}

/// Who looks on, if anybody does.
#[derive(Clone, Debug, Default)]
pub(super) struct Witness(pub(super) Option<Arc<dyn RecordWitness>>);

impl Witness {
    fn take(&self, step: RecordStep<'_>, take: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match &self.0 {
            Some(witness) if !witness.sees(step)? => Ok(()),
            _ => take(),
        }
    }

    /// Makes a file that is not there.
    pub(super) fn make(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        if let Some(witness) = &self.0 {
            witness.sees(RecordStep::Make)?;
        }
        Ok(rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR)?)
    }

    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        self.take(RecordStep::Remove, || Ok(rustix::fs::unlink(path)?))
    }

    /// Has the name of a file stored with its directory.
    pub(super) fn sync_name(&self, path: &Path) -> io::Result<()> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.take(RecordStep::SyncName, || File::open(directory)?.sync_all())
    }
}

/// A file all of whose changes are steps.
#[derive(Debug)]
pub(super) struct Stepped {
    pub(super) file: File,
    pub(super) witness: Witness,
}

impl Stepped {
    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    pub(super) fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.witness.take(RecordStep::Write { offset, bytes }, || self.file.write_all_at(bytes, offset))
    }

    /// Writes a slot.
    pub(super) fn put(&self, written: &Written) -> io::Result<()> {
        self.write_all_at(&written.to_bytes(), written.offset())
    }

    pub(super) fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.witness.take(RecordStep::SetLen(bytes), || self.file.set_len(bytes))
    }

    /// Contents and length.
    pub(super) fn sync_data(&self) -> io::Result<()> {
        self.witness.take(RecordStep::Sync, || self.file.sync_data())
    }

    pub(super) fn sync_all(&self) -> io::Result<()> {
        self.witness.take(RecordStep::Sync, || self.file.sync_all())
    }
}
