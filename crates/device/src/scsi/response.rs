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
    #[inline]
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
    #[inline]
    pub fn encode<'a>(&self, sizes: Sizes, descriptor: bool, bytes: &'a mut ResponseBytes) -> &'a [u8] {
        if self.sense.is_some() || bytes.sense_len > 0 {
            bytes.set_sense(self.sense, sizes, descriptor);
        }
        let mut head = [0; RESPONSE_BYTES];
        put::<0, _, _>(&mut head, (bytes.sense_len as u32).to_le_bytes());
        put::<4, _, _>(&mut head, self.residual.to_le_bytes());
        put::<10, _, _>(&mut head, [self.status.byte(), self.code.byte()]);
        bytes.bytes[..RESPONSE_BYTES].copy_from_slice(&head);
        &bytes.bytes[..sizes.response_bytes()]
    }
}

const RESPONSE_BYTES_MAX: usize = RESPONSE_BYTES + SENSE_BYTES_MAX as usize;

/// Where responses are encoded, one after the other: most have no sense data, and leave the zeroes behind them alone.
#[derive(Debug)]
pub struct ResponseBytes {
    bytes: [u8; RESPONSE_BYTES_MAX],
    /// Bytes of sense data of the last one.
    sense_len: usize,
}

impl Default for ResponseBytes {
    fn default() -> ResponseBytes {
        ResponseBytes { bytes: [0; RESPONSE_BYTES_MAX], sense_len: 0 }
    }
}

impl ResponseBytes {
    /// The response to a command that another device has performed, with the status and the sense data that it gave; as [`Response::encode`].
    pub fn passed(&mut self, sizes: Sizes, status: u8, sense: &[u8], residual: u32) -> &[u8] {
        self.put_sense(sense, sizes);
        let mut head = [0; RESPONSE_BYTES];
        put::<0, _, _>(&mut head, (self.sense_len as u32).to_le_bytes());
        put::<4, _, _>(&mut head, residual.to_le_bytes());
        put::<10, _, _>(&mut head, [status, ResponseCode::Ok.byte()]);
        self.bytes[..RESPONSE_BYTES].copy_from_slice(&head);
        &self.bytes[..sizes.response_bytes()]
    }

    #[cold]
    fn set_sense(&mut self, sense: Option<Sense>, sizes: Sizes, descriptor: bool) {
        let sense = sense.map(|sense| sense.encode(descriptor));
        self.put_sense(sense.as_deref().unwrap_or_default(), sizes);
    }

    /// Replaces the sense data of the last response, as far as there is room.
    fn put_sense(&mut self, sense: &[u8], sizes: Sizes) {
        let (_, room) = self.bytes.split_at_mut(RESPONSE_BYTES);
        room[..self.sense_len].fill(0);
        let sense = sense.get(..usize::from(sizes.sense_bytes())).unwrap_or(sense);
        room[..sense.len()].copy_from_slice(sense);
        self.sense_len = sense.len();
    }
}
