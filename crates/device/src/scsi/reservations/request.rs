//! PERSISTENT RESERVE IN and OUT: what their CDBs ask for.

use crate::scsi::Sense;
use crate::scsi::spec::opcode::{reserve_in, reserve_out};

/// Longest parameter list of PERSISTENT RESERVE OUT, in bytes. The caller copies it out of guest memory.
pub const LIST_BYTES_MAX: u32 = 8192;

/// What PERSISTENT RESERVE IN asks (SPC-5, "PERSISTENT RESERVE IN command").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveIn {
    /// The keys of all registrations.
    Keys,
    /// The reservation.
    Reservation,
    /// What of it all there is.
    Capabilities,
    /// Registrations with their nexuses.
    FullStatus,
}

impl ReserveIn {
    pub(in crate::scsi) fn decode(action: u8) -> Option<ReserveIn> {
        match action {
            reserve_in::READ_KEYS => Some(ReserveIn::Keys),
            reserve_in::READ_RESERVATION => Some(ReserveIn::Reservation),
            reserve_in::REPORT_CAPABILITIES => Some(ReserveIn::Capabilities),
            reserve_in::READ_FULL_STATUS => Some(ReserveIn::FullStatus),
            _ => None,
        }
    }
}

/// What PERSISTENT RESERVE OUT asks for (SPC-5, "PERSISTENT RESERVE OUT command").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Register, register another key, or unregister.
    Register,
    /// Establish a reservation.
    Reserve,
    /// End it.
    Release,
    /// End it and all registrations.
    Clear,
    /// Take it from others, or end their registrations.
    Preempt,
    /// The same, and end their commands.
    PreemptAndAbort,
    /// Register whatever is registered.
    RegisterAndIgnore,
    /// Give it to another nexus.
    RegisterAndMove,
}

/// The CDB of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveOut {
    /// What to do.
    pub action: Action,
    /// SCOPE and TYPE, which some actions ignore.
    pub(super) scope_and_type: u8,
    /// Bytes of the parameter list, at most [`LIST_BYTES_MAX`].
    pub list_bytes: u32,
}

impl ReserveOut {
    pub(in crate::scsi) fn decode(action: u8, scope_and_type: u8, list_bytes: u32) -> Result<ReserveOut, Sense> {
        let action = match action {
            reserve_out::REGISTER => Action::Register,
            reserve_out::RESERVE => Action::Reserve,
            reserve_out::RELEASE => Action::Release,
            reserve_out::CLEAR => Action::Clear,
            reserve_out::PREEMPT => Action::Preempt,
            reserve_out::PREEMPT_AND_ABORT => Action::PreemptAndAbort,
            reserve_out::REGISTER_AND_IGNORE => Action::RegisterAndIgnore,
            reserve_out::REGISTER_AND_MOVE => Action::RegisterAndMove,
            _ => return Err(Sense::cdb_bit(1, 4)),
        };
        if list_bytes > LIST_BYTES_MAX {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        Ok(ReserveOut { action, scope_and_type, list_bytes })
    }
}
