//! Requests on the control queue.

use super::address::{Address, BadTarget};
use super::response::ResponseCode;
use super::spec::{AN_BYTES, TMF_BYTES, control_type, tmf};
use crate::wire::{le32, le64, put};

/// Most readable bytes that [`decode_control`] looks at.
pub const CONTROL_BYTES_MAX: usize = TMF_BYTES;

/// Task management functions (SAM-5, "Task management functions").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tmf {
    /// End one command of this nexus on a logical unit.
    AbortTask,
    /// End all commands of this nexus on a logical unit.
    AbortTaskSet,
    /// End an ACA condition, which our units never have.
    ClearAca,
    /// End the commands of every nexus on a logical unit.
    ClearTaskSet,
    /// End all commands of this nexus on every logical unit of a target.
    NexusReset,
    /// End all commands on a logical unit and reset it.
    LogicalUnitReset,
    /// Is this command still there?
    QueryTask,
    /// Are there commands of this nexus on a logical unit?
    QueryTaskSet,
    /// No function of the specification; the response is [`ResponseCode::FunctionRejected`].
    Unknown(u32),
}

impl Tmf {
    const fn decode(subtype: u32) -> Tmf {
        match subtype {
            tmf::ABORT_TASK => Tmf::AbortTask,
            tmf::ABORT_TASK_SET => Tmf::AbortTaskSet,
            tmf::CLEAR_ACA => Tmf::ClearAca,
            tmf::CLEAR_TASK_SET => Tmf::ClearTaskSet,
            tmf::I_T_NEXUS_RESET => Tmf::NexusReset,
            tmf::LOGICAL_UNIT_RESET => Tmf::LogicalUnitReset,
            tmf::QUERY_TASK => Tmf::QueryTask,
            tmf::QUERY_TASK_SET => Tmf::QueryTaskSet,
            other => Tmf::Unknown(other),
        }
    }
}

/// A request on the control queue. The response to a bad address is [`ResponseCode::BadTarget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Task management. The reply is the byte of a [`ResponseCode`].
    Tmf {
        /// What to do.
        function: Tmf,
        /// Where.
        address: Result<Address, BadTarget>,
        /// To which command, if it is about one.
        id: u64,
    },
    /// Which of these notifications can the unit send, or: send these from now on. Our units send none, so the answer to both is
    /// [`notification_reply`] of no events.
    Notifications {
        /// Which unit.
        address: Result<Address, BadTarget>,
        /// The events asked for (section 5.6.6.2).
        events: u32,
        /// To be sent from now on.
        subscribe: bool,
    },
}

/// Why a chain on the control queue gets no reply: it is returned with nothing written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub enum ControlError {
    /// the chain is shorter than its request
    ShortRequest,
    /// the chain has no room for the reply
    ShortReply,
    /// requests of type {0} are unknown, and so is the form of their reply
    UnknownType(u32),
}

/// Decodes a request on the control queue from the first readable bytes, at most [`CONTROL_BYTES_MAX`]. `writable_bytes`: room of
/// the chain for the reply.
///
/// # Errors
/// A chain that cannot be answered.
pub fn decode_control(bytes: &[u8], writable_bytes: u64) -> Result<Control, ControlError> {
    let kind = bytes.first_chunk::<4>().ok_or(ControlError::ShortRequest)?;
    match u32::from_le_bytes(*kind) {
        control_type::TMF => {
            let bytes = bytes.first_chunk::<TMF_BYTES>().ok_or(ControlError::ShortRequest)?;
            room(writable_bytes, 1)?;
            Ok(Control::Tmf {
                function: Tmf::decode(le32::<4, _>(bytes)),
                address: Address::decode(&le64::<8, _>(bytes).to_le_bytes()),
                id: le64::<16, _>(bytes),
            })
        }
        kind @ (control_type::AN_QUERY | control_type::AN_SUBSCRIBE) => {
            let bytes = bytes.first_chunk::<AN_BYTES>().ok_or(ControlError::ShortRequest)?;
            room(writable_bytes, NOTIFICATION_REPLY_BYTES)?;
            Ok(Control::Notifications {
                address: Address::decode(&le64::<4, _>(bytes).to_le_bytes()),
                events: le32::<12, _>(bytes),
                subscribe: kind == control_type::AN_SUBSCRIBE,
            })
        }
        other => Err(ControlError::UnknownType(other)),
    }
}

const NOTIFICATION_REPLY_BYTES: usize = 5;

/// The reply to [`Control::Notifications`]: the events that the unit can send, and how it went.
pub fn notification_reply(events: u32, code: ResponseCode) -> [u8; NOTIFICATION_REPLY_BYTES] {
    let mut out = [0; NOTIFICATION_REPLY_BYTES];
    put::<0, _, _>(&mut out, events.to_le_bytes());
    put::<4, _, _>(&mut out, [code.byte()]);
    out
}

fn room(writable_bytes: u64, bytes: usize) -> Result<(), ControlError> {
    if writable_bytes < bytes as u64 { Err(ControlError::ShortReply) } else { Ok(()) }
}
