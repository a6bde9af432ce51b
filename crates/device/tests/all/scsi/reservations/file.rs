//! Reservations as bytes.

use device::scsi::reservations::{FILE_BYTES_MAX, FileError, Kind, REGISTRATIONS_MAX, Reservations};
use proptest::prelude::*;

use super::requests::{Out, nexus, register, reserve};

/// Two registrations that survive a loss of power, and a reservation.
fn example() -> Reservations {
    let mut all = Reservations::new();
    register(0, 0xb).send(nexus(2, 1), &mut all).unwrap();
    Out::new(0, 0, 0, 0x0102_0304_0506_0708, 1).send(nexus(1, 2), &mut all).unwrap();
    reserve(0x0102_0304_0506_0708, Kind::ExclusiveAccess).send(nexus(1, 2), &mut all).unwrap();
    all
}

/// Bytes changed, with a right checksum again.
fn changed(edit: impl FnOnce(&mut Vec<u8>)) -> Result<Reservations, FileError> {
    let mut bytes = example().to_bytes();
    edit(&mut bytes);
    seal(&mut bytes);
    Reservations::from_bytes(&bytes)
}

/// XXH3 of everything but the checksum.
fn seal(bytes: &mut [u8]) {
    let rest = [&bytes[..16], &bytes[24..]].concat();
    let checksum = xxhash_rust::xxh3::xxh3_64(&rest);
    bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn fields_stand_where_the_document_says() {
    let mut bytes = example().to_bytes();
    let mut sealed = bytes.clone();
    seal(&mut sealed);
    assert_eq!(bytes, sealed);
    bytes[16..24].fill(0);
    let expected = [
        &b"VRINGDPR"[..],
        &[1, 0, 0, 0, 2, 0, 0, 0], // version, registrations
        &[0; 8],
        &[2, 0, 0, 0, 1, 3, 0, 0],                            // generation, flags, type
        &[1, 0, 0, 0, 0, 0, 0, 0x30, 2, 0, 0, 0, 0, 0, 0, 0], // holder
        &[0; 16],
        &[1, 0, 0, 0, 0, 0, 0, 0x30, 2, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1],
        &[2, 0, 0, 0, 0, 0, 0, 0x30, 1, 0, 0, 0, 0, 0, 0, 0, 0xb, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(bytes, expected.concat());
    assert_eq!(example().stored(), Some(example().to_bytes()));
    let mut old = Reservations::new();
    old.reserve(nexus(9, 3)).unwrap();
    let bytes = old.to_bytes();
    assert_eq!((bytes[28], bytes[48], bytes[56]), (2, 9, 3));
    assert_eq!((Reservations::from_bytes(&bytes), old.stored()), (Ok(old), None));
}

#[test]
fn what_survives_a_loss_of_power() {
    let left = example().after_power_loss();
    assert!(left.registrations().eq(example().registrations()));
    assert!(left.holds(nexus(1, 2)));
    assert_eq!(left.to_bytes()[24..28], [0; 4], "PRGENERATION");
    let mut all = example();
    Out::new(6, 0, 0, 1, 0).send(nexus(1, 2), &mut all).unwrap();
    assert_eq!((all.stored(), all.after_power_loss()), (None, Reservations::new()));
}

#[test]
fn what_is_wrong_is_named() {
    use FileError as E;
    assert_eq!(Reservations::from_bytes(b""), Err(E::Magic));
    assert_eq!(changed(|bytes| bytes[0] = b'v'), Err(E::Magic));
    assert_eq!(changed(|bytes| bytes[8] = 2), Err(E::Version(2)));
    assert_eq!(changed(|bytes| bytes[12] = 3), Err(E::Length { bytes: 112, registrations: 3, needed: 136 }));
    assert_eq!(changed(|bytes| bytes.push(0)), Err(E::Length { bytes: 113, registrations: 2, needed: 112 }));
    let most = u32::MAX;
    let huge = changed(|bytes| bytes[12..16].copy_from_slice(&most.to_le_bytes()));
    assert_eq!(huge, Err(E::Length { bytes: 112, registrations: most, needed: 64 + 24 * u64::from(most) }));
    let many = changed(|bytes| {
        bytes[12..16].copy_from_slice(&257_u32.to_le_bytes());
        bytes.resize(64 + 257 * 24, 1);
    });
    assert_eq!(many, Err(E::Registrations(257)));
    let mut bytes = example().to_bytes();
    bytes[111] ^= 1;
    assert_eq!(Reservations::from_bytes(&bytes), Err(E::Checksum));
    assert_eq!(changed(|bytes| bytes[28] |= 4), Err(E::Reserved(28)));
    assert_eq!(changed(|bytes| bytes[30] = 1), Err(E::Reserved(30)));
    assert_eq!(changed(|bytes| bytes[43] = 1), Err(E::Reserved(42)));
    assert_eq!(changed(|bytes| bytes[48] = 1), Err(E::Reserved(48)));
    assert_eq!(changed(|bytes| bytes[79] = 1), Err(E::Reserved(74)));
    assert_eq!(changed(|bytes| bytes[80..88].fill(0)), Err(E::Key(0)));
    assert_eq!(changed(|bytes| bytes[64] = 3), Err(E::Order(1)));
    assert_eq!(changed(|bytes| bytes.copy_within(64..88, 88)), Err(E::Order(1)));
    assert_eq!(changed(|bytes| bytes[29] = 2), Err(E::Type(2)));
    assert_eq!(changed(|bytes| bytes[32] = 3), Err(E::Holder));
    assert_eq!(changed(|bytes| bytes[29] = 0), Err(E::Reserved(32)));
    assert_eq!(changed(|bytes| bytes[29] = 7), Err(E::Reserved(32)));
    assert_eq!(changed(|bytes| bytes[28] |= 2), Err(E::Beside));
    let nobody = changed(|bytes| {
        bytes.truncate(64);
        bytes[12] = 0;
    });
    assert_eq!(nobody, Err(E::Holder));
}

#[test]
fn the_longest_form_has_every_registration() {
    let mut all = Reservations::new();
    for initiator in 0..REGISTRATIONS_MAX as u64 {
        register(0, 1).send(nexus(initiator, 1), &mut all).unwrap();
    }
    assert_eq!(all.to_bytes().len(), FILE_BYTES_MAX);
    assert_eq!(Reservations::from_bytes(&all.to_bytes()), Ok(all));
}

proptest! {
    #[test]
    fn any_bytes_are_reservations_or_refused(edits in proptest::collection::vec((0..112_usize, any::<u8>()), 0..6), len in 0..113_usize) {
        let read = changed(|bytes| {
            edits.iter().for_each(|(at, byte)| bytes[*at] = *byte);
            if len < 24 { bytes.resize(112 + len, 0) } else { bytes.truncate(len) }
            bytes.resize(bytes.len().max(24), 0);
        });
        if let Ok(read) = read {
            prop_assert_eq!(Reservations::from_bytes(&read.to_bytes()), Ok(read));
        }
    }
}
