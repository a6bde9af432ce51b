//! Any bytes, any fields.

use super::units::{settings, unit};
use device::scsi::opcodes::OPERATIONS;
use device::scsi::{Addressed, Sense, decode};
use proptest::prelude::*;

/// A CDB of an operation that has only its code and service action, and what no command is without.
fn plain(code: u8, action: Option<u8>, len: usize) -> Vec<u8> {
    let mut cdb = vec![0; len];
    cdb[0] = code;
    cdb[1] = action.unwrap_or_default();
    match code {
        0x15 | 0x55 => cdb[1] = 0x10,               // PF
        0x41 => cdb[8] = 1,                         // one block
        0x93 => cdb[13] = 1,                        // one block
        0xa3 if action == Some(0x0d) => cdb[9] = 4, // room
        _ => {}
    }
    cdb
}

#[test]
fn operations_are_sorted_and_decode() {
    assert!(OPERATIONS.is_sorted_by_key(|row| (row.code, row.action)));
    for row in OPERATIONS {
        assert_eq!(row.usage[0], row.code);
        assert!(row.is_offered(&unit()));
        let len = match row.code >> 5 {
            0 => 6,
            1 | 2 => 10,
            4 => 16,
            5 => 12,
            other => panic!("group {other}"),
        };
        assert_eq!(row.usage.len(), len, "{}", row.name);
        let cdb = plain(row.code, row.action, len);
        assert!(decode(&cdb, Addressed::Disk(&unit())).is_ok(), "{}", row.name);
        let data: Vec<u8> = row.usage_data().collect();
        assert_eq!((data.len(), data[1] & 0x1f), (len, row.action.unwrap_or(row.usage[1] & 0x1f)));
        // No bit that it does not have; service actions are the others.
        for (at, mask) in row.usage.iter().enumerate().skip(1) {
            for bit in (0..8).filter(|bit| mask >> bit & 1 == 0) {
                let mut wrong = cdb.clone();
                wrong[at] |= 1 << bit;
                let expected = Err(Sense::cdb_bit(at as u16, bit));
                assert_eq!(decode(&wrong, Addressed::Disk(&unit())), expected, "{} {at} {bit}", row.name);
            }
        }
    }
}

#[test]
fn every_other_code_is_none() {
    for code in (0..=255).filter(|code| OPERATIONS.iter().all(|row| row.code != *code)) {
        let mut cdb = [0; 32];
        cdb[0] = code;
        assert_eq!(decode(&cdb, Addressed::Disk(&unit())), Err(Sense::INVALID_OPCODE));
    }
}

proptest! {
    #[test]
    fn any_cdb_is_a_command_or_refused(row in 0..OPERATIONS.len(), mut area in proptest::collection::vec(any::<u8>(), 0..40), masked: bool) {
        let row = &OPERATIONS[row];
        if let Some(code) = area.first_mut() {
            *code = row.code;
        }
        if masked {
            area.iter_mut().zip(row.usage_data()).skip(1).for_each(|(byte, mask)| *byte &= mask);
        }
        for addressed in [Addressed::Disk(&unit()), Addressed::Nothing, Addressed::ReportLuns] {
            if let Ok(command) = decode(&area, addressed) {
                prop_assert!(area.len() >= 6);
                let _ = (command.access(), command.transfer(settings().block_bytes));
            }
        }
    }

    #[test]
    #[cfg(feature = "fuzzing")]
    fn the_fuzz_bodies_take_anything(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        device::fuzzing::scsi_request(&bytes);
        device::fuzzing::scsi_reservations(&bytes);
    }
}

/// A chain of a unit of 1000 blocks that offers everything: its CDB, and data-out.
#[cfg(feature = "fuzzing")]
fn chain(cdb: &[u8], list: &[u8]) -> Vec<u8> {
    let fixed = [0x80, 96, 32, 0xff, 0xff, 0xff, 0xff, 0xe8, 3, 0xff, 0xff, 5];
    let mut out = [&fixed[..], &[1, 0, 0x40, 0, 0, 0, 0, 0], &[7; 8], &[0; 3], cdb].concat();
    out.resize(fixed.len() + 19 + 32, 0);
    out.extend(list);
    out
}

