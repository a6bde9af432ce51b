//! An image as a whole, for tools: where its disk has data, and one that is written anew, of which nothing counts before all does.

use super::chain::Piece;
use super::error::Trouble;
use super::{Qcow2Options, Qcow2Storage, open};
use engine::{Completion, Io, Token};
use std::ops::Range;
use std::sync::Arc;
use storage::{Action, Description, Execution, Handed, OpenError, Operation, Step, Storage, StorageError, Task};

impl Qcow2Storage {
    /// Opens an image, and serves it to whoever opens it alone.
    ///
    /// # Errors
    /// As of the storage kind.
    pub fn open_alone(options: &Qcow2Options) -> Result<Qcow2Storage, OpenError> {
        Qcow2Storage::start(options, open::by_path(options)?)
    }

    /// As above, and lets nothing wait for stable storage: after a power cut or a kill the image is not to be used.
    ///
    /// # Errors
    /// As above.
    pub fn open_unflushed(options: &Qcow2Options) -> Result<Qcow2Storage, OpenError> {
        let mut opened = open::by_path(options)?;
        for file in &mut opened.chain.files {
            *file = Arc::new(Unflushed(file.clone()));
        }
        Qcow2Storage::start(options, opened)
    }

    /// The ranges of the disk outside of which it reads as zeroes because nothing is there, in their order. Blocks.
    ///
    /// # Errors
    /// Tables cannot be read, or are damaged.
    pub fn data_ranges(&self) -> Result<Vec<Range<u64>>, StorageError> {
        let chain = &self.shared.chain;
        let size_bytes = chain.top().size_bytes();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut at = 0;
        while at < size_bytes {
            let (piece, len) = chain.resolve_loading(at, size_bytes - at).map_err(|trouble| match trouble {
                Trouble::Format(number, error) => StorageError::Failed {
                    action: Action::Read,
                    reason: format!("{}: {error}", chain.images[number].path.display()),
                },
                Trouble::Errno(errno) | Trouble::Apart(errno) => StorageError::errno(Action::Read, errno),
                Trouble::Grown => StorageError::errno(Action::Read, libc::EIO),
            })?;
            match ranges.last_mut() {
                _ if piece == Piece::Zero => {}
                Some(last) if last.end == at => last.end += len,
                _ => ranges.push(at..at + len),
            }
            at += len;
        }
        Ok(ranges)
    }
}

/// A file whose flushes are somebody else's.
struct Unflushed(Arc<dyn Storage>);

impl Storage for Unflushed {
    fn describe(&self) -> Description {
        self.0.describe()
    }

    fn capacity_bytes(&self) -> u64 {
        self.0.capacity_bytes()
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        if task.operation == Operation::Flush {
            return Step::Done(Ok(()));
        }
        self.0.start(task, token, io)
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        self.0.resume(task, completion, io)
    }

    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        self.0.resize(capacity_bytes)
    }

    fn hand_over(&self) -> std::io::Result<Handed> {
        self.0.hand_over()
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        self.0.set_execution(execution)
    }
}
