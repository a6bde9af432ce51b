//! The control queue, and events.

use device::scsi::{
    Address, Attention, BadTarget, Control, ControlError, Event, Lun, Reset, ResponseCode, Tmf, decode_control,
    notification_reply,
};
use proptest::prelude::*;

const UNIT: [u8; 8] = [1, 4, 0, 5, 0, 0, 0, 0];

fn address() -> Address {
    Address::Unit { target: 4, lun: Lun::new(5).unwrap() }
}

fn tmf(subtype: u32, lun: [u8; 8]) -> Vec<u8> {
    [&0_u32.to_le_bytes()[..], &subtype.to_le_bytes(), &lun, &0x0102_0304_0506_0708_u64.to_le_bytes()].concat()
}

fn notification(kind: u32, events: u32) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &UNIT, &events.to_le_bytes()].concat()
}

#[test]
fn functions_have_their_numbers() {
    let functions = [
        Tmf::AbortTask,
        Tmf::AbortTaskSet,
        Tmf::ClearAca,
        Tmf::ClearTaskSet,
        Tmf::NexusReset,
        Tmf::LogicalUnitReset,
        Tmf::QueryTask,
        Tmf::QueryTaskSet,
        Tmf::Unknown(8),
    ];
    for (subtype, function) in (0..).zip(functions) {
        let expected = Control::Tmf { function, address: Ok(address()), id: 0x0102_0304_0506_0708 };
        assert_eq!(decode_control(&tmf(subtype, UNIT), 1), Ok(expected));
    }
    let elsewhere = decode_control(&tmf(0, [0; 8]), 1).unwrap();
    assert!(matches!(elsewhere, Control::Tmf { address: Err(BadTarget), .. }));
}

#[test]
fn notifications_are_asked_for_and_about() {
    for (kind, subscribe) in [(1, false), (2, true)] {
        let expected = Control::Notifications { address: Ok(address()), events: 0x7e, subscribe };
        assert_eq!(decode_control(&notification(kind, 0x7e), 5), Ok(expected));
    }
    assert_eq!(notification_reply(0x0102, ResponseCode::IncorrectLun), [2, 1, 0, 0, 12]);
}

#[test]
fn what_cannot_be_answered_is_refused() {
    let (tmf, query) = (tmf(0, UNIT), notification(1, 0));
    assert_eq!(decode_control(&tmf[..23], 1), Err(ControlError::ShortRequest));
    assert_eq!(decode_control(&tmf, 0), Err(ControlError::ShortReply));
    assert_eq!(decode_control(&query[..15], 5), Err(ControlError::ShortRequest));
    assert_eq!(decode_control(&query, 4), Err(ControlError::ShortReply));
    assert_eq!(decode_control(&[1, 0, 0], 5), Err(ControlError::ShortRequest));
    assert_eq!(decode_control(&notification(3, 0), 5), Err(ControlError::UnknownType(3)));
}

#[test]
fn responses_have_their_numbers() {
    use ResponseCode as R;
    let codes = [
        R::Ok,
        R::Overrun,
        R::Aborted,
        R::BadTarget,
        R::Reset,
        R::Busy,
        R::TransportFailure,
        R::TargetFailure,
        R::NexusFailure,
        R::Failure,
        R::FunctionSucceeded,
        R::FunctionRejected,
        R::IncorrectLun,
    ];
    assert!(codes.map(ResponseCode::byte).into_iter().eq(0..13));
}

#[test]
fn events_have_their_bytes() {
    assert_eq!(Event::None.encode(true), [0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (reason, reset) in [(0, Reset::Hard), (1, Reset::Rescan), (2, Reset::Removed)] {
        let bytes = Event::Reset(address(), reset).encode(false);
        assert_eq!(bytes, [1, 0, 0, 0, 1, 4, 0, 5, 0, 0, 0, 0, reason, 0, 0, 0]);
    }
    // The code is in bits 0 to 7, its qualifier in bits 8 to 15.
    let bytes = Event::Changed(address(), Attention::CapacityChanged.code()).encode(true);
    assert_eq!(bytes, [3, 0, 0, 0x80, 1, 4, 0, 5, 0, 0, 0, 0, 0x2a, 9, 0, 0]);
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40), writable in 0..10_u64, kind in 0..4_u8) {
        let _ = decode_control(&bytes, writable);
        let mut bytes = bytes;
        if let Some(field) = bytes.first_chunk_mut() {
            *field = u32::from(kind).to_le_bytes();
        }
        let _ = decode_control(&bytes, writable);
    }
}
