//! Commands, and what they leave on a disk.

use super::driver::{RESPONSE_BYTES, Server, read_10, unit, write_10};
use crate::nbd::server::{Scripted, eventually, memory, pattern};
use engine::Solo;
use export::{Limits, Rate};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use storage::{Operation, Storage};
use testkit::storage as kit;

const DISK_BYTES: u64 = 1 << 20;

fn contents(storage: &dyn Storage, offset: u64, len: usize) -> Vec<u8> {
    kit::read(&mut Solo::new().unwrap(), storage, offset, len)
}

/// Of what was asked since somebody looked last.
fn durable_writes(storage: &Scripted) -> usize {
    storage.asked().iter().filter(|it| matches!(it, Operation::Write { durable: true, .. })).count()
}

#[test]
fn data_is_written_and_read_on_the_unit_that_is_meant() {
    let disks: [Arc<dyn Storage>; 2] = [Arc::new(memory(DISK_BYTES)), Arc::new(memory(DISK_BYTES))];
    let server = Server::new(vec![unit("0", "a", disks[0].clone()), unit("3:300", "b", disks[1].clone())]);
    let mut driver = server.driver();
    for lun in ["0", "3:300"] {
        driver.settle(lun);
    }
    let data: Vec<u8> = pattern(8 * 512, 1);
    driver.write("3:300", 2, &data).good();
    assert_eq!(driver.read("3:300", 2, 8), data);
    assert!(driver.read("0", 2, 8).iter().all(|byte| *byte == 0));
    assert_eq!(contents(&*disks[1], 1024, data.len()), data);
    // The end of the disk.
    let last = (DISK_BYTES / 512 - 1) as u32;
    driver.write("0", last, &data[..512]).good();
    assert_eq!(driver.read("0", last, 1), data[..512]);
    assert_eq!(driver.ask("0", &read_10(last, 2), &[], 1024).sense_code(), (5, 0x21, 0));
    assert_eq!(driver.ask("0", &write_10(last + 1, &data[..512]), &data[..512], 0).sense_code(), (5, 0x21, 0));
    // Less room than the command asks for, and more.
    assert_eq!(driver.ask("0", &read_10(0, 2), &[], 512).response, 1, "OVERRUN");
    assert_eq!(driver.ask("0", &read_10(0, 1), &[], 1024).residual, 512);
    let nobody = driver.ask("1", &read_10(0, 1), &[], 512);
    assert_eq!(nobody.sense_code(), (5, 0x25, 0), "the target has other units");
    assert_eq!(driver.ask("2:0", &read_10(0, 1), &[], 512).response, 3, "BAD_TARGET");
    assert_eq!(driver.ask("0", &[0xff; 6], &[], 0).sense_code(), (5, 0x20, 0));
}

#[test]
fn a_unit_says_who_and_how_large_it_is() {
    let server = Server::new(vec![
        unit("0", "alpha", Arc::new(memory(DISK_BYTES))),
        unit("7", "beta", Arc::new(memory(2 * DISK_BYTES))),
    ]);
    let mut driver = server.driver();
    // Before anything else, and though power on is still to be told.
    let inquiry = driver.ask("0", &[0x12, 0, 0, 0, 96, 0], &[], 96).good();
    assert_eq!((inquiry[0], &inquiry[8..14]), (0, b"VRINGD".as_slice()));
    let serial = driver.ask("7", &[0x12, 1, 0x80, 0, 96, 0], &[], 96).good();
    assert_eq!(&serial[4..], b"beta");
    let other = driver.ask("5", &[0x12, 0, 0, 0, 96, 0], &[], 96).good();
    assert_eq!(other[0], 0x7f, "no unit is there");
    let luns = driver.ask("0", &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64).good();
    assert_eq!((u32::from_be_bytes(luns[..4].try_into().unwrap()), luns[9], luns[17]), (16, 0, 7));
    driver.settle("7");
    let capacity = driver.ask("7", &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], &[], 32).good();
    assert_eq!(u64::from_be_bytes(capacity[..8].try_into().unwrap()), 2 * DISK_BYTES / 512 - 1);
    assert_eq!(u32::from_be_bytes(capacity[8..12].try_into().unwrap()), 512);
}

