//! Guests that are fenced by others: what they have under way when that is said, and what they begin later.

use super::driver::{Driver, Server, read_10, reserve_out, write_10};
use super::reservations::{
    A, B, CONFLICT, DISK_BYTES, PREEMPT, PREEMPT_AND_ABORT, REGISTER, REGISTER_AND_IGNORE, RESERVE, WRITE_EXCLUSIVE,
    WRITE_EXCLUSIVE_ALL, WRITE_EXCLUSIVE_REGISTRANTS, keys, pair,
};
use super::tasks::{A_WHILE, COMPLETE, LOGICAL_UNIT_RESET};
use crate::nbd::server::{Scripted, eventually};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use storage::Operation;

/// Who is fenced has no write under way when it is, and gets none in afterwards: what `fence_scsi` and Windows' clusters build on.
#[test]
fn whoever_is_fenced_is_out_when_that_is_said() {
    let storage = Scripted::new(DISK_BYTES);
    let (_one, _other, mut a, mut b) = pair(storage.clone());
    a.reserve_out(A, (REGISTER, 0), [0, 0xa], 0).good();
    b.reserve_out(B, (REGISTER, 0), [0, 0xb], 0).good();
    a.reserve_out(A, (RESERVE, WRITE_EXCLUSIVE_REGISTRANTS), [0xa, 0], 0).good();
    b.write(B, 0, &[2; 512]).good();
    for action in [PREEMPT, PREEMPT_AND_ABORT] {
        storage.hold(|operation| matches!(operation, Operation::Write { .. }));
        storage.asked();
        let write = a.begin(3, A, &write_10(0, &[1; 512]), &[1; 512], 0);
        eventually("it is under way", || !storage.asked().is_empty());
        let (cdb, list) = reserve_out((action, WRITE_EXCLUSIVE_REGISTRANTS), [0xb, 0xa], 0);
        let fence = b.begin(2, B, &cdb, &list, 0);
        std::thread::sleep(A_WHILE);
        assert_eq!(b.has_answer(2), action == PREEMPT, "one of them waits for what is under way");
        // Others do not wait behind it.
        let beside = b.begin(3, B, &read_10(0, 1), &[], 512);
        b.end(beside).good();
        assert!(!a.has_answer(3));
        storage.release();
        b.end(fence).good();
        if action == PREEMPT_AND_ABORT {
            assert!(a.has_answer(3), "it has been answered by then");
        }
        a.end(write).good();
        a.hears(A, (6, 0x2a, 5));
        assert_eq!(a.write(A, 0, &[1; 512]).status, CONFLICT);
        assert_eq!(keys(&mut a, A), [0xb]);
        // Until it is let in again.
        a.reserve_out(A, (REGISTER, 0), [0, 0xa], 0).good();
        a.write(A, 0, &[1; 512]).good();
        b.write(B, 0, &[2; 512]).good();
    }
}

#[test]
fn whoever_fences_with_everybodys_key_waits_for_no_fence() {
    let storage = Scripted::new(DISK_BYTES);
    let (_one, _other, mut a, mut b) = pair(storage.clone());
    for (driver, lun) in [(&mut a, A), (&mut b, B)] {
        driver.reserve_out(lun, (REGISTER, 0), [0, 7], 0).good();
    }
    a.reserve_out(A, (RESERVE, WRITE_EXCLUSIVE_ALL), [7, 0], 0).good();
    storage.hold(|operation| matches!(operation, Operation::Write { .. }));
    storage.asked();
    let writes =
        [a.begin(3, A, &write_10(0, &[1; 512]), &[1; 512], 0), b.begin(3, B, &write_10(1, &[2; 512]), &[2; 512], 0)];
    let mut begun = 0;
    eventually("both are under way", || {
        begun += storage.asked().len();
        begun == 2
    });
    let (cdb, list) = reserve_out((PREEMPT_AND_ABORT, WRITE_EXCLUSIVE_ALL), [7, 0], 0);
    let first = a.begin(2, A, &cdb, &list, 0);
    eventually("it is out", || b.ask(B, &[0; 6], &[], 0).status == 2);
    b.reserve_out(B, (REGISTER, 0), [0, 9], 0).good();
    let (cdb, list) = reserve_out((PREEMPT_AND_ABORT, WRITE_EXCLUSIVE_ALL), [9, 0], 0);
    let second = b.begin(2, B, &cdb, &list, 0);
    std::thread::sleep(A_WHILE);
    assert!(!a.has_answer(2) && !b.has_answer(2), "each waits for a write of the other's");
    storage.release();
    a.end(first).good();
    b.end(second).good();
    a.end(writes[0]).good();
    b.end(writes[1]).good();
    a.hears(A, (6, 0x2a, 5));
    assert_eq!(keys(&mut b, B), [9]);
}

