//! Units that come, go, grow, and have other storages.

use super::driver::{EVENT, HANG, Server, address, read_10, unit, write_10};
use crate::nbd::server::{Scripted, eventually, memory};
use export::{Content, ExportError, LogicalUnits, UnitOptions};
use std::sync::Arc;
use std::time::Instant;
use storage::{NullOptions, NullStorage, Operation, Storage};
use values::ByteSize;

const MISSED: u32 = 1 << 31;
const TRANSPORT_RESET: u32 = 1;
const PARAM_CHANGE: u32 = 3;
const RESCAN: u32 = 1;
const REMOVED: u32 = 2;

/// As events have it: below 256 a number has the peripheral form.
fn told(lun: &str) -> [u8; 8] {
    let [one, target, high, low, ..] = address(lun.parse().unwrap());
    [one, target, high & !0x40, low, 0, 0, 0, 0]
}

#[test]
fn a_guest_hears_of_units_that_come_and_go() {
    let server = Server::new(vec![unit("0", "a", Arc::new(memory(1 << 20)))]);
    let mut driver = server.driver();
    driver.settle("0");
    let buffer = driver.offer_event();
    server.export.add_unit(unit("2", "b", Arc::new(memory(1 << 20)))).unwrap();
    assert_eq!(driver.event(buffer), (TRANSPORT_RESET, told("2"), RESCAN));
    // Another unit of the target says that there are others.
    assert_eq!(driver.ask("0", &[0; 6], &[], 0).sense_code(), (6, 0x3f, 0x0e));
    driver.settle("2");
    driver.write("2", 0, &[7; 512]).good();
    // Two events before there is a buffer: both are kept.
    server.export.remove_unit("2".parse().unwrap()).unwrap();
    server.export.add_unit(unit("1:0", "c", Arc::new(memory(1 << 20)))).unwrap();
    let buffer = driver.offer_event();
    assert_eq!(driver.event(buffer), (TRANSPORT_RESET, told("2"), REMOVED));
    let buffer = driver.offer_event();
    assert_eq!(driver.event(buffer), (TRANSPORT_RESET, told("1:0"), RESCAN));
    assert_eq!(driver.ask("2", &read_10(0, 1), &[], 512).sense_code(), (5, 0x25, 0));
    assert_eq!(server.export.units().unwrap().len(), 2);
}

#[test]
fn a_unit_that_is_taken_out_answers_what_it_has_taken() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(vec![unit("0", "a", storage.clone())]);
    let mut driver = server.driver();
    driver.settle("0");
    storage.hold(|operation| matches!(operation, Operation::Write { .. }));
    let write = driver.begin(2, "0", &write_10(0, &[1; 512]), &[1; 512], 0);
    eventually("it is under way", || !storage.asked().is_empty());
    let refused = server.export.remove_unit("0".parse().unwrap()).unwrap_err();
    assert!(matches!(refused, ExportError::UnitInFlight(_)), "{refused}");
    assert!(server.export.units().unwrap().is_empty(), "it is out all the same");
    storage.release();
    driver.end(write).good();
    let storage: Arc<dyn Storage> = storage;
    eventually("nobody has it", || Arc::strong_count(&storage) == 1);
}

#[test]
fn a_unit_that_grows_says_so() {
    let disk = Arc::new(memory(1 << 20));
    let server = Server::new(vec![unit("4", "a", disk.clone())]);
    let mut driver = server.driver();
    driver.settle("4");
    let buffer = driver.offer_event();
    server.export.check_capacity(2 << 20).unwrap();
    disk.resize(2 << 20).unwrap();
    server.export.follow_capacity().unwrap();
    assert_eq!(driver.event(buffer), (PARAM_CHANGE, told("4"), 0x092a));
    let last = (2 << 20) / 512 - 1;
    assert_eq!(driver.ask("4", &read_10(last, 1), &[], 512).sense_code(), (6, 0x2a, 9));
    assert_eq!(driver.read("4", last, 1).len(), 512);
    let Content::Scsi(units) = server.export.status().content else { panic!() };
    assert_eq!(units[0].capacity_bytes, 2 << 20);
}

