//! Task management: what is said to be gone is gone.

use super::driver::{CONTROL, HANG, Server, read_10, unit, write_10};
use crate::nbd::server::{Scripted, eventually};
use std::time::{Duration, Instant};
use storage::Operation;

const ABORT_TASK: u32 = 0;
const ABORT_TASK_SET: u32 = 1;
const CLEAR_ACA: u32 = 2;
const I_T_NEXUS_RESET: u32 = 4;
pub(super) const LOGICAL_UNIT_RESET: u32 = 5;
const QUERY_TASK: u32 = 6;
const QUERY_TASK_SET: u32 = 7;
pub(super) const COMPLETE: u8 = 0;
const FAILURE: u8 = 9;
const SUCCEEDED: u8 = 10;
pub(super) const A_WHILE: Duration = Duration::from_millis(50);

#[test]
fn a_task_is_answered_before_it_is_said_to_be_gone() {
    let (slow, fast) = (Scripted::new(1 << 20), Scripted::new(1 << 20));
    let server = Server::new(vec![unit("0", "slow", slow.clone()), unit("1", "fast", fast)]);
    let mut driver = server.driver();
    driver.settle("0");
    driver.settle("1");
    for (function, on, waits) in [
        (ABORT_TASK, "0", true),
        (ABORT_TASK_SET, "0", true),
        (LOGICAL_UNIT_RESET, "0", true),
        (I_T_NEXUS_RESET, "0", true),
        // Of another unit of the target.
        (I_T_NEXUS_RESET, "1", true),
        (ABORT_TASK_SET, "1", false),
        (LOGICAL_UNIT_RESET, "1", false),
    ] {
        slow.hold(|operation| matches!(operation, Operation::Write { .. }));
        slow.asked();
        let write = driver.begin(3, "0", &write_10(0, &[1; 512]), &[1; 512], 0);
        eventually("it is under way", || !slow.asked().is_empty());
        let asked = driver.manage(function, on, write.tag);
        std::thread::sleep(A_WHILE);
        assert_eq!(driver.has_answer(0), !waits, "{function} on {on}");
        slow.release();
        assert_eq!(driver.managed(asked), COMPLETE, "{function} on {on}");
        if waits {
            assert!(driver.has_answer(3), "the task has been answered by then");
        }
        driver.end(write).good();
        let reset = [LOGICAL_UNIT_RESET, I_T_NEXUS_RESET].contains(&function);
        for lun in ["0", "1"] {
            let answer = driver.ask(lun, &[0; 6], &[], 0);
            if reset && (function == I_T_NEXUS_RESET || lun == on) {
                let qualifier = if function == I_T_NEXUS_RESET { 7 } else { 3 };
                assert_eq!(answer.sense_code(), (6, 0x29, qualifier), "{function} on {on}: {lun}");
            } else {
                answer.good();
            }
        }
    }
}

#[test]
fn tasks_are_asked_after() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(vec![unit("0", "a", storage.clone()), unit("1", "b", Scripted::new(1 << 20))]);
    let mut driver = server.driver();
    driver.settle("0");
    storage.hold(|operation| matches!(operation, Operation::Read { .. }));
    let read = driver.begin(2, "0", &read_10(0, 1), &[], 512);
    eventually("it is under way", || !storage.asked().is_empty());
    for (function, lun, tag, says) in [
        (QUERY_TASK, "0", read.tag, SUCCEEDED),
        (QUERY_TASK, "0", read.tag + 1, COMPLETE),
        (QUERY_TASK, "1", read.tag, COMPLETE),
        (QUERY_TASK_SET, "0", 0, SUCCEEDED),
        (QUERY_TASK_SET, "1", 0, COMPLETE),
        // One that is not there is gone.
        (ABORT_TASK, "0", read.tag + 1, COMPLETE),
        (ABORT_TASK, "2", read.tag, 12),
        (ABORT_TASK, "2:0", read.tag, 3),
        (CLEAR_ACA, "0", 0, 11),
        (99, "0", 0, 11),
    ] {
        let asked = driver.manage(function, lun, tag);
        assert_eq!(driver.managed(asked), says, "{function} of {tag} on {lun}");
    }
    storage.release();
    driver.end(read).good();
}

#[test]
fn what_a_disabled_queue_has_not_taken_is_waited_for() {
    let server = Server::new(vec![unit("0", "a", Scripted::new(1 << 20))]);
    let mut driver = server.driver();
    driver.settle("0");
    driver.enable(3, false);
    let write = driver.begin(3, "0", &write_10(0, &[1; 512]), &[1; 512], 0);
    let asked = driver.manage(ABORT_TASK, "0", write.tag);
    std::thread::sleep(A_WHILE);
    assert!(!driver.has_answer(CONTROL), "the write may still be done");
    driver.enable(3, true);
    assert_eq!(driver.managed(asked), COMPLETE);
    assert!(driver.has_answer(3), "the task has been answered by then");
    driver.end(write).good();
}