#[test]
fn a_few_fences_wait_at_a_time() {
    let storage = Scripted::new(DISK_BYTES);
    let (one, _other, mut a, mut b) = pair(storage.clone());
    b.reserve_out(B, (REGISTER, 0), [0, 0xb], 0).good();
    storage.hold(|operation| matches!(operation, Operation::Write { .. }));
    storage.asked();
    let write = a.begin(3, A, &write_10(0, &[1; 512]), &[1; 512], 0);
    eventually("it is under way", || !storage.asked().is_empty());
    let (cdb, list) = reserve_out((PREEMPT_AND_ABORT, WRITE_EXCLUSIVE), [0xb, 0xa], 0);
    let mut fences = Vec::new();
    for number in 0..16 {
        if number > 0 {
            a.hears(A, (6, 0x2a, 5));
        }
        a.reserve_out(A, (REGISTER, 0), [0, 0xa], 0).good();
        fences.push(b.begin(2 + number / 8, B, &cdb, &list, 0));
        eventually("it is out", || !is_registered(&one));
    }
    a.hears(A, (6, 0x2a, 5));
    a.reserve_out(A, (REGISTER, 0), [0, 0xa], 0).good();
    let more = b.begin(3, B, &cdb, &list, 0);
    // Others of its queue wait still.
    eventually("it is answered", || b.has_answer(3));
    assert_eq!(b.end(more).status, 0x28, "TASK SET FULL");
    assert_eq!(keys(&mut a, A), [0xa, 0xb], "and nothing has changed");
    storage.release();
    fences.into_iter().for_each(|fence| assert!(b.end(fence).good().is_empty()));
    a.end(write).good();
}

/// Two devices with the disk, whose drivers are registered.
fn registered(storage: &Arc<Scripted>) -> (Server, Server, Driver, Driver) {
    let (one, other, mut a, mut b) = pair(storage.clone());
    a.reserve_out(A, (REGISTER, 0), [0, 0xa], 0).good();
    b.reserve_out(B, (REGISTER, 0), [0, 0xb], 0).good();
    (one, other, a, b)
}

/// The first device's driver has a command under way that another thread does (GET LBA STATUS).
fn begins(storage: &Scripted, driver: &mut Driver) {
    storage.hold_looks(true);
    driver.begin(3, A, &[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64);
    eventually("it is under way", || storage.looks() > 0);
}

/// Its ring falls.
fn falls(storage: &Scripted, server: &Server, driver: &mut Driver) {
    storage.hold(|operation| {
        assert!(!matches!(operation, Operation::Read { .. }), "the ring falls");
        false
    });
    driver.begin(3, A, &read_10(0, 1), &[], 512);
    eventually("it is told", || server.export.failure().is_some_and(|why| why.contains("the ring falls")));
}

#[test]
fn a_fence_waits_for_what_a_ring_had_begun_that_falls() {
    for (falls_first, moves) in [(false, false), (true, false), (false, true), (true, true)] {
        let storage = Scripted::new(DISK_BYTES);
        let (one, _other, mut a, mut b) = registered(&storage);
        begins(&storage, &mut a);
        // What it has begun is under way where it was.
        let moved = if moves { &[0, 1][..] } else { &[] };
        moved.iter().for_each(|worker| one.export.attach(3, *worker).unwrap());
        if falls_first {
            falls(&storage, &one, &mut a);
        }
        let (cdb, list) = reserve_out((PREEMPT_AND_ABORT, WRITE_EXCLUSIVE), [0xb, 0xa], 0);
        let fence = b.begin(2, B, &cdb, &list, 0);
        eventually("it is out", || keys(&mut b, B) == [0xb]);
        if !falls_first {
            a.hears(A, (6, 0x2a, 5));
            falls(&storage, &one, &mut a);
        }
        let reset = b.manage(LOGICAL_UNIT_RESET, B, 0);
        std::thread::sleep(A_WHILE);
        assert_eq!((b.has_answer(2), b.has_answer(0)), (false, false), "they wait for what is under way");
        storage.hold_looks(false);
        b.end(fence).good();
        assert_eq!(b.managed(reset), COMPLETE);
    }
}

/// The first worker dies, with the third ring of this device.
fn worker_dies(server: &Server) {
    /// Whoever lets go of it has not expected that.
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the worker is to die");
        }
    }
    let engine = &server.engine;
    let [ring] = engine.workers()[0].rings[..] else { panic!("others have rings there") };
    let (hold, held) = channel::<()>();
    let (enters, inside) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            engine.with_ring(ring, move |_, _| {
                enters.send(()).unwrap();
                held.recv().unwrap_or_default();
                panic!("the ring is to fall");
            })
        });
        inside.recv().unwrap();
        let bomb = Bomb;
        scope.spawn(move || engine.with_ring(ring, move |_, _| std::mem::forget(bomb)));
        // It is in the mailbox, of a ring that has gone when the worker comes to it.
        std::thread::sleep(A_WHILE);
        drop(hold);
    });
    eventually("it has died", || !engine.workers()[0].alive);
}

