//! One logical unit behind two devices: what their drivers keep from each other, and what they hear of each other.

use super::driver::{Answer, Driver, Server, read_10, shared_unit, unit, write_10};
use super::tasks::{A_WHILE, COMPLETE, LOGICAL_UNIT_RESET};
use crate::nbd::server::{Scripted, eventually, memory};
use engine::Solo;
use export::{ExportError, LogicalUnitName, LogicalUnits, UnitOptions};
use std::sync::Arc;
use storage::{Operation, Storage};
use testkit::storage as kit;

pub(super) const DISK_BYTES: u64 = 1 << 20;
/// Service actions of PERSISTENT RESERVE OUT.
pub(super) const REGISTER: u8 = 0;
pub(super) const RESERVE: u8 = 1;
pub(super) const RELEASE: u8 = 2;
pub(super) const CLEAR: u8 = 3;
pub(super) const PREEMPT: u8 = 4;
pub(super) const PREEMPT_AND_ABORT: u8 = 5;
pub(super) const REGISTER_AND_IGNORE: u8 = 6;
/// Types.
pub(super) const WRITE_EXCLUSIVE: u8 = 1;
pub(super) const EXCLUSIVE_ACCESS: u8 = 3;
pub(super) const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;
pub(super) const EXCLUSIVE_ACCESS_REGISTRANTS: u8 = 6;
pub(super) const WRITE_EXCLUSIVE_ALL: u8 = 7;
pub(super) const EXCLUSIVE_ACCESS_ALL: u8 = 8;
/// RESERVATION CONFLICT.
pub(super) const CONFLICT: u8 = 0x18;

/// Two devices with one disk, which has another number on each, and their drivers.
pub(super) fn pair(storage: Arc<dyn Storage>) -> (Server, Server, Driver, Driver) {
    let one = Server::new(vec![shared_unit("0", "shared", storage.clone())]);
    let other = one.beside("other", vec![shared_unit("1:7", "shared", storage)]).unwrap();
    let (mut a, mut b) = (one.driver(), other.driver());
    // The first one has heard that there are several ports now, too.
    a.hears("0", (6, 0x29, 1));
    a.hears("0", (6, 0x3f, 3));
    b.settle("1:7");
    (one, other, a, b)
}

/// Its logical unit, as each of them calls it.
pub(super) const A: &str = "0";
pub(super) const B: &str = "1:7";

pub(super) fn keys(driver: &mut Driver, lun: &str) -> Vec<u64> {
    let answer = driver.ask(lun, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], &[], 255).good();
    let mut keys: Vec<_> = answer[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect();
    keys.sort_unstable();
    keys
}

