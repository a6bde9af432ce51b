//! Rings move while they run, and nothing is lost or done twice.

use crate::common::{Back, FakeRing, Front, MIX, Work, engine, eventually, ring, within};
use engine::{Engine, Poll, Ring, RingId, WorkerSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn attach(engine: &Engine<FakeRing>, back: &Arc<Back>, worker: u32) -> (RingId, Arc<Front>) {
    let (fake, front) = ring(back);
    (engine.attach(fake, worker).map_err(|(error, _)| error).unwrap(), front)
}

/// Keeps a few dozen mixed requests under way until told to stop.
fn load(front: Arc<Front>, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut works = MIX.iter().cycle();
        while !stop.load(Ordering::SeqCst) && front.submitted() < crate::common::TOKENS_MAX - 64 {
            for work in works.by_ref().take(24) {
                front.submit(*work);
            }
            front.wait_all();
        }
    })
}

#[test]
fn thousands_of_moves_under_load_lose_nothing() {
    for mode in [Poll::Off, Poll::default()] {
        let engine = engine(3, mode);
        let back = Back::new();
        let stop = Arc::new(AtomicBool::new(false));
        let rings: Vec<_> = (0..3).map(|worker| attach(&engine, &back, worker)).collect();
        let loads: Vec<_> = rings.iter().map(|(_, front)| load(front.clone(), stop.clone())).collect();
        for round in 0..2000 {
            for (index, (id, _)) in rings.iter().enumerate() {
                let to = (round + index as u32) % 3;
                engine.attach_to(*id, to).unwrap();
                assert_eq!(engine.worker_of(*id), Some(to));
            }
        }
        stop.store(true, Ordering::SeqCst);
        loads.into_iter().for_each(|load| load.join().unwrap());
        for (id, front) in rings {
            let moves = engine.stay_of(id).unwrap().read().moves;
            assert!((1900..=2000).contains(&moves), "{moves}");
            assert_eq!(engine.detach(id).unwrap().in_flight(), 0);
            front.check();
        }
    }
}

#[test]
fn several_threads_move_and_ask_the_same_ring() {
    let engine = engine(3, Poll::default());
    let (id, front) = attach(&engine, &Back::new(), 0);
    let stop = Arc::new(AtomicBool::new(false));
    let load = load(front.clone(), stop.clone());
    let movers: Vec<_> = (0..4u32)
        .map(|mover| {
            let engine = engine.clone();
            std::thread::spawn(move || {
                for round in 0..1500 {
                    engine.attach_to(id, (round * (mover + 1)) % 3).unwrap();
                    if round % 8 == 0 {
                        engine.with_ring(id, |_, _| ()).unwrap();
                    }
                }
            })
        })
        .collect();
    within("moving from four threads", move || movers.into_iter().for_each(|mover| mover.join().unwrap()));
    stop.store(true, Ordering::SeqCst);
    load.join().unwrap();
    front.check();
    // The directory and the ring agree on where it is: no worker keeps passing mail on.
    let home = engine.worker_of(id).unwrap();
    assert_eq!(engine.workers().iter().map(|worker| worker.rings.len()).sum::<usize>(), 1);
    assert_eq!(engine.workers()[home as usize].rings, [id]);
    engine.detach(id).unwrap();
}

#[test]
fn moves_race_with_detach() {
    let engine = engine(3, Poll::Off);
    let back = Back::new();
    for round in 0..400 {
        let (id, front) = attach(&engine, &back, 0);
        for work in MIX {
            front.submit(work);
        }
        let movers: Vec<_> = (0..2u32)
            .map(|mover| {
                let engine = engine.clone();
                std::thread::spawn(move || (0..20).all(|step| engine.attach_to(id, (step + mover) % 3).is_ok()))
            })
            .collect();
        if round % 2 == 0 {
            std::thread::yield_now();
        }
        let detacher = engine.clone();
        let fake = within("detach", move || detacher.detach(id)).unwrap();
        assert_eq!(fake.in_flight(), 0);
        for mover in movers {
            mover.join().unwrap();
        }
        assert_eq!(engine.worker_of(id), None, "a late move must not bring it back");
        assert!(engine.detach(id).is_err());
    }
    // Each of the rings left something to finish behind on every worker; none of it may keep a worker from ending.
    let threads: Vec<_> = engine.workers().iter().map(|worker| format!("/proc/self/task/{}", worker.tid)).collect();
    for worker in 0..3 {
        engine.worker_free(worker).unwrap();
    }
    eventually("the workers end", || !threads.iter().any(|thread| std::path::Path::new(thread).exists()));
}

#[test]
fn a_worker_ends_with_work_of_a_ring_that_moved_on() {
    let engine = engine(2, Poll::default());
    let (id, front) = attach(&engine, &Back::new(), 0);
    for _ in 0..20 {
        front.submit(Work::Timer(100_000));
        front.submit(Work::Pool);
        front.submit(Work::Read);
    }
    eventually("all taken", || engine.with_ring(id, |ring, _| !ring.ready()).unwrap());
    engine.attach_to(id, 1).unwrap();
    engine.worker_free(0).unwrap();
    assert!(engine.worker_free(0).is_err());
    front.wait_all();
    front.check();
    assert_eq!(engine.stay_of(id).unwrap().read().moves, 1);
    assert_eq!(engine.detach(id).unwrap().in_flight(), 0);
}

#[test]
fn a_ring_is_served_and_asked_after_a_move() {
    let engine = engine(2, Poll::Off);
    let (id, front) = attach(&engine, &Back::new(), 0);
    for to in [1, 1, 0, 0, 1] {
        engine.attach_to(id, to).unwrap();
        let token = front.submitted();
        let in_flight = engine.with_ring(id, |ring, _| ring.in_flight()).unwrap();
        assert!(in_flight <= token);
        front.submit(Work::Write);
        front.wait_all();
    }
    assert_eq!(engine.stay_of(id).unwrap().read().moves, 3);
    front.check();
}

#[test]
fn moving_to_nobody_leaves_the_ring_where_it_is() {
    let engine = engine(1, Poll::Off);
    let (id, front) = attach(&engine, &Back::new(), 0);
    assert!(matches!(engine.attach_to(id, 7), Err(engine::EngineError::NoSuchWorker(7))));
    front.submit(Work::Inline);
    front.wait_all();
    assert_eq!(engine.worker_of(id), Some(0));
    assert!(matches!(engine.attach_to(RingId(u64::MAX), 0), Err(engine::EngineError::NoSuchRing)));
    // The failed moves hold nothing: once the ring is gone, so may the worker be.
    engine.detach(id).unwrap();
    engine.worker_free(0).unwrap();
    assert!(matches!(engine.worker_new("again", WorkerSpec::default(), Poll::Off), Ok(1)));
}