#[test]
fn ranges_are_zeroed_discarded_and_filled() {
    let disk: Arc<dyn Storage> = Arc::new(memory(DISK_BYTES));
    let server = Server::new(vec![unit("0", "a", disk.clone())]);
    let mut driver = server.driver();
    driver.settle("0");
    let data: Vec<u8> = pattern(64 * 512, 2);
    driver.write("0", 0, &data).good();
    let write_same = |flags: u8, block: u8, blocks: u16| {
        let [high, low] = blocks.to_be_bytes();
        [0x93, flags, 0, 0, 0, 0, 0, 0, 0, block, 0, 0, high, low, 0, 0]
    };
    // One block of zeroes; none, by NDOB; a block that is something.
    driver.ask("0", &write_same(0, 1, 2), &[0; 512], 0).good();
    driver.ask("0", &write_same(1, 4, 2), &[], 0).good();
    let block: Vec<u8> = pattern(512, 3);
    driver.ask("0", &write_same(0, 8, 1000), &block, 0).good();
    let mut expected = data.clone();
    expected[512..3 * 512].fill(0);
    expected[4 * 512..6 * 512].fill(0);
    expected[8 * 512..].chunks_mut(512).for_each(|to| to.copy_from_slice(&block));
    assert_eq!(contents(&*disk, 0, data.len()), expected);
    assert_eq!(contents(&*disk, 1007 * 512, 512), block);
    assert!(contents(&*disk, 1008 * 512, 512).iter().all(|byte| *byte == 0));
    // Two ranges of an UNMAP.
    let mut list = vec![0, 38, 0, 32, 0, 0, 0, 0];
    for (block, blocks) in [(0_u64, 1_u32), (10, 2)] {
        list.extend(block.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    driver.ask("0", &[0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list, 0).good();
    // Beyond the end: nothing is unmapped.
    list[24..32].copy_from_slice(&(DISK_BYTES / 512).to_be_bytes());
    assert_eq!(driver.ask("0", &[0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list, 0).sense_code(), (5, 0x21, 0));
    driver.ask("0", &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).good();
}

#[test]
fn what_is_compared_is_written_only_if_it_is_equal() {
    let disk: Arc<dyn Storage> = Arc::new(memory(DISK_BYTES));
    let server = Server::new(vec![unit("0", "a", disk.clone())]);
    let mut driver = server.driver();
    driver.settle("0");
    let swap = |block: u8, blocks: u8| [0x89, 0, 0, 0, 0, 0, 0, 0, 0, block, 0, 0, 0, blocks, 0, 0];
    let (old, new): (Vec<u8>, Vec<u8>) = (vec![0; 1024], pattern(1024, 4));
    driver.ask("0", &swap(3, 2), &[old.clone(), new.clone()].concat(), 0).good();
    assert_eq!(driver.read("0", 3, 2), new);
    let mut wrong = new.clone();
    wrong[700] ^= 1;
    let answer = driver.ask("0", &swap(3, 2), &[wrong, old].concat(), 0);
    assert_eq!(answer.sense_code(), (0xe, 0x1d, 0));
    assert_eq!((answer.sense[0] & 0x80, answer.sense[3..7].to_vec()), (0x80, 700_u32.to_be_bytes().to_vec()));
    assert_eq!(driver.read("0", 3, 2), new);
    // VERIFY with the data, with nothing, and with a byte that differs.
    let verify = |bytchk: u8| [0x2f, bytchk << 1, 0, 0, 0, 3, 0, 0, 2, 0];
    driver.ask("0", &verify(1), &new, 0).good();
    driver.ask("0", &verify(0), &[], 0).good();
    let mut wrong = new.clone();
    wrong[1023] ^= 0x80;
    assert_eq!(driver.ask("0", &verify(1), &wrong, 0).sense_code(), (0xe, 0x1d, 0));
    // WRITE AND VERIFY.
    driver.ask("0", &[0x2e, 2, 0, 0, 0, 9, 0, 0, 2, 0], &new, 0).good();
    assert_eq!(driver.read("0", 9, 2), new);
}

#[test]
fn comparisons_of_one_unit_go_one_after_the_other() {
    let storage = Scripted::new(DISK_BYTES);
    let server = Server::new(vec![unit("0", "a", storage.clone())]);
    let mut driver = server.driver();
    driver.settle("0");
    let swap = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0];
    storage.hold(|operation| matches!(operation, Operation::Read { .. }));
    let data = |old: u8, new: u8| [[old; 512], [new; 512]].concat();
    // On two queues, which two workers may have.
    let first = driver.begin(2, "0", &swap, &data(0, 1), 0);
    eventually("it reads", || storage.asked().iter().any(|it| matches!(it, Operation::Read { .. })));
    let second = driver.begin(3, "0", &swap, &data(0, 2), 0);
    let third = driver.begin(3, "0", &swap, &data(1, 3), 0);
    assert!(!driver.has_answer(3));
    storage.release();
    driver.end(first).good();
    assert_eq!(driver.end(second).sense_code(), (0xe, 0x1d, 0));
    driver.end(third).good();
    assert_eq!(driver.read("0", 1, 1), [3; 512]);
}

#[test]
fn a_comparison_that_is_lost_lets_the_next_one_go_on() {
    static LOST: AtomicBool = AtomicBool::new(false);
    let storage = Scripted::new(DISK_BYTES);
    let server = Server::new(vec![unit("0", "a", storage.clone())]);
    let mut driver = server.driver();
    driver.settle("0");
    let swap = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0];
    let data = [[0; 512], [1; 512]].concat();
    storage.hold(|operation| matches!(operation, Operation::Read { .. }));
    driver.begin(2, "0", &swap, &data, 0);
    eventually("it reads", || storage.asked().iter().any(|it| matches!(it, Operation::Read { .. })));
    let next = driver.begin(3, "0", &swap, &data, 0);
    eventually("it waits", || server.export.ring(3).is_some_and(|ring| ring.in_flight == 1));
    storage.hold(|operation| {
        let is_read = matches!(operation, Operation::Read { .. });
        assert!(!is_read || LOST.swap(true, Ordering::Relaxed), "the worker of the first one is lost");
        false
    });
    driver.end(next).good();
    eventually("it is told", || server.export.failure().is_some_and(|why| why.contains("the first one is lost")));
}

#[test]
fn writes_are_durable_where_there_is_no_cache() {
    let storage = Scripted::new(DISK_BYTES);
    for (write_back, changeable, durable) in [(true, false, false), (false, false, true), (true, true, true)] {
        let server = Server::with_write_cache(vec![unit("0", "a", storage.clone())], write_back, changeable);
        let mut driver = server.driver();
        driver.settle("0");
        storage.asked();
        driver.write("0", 0, &[1; 512]).good();
        assert_eq!(durable_writes(&storage), usize::from(durable), "{write_back} {changeable}");
        // What MODE SENSE says of it, and FUA.
        let mode = driver.ask("0", &[0x1a, 8, 8, 0, 64, 0], &[], 64).good();
        assert_eq!(mode[4 + 2] & 4 != 0, !durable);
        storage.asked();
        let mut fua = write_10(0, &[0; 512]);
        fua[1] = 8;
        driver.ask("0", &fua, &[2; 512], 0).good();
        assert_eq!(durable_writes(&storage), 1);
        // A guest may turn it on where it may: as it begins, nobody knows whether it flushes.
        let mut list = mode.clone();
        list[..4].fill(0);
        list[4 + 2] ^= 4;
        let selected = driver.ask("0", &[0x15, 0x10, 0, 0, list.len() as u8, 0], &list, 0);
        if changeable {
            selected.good();
            storage.asked();
            driver.write("0", 0, &[1; 512]).good();
            assert_eq!(durable_writes(&storage), 0);
        } else {
            assert_eq!(selected.sense_code(), (5, 0x26, 0));
        }
    }
}

#[test]
fn a_disk_that_fails_is_told_of_in_the_words_of_the_standard() {
    let storage = Scripted::new(DISK_BYTES);
    let server = Server::new(vec![unit("0", "a", storage.clone())]);
    let mut driver = server.driver();
    driver.settle("0");
    for (errno, sense) in [(libc::EIO, (3, 0x0c, 0)), (libc::ENOSPC, (7, 0x27, 7))] {
        storage.fail(Some(errno));
        assert_eq!(driver.write("0", 0, &[1; 512]).sense_code(), sense);
    }
    storage.fail(Some(libc::EIO));
    assert_eq!(driver.ask("0", &read_10(0, 1), &[], 512).sense_code(), (3, 0x11, 0));
}

#[test]
fn an_answer_is_as_long_as_its_request_was_made_for() {
    let storage = Scripted::new(DISK_BYTES);
    let server = Server::new(vec![unit("0", "a", storage.clone())]);
    let mut driver = server.driver();
    driver.settle("0");
    storage.hold(|operation| matches!(operation, Operation::Write { .. }));
    storage.fail(Some(libc::EIO));
    storage.asked();
    let write = driver.begin(2, "0", &write_10(0, &[1; 512]), &[1; 512], 0);
    eventually("it is under way", || !storage.asked().is_empty());
    driver.set_sense_bytes(0);
    storage.release();
    assert_eq!(driver.written(write), RESPONSE_BYTES);
}

#[test]
fn what_is_verified_and_repeated_counts_against_limits() {
    let server = Server::new(vec![unit("0", "a", Arc::new(memory(DISK_BYTES)))]);
    let mut driver = server.driver();
    driver.settle("0");
    // VERIFY (10) without data, and WRITE SAME (10) of a block that is not zero: 1 MiB each.
    let blocks = ((DISK_BYTES / 512) as u16).to_be_bytes();
    let verify = [0x2f, 0, 0, 0, 0, 0, 0, blocks[0], blocks[1], 0];
    let same = [0x41, 0, 0, 0, 0, 0, 0, blocks[0], blocks[1], 0];
    for (cdb, out) in [(verify, vec![]), (same, vec![7; 512])] {
        server.export.set_limits(Limits { requests: None, bytes: Some(Rate::new(1, Some(1))) }, None);
        // The first one has what was saved up, and is owed for.
        driver.ask("0", &cdb, &out, 0).good();
        let next = driver.begin(2, "0", &[0; 6], &[], 0);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!driver.has_answer(2), "a limit holds it up");
        server.export.set_limits(Limits { requests: None, bytes: None }, None);
        driver.end(next).good();
    }
}