/// The numbers of the ports by which it is reached (REPORT TARGET PORT GROUPS).
pub(super) fn ports(driver: &mut Driver, lun: &str) -> Vec<u16> {
    let groups = driver.ask(lun, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64).good();
    let all = groups[12..].chunks(4).map(|port| u16::from_be_bytes([port[2], port[3]]));
    let mut all: Vec<_> = all.take(groups[11].into()).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_reservation_keeps_others_out_as_its_type_says() {
    let (_one, _other, mut a, mut b) = pair(Arc::new(memory(DISK_BYTES)));
    for (kind, registrants_write, others_read) in [
        (WRITE_EXCLUSIVE, false, true),
        (EXCLUSIVE_ACCESS, false, false),
        (WRITE_EXCLUSIVE_REGISTRANTS, true, true),
        (EXCLUSIVE_ACCESS_REGISTRANTS, true, false),
        (WRITE_EXCLUSIVE_ALL, true, true),
        (EXCLUSIVE_ACCESS_ALL, true, false),
    ] {
        a.reserve_out(A, (REGISTER, 0), [0, 1], 0).good();
        a.reserve_out(A, (RESERVE, kind), [1, 0], 0).good();
        for is_registered in [false, true] {
            if is_registered {
                b.reserve_out(B, (REGISTER, 0), [0, 2], 0).good();
            }
            let is_in = is_registered && registrants_write;
            let status = |may: bool| if may { 0 } else { CONFLICT };
            assert_eq!(b.write(B, 0, &[2; 512]).status, status(is_in), "{kind} {is_registered}");
            let read = b.ask(B, &read_10(0, 1), &[], 512).status;
            assert_eq!(read, status(is_in || others_read), "{kind} {is_registered}");
            b.ask(B, &[0; 6], &[], 0).good();
            a.write(A, 0, &[1; 512]).good();
            assert_eq!(a.read(A, 0, 1), [1; 512]);
        }
        assert_eq!(keys(&mut b, B), [1, 2]);
        let taken = b.reserve_out(B, (RESERVE, WRITE_EXCLUSIVE), [2, 0], 0).status;
        assert_eq!(taken, CONFLICT, "{kind}");
        a.reserve_out(A, (RELEASE, kind), [1, 0], 0).good();
        if registrants_write {
            b.hears(B, (6, 0x2a, 4));
        }
        b.write(B, 0, &[2; 512]).good();
        b.reserve_out(B, (CLEAR, 0), [2, 0], 0).good();
        a.hears(A, (6, 0x2a, 3));
        assert!(keys(&mut a, A).is_empty());
    }
}

#[test]
fn a_reset_is_everybodys() {
    let storage = Scripted::new(DISK_BYTES);
    let (_one, _other, mut a, mut b) = pair(storage.clone());
    // RESERVE (6), until its driver goes or the unit is reset.
    a.ask(A, &[0x16, 0, 0, 0, 0, 0], &[], 0).good();
    assert_eq!(b.ask(B, &[0; 6], &[], 0).status, CONFLICT);
    a.write(A, 0, &[1; 512]).good();
    storage.hold(|operation| matches!(operation, Operation::Write { .. }));
    storage.asked();
    let write = a.begin(3, A, &write_10(0, &[1; 512]), &[1; 512], 0);
    eventually("it is under way", || !storage.asked().is_empty());
    let reset = b.manage(LOGICAL_UNIT_RESET, B, 0);
    std::thread::sleep(A_WHILE);
    assert!(!b.has_answer(0), "it waits for the other's task");
    storage.release();
    assert_eq!(b.managed(reset), COMPLETE);
    assert!(a.has_answer(3));
    a.end(write).good();
    a.hears(A, (6, 0x29, 3));
    b.hears(B, (6, 0x29, 3));
    b.write(B, 0, &[2; 512]).good();
    a.ask(A, &[0x16, 0, 0, 0, 0, 0], &[], 0).good();
    drop(a);
    eventually("it has gone", || b.ask(B, &[0; 6], &[], 0).status == 0);
}

#[test]
fn what_one_compares_and_writes_the_other_waits_for() {
    let storage = Scripted::new(DISK_BYTES);
    let (_one, _other, mut a, mut b) = pair(storage.clone());
    let swap = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    storage.hold(|operation| matches!(operation, Operation::Read { .. }));
    storage.asked();
    let first = a.begin(2, A, &swap, &[vec![0; 512], vec![1; 512]].concat(), 0);
    eventually("it reads", || !storage.asked().is_empty());
    let second = b.begin(2, B, &swap, &[vec![0; 512], vec![2; 512]].concat(), 0);
    std::thread::sleep(A_WHILE);
    assert!(storage.asked().is_empty(), "the other one waits");
    storage.release();
    a.end(first).good();
    assert_eq!(b.end(second).sense_code(), (0xe, 0x1d, 0), "it finds what the first one has written");
    assert_eq!(b.read(B, 0, 1), [1; 512]);
}

#[test]
fn each_hears_of_what_the_other_has_changed() {
    let disk = Arc::new(memory(DISK_BYTES));
    let (one, other, mut a, mut b) = pair(disk.clone());
    // MODE SELECT (6) of the control page: D_SENSE.
    let page = [0, 0, 0, 0, 0x0a, 0x0a, 0x26, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0];
    a.ask(A, &[0x15, 0x10, 0, 0, 16, 0], &page, 0).good();
    let told = b.ask(B, &[0; 6], &[], 0);
    assert_eq!((told.status, told.sense[0], told.sense[1], &told.sense[2..4]), (2, 0x72, 6, &[0x2a, 1][..]));
    a.ask(A, &[0; 6], &[], 0).good();
    // Stopped is stopped.
    a.ask(A, &[0x1b, 0, 0, 0, 0, 0], &[], 0).good();
    assert_eq!(b.write(B, 0, &[2; 512]).status, 2);
    b.ask(B, &[0x1b, 0, 0, 0, 1, 0], &[], 0).good();
    a.write(A, 0, &[1; 512]).good();
    let seen = ports(&mut a, A);
    assert_eq!((seen.len(), &seen), (2, &ports(&mut b, B)));
    for server in [&one, &other] {
        let name = server.export.units().unwrap()[0].disk.clone();
        assert_eq!(name, "shared");
    }
    // Each is an initiator of its own.
    for (driver, lun, key) in [(&mut a, A, 1), (&mut b, B, 2)] {
        driver.reserve_out(lun, (REGISTER, 0), [0, key], 0).good();
    }
    let full = a.ask(A, &[0x5e, 3, 0, 0, 0, 0, 0, 0, 255, 0], &[], 255).good();
    let (first, second) = (&full[8..56], &full[56..104]);
    assert_ne!(first[24..], second[24..], "TransportIDs");
    let mut registered = [&first[18..20], &second[18..20]].map(|port| u16::from_be_bytes(port.try_into().unwrap()));
    registered.sort_unstable();
    assert_eq!(registered, *seen);
}

#[test]
fn a_device_that_comes_back_is_the_same_initiator_whatever_came_between() {
    let disk = Arc::new(memory(DISK_BYTES));
    let (one, other, a, mut b) = pair(disk.clone());
    b.reserve_out(B, (REGISTER, 0), [0, 0xb], 0).good();
    b.reserve_out(B, (RESERVE, EXCLUSIVE_ACCESS), [0xb, 0], 0).good();
    drop((b, other));
    let between = one.beside("between", vec![shared_unit("0", "shared", disk.clone())]).unwrap();
    let other = one.beside("other", vec![shared_unit("1:7", "shared", disk)]).unwrap();
    let mut b = other.driver();
    b.hears(B, (6, 0x29, 0));
    b.write(B, 0, &[1; 512]).good();
    drop((a, between));
}

/// All devices of a daemon go on, one after the other: a guest does not see those go and come that do so behind its own.
#[test]
fn devices_that_are_expected_again_are_there() {
    let disk = Arc::new(memory(DISK_BYTES));
    let (_one, _other, mut a, _b) = pair(disk.clone());
    let were = ports(&mut a, A);
    for all_come in [true, false] {
        let next = LogicalUnits::default();
        were.iter().for_each(|port| next.expect("shared", *port));
        let one = Server::going_on(vec![shared_unit("0", "shared", disk.clone())], next.clone());
        let mut first = one.driver();
        first.settle("0");
        assert_eq!(ports(&mut first, "0"), were);
        let other = all_come.then(|| one.beside("other", vec![shared_unit("0", "shared", disk.clone())]).unwrap());
        next.expect_no_more();
        if !all_come {
            first.hears("0", (6, 0x3f, 3));
        }
        first.write("0", 0, &[1; 512]).good();
        assert_eq!(ports(&mut first, "0").len(), were.len() - usize::from(other.is_none()));
    }
}

#[test]
fn what_is_left_of_a_unit_waits_for_one_that_begins() {
    let (own, disk) = (Arc::new(memory(DISK_BYTES)), Arc::new(memory(DISK_BYTES)));
    let (one, _other, mut a, _b) = pair(disk.clone());
    a.reserve_out(A, (REGISTER, 0), [0, 0xa], 0).good();
    let next = LogicalUnits::default();
    let (name, bytes) = one.logical_units.reservations().remove(0);
    next.leave_reservations(name, &bytes).unwrap();
    let server = Server::going_on(vec![unit("0", "own", own.clone())], next.clone());
    let shared = |lun| shared_unit(lun, "shared", disk.clone());
    let bad = UnitOptions { serial: "\n".to_owned(), ..unit("1", "bad", own) };
    assert!(server.beside("bad", vec![shared("0"), bad]).is_err());
    let status = server.beside("good", vec![shared("0")]).unwrap().export.units().unwrap();
    assert_eq!(status[0].reservation.clone().unwrap().registered.len(), 1);
    // Not for another disk of the name, at some later time.
    next.expect_no_more();
    let status = server.beside("late", vec![shared("0")]).unwrap().export.units().unwrap();
    assert_eq!(status[0].reservation, None);
}

#[test]
fn a_program_that_goes_on_tells_what_was_not_told_and_nothing_else() {
    let disk = Arc::new(memory(DISK_BYTES));
    let (one, _other, mut a, mut b) = pair(disk.clone());
    b.reserve_out(B, (REGISTER, 0), [0, 0xb], 0).good();
    a.reserve_out(A, (REGISTER, 0), [0, 0xa], 0).good();
    a.reserve_out(A, (CLEAR, 0), [0xa, 0], 0).good();
    let next = LogicalUnits::default();
    one.logical_units.conditions().into_iter().for_each(|(name, condition)| next.leave_condition(name, condition));
    let shared = |lun| vec![shared_unit(lun, "shared", disk.clone())];
    ports(&mut a, A).into_iter().for_each(|port| next.expect("shared", port));
    let goes_on = Server::going_on(shared(A), next.clone());
    let other = goes_on.beside("other", shared(B)).unwrap();
    next.expect_no_more();
    let (mut a, mut b) = (goes_on.driver(), other.driver());
    a.write(A, 0, &[1; 512]).good();
    b.hears(B, (6, 0x2a, 3));
    b.write(B, 0, &[2; 512]).good();
}

/// Sense key, additional code and its qualifier, of descriptor format sense data.
#[track_caller]
fn described(answer: &Answer) -> (u8, u8, u8) {
    assert_eq!((answer.response, answer.status, answer.sense[0]), (0, 2, 0x72), "{answer:?}");
    (answer.sense[1], answer.sense[2], answer.sense[3])
}

/// Also where one of its guests goes before the other one's device is there again.
#[test]
fn a_program_that_goes_on_has_units_as_their_guests_have_left_them() {
    let disk = Arc::new(memory(DISK_BYTES));
    let (one, _other, mut a, mut b) = pair(disk.clone());
    // MODE SENSE and SELECT of the control page: D_SENSE.
    let mut mode = a.ask(A, &[0x1a, 8, 0x0a, 0, 255, 0], &[], 255).good();
    (mode[0], mode[2], mode[4], mode[6]) = (0, 0, mode[4] & 0x3f, mode[6] | 4);
    a.ask(A, &[0x15, 0x10, 0, 0, mode.len() as u8, 0], &mode, 0).good();
    assert_eq!(described(&b.ask(B, &[0; 6], &[], 0)), (6, 0x2a, 1));
    // START STOP UNIT.
    a.ask(A, &[0x1b, 0, 0, 0, 0, 0], &[], 0).good();
    let next = LogicalUnits::default();
    one.logical_units.conditions().into_iter().for_each(|(name, condition)| next.leave_condition(name, condition));
    ports(&mut a, A).into_iter().for_each(|port| next.expect("shared", port));
    let goes_on = Server::going_on(vec![shared_unit(A, "shared", disk.clone())], next.clone());
    drop(goes_on.driver());
    eventually("its guest has gone", || !goes_on.export.connected());
    let other = goes_on.beside("other", vec![shared_unit(B, "shared", disk.clone())]).unwrap();
    next.expect_no_more();
    let mut b = other.driver();
    assert_eq!(described(&b.ask(B, &read_10(0, 1), &[], 512)), (2, 4, 2), "stopped, and nothing else is told");
}

#[test]
fn what_is_registered_outlives_sessions_and_devices_but_not_the_unit() {
    let disk = Arc::new(memory(DISK_BYTES));
    let (one, other, mut a, mut b) = pair(disk.clone());
    a.reserve_out(A, (REGISTER, 0), [0, 1], 0).good();
    // What is to survive a loss of power nobody would keep.
    assert_eq!(a.reserve_out(A, (REGISTER, 0), [1, 2], 1).sense_code(), (5, 0x26, 0));
    a.reserve_out(A, (RESERVE, EXCLUSIVE_ACCESS), [1, 0], 0).good();
    drop(a);
    let mut a = one.driver();
    a.hears(A, (6, 0x29, 0));
    a.write(A, 0, &[1; 512]).good();
    assert_eq!(b.write(B, 0, &[2; 512]).status, CONFLICT);
    for server in [&one, &other] {
        let told = server.export.units().unwrap()[0].reservation.clone().unwrap();
        assert_eq!((told.kind, told.holder.as_deref()), (Some("exclusive-access"), Some("scsi")));
        assert_eq!(told.registered, ["scsi"]);
    }
    // A program that goes on with the disk.
    let next = LogicalUnits::default();
    let left = one.logical_units.reservations();
    let name = LogicalUnitName { disk: "shared".to_owned(), export: None };
    assert_eq!((left.len(), &left[0].0), (1, &name));
    assert!(next.leave_reservations(name.clone(), b"nothing").is_err());
    next.leave_reservations(name, &left[0].1).unwrap();
    drop((a, one));
    b.hears(B, (6, 0x3f, 3));
    assert_eq!(b.write(B, 0, &[2; 512]).status, CONFLICT, "its device has gone");
    let unit_of_it = shared_unit("0", "shared", disk.clone());
    let goes_on = Server::going_on(vec![unit_of_it], next);
    let mut later = goes_on.driver();
    later.hears("0", (6, 0x29, 0));
    assert_eq!(later.write("0", 0, &[1; 512]).status, 0, "it is the same driver, by its export's name");
    let other_there = goes_on.beside("other", vec![shared_unit("0", "shared", disk.clone())]).unwrap();
    let mut kept_out = other_there.driver();
    kept_out.hears("0", (6, 0x29, 0));
    assert_eq!(kept_out.write("0", 0, &[1; 512]).status, CONFLICT);
    drop((b, other));
    let same = Server::new(vec![shared_unit("0", "shared", disk)]);
    let mut anew = same.driver();
    anew.settle("0");
    assert!(keys(&mut anew, "0").is_empty());
}

#[test]
fn one_disk_looks_the_same_everywhere() {
    let disk: Arc<dyn Storage> = Arc::new(memory(DISK_BYTES));
    let one = Server::new(vec![shared_unit("0", "shared", disk.clone())]);
    let mut named = shared_unit("0", "shared", disk);
    named.serial = "another".to_owned();
    let refused = one.beside("other", vec![named]).err();
    assert!(matches!(refused, Some(ExportError::AnotherUnit { .. })), "{refused:?}");
    // Guests that know nothing of each other have a unit each, on a disk that none of them writes.
    let base: Arc<dyn Storage> = Arc::new(memory(DISK_BYTES));
    let (first, mut second) = (unit("0", "base", base.clone()), unit("0", "base", base));
    second.serial = "another".to_owned();
    let one = Server::new(vec![first]);
    let other = one.beside("other", vec![second]).unwrap();
    let (mut a, mut b) = (one.driver(), other.driver());
    a.settle("0");
    b.settle("0");
    a.reserve_out("0", (REGISTER, 0), [0, 1], 0).good();
    a.reserve_out("0", (RESERVE, EXCLUSIVE_ACCESS), [1, 0], 0).good();
    assert_eq!(b.read("0", 0, 1), [0; 512]);
}

/// Requests that are still under way keep a unit, not the name of its disk.
#[test]
fn another_disk_of_the_name_is_another_unit() {
    let slow = Scripted::new(DISK_BYTES);
    for is_shared in [false, true] {
        let unit_of = |storage: Arc<dyn Storage>| UnitOptions { is_shared, ..unit("0", "disk", storage) };
        let server = Server::new(vec![unit_of(slow.clone())]);
        let mut driver = server.driver();
        driver.settle("0");
        driver.reserve_out("0", (REGISTER, 0), [0, 1], 0).good();
        slow.hold(|operation| matches!(operation, Operation::Write { .. }));
        slow.asked();
        let write = driver.begin(3, "0", &write_10(0, &[1; 512]), &[1; 512], 0);
        eventually("it is under way", || !slow.asked().is_empty());
        let lun = "0".parse().unwrap();
        assert!(matches!(server.export.remove_unit(lun), Err(ExportError::UnitInFlight(_))));
        let next: Arc<dyn Storage> = Arc::new(memory(2 * DISK_BYTES));
        let status = server.export.add_unit(unit_of(next.clone())).unwrap();
        assert_eq!(status.capacity_bytes, 2 * DISK_BYTES, "{is_shared}");
        assert_eq!(status.reservation, None);
        driver.settle("0");
        driver.write("0", 0, &[2; 512]).good();
        slow.release();
        driver.end(write).good();
        assert_eq!(kit::read(&mut Solo::new().unwrap(), &*next, 0, 512), [2; 512]);
        assert_eq!(kit::read(&mut Solo::new().unwrap(), &*slow, 0, 512), [1; 512]);
    }
}
