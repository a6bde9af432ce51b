//! Responses to requests.

use super::chain::{Buffers, Sizes};
use super::sense::Sense;
use super::spec::{RESPONSE_BYTES, SENSE_BYTES_MAX, response, status};
use crate::wire::put;

/// The transport's outcome of a request or a task management function (virtio 1.3, sections 5.6.6.1 and 5.6.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResponseCode {
    /// The SCSI status says how it went; to task management: done.
    Ok,
    /// The CDB asks for more data than there are buffers.
    Overrun,
    /// Cancelled by ABORT TASK or ABORT TASK SET.
    Aborted,
    /// No such target.
    BadTarget,
    /// Cancelled by a reset.
    Reset,
    /// Failed, and likely to work when it is sent again.
    Busy,
    /// No connection to the target.
    TransportFailure,
    /// The target fails, and will on other paths.
    TargetFailure,
    /// This path fails, another one may not.
    NexusFailure,
    /// Any other failure.
    Failure,
    /// Task management: the task is there.
    FunctionSucceeded,
    /// Task management: not a function of this device.
    FunctionRejected,
    /// Task management: the target has no such logical unit.
    IncorrectLun,
}

impl ResponseCode {
    /// The byte the driver reads.
    pub const fn byte(self) -> u8 {
        match self {
            ResponseCode::Ok => response::OK,
            ResponseCode::Overrun => response::OVERRUN,
            ResponseCode::Aborted => response::ABORTED,
            ResponseCode::BadTarget => response::BAD_TARGET,
            ResponseCode::Reset => response::RESET,
            ResponseCode::Busy => response::BUSY,
            ResponseCode::TransportFailure => response::TRANSPORT_FAILURE,
            ResponseCode::TargetFailure => response::TARGET_FAILURE,
            ResponseCode::NexusFailure => response::NEXUS_FAILURE,
            ResponseCode::Failure => response::FAILURE,
            ResponseCode::FunctionSucceeded => response::FUNCTION_SUCCEEDED,
            ResponseCode::FunctionRejected => response::FUNCTION_REJECTED,
            ResponseCode::IncorrectLun => response::INCORRECT_LUN,
        }
    }
}

/// The SCSI status of a command (SAM-5, "Status codes").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done.
    Good,
    /// Sense data says what is wrong.
    CheckCondition,
    /// Not now.
    Busy,
    /// Another initiator's reservation is in the way.
    ReservationConflict,
    /// More commands than the unit takes at once.
    TaskSetFull,
    /// Another initiator has ended the command.
    TaskAborted,
}

impl Status {
    /// The byte the driver reads.
    pub const fn byte(self) -> u8 {
        match self {
            Status::Good => status::GOOD,
            Status::CheckCondition => status::CHECK_CONDITION,
            Status::Busy => status::BUSY,
            Status::ReservationConflict => status::RESERVATION_CONFLICT,
            Status::TaskSetFull => status::TASK_SET_FULL,
            Status::TaskAborted => status::TASK_ABORTED,
        }
    }
}

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The transport's outcome.
    pub code: ResponseCode,
    /// The command's outcome.
    pub status: Status,
    /// Bytes of data that were not moved; see [`Buffers::residual`].
    pub residual: u32,
    /// What CHECK CONDITION is about.
    pub sense: Option<Sense>,
}

impl Response {
    /// GOOD, after `moved_bytes` of the data were moved.
    pub fn good(buffers: &Buffers, moved_bytes: u64) -> Response {
        let residual = buffers.residual(moved_bytes);
        Response { code: ResponseCode::Ok, status: Status::Good, residual, sense: None }
    }

    /// A status without sense data, before any data was moved.
    pub fn status(buffers: &Buffers, status: Status) -> Response {
        Response { code: ResponseCode::Ok, status, residual: buffers.residual(0), sense: None }
    }

    /// CHECK CONDITION, after `moved_bytes` of the data were moved.
    pub fn check(buffers: &Buffers, sense: Sense, moved_bytes: u64) -> Response {
        let residual = buffers.residual(moved_bytes);
        Response { code: ResponseCode::Ok, status: Status::CheckCondition, residual, sense: Some(sense) }
    }

    /// The transport's outcome alone: no command was processed.
    pub fn transport(buffers: &Buffers, code: ResponseCode) -> Response {
        Response { code, status: Status::Good, residual: buffers.residual(0), sense: None }
    }

    /// The writable bytes before data-in, sense data padded with zeroes up to its size, so that the bytes used have no gap (virtio
    /// 1.3, section 2.7.8.2). Sense data that is longer is cut off.
    ///
    /// `descriptor`: the form of sense data that the unit's mode asks for ([`Mode::descriptor_sense`](super::Mode)).
    pub fn encode(&self, sizes: Sizes, descriptor: bool) -> ResponseBytes {
        let mut head = [0; RESPONSE_BYTES];
        let mut bytes = [0; RESPONSE_BYTES_MAX];
        let sense = self.sense.map(|sense| sense.encode(descriptor));
        let sense = sense.as_deref().unwrap_or_default();
        let sense = sense.get(..usize::from(sizes.sense_bytes())).unwrap_or(sense);
        put::<0, _, _>(&mut head, (sense.len() as u32).to_le_bytes());
        put::<4, _, _>(&mut head, self.residual.to_le_bytes());
        put::<10, _, _>(&mut head, [self.status.byte(), self.code.byte()]);
        bytes[..RESPONSE_BYTES].copy_from_slice(&head);
        bytes[RESPONSE_BYTES..RESPONSE_BYTES + sense.len()].copy_from_slice(sense);
        ResponseBytes { bytes, len: sizes.response_bytes() }
    }
}

const RESPONSE_BYTES_MAX: usize = RESPONSE_BYTES + SENSE_BYTES_MAX as usize;

/// An encoded response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseBytes {
    bytes: [u8; RESPONSE_BYTES_MAX],
    len: usize,
}

impl std::ops::Deref for ResponseBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
