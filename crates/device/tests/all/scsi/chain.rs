//! Requests cut apart, residuals, and the bytes of responses.

use device::scsi::{
    Address, BadTarget, Buffers, Lun, Malformed, Response, ResponseBytes, ResponseCode, Sense, Sizes, Status,
    TaskAttribute, Transfer, decode_request,
};
use proptest::prelude::*;

/// The first readable bytes of a chain, with a CDB of 32 bytes.
fn head(lun: [u8; 8], attribute: u8, cdb: &[u8]) -> Vec<u8> {
    let mut out = lun.to_vec();
    out.extend(0x1122_3344_5566_7788_u64.to_le_bytes());
    out.extend([attribute, 0, 0]);
    out.extend(cdb);
    out.resize(19 + 32, 0);
    out
}

#[test]
fn a_request_has_its_parts() {
    let bytes = head([1, 2, 0x40, 3, 0, 0, 0, 0], 2, &[0x28, 9]);
    let request = decode_request(&bytes, 51 + 4096, 108 + 512, Sizes::DEFAULT).unwrap();
    assert_eq!(request.address, Ok(Address::Unit { target: 2, lun: Lun::new(3).unwrap() }));
    assert_eq!(request.id, 0x1122_3344_5566_7788);
    assert_eq!(request.attribute, TaskAttribute::HeadOfQueue);
    assert_eq!((request.cdb.len(), &request.cdb[..3]), (32, &[0x28, 9, 0][..]));
    assert_eq!(request.buffers, Buffers { out_bytes: 4096, in_bytes: 512 });
}

#[test]
fn attributes_and_addresses_are_told_apart() {
    use TaskAttribute as T;
    for (byte, attribute) in [(0, T::Simple), (1, T::Ordered), (2, T::HeadOfQueue), (3, T::Aca), (4, T::Unknown(4))] {
        let bytes = head([0; 8], byte, &[]);
        let request = decode_request(&bytes, 51, 108, Sizes::DEFAULT).unwrap();
        assert_eq!(request.attribute, attribute);
        assert_eq!(request.address, Err(BadTarget));
    }
}

#[test]
fn a_chain_has_room_for_request_and_response() {
    let bytes = head([0; 8], 0, &[]);
    let decode = |head: &[u8], readable, writable| {
        decode_request(head, readable, writable, Sizes::DEFAULT).map(|request| request.buffers)
    };
    assert_eq!(decode(&bytes, 51, 108), Ok(Buffers { out_bytes: 0, in_bytes: 0 }));
    assert_eq!(decode(&bytes, 50, 108), Err(Malformed::ShortRequest));
    assert_eq!(decode(&bytes[..50], 50, 108), Err(Malformed::ShortRequest));
    assert_eq!(decode(&bytes, 51, 107), Err(Malformed::ShortResponse));
    assert_eq!(decode(&[], 0, 0), Err(Malformed::ShortRequest));
}

#[test]
fn sizes_move_the_data() {
    let sizes = Sizes::new(18, 16).unwrap();
    let bytes = head([0; 8], 0, &[]);
    let request = decode_request(&bytes[..35], 35 + 7, 30 + 9, sizes).unwrap();
    assert_eq!((request.cdb.len(), request.buffers), (16, Buffers { out_bytes: 7, in_bytes: 9 }));
}

#[test]
fn data_that_is_too_short_is_an_overrun() {
    let admit = |out_bytes, in_bytes, transfer| Buffers { out_bytes, in_bytes }.admit(transfer, false);
    assert_eq!(admit(0, 0, Transfer::None), Ok(()));
    assert_eq!(admit(512, 0, Transfer::None), Ok(()));
    assert_eq!(admit(512, 0, Transfer::Out(512)), Ok(()));
    assert_eq!(admit(511, 0, Transfer::Out(512)), Err(ResponseCode::Overrun));
    assert_eq!(admit(0, 512, Transfer::Out(512)), Err(ResponseCode::Overrun));
    assert_eq!(admit(0, 512, Transfer::In(36)), Ok(()));
    assert_eq!(admit(512, 0, Transfer::In(36)), Err(ResponseCode::Overrun));
    assert_eq!(admit(0, 0, Transfer::In(0)), Ok(()));
}

#[test]
fn data_both_ways_is_negotiated() {
    let both = Buffers { out_bytes: 8, in_bytes: 512 };
    assert_eq!(both.admit(Transfer::In(512), false), Err(ResponseCode::Failure));
    assert_eq!(both.admit(Transfer::In(512), true), Ok(()));
    assert_eq!(both.admit(Transfer::Out(9), true), Err(ResponseCode::Overrun));
    assert_eq!(both.residual(512), 8);
}