#[test]
fn another_storage_stands_behind_the_one_unit_that_is_meant() {
    let disks: Vec<Arc<dyn Storage>> = (0..3).map(|_| Arc::new(memory(1 << 20)) as Arc<dyn Storage>).collect();
    let server = Server::new(vec![unit("0", "a", disks[0].clone()), unit("1", "b", disks[1].clone())]);
    let mut driver = server.driver();
    for (lun, fill) in [("0", 1), ("1", 2)] {
        driver.settle(lun);
        driver.write(lun, 0, &[fill; 512]).good();
    }
    let held = server.export.hold(Instant::now() + HANG).unwrap();
    let waits = driver.begin(2, "1", &write_10(1, &[3; 512]), &[3; 512], 0);
    held.put(&disks[1], &disks[2]);
    drop(held);
    driver.end(waits).good();
    assert_eq!((driver.read("1", 0, 2), driver.read("0", 0, 1)), ([[0; 512], [3; 512]].concat(), vec![1; 512]));
}

#[test]
fn what_could_not_be_told_is_told_later() {
    let server = Server::new(vec![unit("0", "a", Arc::new(memory(1 << 20)))]);
    let mut driver = server.driver();
    let add = |number: u32| {
        let lun = format!("1:{number}");
        server.export.add_unit(unit(&lun, &lun, Arc::new(memory(1 << 20)))).unwrap();
    };
    // The queue is not there for a while.
    let base = driver.stop(EVENT);
    add(0);
    driver.start(EVENT, base);
    let buffer = driver.offer_event();
    assert_eq!(driver.event(buffer), (TRANSPORT_RESET, told("1:0"), RESCAN));
    // More than is kept.
    (1..=65).for_each(add);
    let buffer = driver.offer_event();
    assert_eq!(driver.event(buffer), (MISSED | TRANSPORT_RESET, told("1:1"), RESCAN));
    let buffer = driver.offer_event();
    assert_eq!(driver.event(buffer), (TRANSPORT_RESET, told("1:2"), RESCAN));
    // Nobody is connected: who comes may be the same guest, and is told that there was something.
    drop(driver);
    eventually("it is gone", || server.export.status().frontend.is_none());
    add(66);
    let mut driver = server.driver();
    let buffer = driver.offer_event();
    assert_eq!(driver.event(buffer).0, MISSED);
    driver.settle("0");
    // So is one that comes from another program, or from another host: once.
    let next = Server::new(vec![unit("0", "a", Arc::new(memory(1 << 20)))]);
    // It has waited for its next event, and kicks for no reason of its own.
    let buffer = driver.offer_event();
    let mut driver = next.take_over(driver);
    assert_eq!(driver.event(buffer).0, MISSED);
    driver.offer_event();
    driver.settle("0");
    assert!(!driver.has_answer(EVENT));
    // A machine that is stopped and goes on has missed nothing, be it the whole of it or a queue.
    for queues in [&[0, 1, 2, 3][..], &[2]] {
        let bases: Vec<_> = queues.iter().map(|queue| (*queue, driver.stop(*queue))).collect();
        bases.into_iter().for_each(|(queue, base)| driver.start(queue, base));
        driver.write("0", 0, &[1; 512]).good();
        assert!(!driver.has_answer(EVENT), "{queues:?}");
    }
    // One that has been elsewhere meanwhile, and comes back, is told.
    let elsewhere = Server::new(vec![unit("0", "a", Arc::new(memory(1 << 20)))]);
    let mut driver = elsewhere.take_over(driver);
    eventually("it is told there", || driver.has_answer(EVENT));
    driver.offer_event();
    eventually("it has gone", || next.export.status().frontend.is_none());
    let driver = next.take_over(driver);
    eventually("it is told here", || driver.answers(EVENT) == 2);
}

/// LOG SENSE of the Logical Block Provisioning page; MODE SENSE of the page of thresholds.
const USED: [u8; 10] = [0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 64, 0];
const THRESHOLD: [u8; 6] = [0x1a, 8, 0x1c, 2, 64, 0];