/// What a worker had begun that dies ends for nobody.
#[test]
fn nobody_is_fenced_of_whom_nobody_can_say_that_he_is_out() {
    for falls_first in [false, true] {
        let storage = Scripted::new(DISK_BYTES);
        let (one, other, mut a, mut b) = registered(&storage);
        (0..4).for_each(|ring| other.export.attach(ring, 1).unwrap());
        (0..4).for_each(|ring| one.export.attach(ring, u32::from(ring < 2)).unwrap());
        begins(&storage, &mut a);
        one.export.attach(3, 1).unwrap();
        if falls_first {
            worker_dies(&one);
            let refused = b.reserve_out(B, (PREEMPT_AND_ABORT, WRITE_EXCLUSIVE), [0xb, 0xa], 0);
            assert_eq!(refused.status, 8, "BUSY");
            assert_eq!(keys(&mut b, B), [0xa, 0xb], "and nothing has changed");
            // Whoever waits for nothing may go on.
            b.reserve_out(B, (PREEMPT, WRITE_EXCLUSIVE), [0xb, 0xa], 0).good();
            assert_eq!(keys(&mut b, B), [0xb]);
        } else {
            let (cdb, list) = reserve_out((PREEMPT_AND_ABORT, WRITE_EXCLUSIVE), [0xb, 0xa], 0);
            let fence = b.begin(2, B, &cdb, &list, 0);
            eventually("it is out", || keys(&mut b, B) == [0xb]);
            worker_dies(&one);
            assert_eq!(b.end(fence).sense_code(), (0xb, 0, 0));
        }
        storage.hold_looks(false);
    }
}

/// Whether the guest of the first device is.
fn is_registered(server: &Server) -> bool {
    let reservation = server.export.units().unwrap()[0].reservation.clone();
    reservation.is_some_and(|it| it.registered.iter().any(|name| name == "scsi"))
}

/// Whether a request is left alone for a while, as by a disk that takes its time.
fn takes_its_time(operation: &Operation) -> bool {
    static TURNS: AtomicU64 = AtomicU64::new(1);
    let turn = TURNS.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    matches!(operation, Operation::Write { .. }) && (turn ^ turn >> 31).is_multiple_of(3)
}

/// The one that is fenced writes on two queues, which it also stops and starts; the other one fences it again and again.
#[test]
fn nothing_lands_behind_a_fence() {
    const FENCES: usize = 150;
    let storage = Scripted::new(DISK_BYTES);
    let (_one, _other, mut a, mut b) = pair(storage.clone());
    b.reserve_out(B, (REGISTER, 0), [0, 0xb], 0).good();
    b.reserve_out(B, (RESERVE, WRITE_EXCLUSIVE_REGISTRANTS), [0xb, 0], 0).good();
    storage.hold(takes_its_time);
    // Who registers has it.
    let (may_register, ends) = (Mutex::new(true), AtomicBool::new(false));
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut written, mut stamp) = (0, 0_u8);
            while !ends.load(Ordering::Relaxed) {
                let may = may_register.lock().unwrap();
                if *may {
                    a.reserve_out(A, (REGISTER_AND_IGNORE, 0), [0, 0xa], 0);
                }
                drop(may);
                stamp = stamp.wrapping_add(1);
                let data = [stamp; 512];
                let both = [2, 3].map(|queue| a.begin(queue, A, &write_10(0, &data), &data, 0));
                if stamp % 5 == 0 {
                    let base = a.stop(3);
                    a.start(3, base);
                }
                written += both.into_iter().filter(|it| a.end(*it).status == 0).count();
            }
            written
        });
        let mut fenced = 0;
        while fenced < FENCES {
            *may_register.lock().unwrap() = false;
            // It conflicts with nobody who has the key, and is told of the other's registrations.
            let fence = b.reserve_out(B, (PREEMPT_AND_ABORT, WRITE_EXCLUSIVE_REGISTRANTS), [0xb, 0xa], 0);
            if fence.status == 0 {
                fenced += 1;
                let first = b.read(B, 0, 1);
                std::thread::sleep(Duration::from_millis(2));
                assert!(b.read(B, 0, 1) == first, "something was written behind fence {fenced}");
            }
            *may_register.lock().unwrap() = true;
            std::thread::sleep(Duration::from_millis(1));
        }
        ends.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(written > 0, "it was out all the time");
}
