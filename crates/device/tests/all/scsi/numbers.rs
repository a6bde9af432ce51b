//! Numbers that the other tests do not spell out.

use device::scsi::reservations::Kind;
use device::scsi::spec::{self, sense};
use device::scsi::{Attention, Sense, Status};

#[test]
fn the_device_has_its_numbers() {
    assert_eq!(spec::DEVICE_ID, 8);
    use spec::queue as q;
    assert_eq!([q::CONTROL, q::EVENT, q::REQUEST], [0, 1, 2]);
    use spec::feature as f;
    assert_eq!([f::INOUT, f::HOTPLUG, f::CHANGE], [1, 2, 4]);
    assert_eq!([spec::REQUEST_BYTES, spec::RESPONSE_BYTES, spec::TMF_BYTES, spec::AN_BYTES], [19, 12, 24, 16]);
}

#[test]
fn statuses_have_their_codes() {
    use Status as S;
    let statuses = [S::Good, S::CheckCondition, S::Busy, S::ReservationConflict, S::TaskSetFull, S::TaskAborted];
    assert_eq!(statuses.map(Status::byte), [0, 2, 8, 0x18, 0x28, 0x40]);
}

#[test]
fn errors_have_their_codes() {
    let cases = [
        (Sense::NONE, 0, 0x0000),
        (Sense::NO_BLOCKS, 2, 0x0400),
        (Sense::STOPPED, 2, 0x0402),
        (Sense::WRITE_ERROR, 3, 0x0c00),
        (Sense::READ_ERROR, 3, 0x1100),
        (Sense::PARAMETER_LIST_LENGTH, 5, 0x1a00),
        (Sense::miscompare(0), 0xe, 0x1d00),
        (Sense::INVALID_OPCODE, 5, 0x2000),
        (Sense::LBA_OUT_OF_RANGE, 5, 0x2100),
        (Sense::cdb(1), 5, 0x2400),
        (Sense::NO_UNIT, 5, 0x2500),
        (Sense::list(1), 5, 0x2600),
        (Sense::INVALID_RELEASE, 5, 0x2604),
        (Sense::WRITE_PROTECTED, 7, 0x2700),
        (Sense::NO_SPACE, 7, 0x2707),
        (Sense::SAVING_NOT_SUPPORTED, 5, 0x3900),
        (Sense::INTERNAL, 4, 0x4400),
        (Sense::NO_REGISTRATIONS, 5, 0x5504),
    ];
    for (sense, key, code) in cases {
        assert_eq!((sense.key, sense.code), (key, code));
    }
    assert_eq!(sense::key::ABORTED_COMMAND, 0xb);
}

#[test]
fn conditions_have_their_codes() {
    let codes =
        [0x2901, 0x2900, 0x2903, 0x2907, 0x2f00, 0x2a03, 0x2a05, 0x2a04, 0x2a09, 0x2a01, 0x3f03, 0x3f0e, 0x3807];
    assert_eq!(Attention::ALL.map(Attention::code), codes);
    for (index, attention) in Attention::ALL.into_iter().enumerate() {
        assert_eq!((attention as usize, attention.sense().key), (index, 6));
    }
}

#[test]
fn types_of_reservations_have_their_numbers() {
    assert_eq!(Kind::ALL.map(Kind::code), [1, 3, 5, 6, 7, 8]);
    for code in 0..=255 {
        assert_eq!(Kind::from_code(code).map(Kind::code), [1, 3, 5, 6, 7, 8].contains(&code).then_some(code));
    }
}
