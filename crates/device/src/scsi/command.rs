//! What a CDB asks for.

use super::chain::Transfer;
use super::reservations::{ReserveIn, ReserveOut};

/// A command that may be carried out. Offsets and lengths are in bytes, multiples of the block size, and lie inside the unit.
///
/// `fua`: the status has to wait until what was written is durable, as all writes have to while WCE is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// GOOD (SPC-5, "TEST UNIT READY command").
    TestUnitReady,
    /// Fill data-in (SBC-4, "READ (10) command" and its kin). FUA of a read wants data as it is on the medium: what is cached has
    /// to be written there first, and ours has one view of both.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes; 0 is possible.
        len: u64,
        /// Durable before it is read.
        fua: bool,
    },
    /// Store data-out (SBC-4, "WRITE (10) command" and its kin).
    Write {
        /// First byte.
        offset: u64,
        /// Number of bytes; 0 is possible.
        len: u64,
        /// Durable before the status.
        fua: bool,
    },
    /// Store data-out durably, and read it back (SBC-4, "WRITE AND VERIFY (10) command" and its kin).
    WriteAndVerify {
        /// First byte.
        offset: u64,
        /// Number of bytes; 0 is possible.
        len: u64,
        /// Compare what is read with data-out.
        compare: bool,
    },
    /// Read, and compare if asked to (SBC-4, "VERIFY (10) command" and its kin). [`Sense::miscompare`](super::Sense::miscompare)
    /// says where data differs.
    Verify {
        /// First byte.
        offset: u64,
        /// Number of bytes; 0 is possible.
        len: u64,
        /// What it is compared with.
        compare: Compare,
    },
    /// Compare the first half of data-out with the medium, and if it is equal store the second half, in one step (SBC-4, "COMPARE
    /// AND WRITE command"). [`Sense::miscompare`](super::Sense::miscompare) says where data differs.
    CompareAndWrite {
        /// First byte.
        offset: u64,
        /// Number of bytes of either half; 0 is possible.
        len: u64,
        /// Durable before the status.
        fua: bool,
    },
    /// Make completed writes to the range durable (SBC-4, "SYNCHRONIZE CACHE (10) command" and "(16)").
    Flush {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// The status need not wait for it.
        immediate: bool,
    },
    /// Ranges of the parameter list, [`Unmaps`](super::Unmaps), no longer matter (SBC-4, "UNMAP command").
    Unmap {
        /// Bytes of the parameter list.
        list_bytes: u16,
    },
    /// Store one block of data everywhere in a range (SBC-4, "WRITE SAME (10) command" and "(16)").
    WriteSame {
        /// First byte.
        offset: u64,
        /// Number of bytes, never 0.
        len: u64,
        /// The range may lose its space, if it then reads as the block would.
        unmap: bool,
        /// The block is data-out; or else there is none (NDOB), and the range reads as zeroes from now on.
        data: bool,
    },
    /// Say where from an offset on the unit is mapped, by [`lba_status_out`](super::lba_status_out) (SBC-4, "GET LBA STATUS (16)
    /// command").
    LbaStatus {
        /// First byte.
        offset: u64,
        /// Most bytes of the answer.
        allocation: u32,
    },
    /// Start or stop the unit, which [`Unit::set_stopped`](super::Unit::set_stopped) notes (SBC-4, "START STOP UNIT command").
    StartStop {
        /// Start it.
        start: bool,
        /// Make completed writes durable before it stops.
        flush: bool,
        /// The status need not wait for it.
        immediate: bool,
    },
    /// GOOD: nothing can be removed (SPC-5, "PREVENT ALLOW MEDIUM REMOVAL command").
    PreventAllow {
        /// Removal is prevented.
        prevent: bool,
    },
    /// Change the mode by the parameter list, which [`select_mode`](super::select_mode) decodes (SPC-5, "MODE SELECT (6) command"
    /// and "(10)").
    ModeSelect {
        /// Bytes of the parameter list.
        list_bytes: u16,
        /// The parameter list has the form of MODE SELECT (10).
        long: bool,
    },
    /// Ask of persistent reservations; [`Reservations::read`](super::reservations::Reservations::read) answers.
    ReserveIn {
        /// What is asked.
        action: ReserveIn,
        /// Most bytes of the answer.
        allocation: u16,
    },
    /// Change persistent reservations by the parameter list; see
    /// [`Reservations::change`](super::reservations::Reservations::change).
    ReserveOut(ReserveOut),
    /// Reserve the unit for this nexus as SCSI-2 has it; see
    /// [`Reservations::reserve`](super::reservations::Reservations::reserve) (SPC-2, "RESERVE (6) command" and "(10)").
    Reserve,
    /// End that; see [`Reservations::release`](super::reservations::Reservations::release) (SPC-2, "RELEASE (6) command" and
    /// "(10)").
    Release,
    /// A question that needs no storage; [`answer`](super::answer) has the answer.
    Query {
        /// What is asked.
        query: Query,
        /// Most bytes of the answer.
        allocation: u32,
    },
}

/// What a verification compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Nothing: the range can be read (BYTCHK 00b).
    Nothing,
    /// Data-out (BYTCHK 01b).
    Data,
    /// Every block with the one block of data-out (BYTCHK 11b).
    Block,
}

