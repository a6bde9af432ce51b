//! A qcow2 image that is open: the storage made of the parts beside it.
//!
//! Data of mapped clusters goes between a guest's buffers and the file as it does for storage `file`, after a look-up without a lock.
//! What changes the mapping runs elsewhere, and is written before the request is answered: a killed process loses nothing that was
//! answered, and leaks at most what was in the reserve ([`allocator`]). The orders that a power cut tests are at the top of
//! [`allocator`] and [`change`].
//!
//! | file | concern |
//! |---|---|
//! | `options`, `open`, `error` | what may be chosen, from a path to a chain of open images, what can be wrong |
//! | `confine` | which other files an image may lead to |
//! | `chain` | where a byte of the disk lies, and what is in L2 tables and compressed clusters |
//! | `extents` | where a disk has data |
//! | `machine`, `look`, `progress` | a task's stages, what comes next, what it remembers |
//! | `change` | allocating writes, and L2 entries |
//! | `allocator`, `refcounts` | which clusters are free, and how they are counted |
//! | `size` | how a disk grows, and its L1 table |
//! | `shared` | what all tasks of an image share |
//! | `disk` | blocking calls |
//! | `overlay` | a new image in front of one that is served |
//! | `populate` | what an image lacks is written into it, from what is behind it |
//! | `mark` | what the image says of an intent log in front of it |
//! | `relink`, `heading` | the chain of an image changes while it is served; another header |
//! | `snapshots` | internal snapshots, taken, applied and deleted |
//! | `bitmaps`, `bitmap_verbs` | dirty bitmaps: kept while an image is written, and what is done with them |
//! | `compress` | compressed clusters, written into a new image |
//! | `whole` | an image as a whole, for tools |

mod allocator;
mod bitmap_verbs;
mod bitmaps;
#[cfg(test)]
mod bitmaps_tests;
mod chain;
mod change;
mod compress;
mod confine;
mod disk;
mod error;
mod extents;
mod heading;
#[cfg(test)]
mod logged_powercut_tests;
#[cfg(test)]
mod logged_trouble_tests;
mod look;
mod machine;
mod mark;
mod open;
mod options;
mod overlay;
mod populate;
#[cfg(test)]
mod powercut_tests;
mod progress;
mod refcounts;
mod relink;
mod shared;
mod size;
mod snapshots;
#[cfg(test)]
mod snapshots_tests;
#[cfg(test)]
mod tests;
mod whole;

use error::Trouble;
use progress::Writes;

pub use bitmap_verbs::{BitmapError, BitmapInfo};
pub(crate) use compress::Compressing;
pub(crate) use confine::Confines;
pub use error::ImageError;
pub(crate) use mark::{has_room_for_mark, marked};
pub(crate) use open::Behind;
pub use options::Qcow2Options;
pub(crate) use overlay::OverlayError;
pub(crate) use populate::Populated;
pub(crate) use relink::Parted;
pub use snapshots::SnapshotChange;
pub(crate) use snapshots::{ONE_STATE, SnapshotError};

use engine::{Completion, Io, Token};
use shared::Shared;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use storage::{Action, Counted, Description, Execution, Extent, Handed, Marked, Step, Storage, StorageError, Task};

/// See the module. Dropped, it gives back what was reserved.
pub struct Qcow2Storage {
    shared: Arc<Shared>,
}

impl Storage for Qcow2Storage {
    fn describe(&self) -> Description {
        about(&self.shared.chain, self.shared.read_only())
    }

    fn capacity_bytes(&self) -> u64 {
        self.shared.chain.top().size_bytes()
    }

    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        self.begin(task, token, io, Writes::All)
    }

    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        self.proceed(task, completion, io)
    }

    /// Grows as far as the L1 table reaches.
    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError> {
        self.grow(capacity_bytes)
    }

    /// All files of the chain, in the order in which they are opened.
    fn hand_over(&self) -> std::io::Result<Handed> {
        self.shared.quiesce().map_err(|trouble| {
            let why = self.shared.broken().map_or_else(|| format!("{trouble:?}"), str::to_owned);
            std::io::Error::other(why)
        })?;
        let mut handed = self.hand_files_over()?;
        // They stay in use in the file: a program that knows nothing of them leaves them inconsistent.
        handed.memory = self.shared.bitmaps.hand_over(self.capacity_bytes())?;
        Ok(handed)
    }

    fn set_execution(&self, execution: Execution) -> Result<(), StorageError> {
        for file in &self.shared.chain.files {
            file.set_execution(execution)?;
        }
        self.shared.on_the_spot.store(on_the_spot(&self.shared.chain), Ordering::Relaxed);
        Ok(())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn marked(&self) -> Option<&dyn Marked> {
        Some(self)
    }

    fn extents(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
        self.shared.chain.extents(range, most).map_err(|trouble| self.failed(Action::Look, &trouble))
    }

    /// Of the file with its clusters. Backing files are only read.
    fn counted(&self) -> Option<&dyn Counted> {
        let top = self.shared.chain.images.first()?;
        self.shared.chain.files.get(top.data)?.counted()
    }
}

impl Qcow2Storage {
    /// The files, as they are.
    fn hand_files_over(&self) -> std::io::Result<Handed> {
        let mut behind = None;
        for file in self.shared.chain.files.iter().rev() {
            let mut handed = file.hand_over()?;
            handed.log = behind.map(Box::new);
            behind = Some(handed);
        }
        behind.ok_or_else(|| std::io::Error::other("no file is open"))
    }

    /// What a trouble is to whoever is not a guest.
    fn failed(&self, action: Action, trouble: &Trouble) -> StorageError {
        let errno = self.shared.settle_trouble(trouble);
        let source = match trouble {
            Trouble::Format(number, error) => {
                std::io::Error::other(format!("{}: {error}", self.shared.chain.images[*number].path.display()))
            }
            _ => reason(errno),
        };
        StorageError::Io { action, source }
    }
}

fn about(chain: &chain::Chain, read_only: bool) -> Description {
    let top = chain.top();
    Description {
        kind: "qcow2",
        target: top.path.display().to_string(),
        read_only,
        discard: !read_only,
        discard_granularity_bytes: top.geometry.cluster_bytes() as u32,
        write_zeroes: !read_only,
        ..chain.file(top.data).describe()
    }
}

fn reason(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}

/// Whether metadata is read and written by whoever needs it. Not where it might wait for a worker's own requests, as partial blocks do
/// past the page cache.
fn on_the_spot(chain: &chain::Chain) -> bool {
    let files = chain.files.iter().map(|file| file.describe());
    files.into_iter().all(|file| file.execution_chosen == Execution::Inline && !file.direct)
}

impl Drop for Qcow2Storage {
    fn drop(&mut self) {
        if self.shared.is_given_away() {
            return;
        }
        // Every operation has ended: whoever has one under way keeps the storage.
        let path = self.shared.chain.top().path.display();
        if let Err(trouble) = self.shared.quiesce() {
            tracing::warn!(%path, ?trouble, "clusters that were reserved are leaked: `vringd image check --repair` gives them back");
        }
        if let Err(trouble) = self.shared.write_bitmaps_back() {
            tracing::warn!(%path, ?trouble, "its dirty bitmaps cannot be written back, and are inconsistent: remove them, and begin with a full backup");
        }
    }
}
