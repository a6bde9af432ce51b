//! Reservations that are kept in a file, and outlive their units.

use super::driver::{Server, read_10, shared_unit, unit};
use super::reservations::{
    CLEAR, CONFLICT, DISK_BYTES, EXCLUSIVE_ACCESS, PREEMPT_AND_ABORT, REGISTER, RESERVE, WRITE_EXCLUSIVE_REGISTRANTS,
    keys, ports,
};
use crate::nbd::server::memory;
use export::UnitOptions;
use std::sync::Arc;
use storage::{RecordFile, Storage};

/// Of two exports whose names make one port number, whoever comes second has another one.
#[test]
fn what_a_guest_has_reserved_is_its_own_whatever_number_its_port_gets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quorum.reservations");
    let (own, disk): (Arc<dyn Storage>, Arc<dyn Storage>) =
        (Arc::new(memory(DISK_BYTES)), Arc::new(memory(DISK_BYTES)));
    let names = ["db126-scsi", "db142-scsi"];
    let mut before = Vec::new();
    for order in [[0, 1], [1, 0]] {
        let daemon = Server::new(vec![unit("0", "own", own.clone())]);
        let kept = Some(Arc::new(RecordFile::open(&path).unwrap()));
        let server = |at: usize| {
            let unit = UnitOptions { kept: kept.clone(), ..shared_unit("0", "shared", disk.clone()) };
            (at, daemon.beside(names[at], vec![unit]).unwrap())
        };
        let mut servers = order.map(server);
        servers.sort_by_key(|(at, _)| *at);
        let mut drivers = servers.each_ref().map(|(_, server)| server.driver());
        for driver in &mut drivers {
            (0..2).for_each(|_| drop(driver.ask("0", &[0; 6], &[], 0)));
        }
        let [first, second] = &mut drivers;
        if order == [0, 1] {
            before = ports(first, "0");
            second.reserve_out("0", (REGISTER, 0), [0, 0xb], 1).good();
            second.reserve_out("0", (RESERVE, EXCLUSIVE_ACCESS), [0xb, 0], 0).good();
        }
        assert_eq!((before[1] - before[0], &ports(first, "0")), (1, &before), "the names make one number");
        second.write("0", 0, &[1; 512]).good();
        assert_eq!(first.write("0", 0, &[1; 512]).status, CONFLICT);
        let holder = servers[0].1.export.units().unwrap()[0].reservation.clone().unwrap().holder;
        assert_eq!(holder.as_deref(), Some(names[1]));
    }
}

#[test]
fn what_is_to_survive_a_loss_of_power_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quorum.reservations");
    let disk: Arc<dyn Storage> = Arc::new(memory(DISK_BYTES));
    let begin = || {
        let kept = Some(Arc::new(RecordFile::open(&path).unwrap()));
        let unit_of = |lun| UnitOptions { kept: kept.clone(), ..shared_unit(lun, "shared", disk.clone()) };
        let one = Server::new(vec![unit_of("0")]);
        let other = one.beside("other", vec![unit_of("0")]).unwrap();
        let (mut a, mut b) = (one.driver(), other.driver());
        // What they are told first is another test's.
        for driver in [&mut a, &mut b] {
            (0..2).for_each(|_| drop(driver.ask("0", &[0; 6], &[], 0)));
        }
        (one, other, a, b)
    };
    // Of every driver only what it wanted to be kept, by its last registration: all of the unit or nothing.
    for survives in [1, 0] {
        let (one, other, mut a, mut b) = begin();
        let capabilities = a.ask("0", &[0x5e, 2, 0, 0, 0, 0, 0, 0, 8, 0], &[], 8).good();
        assert_eq!(capabilities[2] & 1, 1, "PTPL_C");
        a.reserve_out("0", (REGISTER, 0), [0, 0xa], survives).good();
        b.reserve_out("0", (REGISTER, 0), [0, 0xb], survives).good();
        a.reserve_out("0", (RESERVE, WRITE_EXCLUSIVE_REGISTRANTS), [0xa, 0], 0).good();
        b.reserve_out("0", (PREEMPT_AND_ABORT, WRITE_EXCLUSIVE_REGISTRANTS), [0xb, 0xa], 0).good();
        a.hears("0", (6, 0x2a, 5));
        drop((a, b, one, other));
        let (_one, _other, mut a, mut b) = begin();
        assert_eq!(keys(&mut b, "0"), if survives == 1 { vec![0xb] } else { vec![] });
        let wrote = a.write("0", 0, &[1; 512]).status;
        assert_eq!(wrote, if survives == 1 { CONFLICT } else { 0 }, "it is out still");
        if survives == 1 {
            b.reserve_out("0", (CLEAR, 0), [0xb, 0], 0).good();
            assert!(RecordFile::open(&path).is_err(), "it is in use");
        }
    }
    assert_eq!(RecordFile::open(&path).unwrap().record(), b"");
}

