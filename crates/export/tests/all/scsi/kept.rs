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

/// Registrations name ports by numbers, and a number that is one export's today must not be another's tomorrow: of one that was kept out
/// it may say that it is registered.
#[test]
fn two_exports_whose_names_make_one_port_number_share_no_disk() {
    let names = ["db126-scsi", "db142-scsi"];
    assert_eq!(export::port_number(names[0]), export::port_number(names[1]));
    let (own, disk): (Arc<dyn Storage>, Arc<dyn Storage>) =
        (Arc::new(memory(DISK_BYTES)), Arc::new(memory(DISK_BYTES)));
    let daemon = Server::new(vec![unit("0", "own", own)]);
    let shared = || vec![shared_unit("0", "shared", disk.clone())];
    let first = daemon.beside(names[0], shared()).unwrap();
    let refused = daemon.beside(names[1], shared()).err().unwrap().to_string();
    assert!(refused.starts_with("disk `shared` is shared with export `db126-scsi`"), "{refused}");
    let mut driver = first.driver();
    driver.settle("0");
    let number = ports(&mut driver, "0");
    assert_eq!(number.len(), 1);
    // The same export again, while its device before is still there: it has one port.
    let again = daemon.beside(names[0], shared()).unwrap();
    let mut next = again.driver();
    next.settle("0");
    assert_eq!(ports(&mut next, "0"), number);
}

/// What names a guest's initiator port at another port than its own says nothing of its own.
#[test]
fn a_registration_at_another_port_lets_nobody_in() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("quorum.reservations");
    let disk: Arc<dyn Storage> = Arc::new(memory(DISK_BYTES));
    for begins in [false, true] {
        let kept = Some(Arc::new(RecordFile::open(&path).unwrap()));
        let unit = || UnitOptions { kept: kept.clone(), ..shared_unit("0", "shared", disk.clone()) };
        let one = Server::new(vec![unit()]);
        let other = one.beside("other", vec![unit()]).unwrap();
        let (mut a, mut b) = (one.driver(), other.driver());
        for driver in [&mut a, &mut b] {
            (0..2).for_each(|_| drop(driver.ask("0", &[0; 6], &[], 0)));
        }
        if !begins {
            // All its ports, and then it is kept out of its own.
            a.reserve_out("0", (REGISTER, 0), [0, 0xa], 1 | 1 << 2).good();
            b.reserve_out("0", (REGISTER, 0), [0, 0xb], 1).good();
            a.reserve_out("0", (REGISTER, 0), [0xa, 0xaa], 1).good();
            b.reserve_out("0", (RESERVE, WRITE_EXCLUSIVE_REGISTRANTS), [0xb, 0], 0).good();
            b.reserve_out("0", (PREEMPT_AND_ABORT, WRITE_EXCLUSIVE_REGISTRANTS), [0xb, 0xaa], 0).good();
            a.hears("0", (6, 0x2a, 5));
        }
        assert_eq!(keys(&mut b, "0").len(), 2);
        assert_eq!(a.write("0", 0, &[1; 512]).status, CONFLICT);
        b.write("0", 0, &[1; 512]).good();
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
    one.logical_units.break_reservations("another", Some(&file)).unwrap();
    assert_eq!(b.ask("0", &read_10(0, 1), &[], 512).status, CONFLICT);
    one.logical_units.break_reservations("shared", Some(&file)).unwrap();
    assert_eq!(file.record(), b"");
    b.write("0", 0, &[1; 512]).good();
    a.hears("0", (6, 0x2a, 3));
    assert!(keys(&mut a, "0").is_empty());
    // One of SCSI-2, too.
    a.ask("0", &[0x16, 0, 0, 0, 0, 0], &[], 0).good();
    assert_eq!(b.ask("0", &read_10(0, 1), &[], 512).status, CONFLICT);
    one.logical_units.break_reservations("shared", Some(&file)).unwrap();
    b.write("0", 0, &[1; 512]).good();
}

/// Of a disk that nobody has, and of one whose name an earlier one had.
#[test]
fn what_is_kept_is_broken_where_no_guest_has_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let [file, before] =
        ["now", "before"].map(|name| Arc::new(RecordFile::open(&directory.path().join(name)).unwrap()));
    let disk: Arc<dyn Storage> = Arc::new(memory(DISK_BYTES));
    let unit_of =
        |kept: &Arc<RecordFile>| UnitOptions { kept: Some(kept.clone()), ..shared_unit("0", "shared", disk.clone()) };
    let earlier = Server::new(vec![unit_of(&before)]);
    let mut driver = earlier.driver();
    driver.settle("0");
    driver.reserve_out("0", (REGISTER, 0), [0, 0xa], 1).good();
    let record = before.record();
    file.store(&record).unwrap();
    // While it is being written, nobody begins with what was there.
    let storing = file.clone().storing().unwrap();
    let units = Server::new(vec![unit("0", "own", Arc::new(memory(DISK_BYTES)))]);
    let refused = units.beside("late", vec![unit_of(&file)]).err().unwrap().to_string();
    assert!(refused.starts_with("reservations are being written to"), "{refused}");
    let busy = earlier.logical_units.break_reservations("shared", Some(&file)).unwrap_err();
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy);
    drop(storing);
    earlier.logical_units.break_reservations("shared", Some(&file)).unwrap();
    assert_eq!((file.record(), before.record()), (Vec::new(), record));
    assert_eq!(keys(&mut driver, "0"), [0xa]);
    drop(units.beside("late", vec![unit_of(&file)]).unwrap());
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