/// A question that is answered from what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// SPC-5, "INQUIRY command": standard data, or a page of vital product data.
    Inquiry {
        /// The page.
        page: Option<u8>,
    },
    /// SPC-5, "REQUEST SENSE command".
    RequestSense {
        /// Descriptor format.
        descriptor: bool,
    },
    /// SPC-5, "REPORT LUNS command".
    ReportLuns {
        /// SELECT REPORT: 0, 1 or 2.
        select: u8,
    },
    /// SBC-4, "READ CAPACITY (10) command".
    Capacity10,
    /// SBC-4, "READ CAPACITY (16) command".
    Capacity16,
    /// SPC-5, "MODE SENSE (6) command" and "(10)".
    ModeSense(ModePages),
    /// SPC-5, "LOG SENSE command".
    LogSense(LogPage),
    /// SPC-5, "REPORT SUPPORTED OPERATION CODES command".
    Operations {
        /// Which ones.
        which: Operations,
        /// With their timeouts (RCTD).
        timeouts: bool,
    },
    /// SPC-5, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS command".
    TaskManagement {
        /// With timeouts (REPD).
        extended: bool,
    },
    /// SPC-5, "REPORT TARGET PORT GROUPS command".
    PortGroups {
        /// With the extended header.
        extended: bool,
    },
}

/// Which mode pages are asked for, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModePages {
    /// MODE SENSE (10).
    pub long: bool,
    /// With a block descriptor (DBD is zero).
    pub descriptor: bool,
    /// The block descriptor may be the long one (LLBAA).
    pub long_lba: bool,
    /// Which values.
    pub control: PageControl,
    /// Page code, 0 to 0x3f.
    pub page: u8,
    /// Subpage code.
    pub subpage: u8,
}

/// Which values of a mode page are asked for (SPC-5, "MODE SENSE (6) command", PC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageControl {
    /// Those of this moment.
    Current,
    /// A mask of what MODE SELECT can change.
    Changeable,
    /// Those after a reset.
    Default,
}

/// Which log page is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPage {
    /// Page code, 0 to 0x3f.
    pub page: u8,
    /// Subpage code.
    pub subpage: u8,
    /// Parameters from this one on.
    pub first: u16,
}

/// Which commands are asked about (SPC-5, "REPORT SUPPORTED OPERATION CODES command", REPORTING OPTIONS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// All of them.
    All,
    /// One that has no service actions.
    Code(u8),
    /// One of an operation code with service actions.
    Action(u8, u16),
    /// One, whether or not it has service actions.
    Either(u8, u16),
}

/// What a command does, as reservations see it (SPC-5, "Commands allowed in the presence of various persistent reservations", and
/// the same of SBC-4; SPC-2 and SBC-2 for reservations of SCSI-2). Each is refused where one before it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Never in conflict, or [`Reservations`](super::reservations::Reservations) decides itself.
    Always,
    /// In conflict with another's reservation of SCSI-2 alone.
    Status,
    /// Reads the medium or a mode.
    Read,
    /// Changes the medium or a mode.
    Write,
}

impl Command {
    /// What reservations think of it.
    #[inline]
    pub fn access(&self) -> Access {
        match *self {
            Command::Read { .. } | Command::Verify { .. } | Command::LbaStatus { .. } => Access::Read,
            Command::Write { .. }
            | Command::WriteAndVerify { .. }
            | Command::CompareAndWrite { .. }
            | Command::Flush { .. }
            | Command::Unmap { .. }
            | Command::WriteSame { .. }
            | Command::StartStop { start: false, .. }
            | Command::PreventAllow { prevent: true }
            | Command::ModeSelect { .. } => Access::Write,
            Command::TestUnitReady => Access::Status,
            Command::StartStop { start: true, .. }
            | Command::PreventAllow { prevent: false }
            | Command::ReserveIn { .. }
            | Command::ReserveOut(_)
            | Command::Reserve
            | Command::Release => Access::Always,
            Command::Query { query, .. } => query.access(),
        }
    }

    /// The data that it moves.
    #[inline]
    pub fn transfer(&self, block_bytes: u32) -> Transfer {
        let block = u64::from(block_bytes);
        match *self {
            Command::TestUnitReady
            | Command::Flush { .. }
            | Command::StartStop { .. }
            | Command::PreventAllow { .. }
            | Command::Reserve
            | Command::Release
            | Command::WriteSame { data: false, .. }
            | Command::Verify { compare: Compare::Nothing, .. } => Transfer::None,
            Command::Read { len, .. } => Transfer::In(len),
            Command::Write { len, .. }
            | Command::WriteAndVerify { len, .. }
            | Command::Verify { len, compare: Compare::Data, .. } => Transfer::Out(len),
            Command::CompareAndWrite { len, .. } => Transfer::Out(2 * len),
            Command::WriteSame { data: true, .. } => Transfer::Out(block),
            // No block is compared with none.
            Command::Verify { len, compare: Compare::Block, .. } => Transfer::Out(len.min(block)),
            Command::Unmap { list_bytes } | Command::ModeSelect { list_bytes, .. } => {
                Transfer::Out(u64::from(list_bytes))
            }
            Command::ReserveOut(out) => Transfer::Out(u64::from(out.list_bytes)),
            Command::ReserveIn { allocation, .. } => Transfer::In(u64::from(allocation)),
            Command::LbaStatus { allocation, .. } => Transfer::In(u64::from(allocation)),
            Command::Query { allocation, .. } => Transfer::In(u64::from(allocation)),
        }
    }
}

impl Query {
    fn access(&self) -> Access {
        match self {
            Query::Inquiry { .. }
            | Query::RequestSense { .. }
            | Query::ReportLuns { .. }
            | Query::Capacity10
            | Query::Capacity16 => Access::Always,
            Query::LogSense(_) | Query::PortGroups { .. } => Access::Status,
            Query::ModeSense(_) | Query::Operations { .. } | Query::TaskManagement { .. } => Access::Read,
        }
    }
}