#[test]
fn reservations_of_guests_that_do_not_come_back_are_broken() {
    let directory = tempfile::tempdir().unwrap();
    let file = Arc::new(RecordFile::open(&directory.path().join("quorum.reservations")).unwrap());
    let disk: Arc<dyn Storage> = Arc::new(memory(DISK_BYTES));
    let unit_of = || UnitOptions { kept: Some(file.clone()), ..shared_unit("0", "shared", disk.clone()) };
    let one = Server::new(vec![unit_of()]);
    let other = one.beside("other", vec![unit_of()]).unwrap();
    let (mut a, mut b) = (one.driver(), other.driver());
    b.settle("0");
    a.hears("0", (6, 0x29, 1));
    a.hears("0", (6, 0x3f, 3));
    a.reserve_out("0", (REGISTER, 0), [0, 0xa], 1).good();
    a.reserve_out("0", (RESERVE, EXCLUSIVE_ACCESS), [0xa, 0], 0).good();
    assert_eq!(b.ask("0", &read_10(0, 1), &[], 512).status, CONFLICT);
    assert_ne!(file.record(), b"");
    one.logical_units.break_reservations("another").unwrap();
    assert_eq!(b.ask("0", &read_10(0, 1), &[], 512).status, CONFLICT);
    one.logical_units.break_reservations("shared").unwrap();
    assert_eq!(file.record(), b"");
    b.write("0", 0, &[1; 512]).good();
    a.hears("0", (6, 0x2a, 3));
    assert!(keys(&mut a, "0").is_empty());
    // One of SCSI-2, too.
    a.ask("0", &[0x16, 0, 0, 0, 0, 0], &[], 0).good();
    assert_eq!(b.ask("0", &read_10(0, 1), &[], 512).status, CONFLICT);
    one.logical_units.break_reservations("shared").unwrap();
    b.write("0", 0, &[1; 512]).good();
}

#[test]
fn what_cannot_be_stored_is_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quorum.reservations");
    drop(RecordFile::open(&path).unwrap());
    let (_fd, handed) = RecordFile::open(&path).unwrap().hand_over().unwrap();
    let kept = Arc::new(RecordFile::adopt(&path, std::fs::File::open(&path).unwrap().into(), handed));
    let disk = UnitOptions { kept: Some(kept), ..shared_unit("0", "shared", Arc::new(memory(DISK_BYTES))) };
    let server = Server::new(vec![disk]);
    let mut driver = server.driver();
    driver.settle("0");
    assert_eq!(driver.reserve_out("0", (REGISTER, 0), [0, 1], 1).sense_code(), (4, 0x44, 0));
    assert!(keys(&mut driver, "0").is_empty());
    // Another one may be there, until one is stored.
    assert_eq!(driver.reserve_out("0", (REGISTER, 0), [0, 1], 0).sense_code(), (4, 0x44, 0));
}

#[test]
fn reservations_that_nobody_can_read_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quorum.reservations");
    let file = RecordFile::open(&path).unwrap();
    file.store(b"something else").unwrap();
    let line = export::check_reservations(&file).unwrap_err().to_string();
    let words = "cannot be read: the file is not one of reservations; serve them by the program that wrote them, or remove the file, and them with it";
    assert_eq!(line, format!("the reservations that {} keeps {words}", path.display()));
}