/// The fuzzer starts from one CDB of each command, and parameter lists of those that have them.
#[test]
#[cfg(feature = "fuzzing")]
fn the_seeds_are_the_commands() {
    let name = |row: &device::scsi::opcodes::Operation| {
        let action = row.action.map(|action| format!("_{action:02x}")).unwrap_or_default();
        format!("op_{:02x}{action}", row.code)
    };
    let mut seeds: Vec<(String, Vec<u8>)> = OPERATIONS
        .iter()
        .map(|row| {
            let mut cdb = plain(row.code, row.action, row.usage.len());
            // Some length, where it has one.
            if let Some(at) = row.usage.iter().rposition(|mask| *mask == 255).filter(|at| *at > 2) {
                cdb[at] = 24;
            }
            (name(row), chain(&cdb, &[0; 64]))
        })
        .collect();
    let unmap = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 3, 0, 0, 0, 0]].concat();
    seeds.push(("list_unmap".into(), chain(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &unmap)));
    let page = [&[0, 0, 0, 0, 8, 18][..], &[0; 18]].concat();
    seeds.push(("list_mode".into(), chain(&[0x15, 0x10, 0, 0, 24, 0], &page)));
    let register = [&[0; 15][..], &[5, 0, 0, 0, 0, 1, 0, 0, 0]].concat();
    seeds.push(("list_register".into(), chain(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &register)));
    let seeds: Vec<(&str, Vec<u8>)> = seeds.iter().map(|(name, bytes)| (&name[..], bytes.clone())).collect();
    crate::seeds::hold("scsi_request", &seeds, device::fuzzing::scsi_request);
}

/// The fuzzer starts from one course of each action, and a file.
#[test]
#[cfg(feature = "fuzzing")]
fn the_seeds_are_the_actions() {
    let out = |nexus: u8, action: u8, kind: u8, key: u8, new_key: u8, flags: u8| {
        let mut bytes = vec![nexus, action, kind, 24];
        bytes.extend([0; 24]);
        (bytes[11], bytes[19], bytes[24]) = (key, new_key, flags);
        bytes
    };
    let both = [out(0, 0, 0, 0, 1, 1), out(1, 0, 0, 0, 2, 0)].concat();
    let course = |rest: &[u8]| [&[0][..], &both, rest].concat();
    let mut moved = out(0, 7, 0, 1, 3, 0);
    moved[3] = 48;
    moved[23] = 2; // the port
    moved[27] = 24;
    moved.extend([6, 0, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut file = Vec::new();
    {
        let mut all = device::scsi::reservations::Reservations::new();
        let to =
            device::scsi::Nexus { initiator: device::scsi::InitiatorPort(3 << 60), port: device::scsi::TargetPort(1) };
        all.reserve(to).unwrap();
        file.extend([3]);
        file.extend(all.to_bytes());
    }
    let seeds = [
        ("release", course(&[out(0, 1, 5, 1, 0, 0), out(0, 2, 5, 1, 0, 0)].concat())),
        ("clear", course(&out(0, 3, 0, 1, 0, 0))),
        ("preempt", course(&[out(0, 1, 3, 1, 0, 0), out(1, 4, 6, 2, 1, 0)].concat())),
        ("abort_all", course(&[out(0, 1, 7, 1, 0, 0), out(1, 5, 8, 2, 0, 0)].concat())),
        ("ignore", course(&out(0, 6, 0, 9, 4, 4))),
        ("move", course(&[out(0, 1, 1, 1, 0, 0), moved].concat())),
        ("reserve_6", vec![0, 8, 0, 0, 0, 16, 0, 0, 0, 24, 0, 0, 0, 32, 0, 0, 0]),
        ("file", file),
    ];
    crate::seeds::hold("scsi_reservations", &seeds, device::fuzzing::scsi_reservations);
}

#[test]
#[cfg(feature = "fuzzing")]
fn noise_holds() {
    crate::seeds::noise(5000, 300, |input| device::fuzzing::scsi_request(&input));
    crate::seeds::noise(5000, 300, |input| device::fuzzing::scsi_reservations(&input));
}