#[test]
fn responses_have_their_bytes() {
    let buffers = Buffers { out_bytes: 0, in_bytes: 0x1000 };
    let good = encoded(&Response::good(&buffers, 0x0fff), Sizes::DEFAULT);
    let mut expected = vec![0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    expected.resize(12 + 96, 0);
    assert_eq!(good, expected);

    let check = encoded(&Response::check(&buffers, Sense::cdb_bit(1, 3), 0), Sizes::DEFAULT);
    let expected = [
        18, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 2, 0, // sense_len, residual, qualifier, CHECK CONDITION, OK
        0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcb, 0, 1, // sense data
    ];
    assert_eq!(check[..30], expected);
    assert_eq!((check.len(), check[30..].iter().all(|byte| *byte == 0)), (108, true));

    let bad = encoded(&Response::transport(&buffers, ResponseCode::BadTarget), Sizes::DEFAULT);
    assert_eq!(bad[..12], [0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 3]);
    let conflict = encoded(&Response::status(&buffers, Status::ReservationConflict), Sizes::DEFAULT);
    assert_eq!(conflict[..12], [0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0x18, 0]);
}

fn encoded(response: &Response, sizes: Sizes) -> Vec<u8> {
    response.encode(sizes, false, &mut ResponseBytes::default()).to_vec()
}

#[test]
fn a_response_has_nothing_of_the_one_before() {
    let buffers = Buffers { out_bytes: 0, in_bytes: 0 };
    let (good, check) = (Response::good(&buffers, 0), Response::check(&buffers, Sense::NO_UNIT, 0));
    let sizes = [Sizes::DEFAULT, Sizes::new(14, 16).unwrap(), Sizes::new(252, 32).unwrap()];
    let mut bytes = ResponseBytes::default();
    for response in [good, check, check, good, good, check, good] {
        for (sizes, descriptor) in sizes.into_iter().flat_map(|sizes| [(sizes, false), (sizes, true)]) {
            let alone = response.encode(sizes, descriptor, &mut ResponseBytes::default()).to_vec();
            assert_eq!(response.encode(sizes, descriptor, &mut bytes), alone);
        }
    }
}

#[test]
fn sense_data_is_cut_at_its_size() {
    let buffers = Buffers { out_bytes: 0, in_bytes: 0 };
    let response = Response::check(&buffers, Sense::NO_UNIT, 0);
    let cut = encoded(&response, Sizes::new(14, 16).unwrap());
    assert_eq!(cut[..], [14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x25, 0]);
    assert_eq!(encoded(&response, Sizes::new(0, 16).unwrap())[..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
}

#[test]
fn sense_data_has_both_forms() {
    let miscompare = Sense::miscompare(0x0102_0304);
    let fixed = [0xf0, 0, 0xe, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x1d, 0, 0, 0, 0, 0];
    assert_eq!(miscompare.encode(false)[..], fixed);
    let descriptor = [0x72, 0xe, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    assert_eq!(miscompare.encode(true)[..], descriptor);
    // More than 32 bits fit into descriptors alone.
    let far = Sense::READ_ERROR.at(0x0001_0000_0000);
    assert_eq!(far.encode(false)[..], [0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0]);
    assert_eq!(far.encode(true)[12..20], [0, 0, 0, 1, 0, 0, 0, 0]);
    // In a parameter list, without a bit, at byte 0x123.
    let list = Sense::list(0x123).encode(true);
    assert_eq!(list[..], [0x72, 5, 0x26, 0, 0, 0, 0, 8, 2, 6, 0, 0, 0x80, 1, 0x23, 0]);
}

proptest! {
    #[test]
    fn residuals_count_what_was_not_moved(out_bytes in 0..u64::from(u32::MAX) * 2, in_bytes in 0..u64::from(u32::MAX), moved: u64) {
        let buffers = Buffers { out_bytes, in_bytes };
        let total = out_bytes + in_bytes;
        let moved = moved % (total + 1);
        let residual = u64::from(buffers.residual(moved));
        prop_assert_eq!(residual, (total - moved).min(u64::from(u32::MAX)));
        prop_assert_eq!(buffers.residual(u64::MAX), 0);
    }

    #[test]
    fn any_chain_is_a_request_or_refused(head in proptest::collection::vec(any::<u8>(), 0..300), readable: u64, writable: u64, sense in 0..253_u32, cdb in 6..261_u32) {
        let sizes = Sizes::new(sense, cdb).unwrap();
        if let Ok(request) = decode_request(&head, readable, writable, sizes) {
            prop_assert_eq!(request.cdb.len(), cdb as usize);
            prop_assert_eq!(request.buffers.out_bytes, readable - 19 - u64::from(cdb));
            prop_assert_eq!(request.buffers.in_bytes, writable - 12 - u64::from(sense));
        } else {
            prop_assert!(head.len() < 19 + cdb as usize || readable < 19 + u64::from(cdb) || writable < 12 + u64::from(sense));
        }
    }
}
