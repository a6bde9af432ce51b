//! An image as a whole, for tools: one that is written anew, of which nothing counts before all does.

use super::{Behind, Qcow2Options, Qcow2Storage, open};
use crate::header::Header;
use engine::{Io, Token};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use storage::kit::Through;
use storage::{Action, Extent, Links, OpenError, Operation, Step, Storage, StorageError, Task};

impl Qcow2Storage {
    /// Opens an image, and serves it to whoever opens it alone.
    ///
    /// # Errors
    /// As of the storage kind.
    pub(crate) fn open_alone(options: &Qcow2Options) -> Result<Qcow2Storage, OpenError> {
        Qcow2Storage::open_alone_by(options, Links::Follow)
    }

    /// As above; the path of the image itself is followed as `links` says.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn open_alone_by(options: &Qcow2Options, links: Links) -> Result<Qcow2Storage, OpenError> {
        Qcow2Storage::start(options, open::by_path_with(options, links)?)
    }

    /// As above, of an image with this header, which the file may lack: it may not be taken for an image yet. Nothing waits for stable
    /// storage.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn open_unflushed(options: &Qcow2Options, header: Header) -> Result<Qcow2Storage, OpenError> {
        let mut opened = open::new_by_path(options, header)?;
        for file in &mut opened.chain.files {
            *file = Arc::new(Unflushed(file.clone()));
        }
        Qcow2Storage::start(options, opened)
    }

    /// As [`Self::open_alone`], without what is behind the image: where it has nothing itself it reads as zeroes, and
    /// what is discarded it does not have any more. Says what is behind it.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn open_apart(options: &Qcow2Options) -> Result<(Qcow2Storage, Behind), OpenError> {
        let storage = Qcow2Storage::open_in_front(options)?;
        let behind = storage.behind(options)?;
        Ok((storage, behind))
    }

    /// What is behind it, where that really is.
    ///
    /// # Errors
    /// Its name leads nowhere, or where it must not.
    pub(crate) fn behind(&self, options: &Qcow2Options) -> Result<Behind, OpenError> {
        Ok(open::behind_first(options, &self.shared.chain)?)
    }

    /// As above, whatever is behind it.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn open_in_front(options: &Qcow2Options) -> Result<Qcow2Storage, OpenError> {
        Qcow2Storage::start(options, open::apart_by_path(options)?)
    }

    /// From now on zeroes are such whatever comes behind the image.
    pub(crate) fn cover(&self) {
        self.shared.chain.covers.store(true, Ordering::Relaxed);
    }

    /// The same disk, which says it has data where the image has something itself.
    pub(crate) fn own(&self) -> Own<'_> {
        Own(self)
    }
}

/// See [`Qcow2Storage::own`].
pub(crate) struct Own<'a>(&'a Qcow2Storage);

impl Through for Own<'_> {
    fn below(&self) -> &dyn Storage {
        self.0
    }

    fn extents_through(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
        self.0.shared.chain.own_extents(range, most).map_err(|trouble| self.0.failed(Action::Look, &trouble))
    }
}

/// A file whose flushes are somebody else's.
struct Unflushed(Arc<dyn Storage>);

impl Through for Unflushed {
    fn below(&self) -> &dyn Storage {
        &*self.0
    }

    fn start_through(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        if task.operation == Operation::Flush {
            return Step::Done(Ok(()));
        }
        self.0.start(task, token, io)
    }
}