#[test]
fn a_thin_unit_says_what_it_has_used_and_when_little_is_left() {
    let disks: Vec<Arc<dyn Storage>> = (0..3).map(|_| Arc::new(memory(8 << 20)) as Arc<dyn Storage>).collect();
    let warned = || UnitOptions { threshold_bytes: 3 << 20, ..unit("0", "a", disks[0].clone()) };
    let server = Server::new(vec![warned(), unit("1", "b", disks[1].clone())]);
    let mut driver = server.driver();
    driver.settle("0");
    driver.settle("1");
    let page = |sets: u8| vec![0x0c, 0, 0, 12, 0, 2, 3, 8, 0, 0, 0, sets, 1, 0, 0, 0];
    assert_eq!(driver.ask("0", &USED, &[], 64).good(), page(0));
    for sector in [0, 4096] {
        driver.write("0", sector, &[7; 512]).good();
    }
    // What of it has space is told in whole sets; nothing bounds what is left.
    assert_eq!(driver.ask("0", &USED, &[], 64).good(), page(1));
    assert_eq!(driver.ask("1", &USED, &[], 64).good(), page(0));
    assert_eq!(driver.ask("0", &THRESHOLD, &[], 64).good()[20..28], [0x80, 1, 0, 0, 0, 0, 0, 3]);
    assert_eq!(driver.ask("1", &THRESHOLD, &[], 64).good()[20..28], [0, 1, 0, 0, 0, 0, 0, 0]);

    let say = |is_low| {
        for disk in [0, 0, 1, 2] {
            server.logical_units.set_space_low(&disks[disk], is_low);
        }
    };
    say(true);
    assert_eq!(driver.ask("0", &USED, &[], 64).sense_code(), (6, 0x38, 7));
    say(true);
    assert_eq!(driver.ask("0", &USED, &[], 64).good(), page(1), "once");
    assert_eq!(driver.ask("1", &USED, &[], 64).good(), page(0), "it has no threshold");
    // A driver that begins meanwhile hears of it, too.
    drop(driver);
    let mut driver = server.driver();
    assert_eq!(driver.ask("0", &[0; 6], &[], 0).sense_code(), (6, 0x29, 1));
    assert_eq!(driver.ask("0", &[0; 6], &[], 0).sense_code(), (6, 0x38, 7));
    driver.ask("0", &[0; 6], &[], 0).good();
    for is_low in [false, true] {
        say(is_low);
    }
    assert_eq!(driver.ask("0", &[0; 6], &[], 0).sense_code(), (6, 0x38, 7));
    // What was not heard while it was so is no news behind it.
    for is_low in [false, true, false] {
        say(is_low);
    }
    driver.ask("0", &[0; 6], &[], 0).good();
    say(true);
    driver.hears("0", (6, 0x38, 7));
    // A program that goes on knows that its drivers know.
    let conditions = server.logical_units.conditions();
    let low: Vec<_> = conditions.iter().map(|(name, it)| (name.disk.as_str(), it.space_is_low)).collect();
    assert_eq!(low, [("a", true), ("b", false)]);
    let next = LogicalUnits::default();
    conditions.into_iter().for_each(|(name, condition)| next.leave_condition(name, condition));
    let goes_on = Server::going_on(vec![warned()], next.clone());
    let pending = || next.conditions().iter().map(|(_, it)| it.attentions[0].2).collect::<Vec<_>>();
    let before = pending();
    next.set_space_low(&disks[0], true);
    assert_eq!(pending(), before);
    drop(goes_on);
}

#[test]
fn nobody_counts_what_is_not_thin() {
    let nothing = NullOptions { size: ByteSize(1 << 20), ..NullOptions::default() };
    let server = Server::new(vec![unit("0", "a", Arc::new(NullStorage::open(&nothing).unwrap()))]);
    let mut driver = server.driver();
    driver.settle("0");
    assert_eq!(driver.ask("0", &USED, &[], 64).sense_code(), (5, 0x24, 0));
    assert_eq!(driver.ask("0", &THRESHOLD, &[], 64).sense_code(), (5, 0x24, 0));
}
