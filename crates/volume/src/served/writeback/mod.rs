//! What is written to the lower storage, and when: one thread a volume.
//!
//! | file | concern |
//! |---|---|
//! | `plan` | from versions of blocks to operations |
//! | `sweep` | one pass over what is dirty |
//! | `thread` | when a pass is due, and the checkpoint behind it |
//!
//! Nobody else writes data there (discards excepted), so that no two writes of one block are ever under way together.

mod ending;
mod plan;
mod sweep;
mod thread;

use super::blocking::{StorageBlocks, io_error};
use super::checkpoint::Checkpoints;
use super::error::VolumeError;
use super::memory::Memory;
use super::poke::{NoSweep, Wish};
use super::shared::Shared;
use crate::format::Superblock;
use crate::{BLOCK_BYTES, Blocks};
use ending::Ending;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use storage::kit::check_growth;
use storage::{Action, Handed, StorageError};
use thread::Machine;

/// How long somebody waits for a sweep before that is an error. Of gigabytes on a slow disk it takes minutes.
const SWEEP_PATIENCE: Duration = Duration::from_secs(600);

/// And before another program takes over, while guests wait.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(30);

/// And before another disk takes the place of this one: guests wait for that of all disks that are part of it.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

type Thread = JoinHandle<Result<(), StorageError>>;

/// The thread that writes back, and what has to be done around it. Dropped, it writes everything back and closes the volume.
pub(super) struct WriteBack {
    shared: Arc<Shared>,
    checkpoints: Arc<Checkpoints>,
    memory: Memory,
    /// The volume's name.
    path: PathBuf,
    ending: Arc<Ending>,
    thread: Mutex<Option<Thread>>,
}

