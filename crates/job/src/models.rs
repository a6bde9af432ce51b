//! Guests, readers and the job that depend on each other's last word, in many orders of threads (`interleave`).

use crate::after::Dirt;
use crate::before::Guards;
use crate::copying::claim;
use crate::marks::{CLUSTER_BYTES, Marks};
use crate::pull::Over;
use crate::sync::{AtomicBool, AtomicU64};
use engine::{Solo, Token};
use interleave::{in_many_orders, thread, yield_now};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const ORDERS: usize = 2000;

/// Whatever the order, who finds a guard is told that it is lifted, and who finds none comes after that.
#[test]
fn every_waiter_is_found() {
    in_many_orders(ORDERS, || {
        let guards = Arc::new(Guards::new(Marks::new(2 * CLUSTER_BYTES, true)));
        let is_read = Arc::new(AtomicBool::new(false));
        let job = {
            let (guards, is_read) = (guards.clone(), is_read.clone());
            thread::spawn(move || {
                guards.lift(&(CLUSTER_BYTES..2 * CLUSTER_BYTES));
                is_read.store(true, SeqCst);
                guards.lift(&(0..CLUSTER_BYTES));
            })
        };
        let guest = {
            let (guards, is_read) = (guards.clone(), is_read.clone());
            thread::spawn(move || {
                let mut solo = Solo::for_one().unwrap();
                let is_waiting = guards.wait(0..2, Token::request(3), &mut solo.io());
                assert!(is_waiting || is_read.load(SeqCst));
                (is_waiting, solo)
            })
        };
        job.join().unwrap();
        let (is_waiting, mut solo) = guest.join().unwrap();
        assert_eq!(guards.count_waiting(), 0);
        if is_waiting {
            assert_eq!(solo.wait().unwrap().result, 0);
        }
    });
}

/// The same where the job fails while it lifts guards.
#[test]
fn every_waiter_is_found_when_the_job_ends() {
    in_many_orders(ORDERS, || {
        let guards = Arc::new(Guards::new(Marks::new(2 * CLUSTER_BYTES, true)));
        let other = guards.clone();
        let cancels = thread::spawn(move || other.lift_all());
        let other = guards.clone();
        let job = thread::spawn(move || other.lift(&(0..CLUSTER_BYTES)));
        let mut solo = Solo::for_one().unwrap();
        let is_waiting = guards.wait(0..2, Token::request(3), &mut solo.io());
        cancels.join().unwrap();
        job.join().unwrap();
        assert_eq!(guards.count_waiting(), 0);
        if is_waiting {
            assert_eq!(solo.wait().unwrap().result, 0);
        }
    });
}

/// The job sleeps whenever it finds nothing, and ends when it has copied what two guests have written. A lost wake-up is an order that
/// does not end.
#[test]
fn a_mirror_sleeps_through_no_write() {
    in_many_orders(ORDERS, || {
        let dirt = Arc::new(Dirt::new(CLUSTER_BYTES, true));
        dirt.marks.clear(0..1);
        let (disk, copy) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let guests = [1, 2].map(|bit| {
            let (dirt, disk) = (dirt.clone(), disk.clone());
            thread::spawn(move || {
                disk.fetch_or(bit, SeqCst);
                dirt.add(0, 512);
            })
        });
        let job = {
            let (dirt, disk, copy) = (dirt.clone(), disk.clone(), copy.clone());
            thread::spawn(move || {
                let mut solo = Solo::for_one().unwrap();
                while copy.load(SeqCst) != 3 {
                    if claim(&dirt.marks, &mut (0..1), 1).is_some() {
                        copy.store(disk.load(SeqCst), SeqCst);
                        continue;
                    }
                    dirt.control.arm(|| solo.io().reply(Token::other(0)));
                    dirt.while_clean(|| {
                        while dirt.control.is_armed() {
                            yield_now();
                        }
                    });
                }
            })
        };
        guests.into_iter().for_each(|guest| guest.join().unwrap());
        job.join().unwrap();
    });
}

/// A reader looks at the disk, then for the guard; a guest writes when the job has saved what was there. Whatever the order, the reader
/// has what was there, also where the job fails meanwhile: then it may have an error instead.
#[test]
fn a_reader_has_what_was_there() {
    for fails in [false, true] {
        in_many_orders(ORDERS, move || {
            let guards = Arc::new(Guards::new(Marks::new(CLUSTER_BYTES, true)));
            let (disk, scratch) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
            let guest = {
                let (guards, disk) = (guards.clone(), disk.clone());
                thread::spawn(move || {
                    let mut solo = Solo::for_one().unwrap();
                    if guards.wait(0..1, Token::request(3), &mut solo.io()) {
                        while guards.has_some(0, 512) {
                            yield_now();
                        }
                    }
                    disk.store(2, SeqCst);
                })
            };
            let job = {
                let (guards, disk, scratch) = (guards.clone(), disk.clone(), scratch.clone());
                thread::spawn(move || {
                    scratch.store(disk.load(SeqCst), SeqCst);
                    guards.lift(&(0..CLUSTER_BYTES));
                })
            };
            let failing = fails.then(|| {
                let guards = guards.clone();
                thread::spawn(move || guards.lift_all())
            });
            let read = disk.load(SeqCst);
            match guards.saved(&(512..1024)) {
                Ok(None) => assert_eq!(read, 1),
                Ok(Some(saved)) => assert_eq!((saved, scratch.load(SeqCst)), (512..1024, 1)),
                Err(Over) => assert!(fails),
            }
            guest.join().unwrap();
            job.join().unwrap();
            failing.into_iter().for_each(|failing| failing.join().unwrap());
        });
    }
}
