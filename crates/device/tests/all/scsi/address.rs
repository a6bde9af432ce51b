//! Addresses of logical units, in both directions.

use device::scsi::{Address, BadTarget, Lun};
use proptest::prelude::*;

fn unit(target: u8, lun: u16) -> Address {
    Address::Unit { target, lun: Lun::new(lun).unwrap() }
}

#[test]
fn both_forms_of_a_number_are_read() {
    let cases = [
        ([1, 0, 0, 0, 0, 0, 0, 0], unit(0, 0)),
        ([1, 255, 0, 255, 0, 0, 0, 0], unit(255, 255)),
        ([1, 3, 0x40, 0, 0, 0, 0, 0], unit(3, 0)),
        ([1, 3, 0x41, 0x2c, 0, 0, 0, 0], unit(3, 300)),
        ([1, 3, 0x7f, 0xff, 0, 0, 0, 0], unit(3, 16383)),
        ([1, 9, 0xc1, 1, 0, 0, 0, 0], Address::ReportLuns { target: Some(9) }),
        ([0xc1, 1, 0, 0, 0, 0, 0, 0], Address::ReportLuns { target: None }),
    ];
    for (bytes, address) in cases {
        assert_eq!(Address::decode(&bytes), Ok(address));
    }
}

#[test]
fn nothing_else_is_an_address() {
    let wrong: [[u8; 8]; 11] = [
        [0, 0, 0, 0, 0, 0, 0, 0],
        [2, 0, 0, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 0, 0],    // another bus
        [1, 0, 0x3f, 0, 0, 0, 0, 0], // another bus
        [1, 0, 0x80, 0, 0, 0, 0, 0], // logical unit addressing
        [1, 0, 0xc1, 2, 0, 0, 0, 0], // the well known ACCESS CONTROLS
        [1, 0, 0xc0, 1, 0, 0, 0, 0],
        [1, 0, 0, 0, 1, 0, 0, 0], // a second level
        [1, 0, 0, 0, 0, 0, 0, 1],
        [0xc1, 1, 0, 0, 0, 0, 0, 1],
        [0xc1, 2, 0, 0, 0, 0, 0, 0],
    ];
    for bytes in wrong {
        assert_eq!(Address::decode(&bytes), Err(BadTarget), "{bytes:x?}");
    }
}

#[test]
fn numbers_end_at_16383() {
    assert!(Lun::new(16383).is_some());
    assert_eq!(Lun::new(16384), None);
}

proptest! {
    #[test]
    fn what_is_sent_is_read_again(target: u8, lun in 0..16384_u16) {
        let address = unit(target, lun);
        prop_assert_eq!(Address::decode(&address.bytes()), Ok(address));
        prop_assert_eq!(address.target(), Some(target));
        // Peripheral below 256, flat from there on.
        prop_assert_eq!(address.bytes()[2] >> 6, u8::from(lun >= 256));
    }

    #[test]
    fn any_bytes_are_an_address_or_none(bytes: [u8; 8]) {
        if let Ok(address) = Address::decode(&bytes) {
            prop_assert_eq!(Address::decode(&address.bytes()), Ok(address));
        }
    }
}