impl WriteBack {
    /// Starts the thread. `superblock` is that of `shared.home`, and `memory` what the cache lives in.
    ///
    /// # Errors
    /// No thread, or no io_uring for it.
    pub(super) fn start(
        shared: Arc<Shared>,
        superblock: Superblock,
        memory: Memory,
        path: &Path,
    ) -> Result<WriteBack, VolumeError> {
        let failed = |source| VolumeError::Thread { path: path.to_owned(), source };
        let checkpoints = Arc::new(Checkpoints::new(superblock, shared.clone()));
        let ending = Arc::new(Ending::default());
        let (told, started) = channel();
        let body = {
            let (shared, checkpoints, ending) = (shared.clone(), checkpoints.clone(), ending.clone());
            move || {
                let machine = match Machine::new(shared, checkpoints, ending) {
                    Ok(machine) => machine,
                    Err(error) => {
                        let _ = told.send(Err(error));
                        return Ok(());
                    }
                };
                let _ = told.send(Ok(()));
                machine.run()
            }
        };
        let thread = std::thread::Builder::new().name("volume".into()).spawn(body).map_err(failed)?;
        started.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).map_err(failed)?;
        let thread = Mutex::new(Some(thread));
        Ok(WriteBack { shared, checkpoints, memory, path: path.to_owned(), ending, thread })
    }

    /// Brings everything that was written before to stable lower storage. Blocks.
    ///
    /// # Errors
    /// It did not come to that in ten minutes, the volume has failed, or the lower storage has no room, or fails again and again: what it
    /// did not take is kept, and tried again.
    pub(super) fn sync(&self) -> Result<(), StorageError> {
        self.sync_within(SWEEP_PATIENCE)
    }

    /// As [`sync`](Self::sync), while guests wait.
    ///
    /// # Errors
    /// It did not come to that in two seconds, the volume has failed, or the lower storage has no room, or fails again and again.
    pub(super) fn leave(&self) -> Result<(), StorageError> {
        self.sync_within(LEAVE_PATIENCE)
    }

    /// As [`sync`](Self::sync), with another patience.
    ///
    /// # Errors
    /// It did not come to that in time, and those of that.
    pub(super) fn sync_within(&self, patience: Duration) -> Result<(), StorageError> {
        let (kind, what) = match self.shared.poke.sweep_and_wait(patience) {
            Ok(()) => return Ok(()),
            Err(NoSweep::Failed(errno)) => return Err(StorageError::errno(Action::Write, errno)),
            Err(NoSweep::Timeout) => (io::ErrorKind::TimedOut, "the lower storage does not take what is written back"),
            Err(NoSweep::Gone) => (io::ErrorKind::Other, "the volume's write-back has ended"),
        };
        let reason = self.shared.death().unwrap_or(what).to_owned();
        Err(StorageError::Io { action: Action::Flush, source: io::Error::new(kind, reason) })
    }

    /// Lets the disk grow. The file grows first and the guest learns of it last, so that a cut between two steps leaves a
    /// volume of the old size or of the new one.
    ///
    /// # Errors
    /// A size that is smaller, or odd, or for which there is no room.
    pub(super) fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        let mut superblock = self.checkpoints.lock();
        let target = self.path.display().to_string();
        let present = self.shared.capacity_bytes();
        check_growth(&target, present, capacity_bytes)?;
        if capacity_bytes == present {
            return Ok(());
        }
        let cannot =
            |reason: String| StorageError::Grow { target: target.clone(), asked_bytes: capacity_bytes, reason };
        if capacity_bytes > crate::format::CAPACITY_BYTES_MAX {
            return Err(cannot("a volume's disk has at most 2^60 bytes".to_owned()));
        }
        if self.shared.is_apart() {
            return self.resize_apart(&mut superblock, capacity_bytes);
        }
        let larger = Superblock { capacity_bytes, ..superblock.clone() };
        let (old_end, new_end) = (superblock.storage_bytes(), larger.storage_bytes());
        let lower = &self.shared.lower;
        // A shrinking that was cut off has left its end in the file; what is new of a device holds what it holds.
        let end = superblock.data_offset + present;
        let left_behind = lower.capacity_bytes().checked_sub(end).filter(|_| lower.describe().kind == "file");
        if lower.capacity_bytes() < new_end {
            lower.resize(new_end)?;
        }
        self.shared.cache.grow(capacity_bytes).map_err(|error| cannot(format!("no memory for its map: {error}")))?;
        let mut way = self.checkpoints.way().map_err(|error| cannot(format!("no io_uring: {error}")))?;
        if let Some(len) = left_behind.filter(|len| *len > 0) {
            let cleared = way.zero_at(end, len).and_then(|()| self.flush_beside(&mut way));
            cleared.map_err(|error| cannot(format!("its new part cannot be cleared: {error}")))?;
        }
        if new_end > old_end {
            // A file's new size alone may be lost with the power although a flush came after it; data at its end is not.
            let last = new_end - BLOCK_BYTES as u64;
            let durable = way.write_at(last, &[0; BLOCK_BYTES]).and_then(|()| self.flush_beside(&mut way));
            durable.map_err(|error| cannot(format!("its end cannot be written: {error}")))?;
        }
        let grow = |next: &mut Superblock| next.capacity_bytes = capacity_bytes;
        let written = self.checkpoints.write(&mut way, &mut superblock, grow);
        written.map_err(|error| cannot(error.to_string()))?;
        self.shared.set_capacity_bytes(capacity_bytes);
        Ok(())
    }

    /// As above, of a disk that is a storage of its own: that sees to its end itself. A cut before the superblock is written leaves a disk
    /// that is larger than its log says, and has the old size until the log is closed.
    fn resize_apart(&self, superblock: &mut Superblock, capacity_bytes: u64) -> Result<(), StorageError> {
        let cannot = |reason: String| {
            let target = self.path.display().to_string();
            StorageError::Grow { target, asked_bytes: capacity_bytes, reason }
        };
        if self.shared.lower.capacity_bytes() < capacity_bytes {
            self.shared.lower.resize(capacity_bytes)?;
        }
        self.shared.cache.grow(capacity_bytes).map_err(|error| cannot(format!("no memory for its map: {error}")))?;
        let mut way = self.checkpoints.way().map_err(|error| cannot(format!("no io_uring: {error}")))?;
        let written = self.checkpoints.write(&mut way, superblock, |next| next.capacity_bytes = capacity_bytes);
        written.map_err(|error| cannot(error.to_string()))?;
        self.shared.set_capacity_bytes(capacity_bytes);
        Ok(())
    }

    /// A flush that may run beside one of the thread.
    fn flush_beside(&self, way: &mut StorageBlocks) -> io::Result<()> {
        way.flush().inspect_err(|_| {
            self.shared.flush_failed(&self.shared.home);
            self.shared.told_beside();
        })
    }

    /// What another program goes on with: everything is written back first, so that nothing is under way when this process
    /// becomes that program, and little is to be recovered.
    ///
    /// # Errors
    /// What is dirty cannot be written back, or there are no more descriptors.
    pub(super) fn hand_over(&self) -> io::Result<Handed> {
        self.sync_within(HAND_OVER_PATIENCE).map_err(io_error)?;
        let mut handed = self.shared.home.hand_over()?;
        if self.shared.is_apart() {
            handed.log = Some(Box::new(self.shared.lower.hand_over()?));
        } else if !Arc::ptr_eq(&self.shared.lower, &self.shared.log) {
            handed.log = Some(Box::new(self.shared.log.hand_over()?));
        }
        handed.memory = Some(self.memory.fd.try_clone()?);
        Ok(handed)
    }

    /// Writes everything back and marks the volume as closed. No operation is under way, and none comes any more. Does
    /// nothing the second time.
    ///
    /// # Errors
    /// What could not be written back is in the log and in the memory file.
    pub(super) fn close(&self) -> Result<(), VolumeError> {
        let Some(ended) = self.end(Ending::ORDERLY) else { return Ok(()) };
        match ended {
            Ok(()) => {
                self.memory.remove();
                Ok(())
            }
            Err(source) => {
                let blocks = self.shared.cache.figures().dirty_blocks;
                Err(VolumeError::NotWrittenBack { path: self.path.clone(), blocks, source })
            }
        }
    }

    /// The memory, for another opening in this process.
    ///
    /// # Errors
    /// No more descriptors.
    pub(super) fn memory(&self) -> Result<Memory, VolumeError> {
        let Memory { fd, path, home, .. } = &self.memory;
        let fd = fd.try_clone().map_err(VolumeError::io(&self.path, "go on with the memory of"))?;
        Ok(Memory { fd, path: path.clone(), found: true, handed: true, home: home.clone() })
    }

    /// Nobody needs what is in memory.
    pub(super) fn forget_memory(&self) {
        self.memory.remove();
    }

    /// The volume's name.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves everything as a killed process would.
    pub(super) fn abandon(&self) {
        let _ = self.end(Ending::ABANDONED);
    }

    /// How the thread ended; `None` if it has been asked before.
    fn end(&self, how: u8) -> Option<Result<(), StorageError>> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.ending.set(how);
        self.shared.poke.ask(Wish::Close);
        let gone = || StorageError::Io {
            action: Action::Flush,
            source: io::Error::other(self.shared.death().unwrap_or("the volume's write-back has ended").to_owned()),
        };
        Some(thread.join().unwrap_or_else(|_| Err(gone())))
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "a volume was not closed");
        }
    }
}