#[test]
fn tasks_are_counted_as_they_come_and_end() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(vec![unit("0", "a", storage.clone()), unit("1", "b", Scripted::new(1 << 20))]);
    let mut driver = server.driver();
    driver.settle("0");
    driver.settle("1");
    storage.hold(|operation| matches!(operation, Operation::Write { .. }));
    // Taken and under way, taken and ended, not taken yet, and behind those: of the unit and of another one.
    for _ in 0..3 {
        driver.begin(3, "0", &write_10(0, &[1; 512]), &[1; 512], 0);
    }
    let other = driver.begin(3, "1", &write_10(0, &[1; 512]), &[1; 512], 0);
    driver.end(other).good();
    driver.enable(3, false);
    let [_, other, _] = ["0", "1", "0"].map(|lun| driver.begin(3, lun, &write_10(0, &[1; 512]), &[1; 512], 0));
    let asked = ["0", "1"].map(|lun| driver.manage(ABORT_TASK_SET, lun, 0));
    eventually("they wait", || server.export.ring(CONTROL as u16).is_some_and(|ring| ring.in_flight == 2));
    driver.enable(3, true);
    let [of_unit, of_other] = asked;
    assert_eq!(driver.managed(of_other), COMPLETE, "none of its tasks is held");
    driver.end(other).good();
    driver.begin(3, "0", &write_10(0, &[1; 512]), &[1; 512], 0);
    std::thread::sleep(A_WHILE);
    assert!(!driver.has_answer(CONTROL), "five of its tasks are held");
    storage.release();
    assert_eq!(driver.managed(of_unit), COMPLETE);
    assert!(driver.answers(3) >= 5, "they have been answered by then, in any order");
    eventually("the last one is answered, for which nobody waits", || driver.answers(3) == 6);
}

#[test]
fn nobody_is_held_up_by_what_waits_for_tasks() {
    let storage = Scripted::new(1 << 20);
    let server = Server::new(vec![unit("0", "slow", storage.clone()), unit("1", "b", Scripted::new(1 << 20))]);
    let mut driver = server.driver();
    driver.settle("0");
    driver.settle("1");
    driver.enable(3, false);
    let write = driver.begin(3, "1", &write_10(0, &[1; 512]), &[1; 512], 0);
    // More than wait at once.
    let asked: Vec<_> = (0..20).map(|_| driver.manage(LOGICAL_UNIT_RESET, "1", 0)).collect();
    // Another storage could come: nothing is under way on those that there are.
    drop(server.export.hold(Instant::now() + HANG).unwrap());
    // Tasks of another unit are asked after meanwhile, once there is room.
    driver.enable(3, true);
    driver.end(write).good();
    for asked in asked {
        assert_eq!(driver.managed(asked), COMPLETE);
    }

    // Its queue stops though they have not ended, and says so.
    storage.hold(|operation| matches!(operation, Operation::Write { .. }));
    storage.asked();
    let write = driver.begin(2, "0", &write_10(0, &[1; 512]), &[1; 512], 0);
    eventually("it is under way", || !storage.asked().is_empty());
    let asked = driver.manage(ABORT_TASK_SET, "0", 0);
    eventually("it waits", || server.export.ring(CONTROL as u16).is_some_and(|ring| ring.in_flight == 1));
    let base = driver.stop(CONTROL);
    assert_eq!(driver.managed(asked), FAILURE);
    driver.start(CONTROL, base);
    let asked = driver.manage(ABORT_TASK_SET, "0", 0);
    storage.release();
    assert_eq!(driver.managed(asked), COMPLETE);
    driver.end(write).good();

    // A queue that ends with what it has not taken leaves that to its next life: nobody can say that it is gone.
    driver.hears("1", (6, 0x29, 3));
    driver.enable(3, false);
    let left = driver.begin(3, "1", &write_10(0, &[1; 512]), &[1; 512], 0);
    let asked = driver.manage(ABORT_TASK, "1", left.tag);
    eventually("it waits", || server.export.ring(CONTROL as u16).is_some_and(|ring| ring.in_flight == 1));
    assert_eq!(server.export.oldest_requests(), [], "it waits for others, and nobody has to ask what takes so long");
    let base = driver.stop(3);
    assert_eq!(driver.managed(asked), FAILURE);
    driver.start(3, base);
    driver.enable(3, true);
    driver.end(left).good();

    // So it does of what comes while it ends, and waits for a disk.
    storage.hold(|operation| matches!(operation, Operation::Write { .. }));
    storage.asked();
    let held = driver.begin(3, "0", &write_10(0, &[1; 512]), &[1; 512], 0);
    eventually("it is under way", || !storage.asked().is_empty());
    driver.enable(3, false);
    let stopping = driver.begin_to_stop(3);
    std::thread::sleep(A_WHILE);
    let late = driver.begin(3, "0", &write_10(0, &[1; 512]), &[1; 512], 0);
    let asked = driver.manage(ABORT_TASK, "0", late.tag);
    std::thread::sleep(A_WHILE);
    storage.release();
    assert_eq!(driver.managed(asked), FAILURE);
    driver.start(3, stopping.join().unwrap());
    driver.end(held).good();
    driver.end(late).good();

    // A queue that breaks between two turns ends what waits for it.
    driver.enable(3, false);
    driver.begin(3, "0", &write_10(0, &[1; 512]), &[1; 512], 0);
    let asked = driver.manage(ABORT_TASK_SET, "0", 0);
    eventually("it waits", || server.export.ring(CONTROL as u16).is_some_and(|ring| ring.in_flight == 1));
    driver.break_call(3);
    assert_eq!(driver.managed(asked), COMPLETE);
    driver.enable(3, true);

    // Nor is the export's end.
    driver.enable(2, false);
    let _left = driver.begin(2, "1", &write_10(0, &[1; 512]), &[1; 512], 0);
    driver.manage(ABORT_TASK_SET, "1", 0);
    eventually("it waits", || server.export.ring(CONTROL as u16).is_some_and(|ring| ring.in_flight == 1));
    drop(server);
}
