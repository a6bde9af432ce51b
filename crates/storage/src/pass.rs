//! Storages that perform SCSI commands themselves: devices of the host, which are passed through.

use crate::Task;
use engine::Reply;
use std::sync::{Arc, OnceLock};

/// A SCSI command as it was sent.
#[derive(Clone, Debug)]
pub struct PassCommand {
    /// The CDB, in its own length.
    pub cdb: Vec<u8>,
    /// Which way the data of the task's buffers goes.
    pub data: PassData,
    /// Where the outcome is put.
    pub place: PassPlace,
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassData {
    /// There is none.
    None,
    /// From the device, into the task's buffers.
    In,
    /// From the task's buffers, to the device.
    Out,
}

/// Where the outcome of a command is put. It is there when the command's reply completes, unless whoever performed it panicked.
pub type PassPlace = Arc<OnceLock<Passed>>;

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The device has answered.
    Answered {
        /// SCSI status.
        status: u8,
        /// Sense data, as the device gave it.
        sense: Vec<u8>,
        /// Bytes of data that were moved.
        moved_bytes: u64,
    },
    /// The command did not reach the device, or its answer did not reach us.
    Lost(Loss),
    /// It was not sent.
    Refused(Refusal),
}

/// What became of a command that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// There is no device any more.
    Gone,
    /// The way to it is occupied; later it may not be.
    Busy,
    /// It took too long and was aborted, or somebody else aborted it.
    Aborted,
    /// A reset has ended it.
    Reset,
    /// The way to it is interrupted.
    Transport,
    /// The device fails, and would by any other way.
    Target,
    /// This way fails, and another may not.
    Nexus,
    /// Anything else.
    Other,
}

/// Why a command is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It would reach beyond the device, or is none that a reader may send.
    Opcode,
    /// A field of it asks for what the host cannot do: more data than it moves at once, or in too many pieces.
    Field,
    /// It would change a device that is passed through for reading.
    WriteProtected,
    /// Whoever is to perform it does not answer.
    Helper,
}

/// What only a storage has that performs SCSI commands.
pub trait Pass: Send + Sync {
    /// Whether it is a disk: its reads and writes may be sent again.
    fn is_disk(&self) -> bool;

    /// Most bytes of data that one command moves.
    fn transfer_bytes_max(&self) -> u32;

    /// Bytes of a block, in which commands of such a device count; `None` for one without blocks of one length.
    fn block_bytes(&self) -> Option<u32>;

    /// Performs a command, and completes `reply` when that has ended. `task` has its data, and is the storage's until then, as from
    /// [`start`](crate::Storage::start) on.
    fn pass(&self, task: &mut Task, command: PassCommand, reply: Reply);
}
