//! The trait that every storage implements.

use crate::{
    Counted, Custody, Execution, Extent, Handed, InFront, Marked, Pass, Remote, Step, StorageError, Task, VolumeControl,
};
use engine::{Completion, Io, Token};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::any::Any;
use std::ops::Range;

/// The words for what a storage is.
const KINDS: [Word; 10] = ["file", "device", "memory", "null", "sim", "volume", "qcow2", "luks", "rbd", "sg"];

/// One of them.
type Word = &'static str;

/// What a storage is and what it can do. Another program reads what this one has written of one that is not open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// `file`, `device`, `memory`, `null`, `sim`, `volume`, `qcow2`, `luks`, `rbd` or `sg`.
    #[serde(deserialize_with = "known")]
    pub kind: Word,
    /// Path, or a few words for storage without one.
    pub target: String,
    /// Writes, discards and write zeroes are refused.
    pub read_only: bool,
    /// The page cache is bypassed.
    pub direct: bool,
    /// Smallest block that is addressed without a detour, in bytes: 512 to 4096. Operations of 512 bytes work as well, but for `luks`, which
    /// refuses a part of one of its sectors.
    pub block_size_bytes: u32,
    /// Smallest block that is written without reading it first, in bytes: a power of two, at least `block_size_bytes`.
    pub physical_block_bytes: u32,
    /// Best size of a request, in bytes; 0 = nothing to say.
    pub optimal_io_bytes: u32,
    /// A discard gives space back.
    pub discard: bool,
    /// Unit in which space is given back, in bytes: a multiple of 512.
    pub discard_granularity_bytes: u32,
    /// Write zeroes is taken.
    pub write_zeroes: bool,
    /// Execution as it was asked for.
    pub execution: Execution,
    /// Execution in use: what `auto` chose, or the same as `execution`.
    pub execution_chosen: Execution,
}

fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
    let kind = String::deserialize(deserializer)?;
    KINDS.into_iter().find(|known| *known == kind).ok_or_else(|| D::Error::unknown_variant(&kind, &KINDS))
}

impl Description {
    /// The same with calls that will run as this says.
    #[must_use]
    pub fn executed(self, execution: Execution) -> Description {
        let execution_chosen = if execution == Execution::Auto { self.execution_chosen } else { execution };
        Description { execution, execution_chosen, ..self }
    }
}

/// What stands behind a disk.
///
/// # Order
/// There is none between operations that are in flight together, not even between those that overlap. A [`Flush`] covers
/// every write that was *completed* before the flush was started, and nothing else. A durable write is covered by its own
/// completion.
///
/// # Calls
/// Any number of rings on any workers call one storage at once, each with its own tasks. [`start`] is called once a task, then
/// [`resume`] once for every completion of the task's token or of a part of it, until one of the two answers [`Step::Done`]. A task belongs to
/// the storage from `start` to `Done`: its owner does not touch it, nor may it be dropped or moved in memory, and its buffers
/// stay mapped. There is no cancellation: tasks end by themselves.
///
/// Contents of read buffers are unspecified after an error, contents of the written range likewise. After success every byte of
/// them was written, unless the storage says that it does not [fill](Storage::fills) them.
///
/// [`Flush`]: crate::Operation::Flush
/// [`start`]: Storage::start
/// [`resume`]: Storage::resume
pub trait Storage: Send + Sync {
    /// What this is; cheap, but not for the path of a request.
    fn describe(&self) -> Description;

    /// Size, in bytes: a multiple of 512. It may change at run time.
    fn capacity_bytes(&self) -> u64;

    /// Starts the operation of `task`, whose `buffers` the caller has filled.
    fn start(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step;

    /// Continues after a completion of the task's token. What a storage started of it in several parts, it tells apart by the
    /// part of the completion.
    fn resume(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step;

    /// Changes the size while operations run. Storage grows; it does not shrink, because a guest may still use the end.
    /// Asking for the present size changes nothing.
    ///
    /// # Errors
    /// A size that is no multiple of 512, smaller than the present one, or more than there is room for.
    fn resize(&self, capacity_bytes: u64) -> Result<(), StorageError>;

    /// What another program needs to go on with the same contents: see [`Kind::adopt`](crate::Kind::adopt). Contents that operations
    /// in flight change belong to neither program: there must be none.
    ///
    /// # Errors
    /// No more descriptors.
    fn hand_over(&self) -> std::io::Result<Handed>;

    /// Changes where blocking work runs; operations in flight finish where they are.
    ///
    /// # Errors
    /// An execution that this storage does not have, or a pool that cannot be started.
    fn set_execution(&self, execution: Execution) -> Result<(), StorageError>;

    /// Whether a read that succeeds has written every byte of its buffers. Where it has not they are as they were, which is nothing to
    /// show to anybody whose memory they are not.
    fn fills(&self) -> bool {
        true
    }

    /// Where `range` has data, from its start on, in at most `most` extents; fewer bytes than asked for where that would take long, but
    /// some. The range lies inside the capacity, in whole sectors. What was written when the call begins, and not zeroed or discarded
    /// since, is data in its answer. Blocks: not for a worker.
    ///
    /// # Errors
    /// The kernel's, or tables that are damaged.
    fn extents(&self, range: Range<u64>, _most: usize) -> Result<Vec<Extent>, StorageError> {
        Ok(vec![Extent { bytes: range.end.saturating_sub(range.start), data: true }])
    }

    /// The storage itself, where its kind can do what no other can. What only stands in front of another one does not have it.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// What it says of an intent log in front of it; `None` where its format has no room for that.
    fn marked(&self) -> Option<&dyn Marked> {
        None
    }

    /// What only a storage has whose space is counted; `None` for any other.
    fn counted(&self) -> Option<&dyn Counted> {
        None
    }

    /// What only a storage has that changes hands; `None` for any other.
    fn custody(&self) -> Option<&dyn Custody> {
        None
    }

    /// What only a storage has that is on other machines; `None` for any other.
    fn remote(&self) -> Option<&dyn Remote> {
        None
    }

    /// What only a storage has that performs SCSI commands itself, and no operation; `None` for any other. A unit of a SCSI device alone has it.
    fn passes(&self) -> Option<&dyn Pass> {
        None
    }

    /// What only a volume has; `None` for any other storage.
    fn volume(&self) -> Option<&dyn VolumeControl> {
        None
    }

    /// What only a log in front of another disk has. Storages over it do not pass it on: what they serve is not what that disk holds.
    fn in_front(&self) -> Option<&dyn InFront> {
        None
    }
}
